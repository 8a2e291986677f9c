"""What a checkpoint keeps of how gradients are averaged: read from a real reducer, taken back only where it fits."""

from tests.train.conftest import RunRanks

MODEL = """
import copy, json
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import topout
from topout.train.buckets.assignment import in_force
from topout.train.buckets.kept import kept, may_put_back, put_back
from topout.train.buckets.regroup import group_sizes, regroup
ctx = topout.init()
torch.manual_seed(0)
def step(ddp):
    ddp.zero_grad()
    ddp(torch.randn(2, 64)).square().mean().backward()
def made(**options):
    return DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]), **options)
"""


def test_groups_are_known_from_the_second_step_on_and_given_to_another_reducer(run_ranks: RunRanks) -> None:
    source = (
        MODEL
        + """
ddp, other = made(bucket_cap_mb=0.03), made(bucket_cap_mb=0.03)
seen = []
for _ in range(3):
    step(ddp)
    seen.append(kept(ddp))
value = json.loads(json.dumps(seen[1]))
before = group_sizes(other)
put_back(other, value)
given = [group_sizes(other), kept(other)]
for _ in range(3):
    step(other)
print(json.dumps([seen, before, given, kept(other)]))
"""
    )
    value = {"groups": [[5, 4, 3, 2], [1, 0]], "choice": None, "hands_over_after": []}
    of_one = (64 * 64 + 64) * 4
    for ended in run_ranks(source):
        assert ended.code == 0, ended.stderr
        assert ended.said == [[None, value, value], [3 * of_one], [[2 * of_one, of_one], value], value]


def test_what_does_not_fit_is_not_taken_back(run_ranks: RunRanks) -> None:
    source = (
        MODEL
        + """
value = {"groups": [[5, 4, 3, 2], [1, 0]], "choice": None, "hands_over_after": []}
ddp = made()
ok = may_put_back(ddp, value)
wrong = [
    None, [1], {}, {"groups": value["groups"]},
    *({**value, "groups": groups} for groups in (
        None, [], [[5, 4, 3], [1, 0]], [[5, 4, 3, 2, 2], [1, 0]], [[5, 4, 3, 2], [1, 0], [6]], [[5, 4, 3, 2], [1, -1]],
        [[5, 4, 3, 2], [1, 0], []], [[5, 4, 3, 2], [True, False]], [[5, 4, 3, 2], ["1", "0"]], [5, 4, 3, 2, 1, 0])),
    *({**value, "choice": choice} for choice in (
        {"name": "fine"}, 1, {"name": "fine", "limits": [0], "hook": None, "hands_over": False, "prepares": False},
        # of a module that is not tuned
        {"name": "fine", "limits": [9], "hook": None, "hands_over": False, "prepares": False})),
    {**value, "hands_over_after": ["0"]},
]
of_two_kinds = made()
of_two_kinds.module[1].bfloat16()
frozen = made()
frozen.module[0].requires_grad_(False)
print(json.dumps([
    ok, [may_put_back(ddp, one) for one in wrong], may_put_back(of_two_kinds, value), may_put_back(frozen, value),
    may_put_back(made(static_graph=True), value), may_put_back(made(find_unused_parameters=True), value)]))
"""
    )
    for ended in run_ranks(source):
        assert ended.code == 0, ended.stderr
        ok, wrong, *others = ended.said
        assert ok
        assert len(wrong) == 19
        assert not any(wrong)
        assert others == [False] * 4


def test_hooks_of_the_script_and_layers_frozen_since_keep_their_reducer(run_ranks: RunRanks) -> None:
    source = (
        MODEL
        + """
import torch.distributed as dist
def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
plain, hooked, built_in, frozen, whole = (made() for _ in range(5))
hooked.register_comm_hook(None, hook)
built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
for ddp in (plain, hooked, built_in, frozen):
    for _ in range(3):
        step(ddp)
frozen.module[2].bias.requires_grad_(False)
print(json.dumps([kept(ddp) is not None for ddp in (plain, hooked, built_in, frozen, whole)]))
"""
    )
    assert [ended.said for ended in run_ranks(source)] == [[True, False, False, False, False]] * 2


def test_a_copy_of_a_tuned_model_is_not_tuned(run_ranks: RunRanks) -> None:
    source = (
        MODEL
        + """
import io
from topout.train.buckets.autotune import tuning_of
model = ctx.wrap(nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]))
stored = io.BytesIO()
torch.save(model, stored)
stored.seek(0)
copies = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
print(json.dumps([tuning_of(model) is ctx.tuning, *(tuning_of(one) is None for one in copies)]))
"""
    )
    assert [ended.said for ended in run_ranks(source)] == [[True, True, True]] * 2
