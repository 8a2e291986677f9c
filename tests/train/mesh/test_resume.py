"""What a resume brings of the other mesh, and what stays this run's own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.checkpoint import to_safetensors
from topout.train.checkpoint.captured import Captured, Source
from topout.train.mesh import hybrid
from topout.train.mesh.resume import OptimizerStateEntry
from topout.train.optim.lars import LARS
from topout.train.place import alone


def made(**options):
    return hybrid(
        alone(), lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, **options), mesh={},
    )  # fmt: skip


def step(trainer):
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))


@pytest.fixture
def saved(tmp_path):
    trainer = made(foreach=True)
    step(trainer)
    trainer.save(tmp_path / "saved")
    trainer.close()
    return tmp_path / "saved"


def test_peers_of_a_layer_draw_alike_and_rows_apart_whatever_mesh_saved(run_ranks, saved, tmp_path):
    ranks = run_ranks(Path(__file__).parent / "random_numbers.py", 2, [saved, tmp_path / "others"])
    assert [ended.code for ended in ranks] == [0, 0], ranks[0].stderr[-2000:] + ranks[1].stderr[-2000:]
    first, second = (ended.said for ended in ranks)
    for name in ("peers", "rows as peers", "one as peers"):
        assert first[name] == second[name], name
    for name in ("rows", "peers as rows", "one as rows"):
        assert first[name] != second[name], name
    assert first["rows again"] == first["rows"][:1] and second["rows again"] == second["rows"][:1]
    assert first["rows as peers again"] == first["rows as peers"]
    assert "it was not saved in this mesh" in ranks[0].stderr


def test_what_a_mesh_saved_becomes_one_file(saved, tmp_path):
    to_safetensors(saved, tmp_path / "model.safetensors")
    trainer = made()
    trainer.restore(saved)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == trainer.named_parameters().keys()
    assert all(torch.equal(found[name], value) for name, value in trainer.named_parameters().items())
    with pytest.raises(TopoutError, match="holds no tensors by name"):
        to_safetensors(saved, tmp_path / "none.safetensors", entry="optimizer")
    assert not (tmp_path / "none.safetensors").exists()


def test_which_kernels_are_used_is_this_runs_choice(saved):
    trainer = made(foreach=False)
    assert trainer.restore(saved) == 1
    assert trainer.optimizer.param_groups[0]["foreach"] is False
    assert trainer.optimizer.param_groups[0]["momentum"] == 0.9
    assert len(trainer.optimizer.state) == 4


def test_names_of_parameters_are_those_of_this_ranks_stage():
    whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def entry(names):
        found = [(name, p) for name, p in whole.named_parameters() if name in names]
        return OptimizerStateEntry(LARS(found, lr=0.1), {id(p): name for name, p in found})

    captured = Captured(0)
    entry(["0.weight"]).capture(captured)
    here = entry(["1.weight", "1.bias"])
    here.ask(captured.trees["optimizer"], Source({}))
    here.load()
    assert here.optimizer.param_groups[0]["param_names"] == ["1.weight", "1.bias"]
    for parameter in whole[1].parameters():
        parameter.grad = torch.ones_like(parameter)
    here.optimizer.step()


@pytest.mark.parametrize("before", ["restore", "save", "checkpoint"])
def test_options_of_checkpoint_count_after_the_folder_was_used(tmp_path, before):
    class Epochs:
        number = 3

        def state_dict(self):
            return {"number": self.number}

        def load_state_dict(self, state):
            self.number = state["number"]

    folder, trainer, epochs = tmp_path / "checkpoints", made(), Epochs()
    trainer.restore(folder)
    if before == "checkpoint":
        trainer.checkpoint(folder, every=None)
    checkpoints = trainer.checkpoint(folder, every=1, epochs=epochs)
    step(trainer)
    checkpoints.step()
    if before == "save":
        trainer.save(folder)
    trainer.close()

    again, later = made(), Epochs()
    later.number = 0
    again.restore(folder)
    again.checkpoint(folder, epochs=later)
    again.close()
    assert (again.num_steps, later.number) == (1, 3)
