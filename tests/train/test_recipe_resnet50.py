"""The recipe trains: one process or several, folders or packs, from the start or from a checkpoint."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.conftest import REPOSITORY
from topout.cli.main import main
from topout.recipes.resnet50_input import make_small_folders
from topout.recipes.resnet50_model import ResNet, fold, resnet50
from topout.train.precision import computes_in_bf16

SCRIPT = REPOSITORY / "topout" / "recipes" / "resnet50.py"


def test_the_model_has_torchvisions_names_and_shapes() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in resnet50().named_parameters()}
    assert len(shapes) == 161
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 25_557_032
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
    assert shapes["layer4.2.bn3.bias"] == (2048,)
    assert shapes["fc.weight"] == (1000, 2048)


@pytest.mark.parametrize("channels", [12, 16])
def test_the_folded_stem_is_the_same_convolution(channels: int) -> None:
    images, weight = torch.randn(2, 3, 20, 12).double(), torch.randn(8, 3, 7, 7).double()
    plain = functional.conv2d(images, weight, stride=2, padding=3)
    torch.testing.assert_close(functional.conv2d(*fold(images, weight, channels)), plain)


def test_a_model_with_a_folded_stem_has_the_same_weights_and_gradients() -> None:
    gradients = []
    for channels in (0, 12, 16):
        torch.manual_seed(0)
        model = ResNet((1, 1), 8, 5, folded_stem=channels).double()
        model(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    plain, *folded = gradients
    for others in folded:
        assert others.keys() == plain.keys()
        for name, gradient in plain.items():
            torch.testing.assert_close(others[name], gradient, msg=name)


def accuracy(said: str) -> float:
    return float(re.fullmatch(r"accuracy (\d\.\d{4})", said.splitlines()[-1])[1])


def test_two_ranks_learn_from_folders_and_rank_0_speaks(run_ranks) -> None:
    first, second = run_ranks(SCRIPT, 2, ["--small", "--epochs", 4])
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert [line.split()[0] for line in first.stdout.splitlines()] == ["epoch"] * 4 + ["accuracy"]
    assert accuracy(first.stdout) > 0.4  # eight classes: guessing gives 0.125
    assert second.stdout == ""


@pytest.fixture(scope="module")
def packs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    make_small_folders(folder / "folders")
    for split in ("train", "val"):
        try:
            main(["pack", str(folder / "folders" / split), str(folder / "packs" / split)])
        except SystemExit as ended:
            assert not ended.code
    return folder / "packs"


def test_it_learns_from_packs_and_goes_on_from_a_checkpoint(packs, tmp_path, run_ranks) -> None:
    precision = "bf16" if computes_in_bf16() else "fp32"  # without instructions for it an epoch takes minutes
    saving = ["--small", "--data", packs, "--checkpoints", tmp_path / "saved", "--every", "7", "--precision", precision]
    [begun] = run_ranks(SCRIPT, 1, [*saving, "--epochs", 2])
    assert begun.code == 0, begun.stderr
    [ended] = run_ranks(SCRIPT, 1, [*saving, "--epochs", 4, "--accumulate", 2])
    assert ended.code == 0, ended.stderr
    assert [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("epoch")] == ["3/4", "4/4"]
    assert accuracy(ended.stdout) > 0.4


def test_synthetic_input_ends_with_a_rate(run_ranks) -> None:
    options = ["--small", "--synthetic", "--steps", 12, "--checkpoint-activations", "layer1", "--folded-stem", 16]
    [ended] = run_ranks(SCRIPT, 1, options)
    assert ended.code == 0, ended.stderr
    assert re.fullmatch(r"[\d,]+ img/s", ended.stdout.splitlines()[-1])


def test_no_input_is_a_usage_error(run_ranks) -> None:
    [ended] = run_ranks(SCRIPT, 1, [])
    assert ended.code == 2
    assert "--data, --synthetic and --small" in ended.stderr
