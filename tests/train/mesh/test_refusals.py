"""Models that cannot be cut, split or sharded as asked are refused before a rank waits for another."""

import pytest
import torch
from torch import nn

from tests.train.mesh.models import LAYOUT, Transformer, resnet, token_loss, tokens
from topout.schema.errors import TopoutError
from topout.train.mesh import hybrid
from topout.train.mesh.cutting import cut
from topout.train.mesh.layout import layout_plan
from topout.train.mesh.shapes import boundaries
from topout.train.mesh.sharding import check_shardable
from topout.train.mesh.spec import MeshSpec
from topout.train.place import alone


def refused(call, *args):
    with pytest.raises(TopoutError) as caught:
        call(*args)
    return f"{caught.value.problem} | {caught.value.why} | {caught.value.do}"


def split(model, rules, tp=2):
    return layout_plan(model, MeshSpec(tp=tp, layout=tuple(rules.items())))


def names(stages):
    return [[part.name for part in parts] for parts in stages]


def test_rules_match_one_part_of_a_name_with_a_star_and_the_first_wins():
    plan = split(Transformer(num_blocks=2), {"blocks.0.mlp.up": "rows", "blocks.*.mlp.up": "columns"})
    assert plan == {"blocks.0.mlp.up": "rows", "blocks.1.mlp.up": "columns"}


def test_a_rule_that_matches_nothing_names_the_nearest():
    said = refused(split, Transformer(), {"blocks.*.attention.querry": "columns"})
    assert "matches no module" in said
    assert "did you mean 'blocks.*.attention.query'" in said
    # also where nothing is split: the file is wrong all the same
    assert "matches no module" in refused(split, Transformer(), {"block.*": "rows"}, 1)


def test_what_cannot_be_split_is_refused_with_the_reason():
    assert "wrongly in torch 2.13" in refused(split, resnet(), {"1.0.first": "columns"})
    assert "packed" in refused(split, nn.Sequential(nn.MultiheadAttention(8, 2)), {"0": "columns"})
    assert "blocks.0.attention.query" in refused(split, Transformer(), {"blocks.0.attention": "columns"})
    assert "LayerNorm" in refused(split, Transformer(), {"norm": "rows"})
    assert "no layout rule" in refused(split, Transformer(), {})


def test_sizes_and_heads_that_do_not_divide_are_named():
    assert "head has 33 outputs, which tp = 2 does not divide" in refused(
        split, Transformer(num_symbols=33), {"head": "columns"}
    )
    assert "embedding has 33 rows" in refused(split, Transformer(num_symbols=33), {"embedding": "rows"})
    said = refused(split, Transformer(width=18, num_heads=3), {"blocks.*.attention.query": "columns"})
    assert "blocks.0.attention.num_heads is 3, which tp = 2 does not divide" in said


def test_stages_are_cut_evenly_by_parameters_or_where_it_is_said():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    assert names(cut(model, MeshSpec(pp=2))) == [["0", "1", "2"], ["3", "4"]]
    assert names(cut(model, MeshSpec(pp=2, cut_before=("4",)))) == [["0", "1", "2", "3"], ["4"]]
    stages = cut(Transformer(), MeshSpec(pp=2, cut_before=("blocks.1",)))
    assert names(stages) == [["embed", "blocks.0"], ["blocks.1", "blocks.2", "blocks.3", "norm", "head"]]
    assert stages[0][0].owns == ("embedding", "positions")


def test_cuts_that_cannot_be_made_say_why():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

    model = Transformer()
    assert "def sequence(self)" in refused(cut, Opaque(), MeshSpec(pp=2))
    assert "did you mean 'blocks.2'" in refused(cut, model, MeshSpec(pp=2, cut_before=("block.2",)))
    assert "no part is left before it" in refused(cut, model, MeshSpec(pp=2, cut_before=("embed",)))
    few = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert "2 parts with parameters, too few for 3 stages" in refused(cut, few, MeshSpec(pp=3))
    bare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    assert "Stage 1 of 2 has no parameters: 2" in refused(cut, bare, MeshSpec(pp=2, cut_before=("2",)))


def test_a_weight_that_two_stages_need_is_refused_by_both_names():
    model = Transformer()
    model.head.weight = model.embedding.weight
    said = refused(cut, model, MeshSpec(pp=2))
    assert "embedding.weight and head.weight are one parameter" in said
    assert "stages 0 and 1" in said
    assert "embedding.weight and head.weight" in refused(check_shardable, model, MeshSpec(fsdp=2))
    assert "embedding.weight and head.weight" in refused(split, model, {"embedding": "rows"})
    lonely = Transformer()
    lonely.more = nn.Linear(2, 2)
    assert "No part of Transformer uses more.weight" in refused(cut, lonely, MeshSpec(pp=2))


def test_a_sequence_that_is_not_forward_is_refused():
    class Skips(Transformer):
        def forward(self, x):
            return self.head(self.blocks[0](self.embed(x)))

    stages = cut(Skips(), MeshSpec(pp=2))
    assert "not its forward" in refused(boundaries, Skips(), stages, (tokens(0)[0],), None)
    found = boundaries(Transformer(), cut(Transformer(), MeshSpec(pp=2)), (tokens(0, size=2)[0],), None)
    assert found is not None
    assert [tuple(t.shape) for passed in found for (t,) in passed] == [(2, 8), (2, 8, 16), (2, 8, 16), (2, 8, 32)]


def test_a_batch_that_does_not_divide_and_a_loss_that_is_no_mean_are_refused():
    def made(loss=token_loss, microbatches=3):
        return hybrid(
            alone(), Transformer, loss, lambda p: torch.optim.SGD(p, 0.1), mesh={"microbatches": microbatches}
        )

    inputs, targets = tokens(0, size=4)
    assert "4 samples does not divide into 3 microbatches" in refused(made().step, inputs, targets)
    assert "4 and 3 samples" in refused(made().step, inputs, targets[:3]) or "3 and 4" in refused(
        made().step, inputs, targets[:3]
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tokens(0, size=7)), batch_size=3)
    assert "drop_last=True" in refused(made().shard, loader)
    sums = made(lambda outputs, targets: outputs.sum(-1), 1)
    assert "(4, 8)" in refused(sums.step, inputs, targets)


def test_an_optimizer_of_another_model_is_refused():
    other = nn.Linear(1, 1)

    def make(_):
        return torch.optim.SGD(other.parameters(), 0.1)

    assert "not this rank's" in refused(lambda: hybrid(alone(), Transformer, token_loss, make, mesh=MeshSpec()))


def test_rules_of_the_docs_split_the_whole_transformer():
    assert len(split(Transformer(), LAYOUT)) == 4 * 6 + 2
