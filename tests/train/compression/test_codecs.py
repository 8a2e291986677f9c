"""Codecs on real ranks over Gloo: the same bits on all of them, small errors, nothing lost, nothing poisoned."""

import pytest

TWO = ("bf16", "fp16", "int8", "powersgd")
THREE = ("int8", "powersgd", "hierarchical")
RUNS = [(2, codec) for codec in TWO] + [(3, codec) for codec in THREE]


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[1]}-{run[0]}-ranks")
def ranks(request, facts):
    num_ranks, codec = request.param
    return [said[codec] for said in facts("exchange_ranks.py", num_ranks, *(TWO if num_ranks == 2 else THREE))]


@pytest.fixture
def two_ranks(facts):
    return facts("exchange_ranks.py", 2, *TWO)


@pytest.fixture
def three_ranks(facts):
    return facts("exchange_ranks.py", 3, *THREE)


def test_all_ranks_end_with_the_same_bits(ranks):
    """Also after 60 steps of many buckets, with other buckets on the way, with bf16 parameters among float32 ones,
    and with gradients accumulated under no_sync."""
    for said in ranks:
        assert said["digests"] == ranks[0]["digests"]


def test_a_run_repeated_gives_the_same_bits(ranks):
    digests = ranks[0]["digests"]
    assert digests["again"] == digests["once"]
    assert digests["mixed"] != digests["once"]


@pytest.mark.parametrize("codec", ["int8", "powersgd"])
def test_a_resumed_run_gives_the_same_bits(two_ranks, three_ranks, codec):
    """What was held back is part of the state: without it the steps after the resume would differ."""
    for said in (two_ranks[0], three_ranks[0]):
        assert said[codec]["digests"]["resumed"] == said[codec]["digests"]["once"]
        assert said[codec]["digests"]["float64_resumed"] == said[codec]["digests"]["float64"]


@pytest.mark.parametrize(
    ("codec", "largest"),
    # half a unit in the last place of 8 and of 11 bits; a value's share of its chunk's largest, over 254
    [("bf16", 2**-8), ("fp16", 2**-11), ("int8", 0.03)],
)
def test_the_error_of_an_average_is_bounded(two_ranks, codec, largest):
    error = two_ranks[0][codec]["error"]["errors"]["1"]
    assert 0 < error < largest


@pytest.mark.parametrize(("codec", "shrinks_by"), [("int8", 15), ("powersgd", 4)])
@pytest.mark.parametrize("measured", ["error", "error_changing"])
def test_what_is_held_back_comes_later_even_if_buckets_change_every_step(
    two_ranks, three_ranks, codec, shrinks_by, measured
):
    """The sum over 21 equal steps: an error that stays would keep its share, one that is fed back shrinks.

    PowerSGD first holds back more and more, all directions but four, until they are the largest of what is left.
    """
    for said in (two_ranks[0], three_ranks[0]):
        errors = said[codec][measured]["errors"]
        assert measured == "error" or said[codec][measured]["layouts"] >= 2
        assert errors["21"] < errors["1"] / shrinks_by


def test_sums_host_by_host_are_plain_averages_with_two_ranks_on_one_host_and_one_on_another(three_ranks):
    """Up to the order of the additions."""
    for said in three_ranks:
        assert said["hierarchical"]["error"]["errors"]["1"] < 1e-6


@pytest.mark.parametrize(
    ("codec", "least", "most"), [("bf16", 0.5, 0.5), ("fp16", 0.5, 0.5), ("int8", 0.25, 0.35), ("powersgd", 0.1, 0.2)]
)
def test_bytes_on_the_wire_shrink_as_promised(two_ranks, codec, least, most):
    assert least <= two_ranks[0][codec]["error"]["ratio"] <= most


def test_between_hosts_only_one_rank_of_each_sends(three_ranks):
    """2 hosts: a leader sends each byte once, 2 * (2 - 1) / 2; plain among 3 ranks sends 2 * (3 - 1) / 3."""
    assert [round(said["hierarchical"]["error"]["ratio"], 3) for said in three_ranks] == [0.75, 0, 0.75]


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("codec", TWO)
def test_a_broken_gradient_of_one_rank_is_seen_by_all_and_does_not_last(two_ranks, codec, kind):
    for said in two_ranks:
        assert said[codec][kind] == {"is_seen": True, "others_fine": True, "next_fine": True}


def test_only_an_average_that_fits_no_fp16_becomes_infinite_there(two_ranks):
    """Half of 70,000 fits, though 70,000 does not; half of 200,000 does not, and a GradScaler must see it."""
    broken = {codec: [said[codec][number] for number in ("70_000", "200_000")] for said in two_ranks for codec in TWO}
    assert broken == {"bf16": [False, False], "fp16": [False, True], "int8": [False, False], "powersgd": [False, False]}


@pytest.mark.parametrize("codec", THREE)
def test_a_nan_of_one_rank_of_three_is_seen_by_all(three_ranks, codec):
    for said in three_ranks:
        assert said[codec]["nan"] == {"is_seen": True, "others_fine": True, "next_fine": True}


@pytest.mark.parametrize("codec", TWO)
def test_a_parameter_that_nobody_used_keeps_no_gradient_and_one_that_a_rank_used_is_averaged(two_ranks, codec):
    unused = [said[codec]["unused"] for said in two_ranks]
    assert unused[0] == unused[1]
    assert unused[0]["nobody_none"]
