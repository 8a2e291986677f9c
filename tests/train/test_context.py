"""`topout.init()` and `wrap` in real ranks: ordinary objects come back, and all ranks train the same model."""

import json
import sys

import pytest

from topout.schema.errors import TopoutError

TRAIN = """
import hashlib, json, sys
import torch
from torch import nn
import topout

ctx = topout.init()
torch.manual_seed(100 + ctx.rank)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(inputs, torch.arange(64) % 4)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
before = model, optimizer
model, optimizer, loader = ctx.wrap(model, optimizer, loader)
seen = 0
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    seen += len(x)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(json.dumps({
    "rank": ctx.rank, "world_size": ctx.world_size, "seen": seen, "digest": digest, "same": before[0] is model,
    "same_optimizer": before[1] is optimizer, "kind": type(model).__mro__[-3].__name__ if ctx.world_size > 1 else "",
    "is_loader": isinstance(loader, torch.utils.data.DataLoader),
}))
"""


def test_ranks_that_start_from_different_weights_train_one_model(run_ranks):
    first, second = (ended.said for ended in run_ranks(TRAIN, 2))
    assert first["digest"] == second["digest"]
    assert [first["seen"], second["seen"]] == [32, 32]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["same_optimizer"] and first["is_loader"]


def test_a_process_without_a_launcher_is_a_world_of_one_and_gets_its_own_objects_back(run_ranks, tmp_path):
    # run_ranks sets torch's variables; without them nobody has started several ranks
    (ended,) = run_ranks("import os\nfor n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'): del os.environ[n]\n" + TRAIN, 1)
    assert ended.code == 0, ended.stderr
    assert ended.said["same"] and ended.said["same_optimizer"]
    assert (ended.said["world_size"], ended.said["seen"]) == (1, 64)


def test_topout_run_and_torchrun_start_the_same_ranks(run_topout, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN.replace("print(json.dumps(", f"open(r'{tmp_path}/' + str(ctx.rank), 'w').write(json.dumps(")
    )
    assert run_topout(["run", "-n", 2, script]).code == 0
    by_topout = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    import subprocess

    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=120, check=False).returncode == 0
    by_torchrun = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert by_topout == by_torchrun
    assert by_topout[0]["digest"] == by_topout[1]["digest"]


def test_models_that_differ_between_ranks_are_an_error_that_names_the_parameter(run_ranks):
    source = """
import topout
from torch import nn
ctx = topout.init()
ctx.wrap(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10 + ctx.rank)))
"""
    for ended in run_ranks(source, 2):
        assert ended.code != 0
        assert "Rank 1 has another model than rank 0: 1.weight (11x4, float32) instead of 1.weight (10x4, float32)" in (
            ended.stderr
        )


def test_statistics_in_evaluation_are_those_of_rank_0_and_training_does_not_send_them(run_ranks):
    source = """
import json, torch, topout
from torch import nn
import torch.distributed as dist
ctx = topout.init()
model = ctx.wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
broadcasts = []
sync = model._sync_buffers
model._sync_buffers = lambda: (broadcasts.append(model.training), sync())
for _ in range(3):
    model(torch.full((4, 2), float(ctx.rank)) + torch.randn(4, 2)).sum().backward()
model.eval()
before = model.module[1].running_mean.tolist()
model(torch.zeros(1, 2))
print(json.dumps([before, model.module[1].running_mean.tolist(), broadcasts]))
"""
    first, second = (ended.said for ended in run_ranks(source, 2))
    assert first[0] == first[1] == second[1]
    assert second[0] != second[1]
    assert first[2] == [False]


