"""What changes while training goes on: layers that are added, states that grow, weights that others write to."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.checkpoint.conftest import MakeTraining
from topout.record import before_leaving
from topout.schema.errors import TopoutError
from topout.train.checkpoint import Checkpoints, reader, to_safetensors
from topout.train.checkpoint.store import Store
from topout.train.place import alone


class Counter:
    """An object with a state, and no optimizer."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


def of(folder: Path, **state: Any) -> Checkpoints:
    return Checkpoints(folder, state=state, place=alone())


def test_where_nothing_counts_steps_every_save_is_written(tmp_path: Path) -> None:
    counter = Counter()
    saved = of(tmp_path, counter=counter)
    for _ in range(3):
        counter.value += 1
        saved.save()
    saved.close()
    again = Counter()
    restored = of(tmp_path, counter=again)
    assert restored.restore() is not None
    assert again.value == 3
    again.value = 4
    restored.save()
    restored.close()
    last = Counter()
    of(tmp_path, counter=last).restore()
    assert last.value == 4


def test_a_script_that_has_taken_no_step_since_saves_under_the_same_number(training: MakeTraining) -> None:
    training().take(2).close()
    again = training()
    again.checkpoints.restore()
    again.checkpoints.save()
    again.close()
    restored = training().checkpoints.restore()
    assert restored is not None
    assert restored.step == 2


def test_a_crash_while_one_replaces_another_leaves_the_old_one(tmp_path: Path) -> None:
    saved = of(tmp_path, counter=Counter(7))
    saved.save()
    saved.close()
    store = Store(tmp_path)
    store._set_aside(store.path(0), ".replaced-")
    (tmp_path / ".writing-step-000000000000-abcd").mkdir()
    counter = Counter()
    again = of(tmp_path, counter=counter)
    again.restore()
    assert counter.value == 7
    again.save()
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000000"]


def test_one_that_cannot_take_its_place_leaves_the_old_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path(0).mkdir()
    with pytest.raises(FileNotFoundError):
        store.commit(tmp_path / "missing", 0)
    assert store.steps() == [0]


def test_who_restores_while_one_replaces_another_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, set_aside = Store(tmp_path), Store._set_aside
    written = store.writing(0, "abcd")
    for folder, name in ((store.path(0), "old"), (written, "new")):
        folder.mkdir()
        (folder / name).touch()

    def brought_back_once(store: Store, path: Path, prefix: str) -> None:
        set_aside(store, path, prefix)
        monkeypatch.undo()
        store.bring_back()
        assert store.path(0).is_dir()

    monkeypatch.setattr(Store, "_set_aside", brought_back_once)
    store.commit(written, 0)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        "step-000000000000",
        "step-000000000000/new",
    ]


