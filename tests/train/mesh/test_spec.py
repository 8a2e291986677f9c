"""What a mesh file may say, what it is refused for, and where its ranks are."""

import pytest

from topout.schema.errors import TopoutError
from topout.train.mesh.axes import coordinates, row_of
from topout.train.mesh.spec import MeshSpec, check_world, read_spec

TEXT = """
[mesh]
dp = 2
tp = 2
pp = 2
schedule = "interleaved"
microbatches = 8
[layout]
"blocks.*.mlp.up" = "columns"
"blocks.*.mlp.down" = "rows"
[stages]
cut_before = ["blocks.1", "blocks.2", "blocks.3"]
"""


def test_a_file_is_read_as_it_stands(tmp_path):
    (tmp_path / "mesh.toml").write_text(TEXT)
    spec = read_spec(tmp_path / "mesh.toml")
    assert (spec.dp, spec.fsdp, spec.tp, spec.pp) == (2, 1, 2, 2)
    assert (spec.num_ranks, spec.num_rows, spec.num_stages) == (8, 2, 4)
    assert spec.layout == (("blocks.*.mlp.up", "columns"), ("blocks.*.mlp.down", "rows"))
    assert spec.cut_before == ("blocks.1", "blocks.2", "blocks.3")


def test_neighbours_of_a_split_layer_are_neighbours_among_ranks():
    spec = MeshSpec(dp=2, tp=2, pp=2)
    assert [coordinates(spec, rank)["tp"] for rank in range(8)] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [row_of(spec, rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [coordinates(spec, rank)["pp"] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_stages_go_round_the_ranks_and_those_of_zero_bubble_come_back():
    assert [MeshSpec(pp=2, schedule="interleaved").stages_of(rank) for rank in (0, 1)] == [[0, 2], [1, 3]]
    assert [MeshSpec(pp=2, schedule="zero-bubble").stages_of(rank) for rank in (0, 1)] == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("change", "problem", "do"),
    [
        (("microbatches = 8", "microbatch = 8"), "mesh.toml:7: unknown key 'microbatch'", "'microbatches'"),
        (("[layout]", "[layouts]"), "unknown table 'layouts'", "'layout'"),
        (('"rows"', '"row"'), "unknown layout of blocks.*.mlp.down: 'row'", "'rows'"),
        (("dp = 2", "dp = 0"), "dp = 0", "mend dp"),
        (("interleaved", "1f1"), "unknown schedule '1f1'", "'1f1b'"),
        (("microbatches = 8", "microbatches = 3"), "3 microbatches are too few for 4 stages", "microbatches = 8"),
        (("microbatches = 8", "microbatches = 5"), "do not divide by pp = 2", "microbatches = 6"),
        (('"blocks.1", ', ""), "2 cuts make 3 stages, and pp = 2 with interleaved needs 4", "3 modules"),
    ],
)
def test_a_wrong_file_is_refused_with_the_nearest_right_one(tmp_path, change, problem, do):
    (tmp_path / "mesh.toml").write_text(TEXT.replace(*change))
    with pytest.raises(TopoutError) as caught:
        read_spec(tmp_path / "mesh.toml")
    assert problem in caught.value.problem
    assert do in caught.value.do


def test_a_mesh_of_another_size_than_the_world_says_which_factor_to_change():
    with pytest.raises(TopoutError, match="has 8 places, and this world has 4 ranks") as caught:
        check_world(MeshSpec(dp=2, tp=2, pp=2), 4)
    assert "dp = 1 or tp = 1 or pp = 1" in caught.value.do
    with pytest.raises(TopoutError) as caught:
        check_world(MeshSpec(dp=2, tp=2), 6)
    assert "dp = 3 or tp = 3" in caught.value.do
    assert "fsdp =" not in caught.value.do
