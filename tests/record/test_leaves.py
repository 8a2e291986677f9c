"""A loop without an optimizer trains when what gets gradients changes; reading that touches nothing."""

import json

import pytest
import torch

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps.leaves import LeafWatch


def seen_after(leaves, act, num_looks=10):
    recorder = Recorder(Settings(record=False), StatusLine(None))
    facts = {}
    recorder.fact = facts.update
    watch = LeafWatch(recorder, leaves)
    for _ in range(num_looks):
        act(leaves)
        if not watch.look():
            break
    return facts.get("gradients_of")


def subtract(leaves):
    leaves[-1].data.sub_(0.1)


def give_away_memory(leaves):
    leaves[-1].untyped_storage().resize_(0)


@pytest.mark.parametrize(
    ("act", "seen"),
    [(subtract, "changed"), (lambda leaves: None, "unchanged"), (list.clear, "replaced"), (list.pop, None)],
)
def test_what_became_of_leaves_is_told(act, seen):
    leaves = [torch.nn.Parameter(torch.ones(4, 4)), torch.ones(600, requires_grad=True)]
    assert seen_after(leaves, act, num_looks=1 if seen is None else 10) == seen


@pytest.mark.parametrize("odd", [torch.empty(0), torch.ones(4, 4).t(), torch.ones(2).to("meta")])
def test_leaves_that_cannot_be_read_say_nothing(odd):
    assert seen_after([torch.ones(3), odd], lambda leaves: None) is None


def test_memory_that_is_gone_for_the_while_is_not_read():
    leaves = [torch.ones(3), torch.ones(4)]
    give_away_memory(leaves)
    assert seen_after(leaves, lambda leaves: None) is None


SALIENCY = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
for _ in range(40):
    image = torch.randn(1, 8, requires_grad=True)
    model(image).max().backward()
"""


def test_gradients_that_train_nothing_are_not_passed_off_as_training(run_topout, tmp_path):
    script = tmp_path / "saliency.py"
    script.write_text(SALIENCY)
    done = run_topout(["run", "--runs", tmp_path / "runs", script])
    assert done.code == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    evidence = json.loads((folder / "analysis.json").read_text())["verdict"]["evidence"]
    assert evidence[2].startswith("Nothing was seen to be trained")
