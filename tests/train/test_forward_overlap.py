"""Gradients that travel during the next forward: the same bits, really later, and an error where it would not be so."""

import gc

import pytest
import torch

from tests.train.touched_gradients import TOUCHING
from topout.train.forward_overlap import ForwardOverlap
from topout.train.place import alone
from topout.train.wrapped import Wrapped

SLOW_LINK = """
import threading
import time
import torch.distributed as dist
from topout.train import forward_overlap
from topout.train.link import Link

real = dist.all_reduce
waiting, turn = [], threading.Condition()
travels_s, may_leave = 0.02, threading.Event()
may_leave.set()


def carry():
    while True:
        with turn:
            turn.wait_for(lambda: waiting)
            tensor, group, done = waiting.pop(0)
        may_leave.wait(30)
        time.sleep(travels_s)
        real(tensor, group=group)
        done.set_result([tensor])


class Travelling:
    def __init__(self, done):
        self.get_future = lambda: done


def all_reduce(tensor, group=None, async_op=False, **options):
    if not async_op or group is dist.group.WORLD:
        return real(tensor, group=group, async_op=async_op, **options)
    done = torch.futures.Future()
    with turn:
        waiting.append((tensor, group, done))
        turn.notify()
    return Travelling(done)


forward_overlap.dist.all_reduce = all_reduce
forward_overlap.measure = lambda place: Link(alpha_s=0.02, bytes_per_s=1e9)
threading.Thread(target=carry, daemon=True).start()
"""
"""Gradients alone take 20 ms a group, one after another, and leave when a script says that they may."""

MODELS = """
import copy
import json
import torch
from torch import nn
import topout


class Mixed(nn.Module):
    # a parameter of its own, a module that is never called itself (attention's out_proj), one that is called twice
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(64))
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.twice = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.tied = nn.Linear(64, 64, bias=False)
        self.tied.weight = self.twice.weight
        self.head = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        self.head[0].bias.requires_grad_(False)

    def forward(self, x):
        x = x + self.shift
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.tied(self.norm(self.twice(torch.relu(self.twice(x))))))


class Conv(nn.Module):
    # weights in another order of memory; in evaluation without its layers' own forwards
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(5, 24, 3), nn.Conv1d(24, 9, 3)
        self.images = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(60 * 9 + 3 * 62 * 8, 8)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        image = x.unsqueeze(1)[:, :, :5].expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        if self.training:
            x, image = self.second(self.first(x)), self.images(image)
        else:
            both = nn.functional.conv1d(x, self.first.weight, self.first.bias)
            x = nn.functional.conv1d(both, self.second.weight, self.second.bias)
            image = nn.functional.conv2d(image, self.images.weight, self.images.bias)
        return nn.functional.linear(torch.cat([x.flatten(1), image.flatten(1)], 1), self.head.weight, self.head.bias)


def deep():
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())], nn.Linear(64, 8))
"""

