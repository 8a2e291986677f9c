"""Real ranks over Gloo: what was saved is what goes on, at the same number of ranks to the bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunTopout
from tests.train.conftest import Ended, RunRanks, start_ranks

TRAINING = Path(__file__).with_name("training.py")
WRAPPED = Path(__file__).with_name("wrapped_training.py")
STEPS = 11
Runs = list[dict[str, Any]]
"""What each rank said of a run."""


SAVES_AT_EXIT = """
import atexit
import sys
import time

import torch

from topout.train.checkpoint import Checkpoints, writing
from topout.train.place import alone

write = writing.write_image


def write_slowly(path, image):
    time.sleep(0.5)
    return write(path, image)


writing.write_image = write_slowly
checkpoints = Checkpoints(sys.argv[1], state={"model": torch.nn.Linear(2, 2)}, place=alone())
atexit.register(checkpoints.save)
"""


def test_what_an_exit_handler_saves_is_waited_for(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SAVES_AT_EXIT, str(tmp_path / "checkpoints")], check=True, timeout=100)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000000000"]


def trained(run_ranks: RunRanks, *runs: dict[str, object], timeout: float = 170) -> tuple[list[Runs], list[Ended]]:
    ended = run_ranks(TRAINING, args=[json.dumps(runs)], timeout=timeout)
    assert [rank.code for rank in ended] == [0, 0], "\n".join(rank.stderr[-2000:] for rank in ended)
    return [list(answers) for answers in zip(*(rank.said for rank in ended), strict=True)], ended


def samples(*runs: Runs) -> list[int]:
    return sorted(sample for run in runs for rank in run if rank for batch in rank["seen"] for sample in batch)


def outcome(run: Runs) -> list[Sequence[object]]:
    return [[rank["digest"], rank["lr"], rank["draws"]] for rank in run]


def test_two_ranks_go_on_bit_for_bit(run_ranks: RunRanks, tmp_path: Path) -> None:
    runs = []
    for sharded in (False, True):
        whole, cut = str(tmp_path / f"whole-{sharded}"), str(tmp_path / f"cut-{sharded}")
        runs += [(whole, STEPS, sharded), (cut, 7, sharded), (cut, STEPS, sharded)]
    given = [{"folder": folder, "steps": steps, "sharded": sharded} for folder, steps, sharded in runs]
    results, _ = trained(run_ranks, *given)
    for whole, _, rest in (results[:3], results[3:]):
        assert [rank["from"] for rank in rest] == [6, 6]
        assert outcome(rest) == outcome(whole)
        assert [rank["seen"] for rank in rest] == [rank["seen"][6:] for rank in whole]
        # ranks draw other numbers: neither was given the other's
        assert whole[0]["draws"] != whole[1]["draws"]


def test_another_number_of_ranks_takes_over(run_ranks: RunRanks, tmp_path: Path) -> None:
    """24 samples an epoch, 2 a rank and step: 3 steps of two ranks see 12, those of one rank 6."""
    shards, whole = {"folder": str(tmp_path / "fewer"), "every": 1}, {"folder": str(tmp_path / "more"), "every": 1}
    results, ended = trained(
        run_ranks,
        {**shards, "steps": 3, "sharded": True},
        {**shards, "steps": 3, "alone": True},
        {**shards, "steps": 9, "alone": True},
        {**whole, "steps": 2, "alone": True},
        {**whole, "steps": 7, "sharded": True},
    )
    two, none, one, before, after = results
    assert none[0]["digest"] == two[0]["digest"]
    assert samples(two, one) == list(range(24))
    assert samples(before, after) == list(range(24))
    assert "saved by 2 ranks and goes on with 1" in ended[0].stderr
    assert "saved by 1 ranks and goes on with 2" in ended[0].stderr


def wait_until_saved(folder: Path) -> None:
    """Until there is a first checkpoint: a busy machine may need longer for it than a rank lives here."""
    give_up_s = time.monotonic() + 60
    while not list(folder.glob("step-*")):
        assert time.monotonic() < give_up_s, f"no checkpoint in {folder}"
        time.sleep(0.01)


def kill_often(run: dict[str, object], num_kills: int, seed: int, script: Path = TRAINING, num_ranks: int = 2) -> None:
    """Starts the training, kills a rank at a random moment, and so on."""
    chance = random.Random(seed)
    for _ in range(num_kills):
        ranks = start_ranks(script, num_ranks, [json.dumps([run] if script == TRAINING else run)])
        try:
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "ready\n", rank.communicate()[1][-2000:]
            wait_until_saved(Path(str(run["folder"])))
            time.sleep(chance.uniform(0.02, 0.3))
            victim = chance.choice(ranks)
            assert victim.poll() is None, victim.communicate()[1][-2000:]
            os.kill(victim.pid, signal.SIGKILL)
            # the others find out by themselves: no hang
            for rank in ranks:
                rank.communicate(timeout=60)
        finally:
            for rank in ranks:
                rank.kill()


@pytest.mark.parametrize("num_kills", [6, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_a_kill_at_any_moment_loses_nothing(run_ranks: RunRanks, tmp_path: Path, num_kills: int) -> None:
    """Checkpoints follow one another, so that most kills fall into the writing of one."""
    run = {"folder": str(tmp_path / "run"), "every": 1}
    kill_often({**run, "steps": 10**9}, num_kills, seed=5)
    reached = max(int(path.name[5:]) for path in (tmp_path / "run").glob("step-*"))
    results, _ = trained(
        run_ranks,
        {**run, "steps": reached + 3},
        {"folder": str(tmp_path / "whole"), "steps": reached + 3, "every": 10**9},
        timeout=600,
    )
    rest, whole = results
    assert [rank["from"] for rank in rest] == [reached, reached]
    assert outcome(rest) == outcome(whole)
    assert not list((tmp_path / "run").glob(".writing-*"))


@pytest.mark.parametrize("num_kills", [2, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_kills_lose_no_sample_of_a_loader_with_workers(run_ranks: RunRanks, tmp_path: Path, num_kills: int) -> None:
    """The same bits on two ranks; on one and on three each sample that is left of the epoch once."""
    folder = tmp_path / "run"
    kill_often({"folder": str(folder)}, num_kills, seed=11, script=WRAPPED)
    reached = json.loads((sorted(folder.glob("step-*"))[-1] / "manifest.json").read_text())
    epoch, epochs = str(reached["epoch"]), reached["epoch"] + 1

    def ended(num_ranks: int, name: str) -> list[dict[str, Any]]:
        given = json.dumps({"folder": str(tmp_path / name), "epochs": epochs, "every": 10**9})
        ranks = run_ranks(WRAPPED, num_ranks, [given], timeout=600)
        assert [rank.code for rank in ranks] == [0] * num_ranks, ranks[0].stderr[-2000:]
        return [rank.said for rank in ranks]

    def left(ranks: list[dict[str, Any]]) -> list[int]:
        return sorted(number for rank in ranks for number in rank["seen"].get(epoch, []))

    for name in ("one", "three"):
        shutil.copytree(folder, tmp_path / name)
    whole, rest = ended(2, "whole"), ended(2, "run")
    assert [rank["from"] for rank in rest] == [reached["step"]] * 2
    assert [rank["digest"] for rank in rest] == [rank["digest"] for rank in whole]
    assert left(whole) == list(range(240))
    for rank, full in zip(rest, whole, strict=True):
        seen = rank["seen"].get(epoch, [])
        assert seen == full["seen"][epoch][120 - len(seen) :]
    assert left(ended(1, "one")) == left(ended(3, "three")) == left(rest)


def test_a_training_under_topout_run_goes_on_by_itself(run_ranks: RunRanks, tmp_path: Path) -> None:
    chance = random.Random(3)
    kills = [f"{chance.randrange(2)}:{step}" for step in sorted(chance.sample(range(3, STEPS), 2))]
    command = [sys.executable, "-m", "topout", "run", "-n", "2", "--restarts", "3", "--no-record", str(TRAINING)]
    given = json.dumps([{"folder": str(tmp_path / "run"), "steps": STEPS, "kill": kills, "sleep": 0.1}])
    ended = subprocess.run([*command, given], cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert len(list(tmp_path.glob("run-killed-*"))) == 2
    assert (ended.stdout + ended.stderr).count("topout: going on from step") == 2
    results, _ = trained(run_ranks, {"folder": str(tmp_path / "whole"), "steps": STEPS})
    assert results[0][0]["digest"] in ended.stdout


SLOW_DISK = """
import sys
import time

import torch

import topout
from topout.train.checkpoint import writing

write_small = writing.write_small


def write_slowly(path, data):
    time.sleep(float(sys.argv[1]))
    return write_small(path, data)


writing.write_small = write_slowly
ctx = topout.init()
model = torch.nn.Linear(4, 2)
model, optimizer = ctx.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
checkpoints = ctx.checkpoint("saved", every=None)
model(torch.randn(3, 4)).sum().backward()
optimizer.step()
checkpoints.save()
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("seconds", "code"), [(1, 0), (5.5, 3)])
def test_what_is_written_at_the_last_line_is_safe_under_topout_run(
    run_topout: RunTopout, tmp_path: Path, seconds: float, code: int
) -> None:
    """Longer than a rank has for its end, where it leaves the group that its writers meet in."""
    script = tmp_path / "script.py"
    script.write_text(SLOW_DISK)
    done = run_topout(["run", "-n", 2, "--no-record", script, seconds, code])
    assert done.code == code, done.stderr
    assert (tmp_path / "saved" / "step-000000000001" / "COMMITTED").exists(), done.stderr
