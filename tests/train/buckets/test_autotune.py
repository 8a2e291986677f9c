"""Groups change while training goes on, and nothing else does: replicas, means and the way the script looks stay."""

import json

import pytest

MODEL = """
import json, sys, hashlib
import torch, torch.distributed as dist
from torch import nn
import topout
ctx = topout.init()
torch.manual_seed(0)
layers = [nn.Linear(128, 128) for _ in range(30)]
net = nn.Sequential(*layers)
torch.manual_seed(ctx.rank)
def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
"""


@pytest.fixture
def own_cache(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_it_settles_within_fifty_steps_and_replicas_stay_equal(run_ranks, own_cache):
    source = (
        MODEL
        + """
import topout.train.buckets.autotune as autotune
from topout.train.link import Link
# a machine that is busy measures another link each time
autotune.measure = lambda place: Link(alpha_s=1e-4, bytes_per_s=1e9)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
model, optimizer = ctx.wrap(net, optimizer)
for count in range(1, 61):
    optimizer.zero_grad()
    model(torch.randn(4, 128)).square().mean().backward()
    optimizer.step()
    if ctx.tuning.is_settled:
        break
model(torch.randn(4, 128)).square().mean().backward()
print(json.dumps([count, digest(model), ctx.tuning.chosen.name, ctx.tuning.chosen.limits]))
"""
    )
    first, second = (ended.said for ended in run_ranks(source, 2, env=own_cache))
    assert first[0] <= 50
    assert first == second
    # an earlier choice is taken up at once
    again, _ = (ended.said for ended in run_ranks(source, 2, env=own_cache))
    assert again[0] == 5
    assert again[2:] == first[2:]


def test_groups_are_those_that_were_asked_for_and_gradients_are_the_mean(run_ranks):
    source = (
        MODEL
        + """
from topout.train.buckets.regroup import group_sizes, regroup
model = ctx.wrap(net, buckets="default")
of_one = 128 * 128 * 4 + 128 * 4
errors, sizes = [], []
for limits in (None, (of_one, 9 * of_one, 20 * of_one), (30 * of_one,)):
    regroup(model, limits)
    for _ in range(3):
        model.zero_grad()
        x = torch.randn(4, 128)
        plain = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        flat = torch.cat([g.flatten() for g in plain])
        dist.all_reduce(flat)
        model(x).square().mean().backward()
        got = torch.cat([p.grad.flatten() for p in model.parameters()])
        errors.append(float((got - flat / 2).abs().max()))
    sizes.append([size // of_one for size in group_sizes(model)])
print(json.dumps([max(errors), sizes[1:]]))
"""
    )
    for ended in run_ranks(source, 2):
        assert ended.code == 0, ended.stderr
        assert ended.said == [0.0, [[1, 9, 20], [30]]]


@pytest.mark.parametrize("habit", ["two forwards", "unused parameter", "no_sync"])
def test_it_follows_accumulation_and_stays_away_from_loops_that_it_cannot_follow(run_ranks, own_cache, habit):
    source = (
        MODEL
        + f"""
import contextlib
habit = {habit!r}
"""
        + """
class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.extra = net, nn.Linear(128, 128)
    def forward(self, x):
        return self.net(x)
unused = habit == "unused parameter"
model = ctx.wrap(Sometimes() if unused else net, find_unused_parameters=unused)
for count in range(60):
    model.zero_grad()
    if habit == "two forwards":
        (model(torch.randn(4, 128)) - model(torch.randn(4, 128))).square().mean().backward()
    elif habit == "no_sync":
        with model.no_sync():
            model(torch.randn(4, 128)).square().mean().backward()
        model(torch.randn(4, 128)).square().mean().backward()
    else:
        model(torch.randn(4, 128)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
chosen = ctx.tuning.chosen
print(json.dumps([digest(model), chosen.name if chosen else None]))
"""
    )
    first, second = (ended.said for ended in run_ranks(source, 2, env=own_cache))
    assert first == second
    assert (first[1] is not None) == (habit == "no_sync")


def test_a_file_of_choices_that_is_damaged_is_as_if_it_were_not_there(tmp_path):
    from topout.train.buckets.grouping import Gradient
    from topout.train.buckets.regroup import Grouping
    from topout.train.buckets.remembered import Remembered
    from topout.train.link import Link

    gradients, link = [Gradient(num_bytes=10, ready_s=0.0)], Link(alpha_s=1e-4, bytes_per_s=1e8)
    memory = Remembered("model", tmp_path)
    assert memory.find(gradients, link) is None
    memory.keep(Grouping(name="fine", limits=(4, 6)), 0.1)
    assert memory.find(gradients, link)["limits"] == [4, 6]
    # a link of a quarter of the speed is another link
    assert memory.find(gradients, Link(alpha_s=1e-4, bytes_per_s=2.5e7)) is None
    (file,) = tmp_path.iterdir()
    whole = json.loads(file.read_text())
    for text in ("", "{", "[]", json.dumps(whole | {"version": 1}), json.dumps(whole | {"hands_over": 1})):
        file.write_text(text)
        assert memory.find(gradients, link) is None


def test_a_choice_that_cannot_be_kept_leaves_nothing_behind(tmp_path, monkeypatch):
    import errno
    import os

    from topout.train.buckets.grouping import Gradient
    from topout.train.buckets.regroup import Grouping
    from topout.train.buckets.remembered import Remembered
    from topout.train.link import Link

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    memory = Remembered("model", tmp_path)
    memory.find([Gradient(num_bytes=10, ready_s=0.0)], Link(alpha_s=1e-4, bytes_per_s=1e8))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        memory.keep(Grouping(name="fine", limits=(4, 6)), 0.1)
    assert list(tmp_path.iterdir()) == []
    memory.keep(Grouping(name="fine", limits=(4, 6)), 0.1)
    assert len(list(tmp_path.iterdir())) == 1


def test_whoever_has_no_home_has_no_memory(monkeypatch):
    from pathlib import Path

    from topout.train.buckets.grouping import Gradient
    from topout.train.buckets.regroup import Grouping
    from topout.train.buckets.remembered import Remembered
    from topout.train.link import Link

    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(homeless))
    memory = Remembered("model")
    for _ in range(2):
        assert memory.find([Gradient(num_bytes=10, ready_s=0.0)], Link(alpha_s=1e-4, bytes_per_s=1e8)) is None
        memory.keep(Grouping(name="fine", limits=(4, 6)), 0.1)