CHOICES_THAT_DIFFER = """
import os, sys, topout
from torch import nn
ctx = topout.init()
options = [{"compress": "bf16"}, {}] if sys.argv[1] == "compress" else [{}, {"buckets": 4}]
ctx.wrap(nn.Linear(2, 2), **options[ctx.rank])
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [("compress", "compress=None, rank 0 with compress='bf16'"), ("buckets", "buckets=4, rank 0 with buckets='auto'")],
)
def test_ranks_that_wrap_in_different_ways_are_an_error_on_all_of_them(run_ranks, name, said):
    for ended in run_ranks(CHOICES_THAT_DIFFER, 2, [name]):
        assert ended.code != 0
        assert f"Rank 1 calls wrap with {said}" in ended.stderr


MIXED_DTYPES = """
import hashlib, json, torch, topout
from torch import nn
from torch.nn.parallel import DistributedDataParallel
ctx = topout.init()

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8, dtype=d) for d in (torch.bfloat16, None, torch.float64))

    def forward(self, x):
        return self.third(self.second(self.first(x.bfloat16()).float()).double())

def trained(wrap):
    torch.manual_seed(0)
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = wrap(model, optimizer)
    torch.manual_seed(ctx.rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return hashlib.sha256(b"".join(bytes(p.detach().view(torch.uint8).numpy()) for p in model.parameters())).hexdigest()

print(json.dumps([
    trained(lambda model, optimizer: ctx.wrap(model, optimizer)[0]),
    trained(lambda model, _: DistributedDataParallel(model)),
]))
"""


def test_parameters_of_several_types_are_averaged_as_ddp_does_it(run_ranks):
    first, second = run_ranks(MIXED_DTYPES, 2)
    assert first.code == second.code == 0, first.stderr
    assert first.said[0] == first.said[1] == second.said[0]


@pytest.mark.parametrize(
    "options",
    [{"buckets": "large"}, {"buckets": 0}, {"compress": "zip"}, {"compress": "auto", "buckets": 4}],
    ids=str,
)
def test_a_choice_that_does_not_exist_is_an_error(options):
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    with pytest.raises(TopoutError):
        Context(alone()).wrap(nn.Linear(1, 1), **options)


def test_an_optimizer_of_another_model_is_an_error():
    import torch
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    with pytest.raises(TopoutError, match="holds no parameter of this model"):
        Context(alone()).wrap(nn.Linear(1, 1), optimizer)


def test_variables_that_are_only_half_set_are_an_error(run_ranks):
    (ended,) = run_ranks(
        "import os\ndel os.environ['MASTER_ADDR']\nos.environ['WORLD_SIZE'] = '2'\nimport topout\ntopout.init()", 1
    )
    assert ended.code != 0
    assert "MASTER_ADDR is not set" in ended.stderr


COMPRESSED = """
import hashlib, json
import torch
from torch import nn
import topout

ctx = topout.init()
inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(inputs, torch.arange(64) % 4)


def digest(name):
    torch.manual_seed(100 + ctx.rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1), loader, compress=name)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


print(json.dumps({name: digest(name) for name in ("bf16", "fp16", "int8", "powersgd", "hierarchical")}))
"""


def test_every_compression_trains_equal_replicas(run_ranks):
    first, second = run_ranks(COMPRESSED, 2)
    assert first.code == second.code == 0, first.stderr
    assert first.said == second.said and len(first.said) == 5


def test_a_second_model_is_saved_under_names_of_its_own(tmp_path):
    import torch
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    def train(num_steps):
        ctx = Context(alone())
        torch.manual_seed(num_steps)
        pairs = []
        for _ in range(2):
            model = nn.Linear(2, 2)
            pairs.append(ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1)))
        checkpoints = ctx.checkpoint(tmp_path / "checkpoints", every=1)
        for _ in range(num_steps):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            checkpoints.step()
        checkpoints.close()
        return pairs, ctx

    saved, ctx = train(2)
    restored, _ = train(0)
    assert all(torch.equal(now.weight, then.weight) for (now, _), (then, _) in zip(restored, saved, strict=True))
    with pytest.raises(TopoutError, match="2 models were wrapped"):
        ctx.evaluate(lambda batch: {}, [])


KEPT = """
import json, os
import torch
from torch import nn
import topout
from topout.schema.errors import TopoutError
from topout.train.context import Context

ctx = topout.init()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.ones(8, 4))


model = nn.Linear(4, 2)
stream = torch.utils.data.DataLoader(Stream(), batch_size=4)
optimizer = torch.optim.Adam(model.parameters())
model, optimizer, stream = ctx.wrap(model, optimizer, stream, own_share=True)
said = {}
try:
    ctx.checkpoint("saved", every=2, model=nn.Linear(1, 1))