class Scaled(nn.Linear):
    """Extra state as quantizing layers have it: a tensor that begins empty and grows."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.history: Any = torch.zeros(0)

    def get_extra_state(self) -> Any:
        return self.history

    def set_extra_state(self, state: Any) -> None:
        self.history = state


@pytest.mark.parametrize("begins_as", [torch.zeros(0), torch.zeros(2), None])
def test_extra_state_of_any_size_comes_back(training: MakeTraining, begins_as: Any) -> None:
    model = Scaled()
    first = training(model=model).take(2)
    model.history = torch.tensor([1.0, 2.0, 3.0])
    first.take(2).close()
    again = Scaled()
    again.history = begins_as
    training(model=again).checkpoints.restore()
    assert again.history.tolist() == [1, 2, 3]
    assert torch.equal(again.weight, model.weight)


class Versioned(nn.Linear):
    _version = 5
    seen: int | None = None

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        self.seen = metadata.get("version")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_layers_hear_which_version_they_are_given(training: MakeTraining) -> None:
    training(model=Versioned(4, 2)).take(2).close()
    again = Versioned(4, 2)
    training(model=again).checkpoints.restore()
    assert again.seen == 5


def test_layers_added_in_mid_training_are_saved_by_their_names(training: MakeTraining) -> None:
    def added(model: nn.Sequential) -> nn.Module:
        model.append(nn.Linear(2, 2))
        return model[-1]

    first = training().take(2)
    first.optimizer.add_param_group({"params": added(first.model).parameters()})
    first.take(2).close()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    again = training(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1))
    again.optimizer.add_param_group({"params": added(model).parameters()})
    restored = again.checkpoints.restore()
    assert restored is not None
    assert restored.step == 4
    assert len(again.values()) == len(first.values())
    assert all(map(torch.equal, again.values(), first.values()))


def test_added_parameters_that_no_module_holds_are_refused(training: MakeTraining) -> None:
    first = training().take(2)
    first.optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    with pytest.raises(TopoutError, match="trains 2 parameters that no module of the checkpoint holds"):
        first.take(2)
    first.close()


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.weight = nn.Parameter(torch.zeros(2, 0))


def test_a_rank_with_nothing_but_empty_tensors_saves_a_good_checkpoint(tmp_path: Path) -> None:
    saved = of(tmp_path / "saved", model=Empty(), counter=Counter(torch.zeros(0, 5)))
    saved.save()
    saved.close()
    counter = Counter()
    restored = of(tmp_path / "saved", model=Empty(), counter=counter).restore()
    assert restored is not None
    assert not (restored.folder / "rank-00000.data").exists()
    assert counter.value.shape == (0, 5)
    to_safetensors(tmp_path / "saved", tmp_path / "model.safetensors")
    assert b'"shape": [0, 3], "data_offsets": [0, 0]' in (tmp_path / "model.safetensors").read_bytes()


def test_what_cannot_be_cleaned_is_said_once_and_saving_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clean = Store.clean

    def refuse(store: Store, also_unfinished: bool = False) -> None:
        if also_unfinished:
            raise PermissionError(13, "Permission denied")
        clean(store)

    monkeypatch.setattr(Store, "clean", refuse)
    with of(tmp_path, counter=Counter()) as saved:
        saved.save()
        saved.save()
    assert Store(tmp_path).steps() == [0]
    assert capfd.readouterr().err.count("stays: Permission denied") == 1


def test_steps_count_after_closing_and_the_optimizer_keeps_nothing(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = of(tmp_path, model=model, optimizer=optimizer)
    for _ in range(2):
        optimizer.step()
        saved.save()
        saved.close()
    assert Store(tmp_path).steps() == [1, 2]
    alive = weakref.ref(saved)
    del saved
    gc.collect()
    assert alive() is None
    optimizer.step()


def test_one_that_has_only_restored_keeps_no_model_that_the_script_has_dropped(tmp_path: Path) -> None:
    with of(tmp_path, model=nn.Linear(4, 2)) as saved:
        saved.save()

    def evaluated() -> "weakref.ref[nn.Module]":
        model = nn.Linear(4, 2)
        of(tmp_path, model=model).restore()
        return weakref.ref(model)

    model = evaluated()
    gc.collect()
    assert model() is None


def test_one_that_has_saved_ends_well_though_the_script_has_dropped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_leaving, "_calls", [])
    saved = of(tmp_path, counter=Counter())
    saved.save()
    assert saved._writing is not None
    saved._writing.wait()
    del saved
    gc.collect()
    before_leaving.finish()
    # its lock went with it
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000000"]


@pytest.mark.gpu
def test_weights_written_right_after_are_not_in_the_checkpoint(tmp_path: Path) -> None:
    """256 MiB take milliseconds to copy; setting them on the device takes a tenth of that."""

    def made() -> tuple[nn.Module, Checkpoints]:
        model = nn.Linear(8192, 8192, bias=False, device="cuda")
        nn.init.ones_(model.weight)
        state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0)}
        return model, Checkpoints(tmp_path, state=state, place=alone("cuda"))

    model, saved = made()
    saved.save()  # allocates the memory, which would give the copy a head start
    saved.num_steps = 1
    torch.cuda.synchronize()
    saved.save()
    with torch.no_grad():
        model.weight.zero_()
    saved.close()
    again, restored = made()
    nn.init.zeros_(again.weight)
    restored.restore()
    assert bool((again.weight == 1).all())


def test_what_was_made_for_the_checkpoint_alone_is_saved_after_close_as_well(tmp_path: Path) -> None:
    saved = of(tmp_path, counter=Counter(1))
    saved.save()
    saved.close()
    gc.collect()
    saved.save()
    saved.close()
    last = Counter()
    of(tmp_path, counter=last).restore()
    assert last.value == 1


def test_a_checkpoint_without_a_part_that_is_gone_is_not_written_after_close(tmp_path: Path) -> None:
    model, kept = nn.Linear(2, 2), Counter()
    saved = of(tmp_path, model=model, counter=kept)
    saved.save()
    saved.close()
    del model
    gc.collect()
    with pytest.raises(TopoutError, match="were closed, and model is no longer there"):
        saved.save()
    assert Store(tmp_path).steps() == [0]


def test_a_checkpoint_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of many ranks leaves more files than a process may have open."""
    first, second = Counter(torch.ones(2)), Counter(torch.ones(3))
    saved = of(tmp_path, first=first, second=second)
    saved.save()
    saved.close()
    opened: list[Any] = []
    mapped = reader.file_image

    def counted(path: Path) -> Any:
        with path.open("rb"):
            opened.append(mapped(path))
        return opened[-1]

    monkeypatch.setattr(reader, "file_image", counted)
    of(tmp_path, first=first, second=second).restore()
    # all that belongs to one file in one go
    assert len(opened) == 1
