"""Torn, missing and flipped: found out, said, and the checkpoint before is used."""

import errno
import pickle
import random
from pathlib import Path

import pytest

from tests.train.checkpoint.conftest import MakeTraining
from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint import manifest, to_safetensors
from topout.train.checkpoint.manifest import Damaged
from topout.train.checkpoint.store import Store

FILES = ["COMMITTED", "manifest.json", "rank-00000.data", "rank-00000.json"]


def step_folder(tmp_path: Path, step: int) -> Path:
    return tmp_path / "checkpoints" / f"step-{step:012d}"


def is_good(folder: Path) -> bool:
    try:
        return manifest.verify(folder, manifest.read(folder), slice(None)) == []
    except Damaged:
        return False


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_a_torn_checkpoint_is_said_and_the_previous_one_used(
    training: MakeTraining, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, harm: str
) -> None:
    training().take(5).close()
    path = step_folder(tmp_path, 4) / name
    path.unlink() if harm == "missing" else path.write_bytes(path.read_bytes()[:-1])
    restored = training().checkpoints.restore()
    assert restored is not None
    assert restored.step == 2
    assert [one.step for one in restored.skipped] == [4]
    said = capfd.readouterr().err
    assert "the checkpoint of step 4 is damaged and not used" in said
    assert (name if name != "COMMITTED" or harm == "missing" else "manifest.json") in said


def test_one_that_is_listed_and_not_there_is_damaged_like_any_other(training: MakeTraining, tmp_path: Path) -> None:
    """A link to a place that was cleared."""
    training().take(5).close()
    step_folder(tmp_path, 4).rename(tmp_path / "moved")
    step_folder(tmp_path, 4).symlink_to(tmp_path / "cleared")
    restored = training().checkpoints.restore()
    assert restored is not None
    assert (restored.step, [one.step for one in restored.skipped]) == (2, [4])
    assert to_safetensors(tmp_path / "checkpoints", tmp_path / "model.safetensors") == step_folder(tmp_path, 2)


@pytest.mark.parametrize("hidden", [[6], [6, 4]])
def test_those_that_a_rank_does_not_see_although_they_are_listed_are_passed_over(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: list[int]
) -> None:
    training().take(7).close()
    for step in hidden:
        step_folder(tmp_path, step).rename(tmp_path / f"hidden-{step}")
    monkeypatch.setattr(Store, "steps", lambda _: [2, 4, 6])
    restored = training().checkpoints.restore()
    assert restored is not None
    assert (restored.step, [one.step for one in restored.skipped]) == (6 - 2 * len(hidden), hidden)
    assert to_safetensors(tmp_path / "checkpoints", tmp_path / "model.safetensors") == restored.folder


@pytest.mark.parametrize("num_flips", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_every_flipped_bit_is_detected(training: MakeTraining, tmp_path: Path, num_flips: int) -> None:
    training().take(2).close()
    folder = step_folder(tmp_path, 2)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert is_good(folder)
    chance = random.Random(11)
    for _ in range(num_flips):
        path = folder / chance.choice(FILES)
        whole = path.read_bytes()
        harmed = bytearray(whole)
        harmed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(harmed)
        assert not is_good(folder), path.name
        path.write_bytes(whole)
    assert is_good(folder)


def test_none_good_is_an_error_that_names_them(training: MakeTraining, tmp_path: Path) -> None:
    training().take(5).close()
    for step in (2, 4):
        (step_folder(tmp_path, step) / "rank-00000.data").write_bytes(b"")
    with pytest.raises(TopoutError) as raised:
        training().checkpoints.restore()
    assert "None of the 2 checkpoints" in raised.value.problem
    assert "step 4: rank-00000.data: 0 bytes instead of" in raised.value.why


def test_a_damaged_one_makes_room_for_its_successor_and_is_kept(training: MakeTraining, tmp_path: Path) -> None:
    training().take(5).close()
    (step_folder(tmp_path, 4) / "rank-00000.data").write_bytes(b"")
    again = training()
    again.checkpoints.restore()
    again.take(2).close()
    assert is_good(step_folder(tmp_path, 4))
    assert (tmp_path / "checkpoints" / "damaged-step-000000000004").is_dir()


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (open, ("attacked", "w"))


@pytest.mark.parametrize("name", FILES)
def test_nothing_that_is_read_can_run_code(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    training().take(2).close()
    folder = step_folder(tmp_path, 2)
    (folder / name).write_bytes(pickle.dumps(Attack()))
    (folder / ".metadata").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(TopoutError):
        training().checkpoints.restore()
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../secret": [1, 1]}},
        {"tensors": {"model.x": {"dtype": "float32", "size": [4], "chunks": [[[0], [4], "rank-00000.data", 10**9]]}}},
        {"tensors": {"model.x": {"dtype": "object", "size": [4], "chunks": []}}},
        {"tensors": {"model.x": {"dtype": "int8", "size": [4], "chunks": [[[3], [4], "rank-00000.data", 0]]}}},
    ],
)
def test_a_manifest_made_by_hand_leads_nowhere(tmp_path: Path, change: dict[str, object]) -> None:
    made = {
        "step": 1,
        "epoch": None,
        "world_size": 1,
        "seed": 0,
        "files": {"rank-00000.data": [4096, 0]},
        "tensors": {},
    }
    manifest.write(tmp_path, {**made})
    manifest.read(tmp_path)
    manifest.write(tmp_path, {**made, **change})
    with pytest.raises(Damaged):
        manifest.read(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error_of_the_environment(
    training: MakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    training().take(2).close()
    again = training()

    def stale(store: Store) -> list[int]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Store, "steps", stale)
    with pytest.raises(TopoutError, match="cannot be listed") as raised:
        again.checkpoints.restore()
    assert (raised.value.why, raised.value.exit_code) == ("Stale file handle.", ExitCode.ENVIRONMENT)
