"""What a user can do wrong with compression, and a rank that fails in the middle of an exchange."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.compression import make
from topout.train.compression.compressor import Compressor
from topout.train.place import alone


def bucket_of(parameter: nn.Parameter) -> SimpleNamespace:
    """A reducer's bucket of one parameter."""
    return SimpleNamespace(
        index=lambda: 0,
        is_last=lambda: True,
        buffer=lambda: parameter.detach().flatten(),
        gradients=lambda: [parameter.detach()],
        parameters=lambda: [parameter],
    )


def test_a_rank_that_fails_in_an_exchange_ends_the_others_while_it_lives(facts):
    """Without leaving its group, rank 0 would let rank 1 wait for half an hour."""
    first, second = facts("failing_ranks.py", 2, "int8")
    assert "TopoutError: Compressed gradients could not be exchanged on rank 0: no room" in first["message"]
    assert "TopoutError: Compressed gradients could not be exchanged on rank 1" in second["message"]


def test_an_unknown_codec_names_those_there_are():
    with pytest.raises(TopoutError, match="no compression called 'zip'") as caught:
        make("zip", alone())
    assert caught.value.do == "one of bf16, fp16, int8, powersgd, hierarchical"


def test_an_option_of_another_codec_is_refused():
    with pytest.raises(TopoutError, match=r"int8 does not take these options: .*'rank'"):
        make("int8", alone(), rank=4)


@pytest.mark.parametrize(("codec", "options"), [("int8", {"chunk": 6}), ("powersgd", {"rank": 0})])
def test_an_impossible_option_is_refused(codec, options):
    with pytest.raises(TopoutError, match="is not possible"):
        make(codec, alone(), **options)


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8", "powersgd", "hierarchical"])
def test_one_rank_alone_gets_its_own_gradients_back(codec):
    model = nn.Linear(3, 2)
    compressor = make(codec, alone(), model)
    future = compressor.hook(None, bucket_of(model.weight))
    assert torch.equal(future.wait(), model.weight.detach().flatten())
    assert compressor.bytes_sent == 0


def test_parameters_without_names_are_refused():
    with pytest.raises(TopoutError, match=r"A parameter of shape \(2, 3\) is unknown"):
        make("int8", alone()).hook(None, bucket_of(nn.Linear(3, 2).weight))


def test_one_compressor_does_not_serve_two_models():
    compressor = make("int8", alone(), nn.Linear(3, 2))
    with pytest.raises(TopoutError, match="two models"):
        compressor.learn(nn.Linear(3, 2))


def restored(codec: str, changes: dict[str, object]) -> Compressor:
    """A compressor of one rank that was given a state of another one's, changed."""
    state = {
        "codec": "PowerSgd",
        "world_size": 1,
        "num_steps": 12,
        "directions": {"weight": torch.ones(3, 1)},
        "residuals": {"weight": torch.ones(2, 3)},
    }
    compressor = make(codec, alone())
    compressor.load_state_dict({**state, **changes})
    return compressor


def test_in_another_world_residuals_are_dropped_and_directions_kept():
    assert restored("powersgd", {}).state_dict()["residuals"].keys() == {"weight"}
    state = restored("powersgd", {"world_size": 4}).state_dict()
    assert (state["num_steps"], state["residuals"].keys(), state["directions"].keys()) == (12, set(), {"weight"})


def test_the_state_of_another_codec_is_left_alone():
    assert restored("int8", {}).state_dict() == {
        "codec": "Int8",
        "world_size": 1,
        "num_steps": 0,
        "residuals": {},
    }
