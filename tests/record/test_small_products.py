"""Products that torch hands to oneDNN on ARM though they are small: counted by layout and size, on any processor."""

import json
import platform

import pytest
import torch
from torch import nn

from topout.record.torch_taps.small_products import is_small_for_onednn

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
given = torch.randn(32, 64)
for _ in range(40):
    optimizer.zero_grad()
    model(given).square().mean().backward()
    optimizer.step()
"""


def node_of(rows, inner, columns, **given):
    layer = nn.Linear(inner, columns, bias=given.get("bias", True))
    layer.weight.requires_grad_(given.get("learns", True))
    return layer(torch.randn(rows, inner, requires_grad=given.get("is_hidden", True))).grad_fn


@pytest.mark.parametrize("given", [{}, {"bias": False}, {"learns": False}, {"is_hidden": False}], ids=str)
def test_layers_are_small_between_two_sizes(given):
    assert is_small_for_onednn(node_of(32, 64, 64, **given))
    # torch's own limits: more than 8 of each, and 8,192 multiplications
    assert not is_small_for_onednn(node_of(8, 64, 64, **given))
    assert not is_small_for_onednn(node_of(16, 16, 16, **given))
    assert not is_small_for_onednn(node_of(256, 256, 256, **given))


def test_products_of_other_layouts_are_not():
    left, right = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    assert not is_small_for_onednn((left @ right).grad_fn)
    assert is_small_for_onednn((left @ right.t()).grad_fn)
    assert not is_small_for_onednn((left.t() @ right.t()).grad_fn)


@pytest.mark.parametrize(("set_to", "is_small"), [("4000000", False), ("8192", True), ("many", True)])
def test_torchs_own_variable_moves_the_limit(monkeypatch, set_to, is_small):
    monkeypatch.setenv("TORCH_MKLDNN_MATMUL_MIN_SIZE", set_to)
    assert is_small_for_onednn(node_of(32, 64, 64)) is is_small


def test_they_are_recorded_and_on_arm_advised_against(run_topout, tmp_path):
    script = tmp_path / "layers.py"
    script.write_text(SCRIPT)
    done = run_topout(["run", "-n", 1, "--runs", tmp_path / "runs", script])
    assert done.code == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    analysis = json.loads((folder / "analysis.json").read_text())
    assert analysis["measures"]["environment"]["num_small_products"] == 20
    is_named = "PR05" in [finding["code"] for finding in analysis["findings"]]
    assert is_named is (platform.machine() == "aarch64")