except TopoutError as error:
    said["taken"] = str(error)
try:
    overlapped = nn.Linear(4, 2)
    other = Context(ctx.place)
    other.wrap(overlapped, torch.optim.SGD(overlapped.parameters(), 0.1), overlap_forward=True)
    other.noise_scale()
except TopoutError as error:
    said["noise"] = str(error)
try:
    ctx.wrap(nn.EmbeddingBag(4, 2, sparse=True), compress="int8")
except TopoutError as error:
    said["sparse"] = str(error)
saved = ctx.checkpoint("saved", every=2)
for x in [*stream, *stream]:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    saved.step()
own = [torch.ones(3), torch.ones(1)][: 2 - ctx.rank]
said["samples"] = ctx.evaluate(lambda batch: {"samples": float(batch.sum())}, own, own_share=True)["samples"]
# without saved.close()
ctx.close()
# rank 0 may be about to remove its lock
said["steps"] = sorted(name for name in os.listdir("saved") if name != ".lock")
print(json.dumps(said), flush=True)
"""


def test_what_the_context_made_is_finished_with_it(run_ranks):
    for ended in run_ranks(KEPT, 2):
        assert ended.code == 0, ended.stderr
        assert ended.said["steps"] == ["step-000000000002", "step-000000000004"]
        assert ended.said["samples"] == 3 + 1 + 3
        assert "model= is the name of what wrap was given" in ended.said["taken"]
        assert "sparse gradients" in ended.said["sparse"]
        assert "cannot be had with overlap_forward=True" in ended.said["noise"]


FROZEN_NORM = """
import json
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import topout

ctx = topout.init()


def trained(wrap):
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8):
        model.train()
        if step >= 4:
            model.module[1].eval()
        x = torch.randn(8, 2, generator=torch.Generator().manual_seed(10 * step + ctx.rank)) + 3 * ctx.rank
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


ours = trained(lambda model: ctx.wrap(model, buckets="default"))
print(json.dumps(all(map(torch.equal, ours, trained(DistributedDataParallel)))))
"""


def test_statistics_that_are_frozen_later_are_those_of_rank_0(run_ranks):
    assert [ended.said for ended in run_ranks(FROZEN_NORM, 2)] == [True, True]


UNFROZEN = """
import hashlib, json, sys
import torch
from torch import nn
import topout
from topout.schema.errors import TopoutError

ctx = topout.init()
torch.manual_seed(ctx.rank)


