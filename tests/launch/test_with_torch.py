"""Jobs that train: meeting at the reserved port, a rank killed inside a collective, a script for one device."""

from topout.launch.outcome import Cause
from topout.launch.rounds import single_device_error

DISTRIBUTED = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1_000_000):
    if step == 3 and dist.get_rank() == 1:
        {at_step_3}
    x = torch.ones(4)
    dist.all_reduce(x)
    if step == 5:
        break
print("sum", x[0].item(), torch.get_num_threads())
"""
SINGLE_DEVICE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_ranks_meet(launch):
    ended = launch(DISTRIBUTED.format(at_step_3="pass"), options=("-n", "2"))
    assert (ended.code, ended.stdout.split()[:2]) == (0, ["sum", "2.0"])


def test_a_rank_killed_in_a_collective_is_named_and_its_peer_is_not(launch):
    ended = launch(DISTRIBUTED.format(at_step_3="os.kill(os.getpid(), signal.SIGKILL)"), options=("-n", "2"))
    assert ended.code == 4
    assert ended.stderr[ended.stderr.rindex("\nRank ") :].startswith("\nRank 1 on ")


def test_a_rank_that_raises_at_step_3_is_named_and_its_peer_is_not(launch):
    ended = launch(DISTRIBUTED.format(at_step_3="raise ValueError('step 3')"), options=("-n", "2"))
    assert ended.code == 1
    assert ended.stderr.endswith("ValueError: step 3\n")


def test_a_script_for_one_device_is_stopped_and_explained(launch):
    ended = launch(SINGLE_DEVICE, options=("-n", "2"))
    assert ended.code == 2
    last_words = ended.stderr.splitlines()[-3:]
    assert last_words[0] == "2 ranks were started, but the script trains on one device."
    assert last_words[1].startswith("  why  nothing joins the ranks")
    assert "-n 1" in last_words[2]
    assert "add --ddp" in last_words[2]
    assert "Next " not in ended.stderr, "there is nothing to explain but that"


def test_nobody_is_told_to_add_what_was_given_or_cannot_help():
    assert "--ddp" not in str(single_device_error(Cause.SINGLE_DEVICE, 2, is_ddp=True))
    assert "--ddp" not in str(single_device_error(Cause.SINGLE_DEVICE_KERAS, 2, is_ddp=False))
