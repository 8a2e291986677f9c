"""Checkpoints that another process replaces or deletes while they are read: what comes back is of one alone."""

import os
import pkgutil
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.checkpoint import Checkpoints, to_safetensors
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.store import REPLACED, Store
from topout.train.place import alone

ROOM = "topout.train.checkpoint."


class Part:
    """Remembers all that it was ever given."""

    def __init__(self, value: int = 0) -> None:
        self.value, self.given = value, list[int]()

    def state_dict(self) -> Any:
        return {"epoch": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.given.append(state["epoch"])


class Saved:
    """A part that holds a number, also the checkpoint's epoch, and a model whose weights are all that number."""

    def __init__(self, folder: Path, number: int = 0, *, has_model: bool = True) -> None:
        self.model, self.part = nn.Linear(2, 2), Part(number)
        for parameter in self.model.parameters():
            nn.init.constant_(parameter, number)
        state = {"part": self.part, **({"model": self.model} if has_model else {})}
        self.checkpoints = Checkpoints(folder, state=state, place=alone())

    def restored(self) -> tuple[int | None, set[float], list[int]]:
        """The manifest's epoch, all weights, and all that the part was given."""
        restored = self.checkpoints.restore()
        assert restored is not None and restored.skipped == ()
        return restored.epoch, weights(self.model), self.part.given


def weights(model: nn.Module) -> set[float]:
    return {value for parameter in model.parameters() for value in parameter.flatten().tolist()}


def commit(folder: Path, number: int, step: int = 0, *, has_model: bool = True) -> None:
    saved = Saved(folder / "aside", number, has_model=has_model)
    saved.checkpoints.num_steps = step
    saved.checkpoints.save()
    saved.checkpoints.close()
    Store(folder).commit(Store(folder / "aside").path(step), step)


def around(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    call: int = 1,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Something happens before and after that call of a reader."""
    original, calls = pkgutil.resolve_name(ROOM + name), list[int]()

    def called(*args: Any) -> Any:
        calls.append(1)
        if len(calls) != call:
            return original(*args)
        before()
        result = original(*args)
        after()
        return result

    module, _, attribute = (ROOM + name).rpartition(".")
    monkeypatch.setattr(pkgutil.resolve_name(module), attribute, called)


def written(path: Path) -> list[float]:
    data = bytearray(path.read_bytes())
    return torch.frombuffer(data[8 + int.from_bytes(data[:8], "little") :], dtype=torch.float32).tolist()


@pytest.mark.parametrize("moment", ["manifest.read", "manifest.verify", "manifest.tree_name", "reader.file_image"])
def test_one_that_is_replaced_while_it_is_restored_is_not_mixed_with_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    commit(tmp_path, 1)
    around(moment, monkeypatch, before=lambda: commit(tmp_path, 2))
    assert Saved(tmp_path).restored() == (2, {2}, [2])


def test_nor_where_it_holds_no_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 1, has_model=False)
    around("manifest.tree_name", monkeypatch, before=lambda: commit(tmp_path, 2, has_model=False))
    assert Saved(tmp_path, has_model=False).restored() == (2, {0}, [2])


def test_nor_called_damaged_where_the_file_system_tells_their_times_not_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_at_once(number: int) -> None:
        commit(tmp_path, number)
        os.utime(Store(tmp_path).path(0) / "COMMITTED", (1, 1))

    commit_at_once(1)
    around("manifest.verify", monkeypatch, before=lambda: commit_at_once(2))
    assert Saved(tmp_path).restored() == (2, {2}, [2])


@pytest.mark.parametrize("call", [1, 2])
def test_nor_while_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    commit(tmp_path, 1)
    around("single_file.file_image", monkeypatch, call=call, before=lambda: commit(tmp_path, 2))
    to_safetensors(tmp_path, tmp_path / "model.safetensors")
    assert written(tmp_path / "model.safetensors") == [2] * 6


def test_nor_where_the_other_is_gone_again_before_anybody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 1)

    def go_on() -> None:
        commit(tmp_path, 3, step=1)
        Store(tmp_path).retire(1, keep=1, keep_every=None)

    around("reader.file_image", monkeypatch, before=lambda: commit(tmp_path, 2), after=go_on)
    assert Saved(tmp_path).restored() == (3, {3}, [3])


@pytest.mark.parametrize("moment", ["reader.stored_tensor", "single_file._whole"])
def test_one_that_is_deleted_when_all_its_files_are_open_is_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = tmp_path / "checkpoints"
    commit(folder, 1)
    if moment == "reader.stored_tensor":
        around(moment, monkeypatch, before=lambda: shutil.rmtree(folder))
        assert Saved(folder).restored() == (1, {1}, [1])
    else:
        around(moment, monkeypatch, call=2, before=lambda: shutil.rmtree(folder))
        to_safetensors(folder, tmp_path / "model.safetensors")
        assert written(tmp_path / "model.safetensors") == [1] * 6
    assert not folder.exists()


def test_the_last_one_that_goes_while_it_is_read_is_no_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "checkpoints", 1)
    around("reader.file_image", monkeypatch, before=lambda: shutil.rmtree(tmp_path / "checkpoints"))
    with pytest.raises(TopoutError, match=r"The last checkpoint went from .* while it was read"):
        Saved(tmp_path / "checkpoints").checkpoints.restore()


def test_no_part_is_given_anything_before_all_ranks_have_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank says: its tree is right, its tensors are not, the checkpoint has gone; then all is well."""
    commit(tmp_path, 1)
    reader, others = Saved(tmp_path), iter([False, True, True])

    def shared(_: Agreement, value: Any) -> list[Any]:
        return [value, next(others, False) if isinstance(value, bool) else value]

    monkeypatch.setattr(Agreement, "shared", shared)
    assert reader.restored() == (1, {1}, [1])
    assert list(others) == []


def test_what_a_part_says_of_a_checkpoint_that_was_read_is_said_though_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        shutil.rmtree(tmp_path / "checkpoints")
        raise ValueError("another part's")

    commit(tmp_path / "checkpoints", 1)
    reader = Saved(tmp_path / "checkpoints")
    monkeypatch.setattr(reader.part, "load_state_dict", refuse)
    with pytest.raises(TopoutError, match="of step 0 cannot be loaded") as raised:
        reader.checkpoints.restore()
    assert raised.value.why == "ValueError: another part's"


def test_one_that_ranks_do_not_see_alike_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a node keeps the one before in mind: nothing changes before the eyes of any rank."""
    commit(tmp_path, 1, step=1)
    commit(tmp_path, 2, step=2)
    markers = [(tmp_path / f"step-{step:012d}" / "COMMITTED").read_text() for step in (1, 2)]
    reader = Saved(tmp_path)

    def shared(_: Agreement, value: Any) -> list[Any]:
        return [value, [[], markers[0]] if isinstance(value, list) and value[-1] == markers[1] else value]

    monkeypatch.setattr(Agreement, "shared", shared)
    restored = reader.checkpoints.restore()
    assert restored is not None
    assert (restored.step, weights(reader.model)) == (1, {1})
    assert [one.why for one in restored.skipped] == ["COMMITTED: ranks do not see the same"]


def test_a_good_one_that_has_come_in_place_of_a_damaged_one_is_not_set_aside(tmp_path: Path) -> None:
    for step in (1, 4):
        commit(tmp_path, step, step)
    (Store(tmp_path).path(4) / "manifest.json").write_text("damaged")
    reader = Saved(tmp_path)
    restored = reader.checkpoints.restore()
    assert restored is not None and [one.step for one in restored.skipped] == [4]
    commit(tmp_path, 5, step=4)
    reader.checkpoints.num_steps = 2
    reader.checkpoints.save()
    reader.checkpoints.close()
    assert Saved(tmp_path).restored() == (5, {5}, [5])


def test_one_that_makes_room_just_when_the_folder_is_listed_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 1)
    store = Store(tmp_path)
    around("store.Store.bring_back", monkeypatch, after=lambda: store._set_aside(store.path(0), REPLACED))
    assert Saved(tmp_path).restored() == (1, {1}, [1])


def test_one_that_a_crash_kept_from_being_replaced_can_be_converted(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    store = Store(tmp_path)
    store._set_aside(store.path(0), REPLACED)
    assert to_safetensors(tmp_path, tmp_path / "model.safetensors") == store.path(0)


def test_one_that_makes_room_does_not_keep_others_from_being_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2, 10):
        store.path(step).mkdir()
    store._set_aside(store.path(1), REPLACED)
    store.retire(10, keep=1, keep_every=None)
    assert not store.path(2).exists()


def test_two_that_write_the_same_file_at_once_both_write_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out" / "model.safetensors"
    out.parent.mkdir()
    commit(tmp_path, 1)
    around("single_file._whole", monkeypatch, before=lambda: to_safetensors(tmp_path, out))
    to_safetensors(tmp_path, out)
    assert written(out) == [1] * 6
    assert list(out.parent.iterdir()) == [out]