def problem(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    try:
        optimizer.step()
    except TopoutError as error:
        return error.problem


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
net[0].requires_grad_(False)
model, optimizer = ctx.wrap(net, torch.optim.SGD(net.parameters(), 0.1))
said = {"frozen": problem(model, optimizer)}
net[0].requires_grad_(True)
said["thawed"] = problem(model, optimizer)
said["in another optimizer"] = problem(model, torch.optim.SGD(net.parameters(), 0.1))
former, model = model, ctx.wrap(model)
said["anew"] = [model is not former, model.module is net, ctx.wrap(model) is model]
said["wrapped again"] = problem(model, optimizer)
net.append(nn.Linear(2, 2))
optimizer.add_param_group({"params": net[2].parameters()})
said["added"] = problem(model, optimizer)
model = ctx.wrap(net)
said["with it"] = [problem(model, optimizer) for _ in range(3)]
# in place, which is looked for now and then
net.append(nn.Linear(2, 2))
optimizer.param_groups[1]["params"].extend(net[3].parameters())
found = [problem(model, optimizer) for _ in range(64)]
said["put in"] = [text for text in found if text is not None][:1]
model = ctx.wrap(model.module)
said["with that"] = problem(model, optimizer)
said["parts"] = [name for wrapped in ctx._living() for name in wrapped.parts()]
for _ in range(3):
    problem(model, optimizer)
said["digest"] = digest(net)

bare = ctx.wrap(nn.Linear(2, 2).requires_grad_(False))
bare.requires_grad_(True)
said["bare"] = problem(bare, torch.optim.SGD(bare.parameters(), 0.1))

loss = nn.Linear(2, 2)
both = torch.optim.SGD([*net.parameters(), *loss.parameters()], 0.1)
print("a loss", file=sys.stderr)
problem(lambda x: loss(model(x)), both)
loss = ctx.wrap(loss)
print("a wrapped loss", file=sys.stderr)
problem(lambda x: loss(model(x)), both)
print(json.dumps(said))
"""


def test_what_is_unfrozen_or_added_after_wrapping_is_never_trained_by_each_rank_alone(run_ranks):
    ranks = run_ranks(UNFROZEN, 2)
    for ended in ranks:
        assert ended.code == 0, ended.stderr
        said = ended.said
        assert said["thawed"] == said["in another optimizer"]
        assert said["thawed"].startswith("The optimizer trains 0.weight and 1 more parameter, which are not averaged")
        assert said["added"].startswith("The optimizer trains 2.weight and 1 more parameter")
        assert said["put in"][0].startswith("The optimizer trains 3.weight and 1 more parameter")
        assert said["with that"] is None
        assert said["anew"] == [True, True, True]
        assert said["bare"].startswith("The optimizer trains weight and 1 more parameter")
        assert (said["frozen"], said["wrapped again"], said["with it"]) == (None, None, [None, None, None])
        assert said["parts"] == ["model", "optimizer"]
    assert ranks[0].said["digest"] == ranks[1].said["digest"]


def test_a_loss_that_learns_and_was_not_wrapped_is_told(run_ranks):
    first, second = (ended.stderr for ended in run_ranks(UNFROZEN, 2))
    before, after = first.split("a wrapped loss")
    assert before.count("trains 2 parameters of no wrapped model: each rank keeps its own") == 1
    assert "of no wrapped model" not in after + second


OTHERWISE = """
import json, sys
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import topout
from topout.schema.errors import TopoutError
from topout.train.diloco import DiLoCo
from topout.train.local_sgd import LocalSGD

ctx = topout.init()


def thawed():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    ddp = ctx.wrap(net)
    net.requires_grad_(True)
    return net, ddp


def problem(model, optimizer):
    try:
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
    except TopoutError as error:
        return error.problem


said = {}
net, _ = thawed()
local = LocalSGD(net, ctx.place)
said["local SGD"] = problem(net, torch.optim.SGD(net.parameters(), 0.1))
del local
said["and then nobody"] = problem(net, torch.optim.SGD(net.parameters(), 0.1))
net, _ = thawed()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
local = DiLoCo(net, optimizer, ctx.place)
said["DiLoCo"] = problem(net, optimizer)
net, ddp = thawed()
own = DistributedDataParallel(ddp.module, static_graph=True)
said["own DDP"] = problem(own, torch.optim.SGD(net.parameters(), 0.1))
net, ddp = thawed()
given = ctx.wrap(DistributedDataParallel(ddp.module))
said["given DDP"] = problem(given, torch.optim.SGD(net.parameters(), 0.1))
net, ddp = thawed()
own = DistributedDataParallel(net)
said["own DDP, the same again"] = None if ctx.wrap(ddp) is ddp else "another"
net, ddp = thawed()
ctx.wrap(ddp)
with torch.no_grad():
    ddp(torch.randn(4, 2))
said["the former"] = problem(ddp, torch.optim.SGD(net.parameters(), 0.1))
net, _ = thawed()
net[0].requires_grad_(False)
own = DistributedDataParallel(net)
net.requires_grad_(True)
said["own DDP, before"] = problem(own, torch.optim.SGD(net.parameters(), 0.1))
net, _ = thawed()
fully_shard(net, mesh=init_device_mesh("cpu", (ctx.world_size,)))
said["sharded"] = problem(net, torch.optim.SGD(net.parameters(), 0.1))

model = ctx.wrap(nn.Linear(2, 2))
loss = DistributedDataParallel(nn.Linear(2, 2))
problem(lambda x: loss(model(x)), torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1))
print(json.dumps(said))
"""


def test_what_the_script_averages_in_another_way_is_left_to_it(run_ranks):
    for ended in run_ranks(OTHERWISE, 2):
        assert ended.code == 0, ended.stderr
        said = ended.said
        assert said.pop("the former") == "The model was wrapped anew, and this is its DDP module of before."
        for name in ("and then nobody", "own DDP, before"):
            assert said.pop(name).startswith("The optimizer trains 0.weight and 1 more parameter, which are not")
        left = ("local SGD", "DiLoCo", "own DDP", "given DDP", "own DDP, the same again", "sharded")
        assert said == dict.fromkeys(left)
        assert "of no wrapped model" not in ended.stderr


WRAPPED_AGAIN = """
import hashlib, json
import torch
from torch import nn
import topout

