"""On a GPU early updates, checkpoints, --ddp and Horovod's face come to what they come to on a CPU."""

import json
import subprocess
import sys

import pytest
import torch

from tests.train.horovod.test_script import plain_environment

pytestmark = pytest.mark.gpu

EARLY = """
import json
import torch
from torch import nn
import topout

ctx = topout.init()


def trained(make, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    model.to(ctx.device)
    wrapped, optimizer = ctx.wrap(model, make(model.parameters()), buckets=0.25, **options)
    for step in range(8):
        generator = torch.Generator().manual_seed(100 * step + ctx.rank)
        wrapped(torch.randn(16, 64, generator=generator).to(ctx.device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    return [*model.parameters(), *state]


def same(make):
    plain, early = trained(make), trained(make, early_update=True)
    return len(plain) == len(early) and all(map(torch.equal, plain, early))


print(json.dumps({
    "device": str(ctx.device),
    "momentum": same(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
    "fused": same(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True)),
    "adamw": same(lambda p: torch.optim.AdamW(p, 1e-2)),
    "capturable": same(lambda p: torch.optim.AdamW(p, 1e-2, capturable=True)),
}))
"""

# for one device, as people write it; what two ranks differ in is only the order in which samples come
SINGLE = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(512, 32)
data = TensorDataset(inputs, inputs @ torch.randn(32, 4))
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda")
losses = []
for epoch in range(4):
    for x, y in DataLoader(data, batch_size=int(sys.argv[1]), shuffle=True, pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
with open(f"found.{os.environ.get('RANK', 'alone')}", "w") as file:
    json.dump({"losses": losses, "sums": [float(p.double().sum()) for p in model.parameters()]}, file)
"""

HOROVOD = """
import json
import horovod.torch as hvd
import torch

hvd.init()
torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16)
target = torch.randn(16, 4, generator=torch.Generator().manual_seed(9))
losses = []
for step in range(40):
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * hvd.rank() + step))
    loss = torch.nn.functional.mse_loss(model(x.cuda()), (x @ target).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(hvd.allreduce(loss.detach(), name="loss").item())
every = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in model.parameters()])[None])
if hvd.rank() == 0:
    print(json.dumps({"losses": losses, "equal": bool((every == every[0]).all()), "device": str(every.device)}))
"""


def run(folder, script, *words):
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *words[:-1], "script.py", words[-1]],
        cwd=folder, env=plain_environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_early_updates_have_the_bits_of_a_late_update(run_ranks) -> None:
    for ended in run_ranks(EARLY, 2):
        assert ended.code == 0, ended.stderr
        assert ended.said["device"].startswith("cuda")
        assert [name for name, is_same in ended.said.items() if not is_same] == []


PARTS = """
import json, sys
import torch
from torch import nn
import topout
from topout.train.checkpoint import Checkpoints
from topout.train.partial_step import PartialStep

ctx = topout.init()
is_in_parts = sys.argv[-1] == "parts"


def build():
    model = nn.Linear(16384, 16384, bias=False).to(ctx.device)
    nn.init.ones_(model.weight)
    return model, torch.optim.SGD(model.parameters(), 1.0)


model, optimizer = build()
model, optimizer = ctx.wrap(model, optimizer)
partial = PartialStep(optimizer) if is_in_parts else None
checkpoints = ctx.checkpoint("saved", every=None)


def update(gradient):
    if is_in_parts:
        # as a group's update does: on the device at once, and before the optimizer's own step
        partial.apply([model.weight], [gradient], partial.settings())
    else:
        model.weight.grad = gradient
        optimizer.step()


# the first of each loads kernels, and takes longer than a copy
update(torch.zeros_like(model.weight))
checkpoints.save()
gradient = torch.ones_like(model.weight)
checkpoints.num_steps = 2
torch.cuda.synchronize()
checkpoints.save()
update(gradient)
checkpoints.close()
updated = model.weight.sum().item()
model, optimizer = build()
restored = Checkpoints("saved", state={"model": model, "optimizer": optimizer}, place=ctx.place)
nn.init.zeros_(model.weight)
restored.restore()
print(json.dumps({"updated": updated, "is_as_saved": bool((model.weight == 1).all())}))
"""


@pytest.mark.parametrize("how", ["parts", "whole"])
def test_a_checkpoint_holds_nothing_of_an_update_that_came_after_it(tmp_path, how) -> None:
    """1 GiB takes some 20 ms to copy, an update on the device next to nothing."""
    found = json.loads(run(tmp_path, PARTS, how).stdout.splitlines()[-1])
    assert found == {"updated": 0.0, "is_as_saved": True}


def test_a_script_for_one_gpu_becomes_data_parallel(tmp_path) -> None:
    run(tmp_path, SINGLE, "64")
    said = run(tmp_path, SINGLE, "-m", "topout", "run", "-n", "2", "--ddp", "--no-report", "32").stderr
    assert "ranks share a GPU" in said
    alone, *ranks = (json.loads((tmp_path / f"found.{name}").read_text()) for name in ("alone", 0, 1))
    assert ranks[0]["sums"] == ranks[1]["sums"]
    assert all(len(rank["losses"]) == len(alone["losses"]) for rank in ranks)
    last = torch.tensor([rank["losses"][-8:] for rank in ranks]).mean()
    assert last == pytest.approx(sum(alone["losses"][-8:]) / 8, rel=0.3)
    assert last < 0.5 * alone["losses"][0]


def test_a_horovod_script_averages_on_the_gpu(tmp_path) -> None:
    done = run(tmp_path, HOROVOD, "-m", "topout", "run", "-n", "2", "--no-report", "-")
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["equal"]
    assert found["device"].startswith("cuda")
    assert found["losses"][-1] < 0.1 * found["losses"][0]
