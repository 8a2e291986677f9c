"""One rank: what comes back, what is kept, and what goes wrong with whom told."""

import copy
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.train.checkpoint.conftest import MakeTraining
from topout.schema.errors import TopoutError
from topout.train.checkpoint import Checkpoints, entries, files
from topout.train.checkpoint.captured import Captured
from topout.train.checkpoint.store import Store
from topout.train.checkpoint.writing import Writing
from topout.train.diloco import DiLoCo
from topout.train.fused import fuse
from topout.train.local_sgd import LocalSGD
from topout.train.place import alone


def steps(tmp_path: Path) -> list[int]:
    return Store(tmp_path / "checkpoints").steps()


def lying_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Held:
    """An object of somebody's own, with whatever state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Doubtful(Held):
    """A stepper that has seen a loss of NaN."""

    def settle(self) -> None:
        raise TopoutError("The loss is NaN.", why="it is", do="look at the learning rate")


def test_what_a_part_of_the_state_doubts_is_not_saved(tmp_path: Path) -> None:
    from topout.train.checkpoint import Checkpoints
    from topout.train.place import alone

    checkpoints = Checkpoints(
        tmp_path / "checkpoints", state={"stepper": Doubtful({"step": 1})}, place=alone(), every=1
    )
    with pytest.raises(TopoutError, match="NaN"):
        checkpoints.step()
    checkpoints.close()
    assert steps(tmp_path) == []


def test_an_empty_folder_restores_nothing(training: MakeTraining) -> None:
    assert training().checkpoints.restore() is None


def test_what_was_saved_comes_back_to_the_bit(training: MakeTraining) -> None:
    first = training().take(4).close()
    expected = first.values()
    second = training().take(1)  # a first step, so that every value differs before
    restored = second.checkpoints.restore()
    assert restored is not None
    assert second.checkpoints.restored is restored and first.checkpoints.restored is None
    assert restored.step == second.checkpoints.num_steps == 4
    assert all(torch.equal(now, then) for now, then in zip(second.values(), expected, strict=True))


def test_training_goes_on_as_if_nothing_had_happened(training: MakeTraining, tmp_path: Path) -> None:
    from tests.train.checkpoint.conftest import Training

    whole = Training(tmp_path / "whole").take(9).close().values()
    training().take(5).close()
    rest = training()
    rest.checkpoints.restore()
    assert all(torch.equal(now, then) for now, then in zip(rest.take(5).close().values(), whole, strict=True))


def test_state_of_one_step_is_saved_though_training_goes_on(training: MakeTraining, monkeypatch: Any) -> None:
    """The writer is held up until the next step has changed every parameter."""
    first = training(every=None)
    first.take(1)
    expected = first.values()
    go_on, write = __import__("threading").Event(), files.write_image
    monkeypatch.setattr("topout.train.checkpoint.writing.write_image", lambda *args: (go_on.wait(30), write(*args))[1])
    first.checkpoints.save()
    first.take(1)
    go_on.set()
    first.close()
    second = training().take(1)
    second.checkpoints.restore()
    assert all(torch.equal(now, then) for now, then in zip(second.values(), expected, strict=True))


def test_staging_memory_is_used_again(training: MakeTraining) -> None:
    first = training().take(2)
    image = first.checkpoints._staging.image()
    address = torch.frombuffer(image, dtype=torch.uint8).data_ptr()
    first.take(4)
    assert torch.frombuffer(first.checkpoints._staging.image(), dtype=torch.uint8).data_ptr() == address


def test_objects_come_back_as_they_were(training: MakeTraining) -> None:
    state = {
        "a": (1, [2.5, None, float("inf")]), 3: {"x", "y"}, "t": torch.arange(3), "b": b"\x00\xff", "d": torch.bfloat16,
        "half": torch.ones(2, dtype=torch.float16), "empty": torch.empty(0, 3), "scalar": torch.tensor(7),
        "flags": torch.tensor([True, False]), "epoch": 4,
    }  # fmt: skip
    training(state={"loader": Held(state)}).take(2).close()
    held = Held(None)
    restored = training(state={"loader": held}).checkpoints.restore()
    assert restored is not None
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(held.state[key], value)
            assert held.state[key].dtype == value.dtype
        else:
            assert held.state[key] == value
    assert training(state={"loader": Held({"epoch": 4})}).checkpoints.restore() is not None


def test_mixed_types_and_layouts_come_back(training: MakeTraining) -> None:
    def model() -> nn.Module:
        torch.manual_seed(3)
        built = nn.Sequential(
            nn.Linear(4, 6).to(torch.bfloat16), nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
        )
        built[0].weight = nn.Parameter(built[0].weight.detach().t().contiguous().t())
        return built

    first = model()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    for parameter in first.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.randn(parameter.shape, dtype=torch.float32)
    saved = training(model=first, optimizer=optimizer)
    saved.checkpoints.save()
    saved.close()
    second = model()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    loaded = training(model=second, optimizer=torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9))
    loaded.checkpoints.restore()
    assert all(torch.equal(now, then) for now, then in zip(loaded.values(), saved.values(), strict=True))
    # torch would have cast the moments of bfloat16 weights to bfloat16
    assert {value.dtype for state in loaded.optimizer.state.values() for value in state.values()} == {torch.float32}


def test_policy_keeps_the_newest_and_the_multiples(training: MakeTraining, tmp_path: Path) -> None:
    training(every=1, keep=2, keep_every=5).take(12).close()
    assert steps(tmp_path) == [5, 10, 11, 12]


@pytest.mark.parametrize("at", ["data", "tree", "manifest"])
def test_a_full_disk_is_said_once_and_training_goes_on(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], at: str
) -> None:
    first = training().take(2)
    first.checkpoints._settle()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    names = {"data": "writing.write_image", "tree": "writing.write_small", "manifest": "manifest.write_small"}
    with monkeypatch.context() as patch:
        patch.setattr(f"topout.train.checkpoint.{names[at]}", full)
        first.take(6)
        first.checkpoints._settle()
    said = capfd.readouterr().err
    assert said.count("was not written") == 1
    assert "step 4 was not written: " in said
    assert "No space left on device" in said
    assert lying_in(tmp_path / "checkpoints") == {".lock", "step-000000000002"}
    first.take(2).close()
    assert steps(tmp_path) == [2, 10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_model_with_nan_is_not_saved_and_ends_the_training(
    training: MakeTraining, tmp_path: Path, capfd: pytest.CaptureFixture[str], dtype: torch.dtype
) -> None:
    model = nn.Linear(4, 2).to(dtype)
    first = training(model=model, optimizer=torch.optim.SGD([model.weight], lr=0.1), every=1, keep=1)
    first.checkpoints.step()
    with torch.no_grad():
        model.weight[1, 2] = float("nan")
    first.checkpoints.step()
    with pytest.raises(TopoutError, match=r"model\.weight holds NaN at step 2") as raised:
        first.checkpoints.step()
    assert raised.value.exit_code == 4
    assert "step 1" in raised.value.do
    assert "model.weight holds NaN; training goes on" in capfd.readouterr().err
    with pytest.raises(TopoutError, match="holds NaN at step 2"):
        first.close()
    assert steps(tmp_path) == [1]


def test_infinities_frozen_parameters_and_buffers_may_be_what_they_are(training: MakeTraining, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    with torch.no_grad():
        model[0].bias.fill_(float("nan"))
        model[1].running_mean.fill_(float("nan"))
        model[0].weight[0, 0] = -float("inf")
    first = training(model=model, optimizer=torch.optim.SGD([model[0].weight], lr=0.1), every=1)
    first.checkpoints.step()
    first.close()
    assert steps(tmp_path) == [1]


def test_two_threads_may_wait_for_one_checkpoint_that_fails(
    training: MakeTraining, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a script's failure: the wait that was begun goes on, and Python's end begins another."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    both_wait, wait = threading.Event(), Writing.wait

    def in_turn(writing: Writing) -> str | None:
        if threading.current_thread() is other:
            both_wait.wait(60)
        else:
            both_wait.set()
            other.join(60)
        return wait(writing)

    monkeypatch.setattr("topout.train.checkpoint.writing.write_image", full)
    monkeypatch.setattr(Writing, "wait", in_turn)
    checkpoints = training().take(2).checkpoints
    other = threading.Thread(target=checkpoints._settle)
    other.start()
    checkpoints._settle()
    assert capfd.readouterr().err.count("was not written") == 1


def test_closing_after_a_failure_is_an_error(training: MakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("topout.train.checkpoint.writing.write_image", full)
    with pytest.raises(TopoutError, match="The last checkpoint, of step 2, was not written"):
        training().take(2).close()


def refusal(training: MakeTraining, **options: Any) -> str:
    with pytest.raises(TopoutError) as raised:
        training(**options).checkpoints.restore()
    return f"{raised.value.problem} {raised.value.why}"


def test_another_model_is_refused_by_name(training: MakeTraining) -> None:
    training().take(2).close()
    wider = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 2))
    assert "0.weight is (7, 4), saved (6, 4)" in refusal(training, model=wider)
    longer = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2), nn.Linear(2, 2))
    assert "missing in the checkpoint: 3.bias, 3.weight" in refusal(training, model=longer)
    shorter = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    assert "not in the model: 2.bias, 2.weight" in refusal(training, model=shorter)


def test_another_optimizer_is_refused_by_name(training: MakeTraining) -> None:
    training().take(2).close()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    said = refusal(training, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert "another optimizer" in said
    assert "it was Adam and is SGD" in said
    assert "missing in the checkpoint: dampening, momentum, nesterov" in said
    said = refusal(training, model=model, optimizer=torch.optim.Adam(model[0].parameters()))
    assert "not in the optimizer: 1.bias, 1.weight, 2.bias, 2.weight" in said
    assert "knows no schedule" in refusal(training, state={"schedule": Held({})})


def test_what_cannot_be_written_plainly_is_refused_by_its_path(training: MakeTraining) -> None:
    with pytest.raises(TopoutError, match=r"loader\.on_end cannot be saved: it is a builtins\.function"):
        training(state={"loader": Held({"on_end": lambda: None})}).take(2)


def test_a_folder_that_cannot_be_written_is_named(training: MakeTraining, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(TopoutError, match="Checkpoints cannot be written to"):
        training()


@pytest.mark.parametrize("options", [{"every": 0}, {"every": "soon"}, {"keep": 0}, {"state": {"@x": Held({})}}])
def test_wrong_options_are_refused(training: MakeTraining, options: dict[str, Any]) -> None:
    with pytest.raises(TopoutError):
        training(**options)


def test_without_step_the_steps_of_the_optimizer_are_counted(training: MakeTraining, tmp_path: Path) -> None:
    made = training(every=None)
    for _ in range(3):
        made.optimizer.zero_grad()
        made.model(torch.randn(5, 4)).square().mean().backward()
        made.optimizer.step()
        made.checkpoints.save()
        # nothing has happened since
        made.checkpoints.save()
    made.close()
    assert lying_in(tmp_path / "checkpoints") == {f"step-{number:012d}" for number in (1, 2, 3)}


def test_a_run_keeps_its_own_kernels(training: MakeTraining) -> None:
    training().take(2).close()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    fused = training(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1, fused=True))
    fused.checkpoints.restore()
    assert fused.optimizer.param_groups[0]["fused"] is True
    fused.take(1).close()


def test_what_was_fused_is_fused_again_and_the_script_s_own_settings_stay_known(training: MakeTraining) -> None:
    training().take(2).close()
    again = training()
    assert fuse(again.optimizer)
    again.checkpoints.restore()
    assert again.optimizer.param_groups[0]["fused"] is True
    assert copy.deepcopy(again.optimizer).param_groups[0]["fused"] is None


def test_a_further_module_may_come_and_go(training: MakeTraining) -> None:
    before = training(state={"average": nn.Linear(2, 2)}).take(2).close()
    alone = training()
    alone.checkpoints.restore()
    assert all(map(torch.equal, before.values(), alone.values()))
    alone.take(2).close()
    again = training()
    again.checkpoints.restore()
    assert all(map(torch.equal, alone.values(), again.values()))


def test_parameters_that_nobody_would_save_are_refused(training: MakeTraining) -> None:
    model, loss = nn.Linear(4, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    with pytest.raises(TopoutError, match="trains 2 parameters that no module of the checkpoint holds") as raised:
        training(model=model, optimizer=optimizer)
    # among several ranks it must be averaged, too
    assert "criterion = ctx.wrap(criterion)" in raised.value.do
    training(model=model, optimizer=optimizer, state={"loss": loss}).close()


class Replica(nn.parallel.DistributedDataParallel):
    """DDP around a model, as far as names go; it needs no group."""

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = model

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.module(inputs)


@pytest.mark.parametrize("were_several", [True, False])
def test_an_average_of_a_wrapped_model_comes_back_in_any_number_of_ranks(tmp_path: Path, were_several: bool) -> None:
    def average(is_wrapped: bool, value: float) -> nn.Module:
        """Holds the model under the name that AveragedModel gives it."""
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, value)
        return nn.ModuleDict({"module": Replica(model) if is_wrapped else model})

    def checkpoints(part: nn.Module) -> Checkpoints:
        return Checkpoints(tmp_path, state={"average": part}, place=alone())

    with checkpoints(average(were_several, 3.0)) as saving:
        saving.save()
    again = average(not were_several, 0.0)
    with checkpoints(again) as restoring:
        restoring.restore()
    (weight,) = [value for name, value in again.named_parameters() if name.endswith("weight")]
    assert (weight == 3.0).all()


def test_an_older_checkpoint_of_a_model_with_ddp_inside_comes_back(
    training: MakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the name that DDP adds, in the model and in the optimizer."""

    def made() -> nn.Module:
        return nn.Sequential(Replica(nn.Linear(4, 2)), nn.Linear(2, 2))

    plain_names = entries.plain_names
    with monkeypatch.context() as patch:
        patch.setattr(entries, "plain_names", lambda module, **_: plain_names(module, as_once=True))
        first = training(model=made()).take(2).close()
    again = training(model=made())
    restored = again.checkpoints.restore()
    assert restored is not None
    # once in the model's part, twice in the optimizer's
    assert (restored.folder / "rank-00000.json").read_text().count('"0.module.weight"') == 3
    assert len(again.values()) == len(first.values())
    assert all(map(torch.equal, again.values(), first.values()))


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_where_ranks_train_apart_each_saves_its_own_of_everything(kind: type) -> None:
    def trained(model: nn.Linear) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()
        return optimizer

    model, critic = nn.Linear(4, 2), nn.Linear(2, 1)
    inner = trained(model)
    local = LocalSGD(model, alone()) if kind is LocalSGD else DiLoCo(model, inner, alone())
    parts = {"model": model, "average": AveragedModel(model), "critic": critic}
    state = {**parts, "inner": inner, "other": trained(critic)}

    def are_own(state: dict[str, Any]) -> list[bool]:
        captured = Captured(1)
        for entry in entries.entries_of(state):
            entry.capture(captured)
        # buffers always are
        named = [name for name in captured.tensors if name.endswith(("weight", "bias", "momentum_buffer"))]
        return [name.startswith("@1/") for name in named]

    assert are_own(state) == [False] * 10
    assert are_own({**state, "local": local}) == [True] * 10