SAME = (
    MODELS
    + """
ctx = topout.init()


def trained(build, make, **options):
    torch.manual_seed(0)
    model = build()
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    wrapped, optimizer = ctx.wrap(model, optimizer, buckets=0.02, **options)
    overlap = ctx._overlaps[-1] if options else None
    seen, late = [], []
    for step in range(12):
        x = torch.randn(4, 5, 64, generator=torch.Generator().manual_seed(100 * step + ctx.rank))
        if step % 2:
            optimizer.zero_grad()
        if step == 6:  # as a resumed job does: the optimizer has another state from here on
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 7:  # a copy of the model is not the trained one, and reads parameters as they are
            ctx.wait()
            copied = copy.deepcopy(model)
            seen += [copied(x), *(value.clone() for value in copied.state_dict().values())]
        if step == 8:
            wrapped.eval()
            with torch.no_grad():
                seen += [wrapped(x), model(x)]
            wrapped.train()
        if step == 9:
            seen += [value.clone() for value in wrapped.state_dict().values()]
        if step == 10:  # two halves add up, one of them averages
            with wrapped.no_sync():
                wrapped(x[:2]).square().mean().backward()
        # all have come when forward ends; those of this backward leave after the step
        loss = wrapped(x[2:] if step == 10 else x).square().mean()
        may_leave.clear()
        loss.backward()
        optimizer.step()
        if overlap is not None:
            late.append(overlap.num_travelling())
        may_leave.set()
        schedule.step()
        if not (step + 1) % 2:
            optimizer.zero_grad()
    ctx.wait()
    state = [value for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
    return [*model.parameters(), *seen, *filter(torch.is_tensor, state)], late, overlap and overlap._order


def same(build, make):
    plain, _, _ = trained(build, make)
    found, late, order = trained(build, make, overlap_forward=True)
    return {"same": len(plain) == len(found) and all(map(torch.equal, plain, found)), "late": late, "order": order}


print(json.dumps({
    "momentum": same(deep, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
    "adamw": same(Mixed, lambda p: torch.optim.AdamW(p, 1e-2)),
    "conv": same(Conv, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
    "unfused": same(Conv, lambda p: torch.optim.AdamW(p, 1e-3, foreach=True)),
    "groups": same(Mixed, lambda p: torch.optim.SGD([{"params": q, "lr": 0.1 / (n + 1)} for n, q in enumerate(p)])),
}))
"""
)

REFUSED = (
    MODELS
    + """
ctx = topout.init()


def problem(step, build=deep, make=torch.optim.SGD, own=list, **options):
    model = build()
    optimizer = make(own(model.parameters()), 0.1)
    try:
        wrapped, optimizer = ctx.wrap(model, optimizer, buckets="default", overlap_forward=True, **options)
        wrapped(torch.ones(3, 64)).sum().backward()
        step(wrapped, optimizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[:2]
    finally:
        ctx.wait()
    return "nothing"


def slower(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()


def converted(model, optimizer):
    optimizer.step()
    model.to("cpu")
    # nothing travels any more, so that what is asked afterwards can be told
    ctx.wait()
    model.half()


def again(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 64)).sum().backward()


def kept(model, optimizer):
    optimizer.step()
    model(torch.ones(3, 64)).sum().backward()


def replaced_unseen(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def looked_at(model, optimizer):
    torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()


def zeroed(model, optimizer):
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


step = lambda model, optimizer: optimizer.step()
found = {
    "fine": problem(step),
    "clipped": problem(clipped),
    "changed": problem(replaced),
    "replaced": problem(replaced_unseen),
    "settings": problem(slower),
    "twice": problem(again),
    "kept": problem(kept),
    "looked at": problem(looked_at),
    "zeroed": problem(zeroed),
    "scaled": problem(scaled),
    "converted": problem(converted),
    "closure": problem(lambda model, optimizer: optimizer.step(lambda: 0.0)),
    "kind": problem(step, make=torch.optim.RMSprop),
    "compressed": problem(step, compress="bf16"),
    "unused": problem(step, find_unused_parameters=True),
    "compiled": problem(step, build=lambda: torch.compile(deep(), backend="eager")),
    "sparse": problem(step, build=lambda: nn.Sequential(nn.EmbeddingBag(4, 64, sparse=True), *deep())),
    "other optimizer": problem(step, own=lambda parameters: list(parameters)[1:]),
}
print(json.dumps(found), flush=True)
"""
)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_weights_and_state_have_the_bits_of_waiting(run_ranks, num_ranks: int) -> None:
    # among three ranks the order of additions depends on where a piece begins
    pieces = "forward_overlap.PIECE_BYTES = 8192" if num_ranks == 2 else ""
    # of a length that the next forward does not outlast
    link = f"{SLOW_LINK}\n{pieces}\ntravels_s = 0.002"
    script = SAME.replace("ctx = topout.init()", f"{link}\nctx = topout.init()")
    for ended in run_ranks(script, num_ranks):
        assert ended.code == 0, ended.stderr
        for name, found in ended.said.items():
            assert found["same"], name
            # whatever the order, most groups come after the step
            assert min(found["late"]) >= 1, name
            assert sorted(found["order"]) == list(range(len(found["order"]))), name
            if len(found["order"]) > 2:
                assert found["order"] != sorted(found["order"]), name


