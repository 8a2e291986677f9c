"""Parameters updated while later gradients travel: the same bits, and an error where it would not be the same."""

import pytest
import torch

from tests.train.touched_gradients import TOUCHING
from topout.schema.errors import TopoutError
from topout.train.early_update import EarlyUpdate
from topout.train.fused import fuse
from topout.train.place import alone

SAME = """
import copy
import json
import torch
from torch import nn
import topout

ctx = topout.init()


def trained(make, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    frozen = model[0].bias.requires_grad_(False)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    seen = []
    # before ours
    optimizer.register_step_post_hook(lambda *_: seen.append([p.grad is not None for p in model.parameters()]))
    optimizer.register_step_post_hook(lambda self, *_: self.zero_grad())
    wrapped, optimizer = ctx.wrap(model, optimizer, buckets=0.25, **options)
    for step in range(8):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + ctx.rank))
        if step == 4:  # as a resumed job does: the optimizer has another state from here on
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 5:  # two halves add up, one of them averages
            with wrapped.no_sync():
                wrapped(x[:8]).square().mean().backward()
            wrapped(x[8:]).square().mean().backward()
        else:
            wrapped(x).square().mean().backward()
        optimizer.step()
        schedule.step()
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    return [*model.parameters(), *state], seen


def same(make):
    (plain, _), (early, seen) = trained(make), trained(make, early_update=True)
    return [len(plain) == len(early), all(map(torch.equal, plain, early)), seen[0]]


params = lambda p: [q for q in p if q.requires_grad]
found = {
    "momentum": same(lambda p: torch.optim.SGD(params(p), 0.1, momentum=0.9, weight_decay=0.01)),
    "adamw": same(lambda p: torch.optim.AdamW(params(p), 1e-2)),
    "groups": same(lambda p: torch.optim.SGD([{"params": q, "lr": 0.1 / (n + 1)} for n, q in enumerate(params(p))])),
}
print(json.dumps(found))
"""

REFUSED = """
import json
import torch
from torch import nn
import topout

ctx = topout.init()


def problem(step, make=torch.optim.SGD, model=None, **options):
    model = model or nn.Linear(4, 2)
    optimizer = make(model.parameters(), 0.1)
    try:
        wrapped, optimizer = ctx.wrap(model, optimizer, buckets="default", early_update=True, **options)
        wrapped(torch.ones(3, 4)).sum().backward()
        step(wrapped, optimizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "nothing"


def slower(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


def unscaled_before(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)


def again(model, optimizer):
    model(torch.ones(3, 4)).sum().backward()


found = {
    "fine": problem(lambda model, optimizer: optimizer.step()),
    "clipped": problem(clipped),
    "replaced": problem(replaced),
    "settings": problem(slower),
    "scaled": problem(scaled),
    "scaled, with momentum": problem(scaled, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "scaled, adam": problem(unscaled_before, torch.optim.Adam),
    "twice": problem(again),
    "closure": problem(lambda model, optimizer: optimizer.step(lambda: 0.0)),
    "kind": problem(lambda model, optimizer: optimizer.step(), torch.optim.RMSprop),
    "sparse": problem(lambda model, optimizer: optimizer.step(), model=nn.EmbeddingBag(4, 2, sparse=True)),
    "compressed": problem(lambda model, optimizer: optimizer.step(), compress="bf16"),
}
print(json.dumps(found), flush=True)
"""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_weights_and_state_have_the_bits_of_a_late_update(run_ranks, num_ranks: int) -> None:
    for ended in run_ranks(SAME, num_ranks):
        assert ended.code == 0, ended.stderr
        for name, (has_all, is_same, gradients) in ended.said.items():
            assert has_all, name
            assert is_same, name
            # all but the frozen bias keep their gradients to look at
            assert gradients == [True, False, True, True, True, True], name


LAID_OUT_ANEW = """
import json
import torch
from torch import nn
import topout

ctx = topout.init()


def trained(make, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
    wrapped, optimizer = ctx.wrap(model, make(model.parameters()), buckets=0.002, **options)
    for step in range(6):
        if step == 3:
            model.to(memory_format=torch.channels_last)
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(100 * step + ctx.rank))
        wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ctx.wait()
    return list(model.parameters())


def apart(make, **options):
    pairs = zip(trained(make), trained(make, **options), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


sgd = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
adamw = lambda p: torch.optim.AdamW(p, 1e-2)
ways = {"early_update": True}, {"overlap_forward": True}
print(json.dumps([apart(make, **way) for make in (sgd, adamw) for way in ways]))
"""


