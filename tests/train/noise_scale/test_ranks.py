"""The noise scale in real ranks: what it sees are the gradients that one process computes of the same samples."""

import math

import pytest

WATCH = """
import json, math, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import topout
from topout.train.noise_scale import NoiseScale
from topout.train.compression import install, make

BATCH = 4
ctx = topout.init()

def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))

def batch(step, rank, part):
    chance = torch.Generator().manual_seed(1000 * step + 10 * rank + part)
    return torch.randn(BATCH, 1, 6, 6, generator=chance), torch.randint(0, 3, (BATCH,), generator=chance)

def squared(gradients):
    return sum(float(g.double().square().sum()) for g in gradients)

def truth(model, step, num_parts):
    gradients = []
    for rank in range(ctx.world_size):
        for part in range(num_parts):
            loss = nn.functional.cross_entropy(model(batch(step, rank, part)[0]), batch(step, rank, part)[1])
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    mean = [torch.stack(column).mean(0) for column in zip(*gradients)]
    return [sum(map(squared, gradients)) / len(gradients), squared(mean)]

def train(wrap, num_parts=1, divide=True, clip=False, scaler=None, steps=3, every=1, lr=0.0, **options):
    # weights stay what they are (lr 0), so that one plain model knows the gradients of every step
    plain, model = build(), wrap(build())
    optimizer = torch.optim.SGD(model.parameters(), lr)
    noise = NoiseScale(model, optimizer, ctx.place, batch_size=BATCH, every=every, scaler=scaler, **options)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(num_parts):
            is_last = part == num_parts - 1
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(is_last)
            elif hasattr(model, "no_sync"):
                model.require_backward_grad_sync = is_last
            x, y = batch(step, ctx.rank, part)
            loss = nn.functional.cross_entropy(model(x), y) / (num_parts if divide else 1)
            (loss if scaler is None else scaler.scale(loss)).backward()
        if clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    rows = noise.state_dict()["samples"]
    expected = [truth(plain, row[0], num_parts) for row in rows]
    errors = [abs(row[1 + i] / want[i] - 1) for row, want in zip(rows, expected) for i in (0, 1)]
    noise.close()
    return {"steps": [row[0] for row in rows], "error": max(errors, default=None), "missing": noise.missing,
            "sizes": rows[-1][3:] if rows else [], "dropped": noise.num_dropped}

def compressed(name):
    def wrap(model):
        ddp = DDP(model)
        install(ddp, make(name, ctx.place))
        return ddp
    return wrap

def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (ctx.world_size,))
    fully_shard(model[3], mesh=mesh)
    return fully_shard(model, mesh=mesh)

found = {}
"""

DDP = (
    WATCH
    + """
found["plain"] = train(DDP)
found["views, small buckets"] = train(lambda m: DDP(m, gradient_as_bucket_view=True, bucket_cap_mb=0.0001))
found["accumulated and clipped"] = train(lambda m: DDP(m, gradient_as_bucket_view=True), num_parts=3, clip=True)
found["bf16"] = train(compressed("bf16"))
found["int8"] = train(compressed("int8"))
found["scaled"] = train(DDP, clip=True, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1))
found["every third"] = train(DDP, steps=7, every=3)
found["said otherwise"] = train(DDP, num_parts=2, accumulate=4)

class ByHand(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x)

def by_hand(model):
    wrapped = ByHand(model)
    for parameter in wrapped.parameters():
        def average(p):
            dist.all_reduce(p.grad)
            p.grad /= ctx.world_size
        parameter.register_post_accumulate_grad_hook(average)
    return wrapped

found["by hand"] = train(by_hand)

left = DDP(build())
optimizer = torch.optim.SGD(left.parameters(), 0.0)
noise = NoiseScale(left, optimizer, ctx.place, batch_size=BATCH, every=1)
for step in range(3):  # never zeroed: gradients of earlier steps are still there, and all are the same
    x, y = batch(0, 0, 0)
    nn.functional.cross_entropy(left(x), y).backward()
    optimizer.step()
noise.state_dict()
found["left over"] = {"missing": noise.missing, "dropped": noise.num_dropped}

closed = DDP(build())
optimizer = torch.optim.SGD(closed.parameters(), 0.0)
noise = NoiseScale(closed, optimizer, ctx.place, batch_size=BATCH, every=4)
hooks = lambda: sum(len(p._backward_hooks or {}) for p in closed.parameters())
counts = []
for step in range(5):
    counts.append(hooks())
    optimizer.zero_grad()
    x, y = batch(step, ctx.rank, 0)
    nn.functional.cross_entropy(closed(x), y).backward()
    optimizer.step()
found["hooks by step"] = counts

try:
    NoiseScale(DDP(build()), optimizer, ctx.place, batch_size=4 if ctx.rank else None)
except topout.schema.errors.TopoutError as error:
    found["refused"] = error.problem
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    from tests.train.conftest import ended, start_ranks

    script = tmp_path_factory.mktemp("noise") / "script.py"
    script.write_text(DDP)
    processes = start_ranks(script, 2)
    outputs = [process.communicate(timeout=120) for process in processes]
    return [ended(process, *output) for process, output in zip(processes, outputs, strict=True)]


@pytest.fixture(scope="module")
def found(ddp):
    first, second = ddp
    assert [first.code, second.code] == [0, 0], first.stderr + second.stderr
    return first.said


@pytest.mark.parametrize("way", ["plain", "views, small buckets", "scaled", "by hand"])
def test_squared_norms_are_those_of_one_process(found, way):
    assert found[way]["steps"] == [0, 1, 2]
    assert found[way]["sizes"] == [4, 8]
    assert found[way]["error"] < 1e-5


def test_micro_batches_count_and_clipping_comes_too_late_to_matter(found):
    assert found["accumulated and clipped"]["sizes"] == [4, 24]
    assert found["accumulated and clipped"]["error"] < 1e-5


def test_what_compression_rounds_off_is_all_that_differs(found):
    assert found["bf16"]["error"] < 0.01
    assert found["int8"]["error"] < 0.05


def test_only_every_third_step_is_sampled_and_only_it_has_hooks(found):
    assert found["every third"]["steps"] == [2, 5]
    assert found["hooks by step"] == [0, 0, 0, 4, 0]


def test_steps_that_are_not_what_was_said_are_left_out_and_it_says_why(found):
    assert found["said otherwise"]["dropped"] == 3
    assert "2 backwards" in found["said otherwise"]["missing"] and "accumulate=4" in found["said otherwise"]["missing"]


def test_a_gradient_that_is_no_mean_of_those_seen_is_left_out(found):
    assert found["left over"]["dropped"] == 2  # the first step had nothing left over
    assert "not the mean" in found["left over"]["missing"]


def test_what_one_rank_was_not_told_ends_both(ddp):
    first, second = (rank.said["refused"] for rank in ddp)
    assert "batch size" in first
    assert "Rank 0 failed" in second


def test_gradients_that_fsdp2_shards_are_seen_whole(run_ranks):
    source = (
        WATCH
        + """
found["fsdp"] = train(sharded)
found["fsdp accumulated and clipped"] = train(sharded, num_parts=2, clip=True, divide=False)
print(json.dumps(found))
"""
    )
    first, second = run_ranks(source, 2)
    assert first.code == 0, first.stderr
    # the gathered parameters are not there before the first forward
    assert first.said["fsdp"]["steps"] == [1, 2]
    assert first.said["fsdp"]["error"] < 1e-5
    assert first.said["fsdp accumulated and clipped"]["sizes"] == [4, 16]
    # losses that are not divided make gradients twice the mean, so squares are 4 times
    assert math.isclose(first.said["fsdp accumulated and clipped"]["error"], 3.0, rel_tol=1e-4)
    assert second.code == 0, second.stderr


SPLIT = """
import json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import topout
from topout.train.noise_scale import NoiseScale

ctx = topout.init()
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
line = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8))