def test_what_would_differ_is_an_error_on_every_rank(run_ranks) -> None:
    said = [ended.said for ended in run_ranks(TOUCHING + REFUSED, 2)]
    assert said[0] == said[1]
    found = {name: " ".join(lines) for name, lines in said[0].items() if name != "fine"}
    assert said[0]["fine"] == "nothing"
    for name in ("clipped", "changed", "looked at", "zeroed", "scaled", "converted"):
        assert "TopoutError: With overlap_forward a gradient was used after backward" in found[name], name
    assert "a gradient was replaced" in found["replaced"]
    assert "settings were changed" in found["settings"]
    assert "second backward" in found["twice"]
    assert "without optimizer.zero_grad()" in found["kept"]
    assert "closure" in found["closure"]
    for name in ("kind", "compressed", "unused", "compiled", "sparse", "other optimizer"):
        assert "cannot be had here" in found[name], name


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_weight_borrowed_from_a_later_layer_is_waited_for(run_ranks, is_planned: bool) -> None:
    """Without it (`is_planned` False: nobody sees who uses what) autograd finds the weight changed, and raises."""
    blind = "" if is_planned else "who_waits._inside = lambda value: ()"
    script = (
        MODELS
        + SLOW_LINK
        + f"""
from topout.train import who_waits
{blind}


class Borrowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = deep()

    def forward(self, x):
        # detached, so that its gradient is ready when its own module's is
        return self.layers[1:](nn.functional.linear(self.layers[0](x), weight=self.layers[6].weight.detach()))


ctx = topout.init()


def trained(**options):
    torch.manual_seed(0)
    model = Borrowed()
    wrapped, optimizer = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1), buckets=0.02, **options)
    for step in range(8):
        wrapped(torch.ones(3, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    ctx.wait()
    return list(model.parameters())


said = "nothing"
try:
    said = all(map(torch.equal, trained(), trained(overlap_forward=True)))
except RuntimeError as error:
    said = str(error)
print(json.dumps(said), flush=True)
"""
    )
    for ended in run_ranks(script, 2):
        if is_planned:
            assert ended.said is True
        else:
            assert "modified by an inplace operation" in ended.said


def test_ranks_that_accumulate_differently_plan_in_the_same_step(run_ranks) -> None:
    """The order is agreed on by a collective, and ranks have seen different numbers of forwards by then."""
    script = (
        MODELS
        + SLOW_LINK
        + """
ctx = topout.init()


def trained(**options):
    torch.manual_seed(0)
    model = deep()
    wrapped, optimizer = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1), buckets=0.02, **options)
    for step in range(9):
        for _ in range(3 if ctx.rank == 0 else 1):
            with wrapped.no_sync():
                wrapped(torch.ones(3, 64)).square().mean().backward()
        wrapped(torch.ones(3, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    ctx.wait()
    return list(model.parameters())


print(json.dumps(all(map(torch.equal, trained(), trained(overlap_forward=True)))), flush=True)
"""
    )
    assert [ended.said for ended in run_ranks(script, 2)] == [True, True]


class Around(torch.nn.Module):
    """In place of DDP's."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_a_model_that_a_script_has_dropped_is_let_go():
    """What `wrap` remembers keeps the model as long as its optimizer is there; so the model must not keep that."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    remembered = Wrapped(1, model=model, optimizer=optimizer, loader=None, compression=None)
    ddp = Around(model)
    ForwardOverlap(optimizer, alone()).watch(ddp)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    del model, optimizer, ddp
    gc.collect()
    # the model is garbage since its optimizer is gone
    gc.collect()
    assert not remembered.is_alive
