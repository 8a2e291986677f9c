"""LARS and LAMB do what their papers say, in every implementation, and leave alone what is not theirs."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.optim import paper
from topout.schema.errors import TopoutError
from topout.train.optim import device_step
from topout.train.optim.lamb import LAMB
from topout.train.optim.lars import LARS

RATES = [0.1, 0.4, 0.8, 1.2, 1.6, 0.8]
SHAPES = [(64, 3, 7, 7), (64,), (300, 1000), (33, 5), (), (512, 16, 3, 3), (1, 1)]


def problem(shapes=SHAPES, dtype=torch.float32, seed=0):
    chance = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=chance, dtype=torch.float64).mul(0.05).to(dtype) for shape in shapes]
    gradients = [
        [torch.randn(shape, generator=chance, dtype=torch.float64).mul(1e-3).to(dtype) for shape in shapes]
        for _ in RATES
    ]
    return weights, gradients


def parameters(weights):
    return [torch.nn.Parameter(weight.clone(memory_format=torch.preserve_format)) for weight in weights]


def lists_of_tensors(monkeypatch):
    """What a GPU without Triton runs, on the CPU."""
    monkeypatch.setattr("topout.train.optim.layerwise.torch_step", device_step)


@pytest.mark.parametrize("implementation", ["native", "torch", "lists"])
@pytest.mark.parametrize("form", ["paper", "torch"])
def test_lars_is_the_paper_s_while_the_rate_changes(implementation, form, monkeypatch):
    if implementation == "lists":
        lists_of_tensors(monkeypatch)
    weights, gradients = problem()
    # a trust that moves weights far enough for their own rounding not to count
    expected = paper.lars(weights, gradients, RATES, decay=5e-5, trust=0.02, rate_is_outside=form == "torch")
    found = parameters(weights)
    name = implementation.replace("lists", "torch")
    optimizer = LARS(found, 0.1, weight_decay=5e-5, trust=0.02, momentum_form=form, implementation=name)
    assert paper.stepped(optimizer, found, gradients, RATES)
    assert paper.deviation(found, expected, weights) < 1e-5


@pytest.mark.parametrize("implementation", ["native", "torch", "lists"])
def test_lamb_is_the_paper_s_while_the_rate_changes(implementation, monkeypatch):
    if implementation == "lists":
        lists_of_tensors(monkeypatch)
    weights, gradients = problem()
    rates = [0.01 * rate for rate in RATES]
    expected = paper.lamb(weights, gradients, rates, decay=0.01)
    found = parameters(weights)
    optimizer = LAMB(found, 0.1, weight_decay=0.01, implementation=implementation.replace("lists", "torch"))
    assert paper.stepped(optimizer, found, gradients, rates)
    assert paper.deviation(found, expected, weights) < 1e-5


def test_the_two_forms_differ_in_a_warm_up():
    weights, gradients = problem()
    inside = paper.lars(weights, gradients, RATES, decay=5e-5)
    outside = paper.lars(weights, gradients, RATES, decay=5e-5, rate_is_outside=True)
    assert paper.deviation(outside, inside, weights) > 0.3


@pytest.mark.parametrize(("kind", "reference"), [(LARS, paper.lars), (LAMB, paper.lamb)])
def test_in_float64_nothing_is_lost(kind, reference):
    weights, gradients = problem(dtype=torch.float64)
    expected = reference(weights, gradients, RATES, decay=1e-3)
    found = parameters(weights)
    paper.stepped(kind(found, 0.1, weight_decay=1e-3), found, gradients, RATES)
    assert paper.deviation(found, expected, weights) < 1e-9


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_state_of_16_bit_parameters_is_float32_and_stays_so_when_loaded(kind, dtype):
    weights, gradients = problem([(8, 4), (8,)], dtype)
    found = parameters(weights)
    optimizer = kind(found, 0.1)
    paper.stepped(optimizer, found, gradients, RATES)
    name = optimizer.state_names[0]
    kept = optimizer.state[found[0]][name]
    assert kept.dtype == torch.float32 and found[0].dtype == dtype
    again = kind(found, 0.1)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(again.state[found[0]][name], kept)


layouts = st.sampled_from(["plain", "channels_last", "transposed", "sliced"])


def laid_out(tensor, layout):
    if layout == "channels_last" and tensor.ndim == 4:
        return tensor.to(memory_format=torch.channels_last)
    if layout == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "sliced" and tensor.ndim:
        return torch.stack([tensor, tensor], -1)[..., 0]
    return tensor


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([LARS, LAMB]),
    shape=st.lists(st.integers(1, 9), max_size=4),
    of_weights=layouts,
    of_gradient=layouts,
    adapts=st.sampled_from([None, True, False]),
    seed=st.integers(0, 99),
)
def test_memory_order_changes_nothing(kind, shape, of_weights, of_gradient, adapts, seed):
    weights, gradients = problem([tuple(shape)], seed=seed)
    plain = parameters(weights)
    options = {"weight_decay": 1e-3, "adapts": adapts}
    rates = [rate * (0.01 if kind is LAMB else 1) for rate in RATES]
    paper.stepped(kind(plain, 0.1, implementation="torch", **options), plain, gradients, rates)
    found = [torch.nn.Parameter(laid_out(weight, of_weights)) for weight in weights]
    ordered = [[laid_out(g, of_gradient) for g in step] for step in gradients]
    assert paper.stepped(kind(found, 0.1, **options), found, ordered, rates)
    assert torch.allclose(found[0], plain[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_any_number_of_threads_gives_the_same_bits(kind):
    weights, gradients = problem([(1000, 1001), (300, 1000), (77,), (400, 1000)])
    found = {}
    before = torch.get_num_threads()
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        mine = parameters(weights)
        paper.stepped(kind(mine, 0.1, weight_decay=1e-3, implementation="native"), mine, gradients, RATES)
        found[num_threads] = mine
    torch.set_num_threads(before)
    for other in (2, 5):
        assert all(torch.equal(a, b) for a, b in zip(found[1], found[other], strict=True))


def test_biases_get_plain_momentum_unless_a_group_says_otherwise():
    bias = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    bias.grad = torch.tensor([0.6, 0.8])
    LARS([bias], 1.0, weight_decay=0.5, trust=0.001).step()
    assert torch.allclose(bias, torch.tensor([2.4, 3.2]))
    # the norms are 5 and 1: the ratio is 0.001 * 5 / (1 + 0.5 * 5), and it multiplies gradient + decay * weights
    like_weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    like_weights.grad = torch.tensor([0.6, 0.8])
    LARS([{"params": [like_weights], "adapts": True}], 1.0, weight_decay=0.5, trust=0.001).step()
    assert torch.allclose(like_weights, torch.tensor([3.0, 4.0]) * (1 - 0.001 * 5 / 3.5 * 0.7))


@pytest.mark.parametrize("implementation", ["native", "torch"])
@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 2.0), (2.0, 0.0)])
def test_a_norm_of_zero_gives_the_ratio_1(implementation, weight, gradient):
    parameter = torch.nn.Parameter(torch.full((2, 2), weight))
    parameter.grad = torch.full((2, 2), gradient)
    LARS([parameter], 0.5, weight_decay=0.1, trust=1e-3, implementation=implementation).step()
    assert torch.allclose(parameter, torch.full((2, 2), weight - 0.5 * (gradient + 0.1 * weight)))


@pytest.mark.parametrize("implementation", ["native", "torch"])
def test_tiny_and_huge_values_keep_their_norms(implementation):
    for size in (1e-30, 1e25):
        parameter = torch.nn.Parameter(torch.full((4, 4), 1.0))
        parameter.grad = torch.full((4, 4), size)
        LARS([parameter], 1.0, trust=0.5, implementation=implementation).step()
        assert torch.allclose(parameter, torch.full((4, 4), 0.5))


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize("implementation", ["native", "torch"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_names_the_parameter_and_leaves_it_alone(kind, implementation, bad):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    optimizer = kind(model.named_parameters(), 0.1, implementation=implementation)
    model(torch.ones(2, 3)).sum().backward()
    model[1].weight.grad[0, 0] = bad
    before = model[1].weight.detach().clone()
    with pytest.raises(TopoutError, match=r"norm of the gradient of 1\.weight is not finite"):
        optimizer.step()
    assert torch.equal(model[1].weight, before)


def test_without_names_the_error_tells_number_and_shape():
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    parameter.grad = torch.full((2, 3), float("nan"))
    with pytest.raises(TopoutError, match=r"parameter 0 of its group \(2x3;"):
        LARS([parameter], 0.1).step()


def test_sparse_and_complex_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TopoutError, match=r"gradient of parameter 0.*: it is sparse"):
        LARS(table.parameters(), 0.1).step()
    with pytest.raises(TopoutError, match="it is complex64"):
        LAMB([torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))], 0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: LARS(p, -1.0), "lr=-1.0"),
        (lambda p: LARS(p, float("nan")), "lr=nan"),
        (lambda p: LARS(p, 0.1, momentum=1.0), "momentum=1.0"),
        (lambda p: LARS(p, 0.1, trust=0.0), "trust=0.0"),
        (lambda p: LARS(p, 0.1, momentum_form="papre"), "momentum_form='papre'"),
        (lambda p: LARS(p, 0.1, implementation="cuda"), "implementation='cuda'"),
        (lambda p: LAMB(p, 0.1, betas=(0.9, 1.0)), "beta=1.0"),
        (lambda p: LAMB(p, 0.1, eps=0.0), "eps=0.0"),
        (lambda p: LARS([{"params": p, "adapts": "no"}], 0.1), "adapts='no'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(make, said):
    with pytest.raises(TopoutError, match=f"no {said}"):
        make([torch.nn.Parameter(torch.ones(2, 2))])


def test_native_on_request_says_what_it_cannot_take():
    parameter = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(TopoutError, match="cannot step parameter 0"):
        LARS([parameter], 0.1, implementation="native").step()


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_training_goes_on_from_a_state_dict_as_if_nothing_had_happened(kind):
    weights, gradients = problem([(20, 30), (20,)])
    straight = parameters(weights)
    paper.stepped(kind(straight, 0.1, weight_decay=1e-3), straight, gradients, RATES)
    found = parameters(weights)
    first = kind(found, 0.1, weight_decay=1e-3)
    paper.stepped(first, found, gradients[:3], RATES[:3])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = kind(found, 9.0)
    second.load_state_dict(torch.load(file, weights_only=True))
    paper.stepped(second, found, gradients[3:], RATES[3:])
    assert all(torch.equal(a, b) for a, b in zip(straight, found, strict=True))


@pytest.mark.parametrize("form", ["paper", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lars_goes_on_with_the_motion_of_sgd(form, dtype):
    found = [torch.nn.Parameter(torch.ones(5, dtype=dtype)), torch.nn.Parameter(torch.ones(3, dtype=dtype))]
    before = torch.optim.SGD([{"params": [one], "lr": rate} for one, rate in zip(found, (0.01, 0.2), strict=True)],
                             lr=0.1, momentum=0.9)  # fmt: skip
    after = LARS([{"params": [one]} for one in found], 0.5, momentum_form=form)

    def step(optimizer):
        for one in found:
            one.grad = torch.full_like(one, 0.5)
        start = [one.detach().clone() for one in found]
        optimizer.step()
        return [(one.detach() - was).float() for one, was in zip(found, start, strict=True)]

    for _ in range(20):
        step(before)
    state = copy.deepcopy(before.state_dict())
    after.load_state_dict(state)
    assert torch.equal(state["state"][0]["momentum_buffer"], before.state[found[0]]["momentum_buffer"])
    start = [one.detach().clone() for one in found]
    expected = step(before)
    with torch.no_grad():
        for one, was in zip(found, start, strict=True):
            one.copy_(was)
    torch.testing.assert_close(step(after), expected, rtol=1e-6 if dtype == torch.float32 else 0.01, atol=1e-6)
    # LARS's own state is taken as it is
    again = LARS([{"params": [one]} for one in found], 0.5)
    again.load_state_dict(after.state_dict())
    for one in found:
        torch.testing.assert_close(again.state[one]["momentum_buffer"], after.state[one]["momentum_buffer"])


def test_a_parameter_moved_between_steps_is_followed():
    weights, gradients = problem([(16, 4, 3, 3)])
    expected = paper.lars(weights, gradients, RATES, decay=0.0, trust=0.02)
    found = parameters(weights)
    optimizer = LARS(found, 0.1, trust=0.02)
    paper.stepped(optimizer, found, gradients[:2], RATES[:2])
    found[0].data = found[0].data.to(memory_format=torch.channels_last)
    paper.stepped(optimizer, found, gradients[2:], RATES[2:])
    assert paper.deviation(found, expected, weights) < 1e-5


@pytest.mark.parametrize("implementation", ["native", "torch"])
def test_a_parameter_that_joins_late_or_pauses_counts_its_own_steps(implementation):
    weights, gradients = problem([(5, 4), (3, 4)])
    early, late = parameters(weights)
    optimizer = LAMB([early, late], 0.01, implementation=implementation)
    pattern = [(True, False), (True, True), (True, True), (False, True), (True, True), (False, False)]
    for (has_early, has_late), step in zip(pattern, gradients, strict=True):
        early.grad = step[0].clone() if has_early else None
        late.grad = step[1].clone() if has_late else None
        optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (early, late)] == [4, 4]
    for parameter, number in ((early, 0), (late, 1)):
        taken = [step[number] for step, has in zip(gradients, pattern, strict=True) if has[number]]
        [expected] = paper.lamb([weights[number]], [[g] for g in taken], [0.01] * 4, decay=0.0)
        assert paper.deviation([parameter], [expected], [weights[number]]) < 1e-5


def test_closures_schedulers_frozen_parameters_and_the_loss_scaler_work():
    model = torch.nn.Linear(3, 2)
    frozen = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    optimizer = LAMB([*model.parameters(), frozen], 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = model.weight.detach().clone()

    def loss_of():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(loss_of) > 0
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not torch.equal(model.weight, before) and torch.equal(frozen, torch.ones(2, 2))
    scaler.scale(torch.ones(()))
    loss_of()
    model.weight.grad[0, 0] = float("inf")
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)


def test_autograd_notices_that_weights_have_changed():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    result = (weight * weight).sum()
    weight.grad = torch.ones(2, 2)
    LARS([weight], 0.1, implementation="native").step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lars_without_momentum_is_plain_descent_at_its_rates(dtype):
    weight = torch.nn.Parameter(torch.full((4, 3), 2.0, dtype=dtype))
    bias = torch.nn.Parameter(torch.full((3,), 2.0, dtype=dtype))
    optimizer = LARS([weight, bias], lr=0.5, momentum=0.0, weight_decay=0.0, implementation="torch")
    for parameter in (weight, bias):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # the weight's own rate is small, a bias has none
    assert bias.tolist() == [1.5] * 3
    assert 1.99 < float(weight.detach().min()) == float(weight.detach().max()) < 2.0
