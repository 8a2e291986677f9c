"""Late ranks of many: those that comparing each rank with all others would find, at the price of one ordering."""

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from topout.analyze.segments import PHASE
from topout.analyze.steps import Phases
from topout.analyze.stragglers import _over_others, find_stragglers
from topout.schema.measures import PHASES


def over_others_one_by_one(values, rank):
    """The definition."""
    return values[rank] - np.median(np.delete(values, rank, axis=0), axis=0)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(st.integers(2, 9), st.integers(1, 6)).flatmap(
        # few different numbers, so that there are ties
        lambda shape: arrays.arrays(np.float64, shape, elements=st.integers(0, 5) | st.integers(0, 10**9))
    )
)
def test_each_rank_is_held_against_the_median_of_the_others(values):
    for rank, found in enumerate(_over_others(values, range(len(values)))):
        assert np.array_equal(found, over_others_one_by_one(values, rank))


class Read(Phases):
    """Says how often the busy times of all ranks were put together."""

    @property
    def busy_ns(self):
        self.reads.append(1)
        return super().busy_ns

    @cached_property
    def reads(self):
        return []


def run_of(forward_ns):
    """Ranks x steps of nothing but forward, and waiting up to the slowest."""
    forward_ns = np.asarray(forward_ns, dtype=np.int64)
    phase_ns = np.zeros((*forward_ns.shape, len(PHASES)), dtype=np.int64)
    phase_ns[:, :, PHASE["forward"]] = forward_ns
    phase_ns[:, :, PHASE["wait"]] = forward_ns.max(axis=0) - forward_ns
    edges_ns = np.concatenate([np.zeros(1, dtype=np.int64), forward_ns.max(axis=0).cumsum()])
    return Read(
        tables=[SimpleNamespace(rank=rank, host="n01") for rank in range(len(forward_ns))],
        steps=np.arange(forward_ns.shape[1]),
        edges_ns=np.tile(edges_ns, (len(forward_ns), 1)),
        phase_ns=phase_ns,
        first_ns=np.zeros(len(forward_ns), dtype=np.int64),
        segments=[],
        tail_ns=np.zeros(len(forward_ns), dtype=np.int64),
        num_warmup_steps=0,
        skew_ns=0.0,
        is_split_withheld=False,
        starts_late=False,
    )


def test_many_late_ranks_are_found_with_one_look_at_all_steps():
    forward_ns = np.full((9, 10), 100)
    forward_ns[2:5] = 150
    forward_ns[7, ::5] = 400
    phases = run_of(forward_ns)
    found = find_stragglers(phases)
    assert [(late.rank, late.phase, late.is_persistent) for late in found] == [
        (7, "forward", False),
        (2, "forward", True),
        (3, "forward", True),
        (4, "forward", True),
    ]
    assert [late.excess_share for late in found] == pytest.approx([60 / 200, 50 / 200, 50 / 200, 50 / 200])
    assert len(phases.reads) == 1


def test_of_two_ranks_the_slower_is_late_and_of_one_none_is():
    phases = run_of([[100, 100], [120, 120]])
    assert [late.rank for late in find_stragglers(phases)] == [1]
    assert find_stragglers(replace(phases, tables=phases.tables[:1])) == ()
