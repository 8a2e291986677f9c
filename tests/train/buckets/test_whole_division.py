"""A group divided at once is DDP's mean bit for bit, and what it could not follow is said."""

MODEL = """
import json, hashlib
import torch
from torch import nn
import topout
from topout.train.buckets.regroup import regroup
from topout.train.buckets.whole_division import divide_whole, is_exact
ctx = topout.init()
def trained(divides_whole):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    model, optimizer = ctx.wrap(net, torch.optim.SGD(net.parameters(), 0.3, momentum=0.9), buckets="default")
    regroup(model, (40_000, 80_000, 200_000))
    if divides_whole:
        divide_whole(model)
    torch.manual_seed(ctx.rank)
    for step in range(6):
        optimizer.zero_grad()
        if step % 3 == 2:
            with model.no_sync():
                model(torch.randn(4, 64)).square().mean().backward()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
"""


def test_among_two_ranks_it_gives_the_bits_of_ddp(run_ranks):
    for ended in run_ranks(MODEL + "print(json.dumps([trained(False), trained(True), is_exact(ctx.world_size)]))", 2):
        plain, whole, is_exact = ended.said
        assert plain == whole
        assert is_exact


def test_only_powers_of_two_divide_without_rounding():
    from topout.train.buckets.whole_division import is_exact

    assert [count for count in range(1, 17) if is_exact(count)] == [1, 2, 4, 8, 16]


def test_a_divisor_that_changes_later_is_refused_and_joining_as_such_is_not(run_ranks):
    source = (
        MODEL
        + """
from topout.schema.errors import TopoutError
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
model = ctx.wrap(net, buckets="default")
regroup(model, (20_000, 60_000))
divide_whole(model)
with model.join():
    for _ in range(1 + ctx.rank):
        model(torch.randn(4, 64)).sum().backward()
said = None
try:
    with model.join(divide_by_initial_world_size=False, throw_on_early_termination=False):
        model(torch.randn(4, 64)).sum().backward()
except TopoutError as error:
    said = error.problem
# else the first to end takes the connection from one that still leaves the join before
torch.distributed.barrier()
print(json.dumps(said))
"""
    )
    for ended in run_ranks(source, 2):
        assert ended.code == 0, ended.stderr
        assert "divide_by_initial_world_size" in ended.said