def split(mesh):
    return parallelize_module(build(), mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})

def batch(row, step, part):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * row + 10 * step + part))

def loss(model, x):
    return (model(x) - x).square().mean()

def truth(rows, step, num_parts):
    model, parts = build(), []
    for row in range(rows):
        for part in range(num_parts):
            gradients = torch.autograd.grad(loss(model, batch(row, step, part)), list(model.parameters()))
            parts.append(torch.cat([gradient.flatten() for gradient in gradients]).double())
    return [float(torch.stack(parts).square().sum(1).mean()), float(torch.stack(parts).mean(0).square().sum())]

def average(model):
    for parameter in model.parameters():
        local = parameter.grad.to_local() if hasattr(parameter.grad, "placements") else parameter.grad
        dist.all_reduce(local, group=grid["dp"].get_group())
        local /= 2

def train(model, rows, num_parts, by_hand=False):
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    given = {"batch_size": 4, "every": 1, "accumulate": num_parts, "num_data_ranks": rows}
    noise = NoiseScale(model, optimizer, ctx.place, **given)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(num_parts):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == num_parts - 1)
            (loss(model, batch(grid["dp"].get_local_rank() if rows > 1 else 0, step, part)) / num_parts).backward()
        if by_hand:
            average(model)
        optimizer.step()
    found = [[step, small, big, truth(rows, step, num_parts)] for step, small, big, *_ in noise.state_dict()["samples"]]
    noise.close()
    return [found, noise.missing]

sharded = split(grid["tp"])
for module in (sharded[1], sharded):
    fully_shard(module, mesh=grid["dp"])
said = {
    "accumulated on four peers": train(split(line), 1, 2),
    "averaged by hand": train(split(grid["tp"]), 2, 1, by_hand=True),
    "averaged by FSDP2": train(sharded, 2, 2),
}
hidden = nn.parallel.DistributedDataParallel(split(grid["tp"]), device_mesh=grid["dp"])
for name, model, rows in [("all", split(grid["tp"]), None), ("three", split(grid["tp"]), 3), ("hidden", hidden, 2)]:
    try:
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        NoiseScale(model, optimizer, ctx.place, batch_size=4, num_data_ranks=rows)
    except topout.schema.errors.TopoutError as error:
        said[name] = [error.problem, error.do]
print(json.dumps(said), flush=True)
ctx.close()
"""


def test_layers_that_are_split_and_layers_that_are_not_count_once_each(run_ranks):
    ranks = run_ranks(SPLIT, 4)
    assert [rank.code for rank in ranks] == [0] * 4, ranks[0].stderr[-3000:]
    for way, num_samples in {"accumulated on four peers": 3, "averaged by hand": 3, "averaged by FSDP2": 2}.items():
        found, missing = ranks[0].said[way]
        assert len(found) == num_samples, (way, missing)
        for _, small, big, (wanted_small, wanted_big) in found:
            assert small == pytest.approx(wanted_small, rel=1e-5), way
            assert big == pytest.approx(wanted_big, rel=1e-5), way
    assert ranks[3].said["all"] == [
        "The model has layers split over 2 ranks, and num_data_ranks=4 of 4.",
        "NoiseScale(..., num_data_ranks=2)",
    ]
    assert ranks[3].said["three"][1] == "num_data_ranks: a divisor of 4"
    assert "device_mesh=" in ranks[3].said["hidden"][0]
