"""Three ranks and more go on bit for bit: a sum of three depends on what travels together; a checkpoint keeps that."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.checkpoint.test_resume import WRAPPED, kill_often
from tests.train.conftest import Ended, RunRanks
from topout.packs.checksum import crc32c
from topout.train.checkpoint import manifest as manifests

AVERAGED = Path(__file__).with_name("averaged_training.py")
SETTLED = {"steps": 56, "every": 50, "choice": 1}
"""Autotune has chosen before step 50."""
Runs = Callable[..., list[Ended]]


@pytest.fixture
def run(run_ranks: RunRanks, tmp_path: Path) -> Runs:
    """Each start with a cache of its own: what Autotune chose in an earlier one is known from a checkpoint or not."""
    count = iter(range(9))

    def start(num_ranks: int = 3, **given: Any) -> list[Ended]:
        cache = {"XDG_CACHE_HOME": str(tmp_path / f"cache-{next(count)}")}
        ranks = run_ranks(AVERAGED, num_ranks, [json.dumps({"folder": str(tmp_path / "run"), **given})], env=cache)
        assert [rank.code for rank in ranks] == [0] * num_ranks, ranks[0].stderr[-2000:]
        assert len({rank.said["digest"] for rank in ranks}) == 1
        return ranks

    return start


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The JSON of every rank in a checkpoint, with checksums that are right."""
    (step,) = folder.glob("step-*")
    files = json.loads((step / manifests.MANIFEST).read_bytes())
    for path in step.glob("rank-*.json"):
        tree = json.loads(path.read_bytes())
        change(tree)
        path.write_text(json.dumps(tree))
        files["files"][path.name] = [path.stat().st_size, crc32c(path.read_bytes())]
    for name in (manifests.MANIFEST, manifests.MARKER):
        (step / name).unlink()
    manifests.write(step, {name: value for name, value in files.items() if name != "format"})


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "groups of DDP": (3, {"wrap": {"buckets": "default"}}),
    "a script's own DDP": (3, {"wrap": None}),
    "errors that two ranks remember by group": (2, {"wrap": {"compress": "int8"}}),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_go_on_bit_for_bit_in_groups_that_nobody_tunes(run: Runs, way: str) -> None:
    num_ranks, given = WAYS[way]
    whole = run(num_ranks, steps=8, every=5, **given)[0].said
    rest = run(num_ranks, steps=8, every=5, **given)[0].said
    assert (whole["from"], rest["from"]) == (0, 5)
    assert len(whole["groups"]) > 1
    assert rest == {**whole, "from": 5}


TUNED: dict[str, tuple[int, dict[str, Any]]] = {
    "fine, prepared": (3, {"wrap": {}, "choice": 0, "busy": 0.1}),
    "fine": (3, {"wrap": {"early_update": False}}),
    "hierarchical": (4, {"wrap": {}, "two_hosts": True, "choice": 2}),
}
IN_SOAK = ("fine", "hierarchical")
"""They start seven processes more."""


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.soak] if way in IN_SOAK else []) for way in TUNED]
)
def test_what_autotune_has_chosen_is_taken_up_at_once_and_adds_in_the_same_order(run: Runs, way: str) -> None:
    num_ranks, given = TUNED[way]
    whole = run(num_ranks, **{**SETTLED, **given})[0].said
    ended = run(num_ranks, **{**SETTLED, **given})[0]
    assert (whole["chosen"], whole["prepares"]) == (way.partition(",")[0], way.endswith("prepared"))
    assert whole["has_tried"]
    assert ended.said == {**whole, "from": 50, "has_tried": False}
    assert ended.stderr.count("topout: gradients are averaged in") == 1


def test_another_number_of_ranks_tunes_anew(run: Runs) -> None:
    given = {**SETTLED, "wrap": {"early_update": False}}
    run(3, **given)
    other = run(2, **{**given, "steps": 60})[0].said
    assert (other["from"], other["chosen"], other["has_tried"]) == (50, None, True)


def test_kills_of_three_ranks_leave_the_bits_of_a_training_that_was_never_killed(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """From a checkpoint on that holds Autotune's choice; another start from the beginning might choose otherwise."""
    folder = tmp_path / "run"

    def ended(every: int) -> list[dict[str, Any]]:
        given = {"folder": str(folder), "epochs": 6, "every": every}
        cache = {"XDG_CACHE_HOME": str(tmp_path / f"cache-{every}")}
        ranks = run_ranks(WRAPPED, 3, [json.dumps(given)], env=cache, timeout=170)
        assert [rank.code for rank in ranks] == [0] * 3, ranks[0].stderr[-2000:]
        assert "topout: gradients are averaged in" in ranks[0].stderr
        return [rank.said for rank in ranks]

    whole = ended(every=60)
    shutil.rmtree(folder / "step-000000000120")
    assert [path.name for path in folder.glob("step-*")] == ["step-000000000060"]
    kill_often({"folder": str(folder)}, 2, seed=5, script=WRAPPED, num_ranks=3)
    rest = ended(every=10**9)
    # the first kills may come before the first new checkpoint
    assert all(60 <= rank["from"] < 156 for rank in rest)
    assert [rank["digest"] for rank in rest] == [rank["digest"] for rank in whole]


def test_a_checkpoint_without_groups_or_with_wrong_ones_restores_as_ever(run: Runs, tmp_path: Path) -> None:
    """As those of before; in an order that is not the uninterrupted run's."""
    given: dict[str, Any] = {"wrap": {"buckets": "default"}, "steps": 8, "every": 5}
    whole = run(**given)[0].said
    shutil.move(tmp_path / "run", tmp_path / "good")
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda tree: tree.pop("@averaging"),
        lambda tree: tree["@averaging"]["model"]["groups"][0].append(0),
    ]
    digests = []
    for change in changes:
        shutil.copytree(tmp_path / "good", tmp_path / "run")
        changed(tmp_path / "run", change)
        ended = run(**given)[0]
        assert (ended.said["from"], ended.said["groups"]) == (5, whole["groups"])
        digests.append(ended.said["digest"])
        shutil.rmtree(tmp_path / "run")
    assert digests[0] == digests[1] != whole["digest"]


def test_a_communication_hook_of_the_script_stays(run: Runs) -> None:
    given: dict[str, Any] = {"wrap": None, "own_hook": True, "steps": 8, "every": 5}
    run(**given)
    rest = run(**given)[0]
    # one group in the first step, two from then on, as without a checkpoint
    assert (rest.said["from"], rest.said["num_hooked"]) == (5, 1 + 2 + 2)
