"""Whether oneDNN computes gradients: recorded as it is in backward, changed without an edit, advised against on ARM."""

import json
import os
from types import SimpleNamespace

import pytest
import torch

from topout.record.torch_taps import backward

SCRIPT = """
import contextlib, sys
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
images = torch.randn(4, 3, 64, 64)
class Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        seen.add(torch._C._get_mkldnn_enabled())
        return gradient
seen = set()
for _ in range(30):
    optimizer.zero_grad()
    loss = Seen.apply(model(images)).square().mean()
    with torch.backends.mkldnn.flags(enabled=False) if "by-itself" in sys.argv else contextlib.nullcontext():
        loss.backward()
    optimizer.step()
assert torch._C._get_mkldnn_enabled()
print(*seen)
"""


@pytest.fixture
def convolve(run_topout, tmp_path):
    def run(flags, *words):
        script = tmp_path / "convolve.py"
        script.write_text(SCRIPT)
        done = run_topout(["run", "-n", 1, "--runs", tmp_path / "runs", *flags, script, *words])
        assert done.code == 0, done.stderr
        return done

    return run


@pytest.mark.parametrize(
    ("flags", "words", "is_on"),
    [([], [], True), ([], ["by-itself"], False), (["--no-onednn-backward"], [], False)],
    ids=["as torch has it", "turned off by the script", "turned off by the command"],
)
def test_it_is_recorded_and_on_arm_advised_against(convolve, tmp_path, flags, words, is_on):
    assert str(is_on) in convolve(flags, *words).stdout.split()
    (folder,) = (tmp_path / "runs").iterdir()
    analysis = json.loads((folder / "analysis.json").read_text())
    environment = analysis["measures"]["environment"]
    assert environment["backward_uses_onednn"] is is_on
    assert environment["processor"] == os.uname().machine
    is_named = "PR04" in [finding["code"] for finding in analysis["findings"]]
    # with oneDNN backward takes 14 times as long as forward there, without it 2.5 times
    assert is_named is (is_on and os.uname().machine == "aarch64")


def test_where_a_cpu_computes_no_gradients_it_is_said_that_nothing_changes():
    said = []
    recorder = SimpleNamespace(note=said.append)
    backward._check_on_cpu(torch.zeros(1), recorder)
    assert said == []
    backward._check_on_cpu([torch.zeros(1, device="meta")], recorder)
    assert said == ["--no-onednn-backward changes nothing: gradients are computed on meta"]


def test_it_is_turned_off_without_a_recording_too(convolve):
    assert "False" in convolve(["--no-record", "--no-onednn-backward"]).stdout.split()
