"""Links of the doctor in the model: its own all-reduce takes what the doctor's took, as far as its law can."""

from dataclasses import asdict

import pytest

from topout.preflight.facts import Facts, Link, LinkSample
from topout.preflight.judges.links import fit_classes
from topout.study.collectives import quickest_s, ring_s
from topout.study.doctor_links import doctor_links

LAWS = {"within a host": ring_s, "between hosts": quickest_s}
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
BYTES_PER_S = 1e9


def diagnosed(link_class, num_ranks, taken_s):
    """As `doctor.json` has it; `taken_s` by size."""
    samples = tuple(LinkSample(num_bytes=size, times_s=(taken_s(size),) * 3) for size in SIZES)
    link = Link(link_class=link_class, operation="all-reduce", transport="gloo", hosts=("n0",), num_ranks=num_ranks,
                samples=samples)  # fmt: skip
    fitted = fit_classes([Facts(host="n0", host_number=0, links=(link,))])
    return {"links": [asdict(one) for one in fitted], "hosts": [{"links": [asdict(link)]}]}


def modelled(doctor, notes):
    """Bytes -> seconds, by the model with the doctor's link."""
    (link_class,), (fitted,) = zip(*doctor_links(doctor, notes).items(), strict=True)
    num_ranks = doctor["links"][0]["num_ranks"]
    return lambda size: LAWS[link_class](size, num_ranks, fitted["latency_s"], fitted["bytes_per_s"]["value"])


@pytest.mark.parametrize(
    ("link_class", "num_ranks", "link"),
    [
        *((link_class, num_ranks, (2e-4, 1e9)) for link_class in LAWS for num_ranks in (2, 8)),
        ("between hosts", 64, (3e-5, 12e9)),
    ],
)
def test_messages_that_take_what_the_model_says_do_so_by_the_links_found(link_class, num_ranks, link):
    def taken_s(size):
        return LAWS[link_class](size, num_ranks, *link)

    notes = []
    found_s = modelled(diagnosed(link_class, num_ranks, taken_s), notes)
    assert [found_s(size) for size in SIZES] == pytest.approx([taken_s(size) for size in SIZES], rel=0.01)
    assert notes == []


@pytest.mark.parametrize(
    ("link_class", "num_ranks", "worst"),
    [("within a host", 2, 0.37), ("within a host", 8, 0.46), ("between hosts", 2, 0.24), ("between hosts", 8, 0.22)],
)
def test_times_on_a_line_are_met_where_messages_are_small_or_large(link_class, num_ranks, worst):
    def taken_s(size):
        return 1e-3 + size / BYTES_PER_S

    found_s = modelled(diagnosed(link_class, num_ranks, taken_s), [])
    assert found_s(1000) == pytest.approx(taken_s(1000), rel=0.15)
    assert found_s(16 << 20) == pytest.approx(taken_s(16 << 20))
    assert found_s(1e8) == pytest.approx(taken_s(1e8), rel=0.05)
    # a ring in segments hides what a line adds, most where latency and bytes take equally long
    between = [found_s(1e4 * 1.1**power) / taken_s(1e4 * 1.1**power) for power in range(100)]
    assert 1 - min(between) == pytest.approx(worst, abs=0.02)


def test_beyond_the_largest_message_many_hosts_take_what_the_line_says():
    def taken_s(size):
        return 8e-3 + size / 6e8

    found_s = modelled(diagnosed("between hosts", 64, taken_s), [])
    assert found_s(16 << 20) == pytest.approx(taken_s(16 << 20))
    assert found_s(4e8) == pytest.approx(taken_s(4e8), rel=0.05)


@pytest.mark.parametrize(("num_ranks", "alpha_s", "bytes_per_s"), [(128, 20e-3, 1.5e9), (2, 40e-3, 4.5e9)])
def test_where_latency_outweighs_bytes_in_all_messages_the_line_says_what_larger_ones_take(
    num_ranks, alpha_s, bytes_per_s
):
    def taken_s(size):
        return alpha_s + size / bytes_per_s

    found_s = modelled(diagnosed("within a host", num_ranks, taken_s), [])
    assert found_s(16 << 20) == pytest.approx(taken_s(16 << 20), rel=0.01)
    # a ring in segments hides latency there
    assert found_s(4e8) == pytest.approx(taken_s(4e8), rel=0.2)
    assert found_s(4e9) == pytest.approx(taken_s(4e9), rel=0.03)


def test_larger_messages_of_a_link_that_is_no_line_take_longer_than_its_largest():
    # latency that comes closest to all of them would alone take longer than the largest did
    by_size = dict(zip(SIZES, (0.04, 0.04, 0.09, 0.09, 0.045), strict=True))
    found_s = modelled(diagnosed("within a host", 2, by_size.__getitem__), [])
    assert found_s(16 << 20) == pytest.approx(0.045)
    assert found_s(160 << 20) == pytest.approx(0.45, rel=0.4)


def test_without_its_messages_the_doctor_s_line_stands_for_them():
    doctor = diagnosed("between hosts", 2, lambda size: 1e-3 + size / BYTES_PER_S)
    whole, alone = (doctor_links(one, [])["between hosts"] for one in (doctor, {"links": doctor["links"]}))
    assert alone["latency_s"] == pytest.approx(whole["latency_s"], rel=0.05)


def test_a_size_at_which_no_such_link_takes_what_was_measured_is_said():
    # quick until a buffer is full
    doctor = diagnosed("between hosts", 2, lambda size: 1e-5 if size < 2 << 20 else size / 1e8)
    notes = []
    doctor_links(doctor, notes)
    (note,) = notes
    assert "By the model an all-reduce of 1.05 MB between hosts takes 1,048.60 times as long as the" in note
