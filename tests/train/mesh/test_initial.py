"""A model built without memory gets the bits that building it gives, needing little more memory than its share."""

import torch
from torch import nn

from tests.train.mesh.models import Transformer, resnet
from topout.train.mesh.initial import build, named_tensors
from topout.train.mesh.recording import Recording
from topout.train.mesh.sharding import materialise
from topout.train.mesh.stage import Stage


class Peculiar(nn.Module):
    """Ways in which people initialise: constants, rates from a list, ties, padding, a seed of one's own, twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, padding_idx=0)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.rates = torch.linspace(0, 0.1, 3).tolist()
        self.scale = nn.Parameter(torch.full((4,), self.rates[1]))
        self.register_buffer("weights", torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.ones(3, 3).tril(), persistent=False)
        torch.manual_seed(11)
        self.middle = nn.LSTM(4, 4)
        nn.init.orthogonal_(self.middle.weight_hh_l0)
        nn.init.trunc_normal_(self.embedding.weight, std=0.02, a=-0.03, b=0.03)
        with torch.no_grad():
            self.head.weight[1].zero_()


def built_both_ways(builder):
    torch.manual_seed(5)
    plain = builder()
    after = torch.get_rng_state()
    torch.manual_seed(5)
    initial = build(builder, says=True)
    stage = Stage(initial.model)
    materialise(stage, torch.device("cpu"))
    initial.fill([stage])
    return named_tensors(plain), {**dict(stage.named()), **dict(stage.named_own_buffers())}, after


def same_bits(builder):
    plain, built, after = built_both_ways(builder)
    assert plain.keys() == built.keys()
    assert [name for name in plain if not torch.equal(plain[name], built[name])] == []
    assert torch.equal(after, torch.get_rng_state())


def test_bits_are_those_of_building_it(capsys):
    for builder in (Transformer, resnet, Peculiar, lambda: nn.TransformerEncoderLayer(8, 2)):
        same_bits(builder)
    assert capsys.readouterr().err == ""


def test_a_builder_that_looks_at_random_values_is_run_for_real_and_that_is_said(capsys):
    def builder():
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.Dropout(0.5 if layer.weight.max() > 0 else 0.1))

    same_bits(builder)
    assert "built whole on every rank" in capsys.readouterr().err


def test_no_more_than_a_tensor_is_there_at_once_also_where_all_are_initialised_twice():
    def builder():
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(10)))
        return model.apply(lambda part: nn.init.normal_(part.weight) if isinstance(part, nn.Linear) else None)

    recording = Recording()
    with recording:
        builder()
    most = 0
    run = recording._run

    def counted(operation, storages, tensor_of):
        nonlocal most
        run(operation, storages, tensor_of)
        most = max(most, sum(storage.nbytes() for storage in storages.values()))

    recording._run = counted
    recording.replay(lambda key, tensor_of: None)
    assert 64 * 64 * 4 <= most <= 2 * 64 * 64 * 4