ctx = topout.init()
torch.manual_seed(ctx.rank)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
model[0].requires_grad_(False)
first = model[0].weight
model, optimizer = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
before = first.tolist()
if ctx.rank == 0 or not ALONE:
    first.requires_grad_(True)
model = ctx.wrap(model)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
print(json.dumps([first.tolist() != before, hashlib.sha256(first.detach().numpy().tobytes()).hexdigest()]))
"""


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_one_line_wraps_again_in_any_world(run_ranks, num_ranks):
    ranks = run_ranks(WRAPPED_AGAIN.replace("ALONE", "False"), num_ranks)
    for ended in ranks:
        assert ended.code == 0, ended.stderr
    assert ranks[0].said[0] and all(ended.said == ranks[0].said for ended in ranks)


def test_what_one_rank_alone_has_unfrozen_is_named_when_it_is_wrapped_again(run_ranks):
    for ended in run_ranks(WRAPPED_AGAIN.replace("ALONE", "True"), 2):
        assert ended.code != 0
        assert "Rank 1 has another model than rank 0: 0.weight (2x2, float32, no gradient) instead of" in ended.stderr


COMPILED = """
import json
import torch
from torch import nn
import topout
from topout.schema.errors import TopoutError

ctx = topout.init()
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
net[0].requires_grad_(False)
model, optimizer = ctx.wrap(net, torch.optim.SGD(net.parameters(), 0.1))
model = torch.compile(model, backend="eager")
is_same = ctx.wrap(model) is model
net.requires_grad_(True)
refused = None
try:
    ctx.wrap(model)
except TopoutError as error:
    refused = error.do
model = torch.compile(ctx.wrap(model._orig_mod), backend="eager")
model(torch.full((1, 2), 1.0 + ctx.rank)).sum().backward()
optimizer.step()
print(json.dumps([is_same, refused, ctx._num_wrapped, [parameter.tolist() for parameter in net.parameters()]]))
"""


def test_a_compiled_model_is_not_wrapped_around_its_ddp_module(run_ranks):
    first, second = run_ranks(COMPILED, 2)
    assert first.code == second.code == 0, first.stderr
    assert first.said == second.said
    assert first.said[:3] == [True, "model = torch.compile(ctx.wrap(model._orig_mod))", 1]


def test_an_optimizer_that_its_parameters_hold_is_let_go():
    """As where each is updated within backward."""
    import gc
    import weakref

    import torch
    from torch import nn

    from topout.train import left_out

    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    for parameter in net.parameters():
        parameter.optimizer = torch.optim.SGD([parameter], 0.1)
        left_out._before_step(parameter.optimizer, (), {})
    kept = [weakref.ref(parameter.optimizer) for parameter in net.parameters()]
    del net, parameter
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_torchs_default_device_may_be_another_than_the_hosts(tmp_path, name, device):
    """Whatever lies on the host does so by itself: what went by this default would have no memory at all."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import topout
    from topout.train.context import Context
    from topout.train.place import alone

    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, 2))
    ctx = Context(alone("cuda" if device == "cuda" else "cpu"))

    def losses(batch):
        inputs, targets = (value.to(ctx.device) for value in batch)
        return {"loss": (model(inputs) - targets).square().mean(1)}

    model.to(ctx.device)
    with torch.device(device):
        optimizer = getattr(topout, name)(model.parameters(), lr=0.1)
        model, optimizer, loader = ctx.wrap(model, optimizer, DataLoader(data, 2, shuffle=True))
        for batch in loader:
            optimizer.zero_grad()
            losses(batch)["loss"].sum().backward()
            optimizer.step()
        before = ctx.evaluate(losses, DataLoader(data, 2))["loss"]
        with ctx.checkpoint(tmp_path, every=None) as checkpoints:
            checkpoints.save()
        with torch.no_grad():
            model.weight.zero_()
        with ctx.checkpoint(tmp_path) as checkpoints:
            assert checkpoints.restored is not None
        assert torch.equal(ctx.evaluate(losses, DataLoader(data, 2))["loss"], before)


