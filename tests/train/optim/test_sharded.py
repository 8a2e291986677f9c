"""Parameters that are spread over ranks are stepped as if one rank held them whole."""

SHARDED = """
import copy, functools, json, torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from topout.schema.errors import TopoutError
from topout.train.optim.lamb import LAMB
from topout.train.optim.lars import LARS

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
RATES = [0.1, 0.4, 0.8, 0.6, 0.2]

def model_of():
    torch.manual_seed(0)
    # 3 and 7 rows do not divide by 2, and one row leaves a rank with nothing
    return torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1), torch.nn.Linear(1, 3))

def trained(kind, sharded, implementation, scale):
    model = model_of()
    if sharded:
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = kind(model.parameters(), 0.1, weight_decay=1e-3, implementation=implementation)
    return model, optimizer, run(model, optimizer, [scale * rate for rate in RATES])

def run(model, optimizer, rates):
    for step, rate in enumerate(rates):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [whole(parameter) for parameter in model.parameters()]

def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()

def apart(ours, theirs, start):
    moved = sum((b - c).square().sum() for b, c in zip(theirs, start))
    return float((sum((a - b).square().sum() for a, b in zip(ours, theirs)) / moved).sqrt())

start = [p.detach().clone() for p in model_of().parameters()]
said = {"apart": [], "resumed": []}
for kind, scale in ((functools.partial(LARS, trust=0.05), 1.0), (LAMB, 0.1)):
    alone = trained(kind, False, "auto", scale)[2]
    for implementation in ("native", "torch"):
        model, optimizer, found = trained(kind, True, implementation, scale)
        said["apart"].append(apart(found, alone, start))
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    weights = [p.detach().clone() for p in model.parameters()]
    straight = run(model, optimizer, RATES[:2])
    for parameter, weight in zip(model.parameters(), weights):
        parameter.detach().copy_(weight)
    again = kind(model.parameters(), 0.1, weight_decay=1e-3, implementation="torch")
    set_optimizer_state_dict(model, again, state)
    said["resumed"].append(apart(run(model, again, RATES[:2]), straight, [whole(weight) for weight in weights]))

# on a mesh of two dimensions replicas count once, and a gradient of partial sums is summed first
grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
torch.manual_seed(1)
weight, gradient = torch.randn(4, 6), torch.randn(4, 6)
single = torch.nn.Parameter(weight.clone()); single.grad = gradient.clone()
LARS([single], 1.0, trust=0.1).step()
spread = torch.nn.Parameter(distribute_tensor(weight, grid, [Replicate(), Shard(0)]))
spread.grad = distribute_tensor(gradient, grid, [Replicate(), Shard(0)])
LARS([spread], 1.0, trust=0.1).step()
said["replicas"] = apart([whole(spread)], [single.detach()], [weight])

# what one rank's shard holds ends both ranks with the same error
model, optimizer, _ = trained(LARS, True, "auto", 1.0)
if dist.get_rank() == 1:
    next(model.parameters()).grad.to_local()[0, 0] = float("nan")
try:
    optimizer.step()
except TopoutError as error:
    said["error"] = str(error).splitlines()[0]
print(json.dumps(said))
dist.destroy_process_group()
"""


def test_fsdp_equals_one_rank_resumes_and_fails_on_all_ranks_alike(run_ranks):
    for ended in run_ranks(SHARDED, 2):
        assert ended.code == 0, ended.stderr
        assert len(ended.said["apart"]) == 4 and max(ended.said["apart"]) < 1e-5, ended.said
        assert max(ended.said["resumed"]) < 1e-6, ended.said
        assert ended.said["replicas"] < 1e-6
        assert "norm of the gradient of parameter 0" in ended.said["error"]