@pytest.mark.alone
def test_sums_host_by_host_are_tried_where_hosts_have_several_ranks(run_ranks, own_cache):
    hosts = """
import os, socket
os.environ["LOCAL_WORLD_SIZE"] = "2"
socket.gethostname = lambda: "ab"[int(os.environ["RANK"]) // 2]
"""
    source = (
        hosts
        + MODEL
        + """
optimizer = torch.optim.SGD(net.parameters(), 0.01)
model, optimizer = ctx.wrap(net, optimizer)
tried = set()
for count in range(1, 61):
    optimizer.zero_grad()
    model(torch.randn(4, 128)).square().mean().backward()
    optimizer.step()
    tried |= {candidate.name for candidate in ctx.tuning._candidates}
    if ctx.tuning.is_settled:
        break
print(json.dumps([count, digest(model), sorted(tried)]))
"""
    )
    said = [ended.said for ended in run_ranks(source, 4, env=own_cache)]
    assert said[0][0] <= 50
    assert said[0][2] == ["default", "fine", "hierarchical"]
    assert all(one == said[0] for one in said)


def test_a_hook_of_the_script_is_not_dropped(run_ranks, own_cache):
    source = (
        MODEL
        + """
from torch.futures import Future
calls = []
def doubled(state, bucket):
    calls.append(bucket.index())
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
model = ctx.wrap(net)
model.register_comm_hook(None, doubled)
counts = []
for step in range(9):
    model.zero_grad()
    model(torch.ones(4, 128)).square().mean().backward()
    counts.append(len(calls))
print(json.dumps([counts == sorted(set(counts)), ctx.tuning.is_settled, ctx.tuning.chosen]))
"""
    )
    assert [ended.said for ended in run_ranks(source, 2, env=own_cache)] == [[True, True, None]] * 2


def test_a_forward_that_only_one_rank_makes_is_not_counted(run_ranks, own_cache):
    source = (
        MODEL
        + """
optimizer = torch.optim.SGD(net.parameters(), 0.01)
model, optimizer = ctx.wrap(net, optimizer)
for step in range(12):
    if step == 2 and ctx.is_first:
        model(torch.randn(4, 128))
    optimizer.zero_grad()
    model(torch.randn(4, 128)).square().mean().backward()
    optimizer.step()
print(json.dumps([digest(model), ctx.tuning.is_settled, ctx.tuning.chosen]))
"""
    )
    first, second = (ended.said for ended in run_ranks(source, 2, env=own_cache))
    assert first == second
    assert first[1:] == [True, None]