FOLDS = """
import gc, json, weakref
import torch
from torch import nn
import topout

ctx = topout.init()
gc.disable()  # what is left over is found out when it matters
models, optimizers = [], []
for fold in range(3):
    # large enough to be tuned, and gone before that ends
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inner = weakref.ref(model)
    model, optimizer = ctx.wrap(model, optimizer)
    model(torch.randn(2, 512)).sum().backward()
    optimizer.step()
    models.append(inner)
    optimizers.append(weakref.ref(optimizer))
result = ctx.evaluate(lambda batch: {"in evaluation": not model.training}, torch.utils.data.DataLoader([1.0, 2.0]))
names = list(ctx._living()[0].parts())
# only rank 0 keeps one more: no rank has it in its checkpoint
kept = model if ctx.is_first else None
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = ctx.wrap(model, optimizer)
later = [name for wrapped in ctx._living() for name in wrapped.parts()]
living = [[reference() is not None for reference in references[:2]] for references in (models, optimizers)]
print(json.dumps([result, names, later, living]))
"""


def test_models_that_a_script_has_dropped_are_let_go(run_ranks):
    for ended in run_ranks(FOLDS, 2):
        assert ended.code == 0, ended.stderr
        result, names, later, living = ended.said
        assert result == {"in evaluation": 2}
        assert names == ["model-3", "optimizer-3"]
        assert later == ["model-4", "optimizer-4"]
        assert living == [[False, False], [False, False]]


def test_what_a_script_still_trains_stays_though_it_holds_only_a_part_of_it():
    import gc

    import torch
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    ctx = Context(alone())
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    model, optimizer, loader = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    del model, loader
    gc.collect()
    (wrapped,) = ctx._living()
    assert list(wrapped.parts()) == ["model", "optimizer", "loader"]
    del wrapped, optimizer
    gc.collect()
    assert ctx._living() == []


AGAIN = """
import gc, json
import torch
from torch import nn
import topout

ctx = topout.init()
data = torch.utils.data.TensorDataset(torch.ones(16, 2))


def parts():
    return {name: part for wrapped in ctx._living() for name, part in wrapped.parts().items()}


net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
net[0].requires_grad_(False)
optimizer = torch.optim.SGD(net[1].parameters(), 0.1)
labelled, unlabelled = (torch.utils.data.DataLoader(data, batch_size=2) for _ in range(2))
model, optimizer, labelled = ctx.wrap(net, optimizer, labelled, compress="powersgd")
compressed = parts().get("compression")
model, unlabelled = ctx.wrap(model, loader=unlabelled)
both = parts()
said = {"names": list(both), "loaders": both["loader"] is labelled and both["loader+2"] is unlabelled}
said["compression"] = both.get("compression") is compressed
model, labelled = ctx.wrap(model, loader=labelled)
said["given again"] = list(parts())
second = torch.optim.Adam(net[1].parameters())
model, second = ctx.wrap(model, second)
both = parts()
said["optimizers"] = both["optimizer"] is optimizer and both["optimizer+2"] is second
if ctx.is_first:
    # gone on the others
    kept = unlabelled
del optimizer, unlabelled, both
said["dropped"] = parts()["optimizer"] is second and list(parts())

net[0].requires_grad_(True)
third = torch.optim.SGD(net.parameters(), 0.1)
model, third = ctx.wrap(net, third)
said["anew"] = parts()["optimizer"] is third and list(parts())
other = ctx.wrap(nn.Linear(2, 2))
said["another model"] = list(parts())
print(json.dumps(said))
"""


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_the_same_model_is_wrapped_with_again_is_kept_too_until_it_is_dropped_or_replaced(run_ranks, num_ranks):
    for rank, ended in enumerate(run_ranks(AGAIN, num_ranks)):
        assert ended.code == 0, ended.stderr
        said = ended.said
        compression = ["compression"] if num_ranks > 1 else []
        assert said["names"] == ["model", "optimizer", "loader", "loader+2", *compression]
        assert said["given again"] == said["names"]
        assert said["loaders"] and said["compression"] and said["optimizers"]
        left = ["loader"] if num_ranks > 1 else ["loader", "loader+2"]
        assert said["dropped"] == ["model", "optimizer", *left, *compression]
        assert said["anew"] == ["model", "optimizer", *left]
        assert said["another model"] == [*said["anew"], "model-2"]
        told = "the model was wrapped anew: SGD takes the place of Adam in checkpoints"
        assert ended.stderr.count(told) == (rank == 0)


