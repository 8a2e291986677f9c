"""LARS and LAMB on a GPU, all tensors of a group in three launches. Each program works on one chunk of one tensor.

`table` has five whole numbers a tensor: addresses of weights, gradient, first and second state, and how many elements.
`numbers` has four more: whether it adapts, its decay, and LAMB's two corrections, which are multiplied with those of
all tensors. Not to be imported without Triton.
"""

# Triton's language looks like Python and is typed by its own compiler
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917

import triton
import triton.language as tl


@triton.jit
def _address(table, tensor, field: tl.constexpr, kind: tl.constexpr, is_aligned: tl.constexpr):
    address = tl.load(table + tensor * 5 + field)
    if is_aligned:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(kind))


@triton.jit
def first_pass(
    table, numbers, chunk_tensor, chunk_begin, partial, beta1, beta2, eps, all_correct1, all_correct2,
    is_lamb: tl.constexpr, of_weights: tl.constexpr, of_gradient: tl.constexpr, is_aligned: tl.constexpr,
    chunk: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Sums of squares of a chunk: of the weights, and of the gradient (LARS) or of the direction (LAMB)."""
    number = tl.program_id(0)
    tensor = tl.load(chunk_tensor + number)
    begin = tl.multiple_of(tl.load(chunk_begin + number), 16)
    num = tl.load(table + tensor * 5 + 4)
    weights = _address(table, tensor, 0, of_weights, is_aligned)
    gradient = _address(table, tensor, 1, of_gradient, is_aligned)
    adapts = tl.load(numbers + tensor * 4)
    weight_squares = tl.zeros([block], tl.float32)
    other_squares = tl.zeros([block], tl.float32)
    for i in range(0, chunk, block):
        at = begin + i + tl.arange(0, block)
        is_inside = at < num
        w = tl.load(weights + at, mask=is_inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + at, mask=is_inside, other=0.0).to(tl.float32)
        weight_squares += w * w
        if is_lamb:
            first = _address(table, tensor, 2, tl.float32, is_aligned)
            second = _address(table, tensor, 3, tl.float32, is_aligned)
            decay = tl.load(numbers + tensor * 4 + 1)
            correct1 = all_correct1 * tl.load(numbers + tensor * 4 + 2)
            correct2 = all_correct2 * tl.load(numbers + tensor * 4 + 3)
            m = beta1 * tl.load(first + at, mask=is_inside, other=0.0) + (1.0 - beta1) * g
            v = beta2 * tl.load(second + at, mask=is_inside, other=0.0) + (1.0 - beta2) * g * g
            tl.store(first + at, m, mask=is_inside)
            tl.store(second + at, v, mask=is_inside)
            r = correct1 * m / (correct2 * tl.sqrt(v) + eps) + decay * w
            other_squares += r * r
        else:
            other_squares += g * g
    of_weights_sum = tl.sum(weight_squares, 0)
    other_sum = tl.sum(other_squares, 0)
    tl.store(partial + 2 * number, tl.where(adapts > 0, of_weights_sum, 0.0))
    tl.store(partial + 2 * number + 1, tl.where(adapts > 0, other_sum, 0.0))


@triton.jit
def add_up(partial, first_chunk, sums, block: tl.constexpr):
    """Chunks of a tensor in one order, so that equal gradients give equal bits."""
    tensor = tl.program_id(0)
    begin = tl.load(first_chunk + tensor)
    end = tl.load(first_chunk + tensor + 1)
    of_weights = tl.zeros([block], tl.float32)
    of_others = tl.zeros([block], tl.float32)
    for i in range(begin, end, block):
        at = i + tl.arange(0, block)
        of_weights += tl.load(partial + 2 * at, mask=at < end, other=0.0)
        of_others += tl.load(partial + 2 * at + 1, mask=at < end, other=0.0)
    tl.store(sums + 2 * tensor, tl.sum(of_weights, 0))
    tl.store(sums + 2 * tensor + 1, tl.sum(of_others, 0))


@triton.jit
def second_pass(
    table, numbers, chunk_tensor, chunk_begin, sums, rate, beta1, eps, trust, smallest_norm, all_correct1,
    all_correct2, is_lamb: tl.constexpr, rate_is_outside: tl.constexpr, of_weights: tl.constexpr,
    of_gradient: tl.constexpr, is_aligned: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The update of a chunk; a tensor whose sums are not finite is left as it is."""
    number = tl.program_id(0)
    tensor = tl.load(chunk_tensor + number)
    begin = tl.multiple_of(tl.load(chunk_begin + number), 16)
    num = tl.load(table + tensor * 5 + 4)
    weights = _address(table, tensor, 0, of_weights, is_aligned)
    first = _address(table, tensor, 2, tl.float32, is_aligned)
    decay = tl.load(numbers + tensor * 4 + 1)
    weight_squares = tl.load(sums + 2 * tensor)
    other_squares = tl.load(sums + 2 * tensor + 1)
    weight_norm = tl.sqrt(weight_squares)
    other_norm = tl.sqrt(other_squares)
    # false for infinity and for what is not a number; nothing is written then
    is_finite = (weight_squares < 3.4e38) & (other_squares < 3.4e38)
    # of LAMB, trust is 1; decay is part of its direction
    share = other_norm if is_lamb else other_norm + decay * weight_norm + eps
    ratio = trust * weight_norm / share
    # those that do not adapt have sums of 0
    ratio = tl.where((weight_norm >= smallest_norm) & (other_norm >= smallest_norm), ratio, 1.0)
    for i in range(0, chunk, block):
        at = begin + i + tl.arange(0, block)
        is_inside = (at < num) & is_finite
        w = tl.load(weights + at, mask=is_inside, other=0.0).to(tl.float32)
        first_state = tl.load(first + at, mask=is_inside, other=0.0)
        if is_lamb:
            second = _address(table, tensor, 3, tl.float32, is_aligned)
            correct1 = all_correct1 * tl.load(numbers + tensor * 4 + 2)
            correct2 = all_correct2 * tl.load(numbers + tensor * 4 + 3)
            v = tl.load(second + at, mask=is_inside, other=0.0)
            r = correct1 * first_state / (correct2 * tl.sqrt(v) + eps) + decay * w
            tl.store(weights + at, (w - rate * ratio * r).to(of_weights), mask=is_inside)
        else:
            gradient = _address(table, tensor, 1, of_gradient, is_aligned)
            g = tl.load(gradient + at, mask=is_inside, other=0.0).to(tl.float32)
            if rate_is_outside:
                velocity = beta1 * first_state + ratio * (g + decay * w)
                moved = w - rate * velocity
            else:
                velocity = beta1 * first_state + rate * ratio * (g + decay * w)
                moved = w - velocity
            tl.store(first + at, velocity, mask=is_inside)
            tl.store(weights + at, moved.to(of_weights), mask=is_inside)
