"""The recipe of text: the model is causal and as large as said, windows cover the text once, and it learns."""

import re

import numpy as np
import pytest
import torch

from tests.conftest import REPOSITORY
from topout.recipes.gpt_small_model import GPT, Attention
from topout.recipes.gpt_small_text import Windows, entropy_of_bytes, read_text, split_text
from topout.schema.errors import TopoutError

SCRIPT = REPOSITORY / "topout" / "recipes" / "gpt_small.py"


def small_model(**more) -> GPT:
    torch.manual_seed(0)
    return GPT(num_blocks=2, width=16, num_heads=4, context=8, num_symbols=11, **more)


def test_the_full_model_has_gpt_2s_blocks() -> None:
    with torch.device("meta"):
        model = GPT(num_blocks=12, width=768, num_heads=12, context=1024)
    assert sum(parameter.numel() for parameter in model.blocks.parameters()) == 85_054_464
    assert sum(parameter.numel() for parameter in model.parameters()) == 86_235_648


def test_what_comes_later_changes_nothing_before_it() -> None:
    model = small_model().eval()
    symbols = torch.arange(8)[None]
    others = symbols.clone()
    others[0, 5] = 9
    before, after = model(symbols)[0], model(others)[0]
    torch.testing.assert_close(after[:5], before[:5])
    assert not torch.allclose(after[5:], before[5:])


def test_its_sequence_is_its_forward() -> None:
    model = small_model()
    x = symbols = torch.arange(6)[None]
    for part in model.sequence():
        x = part(x)
    torch.testing.assert_close(x, model(symbols), rtol=0, atol=0)


def test_columns_of_query_key_and_value_with_rows_of_out_are_some_of_the_heads() -> None:
    torch.manual_seed(0)
    whole, x = Attention(16, 4), torch.randn(2, 5, 16)
    total = -whole.out.bias
    for columns in (slice(0, 8), slice(8, 16)):  # two ranks, two heads each
        part = Attention(16, 4)
        for name in ("query", "key", "value"):
            linear, own = getattr(whole, name), getattr(part, name)
            own.weight, own.bias = (torch.nn.Parameter(tensor[columns]) for tensor in (linear.weight, linear.bias))
        part.out.weight, part.out.bias = torch.nn.Parameter(whole.out.weight[:, columns]), whole.out.bias
        total = total + part(x)
    torch.testing.assert_close(total, whole(x))


def test_a_tied_head_has_the_embeddings_weights() -> None:
    model = small_model(is_tied=True)
    assert model.head.weight is model.embedding.weight


def test_windows_tell_each_byte_once() -> None:
    windows = Windows(np.arange(10, dtype=np.uint8), 3)
    assert [inputs.tolist() for inputs, _ in windows_of(windows)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [targets.tolist() for _, targets in windows_of(windows)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def windows_of(windows):
    return [windows[number] for number in range(len(windows))]


def test_text_is_a_file_or_pythons_own_sources(tmp_path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"ab" * 50)
    text = read_text(path)
    assert bytes(text) == b"ab" * 50
    assert entropy_of_bytes(text) == 1.0
    training, validation = split_text(text, 4)
    assert (len(training.text), len(validation.text)) == (90, 10)
    assert len(read_text(most_bytes=100_000)) == 100_000
    with pytest.raises(TopoutError, match="too few"):
        split_text(text, 10)


def said_bits(stdout: str) -> tuple[float, float]:
    """Of bytes one by one, which is what a model knows that has learnt nothing else, and of the model."""
    alone = re.search(r"they take (\d\.\d{4}) bits each", stdout)
    return float(alone[1]), float(re.fullmatch(r"validation (\d\.\d{4}) bits per byte", stdout.splitlines()[-1])[1])


def test_two_ranks_learn_and_one_goes_on_with_the_same_figure(tmp_path, run_ranks) -> None:
    (tmp_path / "text").write_bytes(bytes(read_text(most_bytes=300_000)))
    options = ["--small", "--text", tmp_path / "text", "--steps", 100, "--checkpoints", tmp_path / "saved"]
    first, second = run_ranks(SCRIPT, 2, options)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    alone, bits = said_bits(first.stdout)
    assert bits < alone - 0.5
    assert re.search(r"step +100/100 .* [\d,]+ tokens/s", first.stdout)
    [ended] = run_ranks(SCRIPT, 1, options)  # nothing is left to train
    assert ended.code == 0, ended.stderr
    assert said_bits(ended.stdout) == (alone, bits)


MESH = """
[mesh]
tp = 2

[layout]
"blocks.*.attention.query" = "columns"
"blocks.*.attention.key" = "columns"
"blocks.*.attention.value" = "columns"
"blocks.*.attention.out" = "rows"
"blocks.*.mlp.up" = "columns"
"blocks.*.mlp.down" = "rows"
"""


def test_a_mesh_splits_it_by_layers_and_goes_on_as_a_pipeline(tmp_path, run_ranks) -> None:
    (tmp_path / "layers.toml").write_text(MESH)
    (tmp_path / "stages.toml").write_text('[mesh]\npp = 2\nschedule = "1f1b"\nmicrobatches = 4\n')
    (tmp_path / "text").write_bytes(bytes(read_text(most_bytes=60_000)))
    options = ["--small", "--text", tmp_path / "text", "--batch-size", 8, "--checkpoints", tmp_path / "saved", "--mesh"]
    first, second = run_ranks(SCRIPT, 2, ["--steps", 40, *options, tmp_path / "layers.toml"])
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    alone, bits = said_bits(first.stdout)
    assert bits < alone
    first, second = run_ranks(SCRIPT, 2, ["--steps", 40, *options, tmp_path / "stages.toml"])
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert said_bits(first.stdout)[1] == pytest.approx(bits, abs=2e-4)