def test_a_loader_of_a_phase_that_is_over_gives_its_name_to_the_next(tmp_path):
    """Though the script still has the checkpoints of that phase, which are closed."""
    import torch

    from topout.train.context import Context
    from topout.train.place import alone

    ctx = Context(alone())
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for phase in range(3):
        loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
        model, optimizer, loader = ctx.wrap(net, optimizer, loader)
        with ctx.checkpoint(tmp_path / str(phase)) as checkpoints:
            next(iter(loader))
            optimizer.step()
            checkpoints.step()
        (wrapped,) = ctx._living()
        assert wrapped.parts() == {"model": model, "optimizer": optimizer, "loader": loader}
    # a closed one still saves what the script has
    optimizer.step()
    checkpoints.step()
    checkpoints.save()
    checkpoints.close()
    assert sorted(path.name for path in (tmp_path / "2").glob("step-*"))[-1].endswith("2")


def test_a_further_loader_has_the_name_of_its_place_whatever_came_before(tmp_path):
    import gc

    import torch
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    def loader():
        return torch.utils.data.DataLoader(list(range(8)))

    ctx = Context(alone())
    model, main = ctx.wrap(nn.Linear(2, 2), loader=loader())
    _, first_phase = ctx.wrap(model, loader=loader())
    _, second_phase = ctx.wrap(model, loader=loader())
    del first_phase
    gc.collect()
    (wrapped,) = ctx._living()
    assert wrapped.parts() == {"model": model, "loader": main, "loader+2": second_phase}


def test_an_optimizer_for_other_layers_stays_when_the_model_is_wrapped_anew(capsys):
    import torch
    from torch import nn

    from topout.train.context import Context
    from topout.train.place import alone

    ctx = Context(alone())
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    model, head = ctx.wrap(net, torch.optim.SGD(net[1].parameters(), 0.1))
    net[0].requires_grad_(True)
    model, trunk = ctx.wrap(net, torch.optim.SGD(net[0].parameters(), 0.1))
    (wrapped,) = ctx._living()
    assert wrapped.parts() == {"model": model, "optimizer": head, "optimizer+2": trunk}
    assert capsys.readouterr().err == ""
    with pytest.raises(TopoutError, match="no one model and optimizer") as raised:
        ctx.noise_scale()
    assert raised.value.why == "1 model and 2 optimizers were wrapped."


def test_a_second_loader_goes_on_where_it_stood(tmp_path):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from topout.train.context import Context
    from topout.train.place import alone

    def loaders():
        ctx = Context(alone())
        model, data = nn.Linear(2, 2), TensorDataset(torch.ones(16, 2))
        model, _, first = ctx.wrap(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data, batch_size=2))
        model, second = ctx.wrap(model, loader=DataLoader(data, batch_size=4))
        return ctx.checkpoint(tmp_path, every=None), first, second, model

    checkpoints, first, second, _kept = loaders()
    batches = iter(first), iter(second)
    for _ in range(3):
        next(batches[0])
    next(batches[1])
    with checkpoints:
        checkpoints.save()
    checkpoints, *again, _kept = loaders()
    checkpoints.close()
    assert [loader.state_dict() for loader in again] == [first.state_dict(), second.state_dict()]
    assert [len(list(loader)) for loader in again] == [5, 3]
