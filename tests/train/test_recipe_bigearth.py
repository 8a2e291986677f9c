"""The recipe of multispectral patches: its data are as the real set's, its figures are right, and it learns."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import topout
from tests.conftest import REPOSITORY
from topout.packs.pack import open_pack
from topout.recipes.bigearth import make_optimizer, parse_options
from topout.recipes.bigearth_data import (
    BANDS,
    LABELS,
    MEAN,
    STD,
    make_patches,
    pack_patches,
    read_patch,
    split_names,
)
from topout.recipes.bigearth_input import mixed_up, prepared, turned
from topout.recipes.bigearth_score import average_precision, f1_scores, label_counts, mean_average_precision
from topout.schema.errors import TopoutError

SCRIPT = REPOSITORY / "topout" / "recipes" / "bigearth.py"


@pytest.fixture(scope="module")
def patches(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bigearth") / "patches"
    make_patches(folder, 120)
    return folder


@pytest.fixture(scope="module")
def packs(patches) -> Path:
    pack_patches(patches, patches.parent / "packs", is_quiet=True)
    return patches.parent / "packs"


def test_patches_have_the_files_and_sizes_of_the_real_set(patches) -> None:
    folders = sorted(patches.iterdir())
    assert len(folders) == 120
    counts = []
    for folder in folders:
        labels = json.loads((folder / f"{folder.name}_labels_metadata.json").read_text())["labels"]
        assert set(labels) <= set(LABELS)
        counts.append(len(set(labels)))
    assert 1 == min(counts) < max(counts) <= 12
    assert len(LABELS) == len(set(LABELS)) == 43
    sizes = {}
    for path in folders[0].glob("*.tif"):
        with Image.open(path) as opened:
            assert opened.mode == "I;16"
            sizes[path.stem.rpartition("_")[2]] = opened.size
    expected = dict.fromkeys(("B02", "B03", "B04", "B08"), (120, 120)) | dict.fromkeys(("B01", "B09"), (20, 20))
    assert sizes == expected | dict.fromkeys(("B05", "B06", "B07", "B8A", "B11", "B12"), (60, 60))


def test_the_split_is_60_20_20_and_stays_when_patches_are_listed_otherwise(patches, tmp_path) -> None:
    split = split_names(patches)
    assert {name: len(names) for name, names in split.items()} == {"train": 72, "val": 24, "test": 24}
    assert sorted([*split["train"], *split["val"], *split["test"]]) == sorted(
        folder.name for folder in patches.iterdir()
    )
    for name, names in split.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(names[:2]))
    assert split_names(patches, tmp_path) == {name: names[:2] for name, names in split.items()}


def test_a_folder_without_patches_is_an_error_that_says_what_to_do(tmp_path) -> None:
    with pytest.raises(TopoutError, match="0 patches"):
        split_names(tmp_path / "nowhere")


def test_a_patch_with_an_unknown_label_is_named_when_packing(tmp_path) -> None:
    make_patches(tmp_path / "patches", 5)
    name = split_names(tmp_path / "patches")["train"][1]
    said = tmp_path / "patches" / name / f"{name}_labels_metadata.json"
    said.write_text(json.dumps({"labels": ["Moon"]}))
    with pytest.raises(TopoutError, match=name):
        pack_patches(tmp_path / "patches", tmp_path / "packs", is_quiet=True)


def test_packed_bands_are_the_files_bands_at_120_pixels(patches, packs) -> None:
    with open_pack(packs / "val") as pack:
        assert len(pack) == 24
        number = 5
        sample, original = pack.sample(number), read_patch(patches / pack.name(number))
    assert sample["bands"].shape == (12, 120, 120)
    np.testing.assert_array_equal(sample["bands"][1], original["B02"])
    assert sample["labels"] == original["labels"]
    # resized in packing or in use: the same up to rounding to whole numbers
    stacked = {"bands": torch.from_numpy(sample["bands"])[None], "labels": torch.tensor([sample["labels"]])}
    each = {band: torch.from_numpy(original[band])[None] for band in BANDS} | {"labels": stacked["labels"]}
    bands, labels = prepared(stacked, torch.device("cpu"), 120)
    others, _ = prepared(each, torch.device("cpu"), 120)
    torch.testing.assert_close(bands, others, rtol=0, atol=0.51 / min(STD))
    assert [LABELS[place] for place in labels[0].nonzero().flatten()] == [
        label for place, label in enumerate(LABELS) if sample["labels"] >> place & 1
    ]


def test_bands_packed_at_their_own_sizes_come_as_one_input(patches, tmp_path) -> None:
    pack_patches(patches, tmp_path, own_sizes=True, is_quiet=True)
    with topout.Loader(tmp_path / "val", 4, shuffle=False, rank=0, world_size=1) as loader:
        batch = next(iter(loader))
        name = loader.packs.name(2)
    bands, labels = prepared(batch, torch.device("cpu"), 60)
    assert bands.shape == (4, 12, 60, 60)
    assert labels.sum(1).min() >= 1
    channel = list(BANDS).index("B11")  # stored with 60 pixels, so it is only normalised
    pixels = torch.from_numpy(read_patch(patches / name)["B11"]).float()
    torch.testing.assert_close(bands[2, channel], (pixels - MEAN[channel]) / STD[channel])


def test_turning_gives_all_eight_ways_to_lay_a_patch_and_no_other() -> None:
    torch.manual_seed(0)
    patch = torch.arange(4.0).reshape(1, 1, 2, 2)
    turned_ones, _ = turned(patch.expand(200, -1, -1, -1), None)
    quarter_turns = [torch.rot90(patch[0, 0], times) for times in range(4)]
    ways = {tuple(way.flatten().tolist()) for turn in quarter_turns for way in (turn, turn.flip(-1))}
    assert len(ways) == 8
    assert {tuple(one.flatten().tolist()) for one in turned_ones} == ways


def test_mix_up_blends_patches_and_labels_in_the_same_share() -> None:
    torch.manual_seed(0)
    bands, labels = torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mixed, shares = mixed_up(bands, labels, alpha=0.5)
    torch.testing.assert_close(shares.sum(1), torch.ones(2))
    torch.testing.assert_close(mixed.flatten(), shares[:, 0] * 1 + shares[:, 1] * 3)
    assert 0 < shares[0, 1] < 1
    assert mixed_up(bands, labels, alpha=0)[0] is bands


def test_figures_by_hand() -> None:
    # true at ranks 1 and 3: (1/1 + 2/3) / 2; a tie of one true and one false at the top counts 1/2
    assert average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])) == pytest.approx(5 / 6)
    assert average_precision(torch.tensor([0.9, 0.9, 0.1]), torch.tensor([True, False, False])) == 0.5
    are_true = torch.tensor([[True, False, False], [True, True, False]])
    are_guessed = torch.tensor([[True, False, True], [False, True, False]])
    # label 0: 1 of 2 found, F1 = 2/3; label 1: F1 = 1; label 2 does not occur. Micro: 2 * 2 / (3 + 3)
    f1 = f1_scores(label_counts(are_guessed, are_true))
    assert f1["f1_micro"] == pytest.approx(2 / 3)
    assert f1["f1_macro"] == pytest.approx(5 / 6)
    scores = torch.tensor([[0.1, 0.2, 0.9], [0.2, 0.3, 0.1]])
    assert mean_average_precision(scores, are_true) == 1.0


def figures(said: str) -> tuple[float, ...]:
    found = re.fullmatch(r"test  mAP (\d\.\d+)  F1 (\d\.\d+) micro (\d\.\d+) macro", said.splitlines()[-1])
    return tuple(map(float, found.groups()))


@pytest.mark.parametrize(("optimizer", "usual"), [("adamw", 1e-2), ("lamb", 1e-2), ("sgd", 1e-4), ("lars", 1e-4)])
def test_every_optimizer_has_the_weight_decay_that_is_asked_for(optimizer, usual) -> None:
    class Rank:
        world_size = 1

    for given, expected in (([], usual), (["--weight-decay", "0.05"], 0.05), (["--weight-decay", "0"], 0.0)):
        options = parse_options(["--small", "--optimizer", optimizer, *given])
        decaying, others = make_optimizer(torch.nn.Linear(2, 2), options, Rank).param_groups
        assert (decaying["weight_decay"], others["weight_decay"]) == (expected, 0.0)


def test_two_ranks_learn_from_made_up_patches(run_ranks) -> None:
    first, second = run_ranks(SCRIPT, 2, ["--small", "--epochs", 3])
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    ranked, micro, _ = figures(first.stdout)
    assert ranked > 0.25  # 3 of 43 labels are true: guessing gives less than 0.15
    assert micro > 0.15
    assert second.stdout == ""


def test_packs_and_checkpoints_give_the_same_test_figures_at_another_number_of_ranks(
    packs, tmp_path, run_ranks
) -> None:
    saving = ["--small", "--data", packs, "--checkpoints", tmp_path / "saved", "--epochs", 1]
    begun, _ = run_ranks(SCRIPT, 2, saving)
    assert begun.code == 0, begun.stderr
    [ended] = run_ranks(SCRIPT, 1, saving)  # nothing is left to train: restored and evaluated
    assert ended.code == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["test"]
    assert figures(ended.stdout) == figures(begun.stdout)
