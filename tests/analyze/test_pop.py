"""POP: identities hold to rounding, and textbook cases come out as computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from topout.analyze.pop import pop_efficiencies
from topout.analyze.segments import PHASE
from topout.schema.measures import PHASES


@st.composite
def _phase_tables(draw: st.DrawFn) -> np.ndarray:
    """[ranks, steps, PHASES], every rank with the same elapsed time: idling at the end is waiting."""
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 8)), len(PHASES))
    table = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 10**9)))
    table[:, 0, PHASE["forward"]] += 1
    sums = table.sum(axis=(1, 2))
    table[:, -1, PHASE["wait"]] += sums.max() - sums
    return table


@given(table=_phase_tables())
def test_the_factors_multiply_to_their_products(table: np.ndarray) -> None:
    elapsed = int(table[0].sum())
    pop = pop_efficiencies(table, elapsed)
    assert pop.load_balance * pop.communication_efficiency == pytest.approx(pop.parallel_efficiency, abs=1e-9)
    assert pop.serialisation_efficiency is not None and pop.transfer_efficiency is not None
    product = pop.serialisation_efficiency * pop.transfer_efficiency
    assert product == pytest.approx(pop.communication_efficiency, abs=1e-9)
    assert pop.parallel_efficiency * pop.work_efficiency == pytest.approx(pop.overall_efficiency, abs=1e-9)
    for value in (pop.load_balance, pop.communication_efficiency, product, pop.work_efficiency):
        assert 0 <= value <= 1 + 1e-9


def _table(*ranks: dict[str, int]) -> np.ndarray:
    return np.array([[[rank.get(name, 0) for name in PHASES]] for rank in ranks], dtype=np.int64)


def test_a_slow_rank_is_imbalance() -> None:
    pop = pop_efficiencies(_table({"backward": 100}, {"backward": 50, "wait": 50}), 100)
    assert (pop.load_balance, pop.communication_efficiency, pop.parallel_efficiency) == (0.75, 1.0, 0.75)
    assert (pop.serialisation_efficiency, pop.transfer_efficiency) == (1.0, 1.0)


def test_common_transfer_is_transfer_loss() -> None:
    pop = pop_efficiencies(_table(*[{"backward": 60, "transfer": 40}] * 3), 100)
    assert (pop.load_balance, pop.communication_efficiency) == (1.0, 0.6)
    assert (pop.serialisation_efficiency, pop.transfer_efficiency) == (1.0, 0.6)


def test_ranks_late_in_turn_are_serialisation() -> None:
    table = np.zeros((2, 2, len(PHASES)), dtype=np.int64)
    table[:, :, PHASE["backward"]] = [[100, 50], [50, 100]]
    table[:, :, PHASE["wait"]] = [[0, 50], [50, 0]]
    pop = pop_efficiencies(table, 200)
    assert (pop.load_balance, pop.serialisation_efficiency, pop.transfer_efficiency) == (1.0, 0.75, 1.0)


def test_input_is_useful_to_pop_but_does_not_train() -> None:
    pop = pop_efficiencies(_table({"input": 30, "evaluation": 10, "forward": 40, "other": 20}), 100)
    assert (pop.parallel_efficiency, pop.work_efficiency, pop.overall_efficiency) == (1.0, 0.6, 0.6)
