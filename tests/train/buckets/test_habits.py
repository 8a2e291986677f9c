"""What scripts do with a DDP module besides training it: all goes on as with DDP alone, bit for bit."""

import pytest

MODEL = """
import copy, hashlib, io, json
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import topout
import topout.train.buckets.autotune as autotune
from topout.train.buckets.trial import Choice
from topout.train.link import Link
# a machine that is busy measures another link each time, and chooses something else
autotune.measure = lambda place: Link(alpha_s=1e-5 if PREPARES else 1e-4, bytes_per_s=1e9, busy_share=0.1)
chosen = Choice(candidate=0 if PREPARES else 1, step_s=0.9, default_s=1.0)
autotune.trial.choose = lambda times_s, num_candidates, default: chosen
from topout.train.prepared import update as prepared_update
prepared_update.WORTH_BYTES = 0
ctx = topout.init()


def trained(wrap, step, num_steps=50):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(20)])
    is_fused = PREPARES and wrap in (ctx.wrap, DistributedDataParallel)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9 if is_fused else 0.0, fused=is_fused)
    if PREPARES and wrap == ctx.wrap:
        model, optimizer = ctx.wrap(model, optimizer)
    else:
        model = wrap(model)
    torch.manual_seed(ctx.rank)
    for number in range(num_steps):
        optimizer.zero_grad()
        step(model, number)
        optimizer.step()
    if PREPARES and wrap == ctx.wrap and ctx.tuning.chosen:
        assert ctx.tuning.chosen.prepares
        # nothing is prepared where torch compiles, which might trace what reads gradients
        is_preparing = prepared_update._of_models[model.module]._num_used >= 10
        assert is_preparing != prepared_update._has_compiled()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def plainly(model, number):
    model(torch.randn(4, 128)).square().mean().backward()


def name():
    return ctx.tuning.chosen.name if ctx.tuning.chosen else None
"""


@pytest.fixture(params=[False, True], ids=["late", "prepared"])
def said(run_ranks, tmp_path, request):
    """What both ranks print alike; updates are made by `step()`, or prepared while gradients travel."""

    def run(source):
        first, second = run_ranks(
            f"PREPARES = {request.param}\n" + MODEL + source, 2, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}
        )
        assert first.code == second.code == 0, first.stderr + second.stderr
        assert first.said == second.said
        return first.said

    return run


def test_it_is_compiled(said):
    source = """
def step(model, number):
    if number == 0:
        global compiled
        compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(4, 128)).square().mean().backward()
print(json.dumps([trained(ctx.wrap, step), trained(DistributedDataParallel, step), name()]))
"""
    ours, plain, name = said(source)
    assert ours == plain
    assert name == "fine"


def test_it_is_frozen_while_another_model_learns_through_it(said):
    source = """
def step(model, number):
    plainly(model, number)
    if number >= 8:
        model.requires_grad_(False)
        model(torch.ones(4, 128, requires_grad=True)).sum().backward()
        model.requires_grad_(True)
print(json.dumps([trained(ctx.wrap, step), trained(DistributedDataParallel, step), name()]))
"""
    ours, plain, name = said(source)
    assert ours == plain
    assert name == "fine"


def test_groups_that_are_tried_leave_out_what_was_frozen_at_wrapping(said):
    source = """
def build(net):
    net[0].requires_grad_(False)
    return ctx.wrap(net)
def step(model, number):
    # once thawed it is no longer what DDP took, and a step would be refused (`left_out`)
    model.module[0].requires_grad_(number >= 8)
    plainly(model, number)
    model.module[0].requires_grad_(False)
trained(build, step)
print(json.dumps([ctx.tuning.is_settled, name()]))
"""
    assert said(source) == [True, None]


def test_it_is_copied_averaged_and_saved_at_any_step(said):
    source = """
def step(model, number):
    if number in (0, 3, 20, 49):
        saved = io.BytesIO()
        torch.save(model, saved)
        loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)
        torch.optim.swa_utils.AveragedModel(model).update_parameters(model)
        for other in (copy.deepcopy(model), loaded):
            other.zero_grad()
            other(torch.full((4, 128), float(ctx.rank))).sum().backward()
            sums = torch.stack([p.grad.sum() for p in other.parameters()])
            mean = sums.clone()
            dist.all_reduce(mean)
            # a copy averages as well, and takes a hook
            assert torch.equal(mean / 2, sums)
            other.register_comm_hook(None, lambda state, bucket: None)
            assert other.register_comm_hook.__self__ is other
    plainly(model, number)
print(json.dumps([trained(ctx.wrap, step), trained(DistributedDataParallel, step), name()]))
"""
    ours, plain, name = said(source)
    assert ours == plain
    assert name == "fine"


@pytest.mark.parametrize(
    ("at", "when"), [(3, "before forward"), (14, "before forward"), (48, "before forward"), (48, "before backward")]
)
def test_a_hook_that_the_script_registers_takes_the_place_of_ours(said, at, when):
    source = (
        f"""
at, is_between = {at}, {when == "before backward"}
calls = []
def halved(state, bucket):
    calls.append(state)
    work = dist.all_reduce(bucket.buffer() / 4, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
"""
        + """
def step(model, number):
    if number == at and not is_between:
        model.register_comm_hook(number, halved)
    loss = model(torch.randn(4, 128)).square().mean()
    if number == at and is_between:
        model.register_comm_hook(number, halved)
    loss.backward()
    # with ours in place it begins with the next forward
    assert bool(calls) == (number >= at) or (is_between and number == at), number
ours = trained(ctx.wrap, step)
assert set(calls) == {at}
calls.clear()
print(json.dumps([ours, trained(DistributedDataParallel, step), ctx.tuning.is_settled]))
"""
    )
    ours, plain, is_settled = said(source)
    assert is_settled
    # one that comes in the middle of a step is for the next: that step's mean is the plain one
    assert (ours == plain) == (when == "before forward")