def test_parameters_that_are_laid_out_anew_train_as_with_a_late_update(run_ranks) -> None:
    """Gradients stay in DDP's groups as they were, and the kernels do not look at strides."""
    for ended in run_ranks(LAID_OUT_ANEW, 2):
        assert ended.code == 0, ended.stderr
        assert max(ended.said) < 1e-6, ended.said


UNUSED = """
import json
import torch
from torch import nn
import topout

ctx = topout.init()


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, uses_second):
        x = self.layers[0](x)
        return self.layers[2](self.layers[1](x) if uses_second else x)


def trained(make, **options):
    torch.manual_seed(0)
    model = Sometimes()
    wrapped, optimizer = ctx.wrap(
        model, make(model.parameters()), buckets=0.0001, find_unused_parameters=True, **options)
    for step in range(6):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + ctx.rank))
        wrapped(x, uses_second=ctx.rank == 0 or step % 2 == 0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def same(make, **options):
    return all(map(torch.equal, trained(make, **options), trained(make, early_update=True, **options)))


sgd = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
adamw = lambda p: torch.optim.AdamW(p, 1e-2)
print(json.dumps([same(make, fused_optimizer=fused) for make in (sgd, adamw) for fused in (True, False)]))
"""


def test_a_layer_that_one_rank_leaves_out_is_updated_alike_on_all(run_ranks) -> None:
    assert [ended.said for ended in run_ranks(UNUSED, 2)] == [[True] * 4] * 2


BORROWED = """
import json
import time
from pathlib import Path
import torch
from torch import nn
import topout

ctx = topout.init()
give_up_s = time.monotonic() + 60


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.before = borrowing.second.weight.detach().clone()
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        # in the first step DDP has one group, which is not complete before this returns
        while step > 0 and torch.equal(borrowing.second.weight, context.before) and time.monotonic() < give_up_s:
            time.sleep(0.001)
        return gradient


class Borrowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.second(Slow.apply(nn.functional.linear(self.first(x), self.second.weight.detach())))


borrowing = Borrowing()
model, optimizer = ctx.wrap(borrowing, torch.optim.SGD(borrowing.parameters(), 0.1), buckets=0.001, early_update=True)
said = "nothing"
try:
    for step in range(3):
        model(torch.ones(3, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
except RuntimeError as error:
    said = str(error)
print(json.dumps(said), flush=True)
# who leaves at once cuts off what the other one still receives
Path(f"said-{ctx.rank}").touch()
while len(list(Path().glob("said-*"))) < 2 and time.monotonic() < give_up_s + 30:
    time.sleep(0.001)
"""


def test_a_weight_that_backward_still_needs_is_not_changed_silently(run_ranks) -> None:
    """By the fused optimizer, which does not count its changes itself."""
    for ended in run_ranks(BORROWED, 2):
        assert "modified by an inplace operation" in ended.said


def test_what_would_come_too_late_is_an_error_on_every_rank(run_ranks) -> None:
    said = [ended.said for ended in run_ranks(TOUCHING + REFUSED, 2)]
    assert said[0] == said[1]
    found = said[0]
    assert found["fine"] == "nothing"
    assert "a gradient was changed" in found["clipped"]
    assert "a gradient was replaced" in found["replaced"]
    assert "settings were changed" in found["settings"]
    assert "a loss scaler came" in found["scaled"]
    assert "a loss scaler came" in found["scaled, with momentum"]
    assert "a loss scaler came" in found["scaled, adam"]
    assert "second backward" in found["twice"]
    assert "closure" in found["closure"]
    assert "cannot be had here" in found["kind"]
    assert "cannot be had here" in found["sparse"]
    assert "cannot be had here" in found["compressed"]


class Updated:
    """An optimizer whose parameters have been updated, as when their gradients have come."""

    def __init__(self):
        self.layer = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), 0.1)
        fuse(self.optimizer)
        self._early = EarlyUpdate(self.optimizer, alone())
        flat = torch.ones(8)
        self.layer.weight.grad, self.layer.bias.grad = flat[:6].view(2, 3), flat[6:]
        self._early._update(list(self.layer.parameters()), flat, 1)


@pytest.mark.parametrize(
    "touch",
    [
        lambda gradient: gradient.mul_(2),
        lambda gradient: gradient[0].zero_(),
        lambda gradient: gradient.detach().clamp_(max=0.5),
        lambda gradient: setattr(gradient, "data", gradient / 2),
    ],
    ids=["in place", "in part", "detached", "other memory"],
)
def test_a_gradient_that_was_changed_after_the_update_is_an_error(touch):
    updated = Updated()
    touch(updated.layer.weight.grad)
    with pytest.raises(TopoutError, match="a gradient was"):
        updated.optimizer.step()