def test_updates_are_prepared_in_groups_of_our_own_where_there_are_several():
    from topout.train.buckets.autotune import candidates
    from topout.train.buckets.grouping import Gradient
    from topout.train.link import Link

    gradients = [Gradient(num_bytes=1 << 20, ready_s=0.001 * number) for number in range(40)]
    found = candidates(gradients, Link(alpha_s=1e-4, bytes_per_s=1e8, busy_share=0.1), {}, prepares=True)
    assert [(one.name, one.prepares) for one in found] == [("default", False), ("fine", True), ("planned", True)]
    slow = [Gradient(num_bytes=1 << 20, ready_s=number) for number in range(3)]
    one_group = candidates(slow, Link(alpha_s=1e-2, bytes_per_s=1e12), {}, prepares=True)
    assert {(one.name, one.prepares) for one in one_group} == {("default", False), ("fine", False)}


PREPARED = """
import os
import topout.train.buckets.autotune as autotune
from topout.train.buckets.trial import Choice
from topout.train.link import Link
from topout.train.prepared import update
update.WORTH_BYTES = 0
autotune.measure = lambda place: Link(alpha_s=1e-5, bytes_per_s=1e9, busy_share=BUSY)
autotune.trial.choose = lambda times_s, num_candidates, default: Choice(candidate=FINE, step_s=0.9, default_s=1.0)
torch.set_num_threads(THREADS)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
model, optimizer = ctx.wrap(net, optimizer, **OPTIONS)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 128)).square().mean().backward()
    if CLIPS:
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
used = update._of_models.get(net)
print(json.dumps([
    ctx.tuning.chosen.prepares, digest(model), used and used._num_used > 0, used and used._has_given_up]))
"""


@pytest.mark.parametrize(
    ("busy", "options", "clips", "prepares"),
    [
        (0.1, "{}", False, True),
        (0.1, "{}", True, True),
        (0.9, "{}", False, False),
        (0.1, "{'early_update': False}", False, False),
        (0.1, "{'fused_optimizer': False}", False, False),
    ],
    ids=["idle link", "clipping", "busy link", "asked not to", "other kernels"],
)
def test_updates_are_prepared_where_a_processor_is_idle(run_ranks, own_cache, busy, options, clips, prepares):
    """Threads as many as there are processors leave none to spare."""
    fine = 0 if prepares else 1
    settings = f"BUSY, OPTIONS, CLIPS, FINE = {busy}, {options}, {clips}, {fine}\n"
    settings += "import os\nTHREADS = len(os.sched_getaffinity(0))\n"
    for _ in range(2 if prepares and not clips else 1):  # measured, and as chosen in an earlier run
        first, second = run_ranks(settings + MODEL + PREPARED, 2, env=own_cache)
        assert first.code == second.code == 0, first.stderr
        assert first.said == second.said
        is_used = (True, False) if prepares and not clips else (False, True) if options == "{}" else (None, None)
        assert (first.said[0], *first.said[2:]) == (prepares, *is_used)


COMPRESSED = """
import hashlib, json, torch, topout
from torch import nn
import topout.train.buckets.autotune as autotune
from topout.train.buckets.trial import Choice
from topout.train.link import Link
# a link so slow that half of the bytes is half of the time
autotune.measure = lambda place: Link(alpha_s=1e-4, bytes_per_s=1e7, busy_share=0.1)
autotune.trial.choose = lambda times_s, count, default: Choice(candidate=count - 1, step_s=0.5, default_s=1.0)
ctx = topout.init()
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
model, optimizer = ctx.wrap(model, optimizer, compress="auto")
torch.manual_seed(ctx.rank)
count = 0
while not ctx.tuning.is_settled or count < 10:
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    count += 1
values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(json.dumps([count, ctx.tuning.chosen.name, hashlib.sha256(values).hexdigest()]))
"""


def test_bf16_is_taken_where_it_was_measured_to_be_shorter_and_taken_up_again(run_ranks, own_cache):
    for most_steps in (50, 10):
        first, second = run_ranks(COMPRESSED, 2, env=own_cache)
        assert first.code == second.code == 0, first.stderr
        assert first.said[1:] == second.said[1:]
        assert first.said[0] <= most_steps
        assert first.said[1] == "bf16"
        assert "compressed (bf16)" in first.stderr
