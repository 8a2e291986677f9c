"""Collectives over ranks: waiting for a late rank and transfer are told apart by arrivals."""

from pathlib import Path

import numpy as np
import pytest

from tests.tables import START_NS, Rows
from topout.analyze.broadcasts import released
from topout.analyze.measure import measure_run
from topout.analyze.steps import Phases, read_phases
from topout.schema.event import Flag, Kind
from topout.schema.measures import PHASES
from topout.schema.run_folder import RunFolder


class TwoRanks:
    """Two ranks with steps of 1000 ns; rows are placed by hand into every step.

    Without a backward, what these do not explain is forward.
    """

    def __init__(self, folder: Path, hosts: tuple[str, str] = ("n01", "n01")) -> None:
        self.folder = RunFolder(folder)
        self.hosts = hosts
        self.rows = (Rows(), Rows())
        self.num_steps = 6
        for rows in self.rows:
            for step in range(self.num_steps):
                rows.add(Kind.STEP, START_NS + 1000 * step, 1000, ref=step)

    def add(self, rank: int, kind: Kind, start: int, end: int, *, name: str = "", in_step: bool = True) -> None:
        for step in range(self.num_steps):
            ref = step if in_step else -1
            self.rows[rank].add(kind, START_NS + 1000 * step + start, end - start, name=name, value=64, ref=ref)

    def phases(self) -> Phases:
        for rank, rows in enumerate(self.rows):
            facts = {"host": self.hosts[rank], "clock_pairs": [[START_NS, START_NS]]}
            self.folder.events(rank).write_bytes(b"".join(rows.blocks(facts)))
        found = read_phases(self.folder)
        assert found is not None
        return found

    def second_step(self) -> list[dict[str, int]]:
        found = self.phases().phase_ns[:, 1]
        assert found.sum(axis=1).tolist() == [1000, 1000]
        return [{name: int(ns) for name, ns in zip(PHASES, own, strict=True) if ns} for own in found]


@pytest.fixture
def pair(tmp_path: Path) -> TwoRanks:
    return TwoRanks(tmp_path)


def test_backward_is_split_at_own_and_latest_arrival(pair: TwoRanks) -> None:
    for rank, arrival in ((0, 500), (1, 700)):
        pair.add(rank, Kind.BACKWARD, 200, 900)
        pair.add(rank, Kind.ARRIVAL, arrival - 100, arrival - 100, name="all_reduce")
        pair.add(rank, Kind.ARRIVAL, arrival, arrival, name="all_reduce@1")
    assert pair.second_step() == [
        {"forward": 200, "backward": 300, "wait": 200, "transfer": 200, "other": 100},
        {"forward": 200, "backward": 500, "transfer": 200, "other": 100},
    ]


def test_an_arrival_that_no_other_rank_has_is_all_transfer(pair: TwoRanks) -> None:
    pair.add(0, Kind.BACKWARD, 0, 1000)
    pair.add(0, Kind.ARRIVAL, 600, 600, name="all_reduce")
    pair.add(1, Kind.BACKWARD, 0, 900)
    pair.add(1, Kind.ARRIVAL, 950, 950, name="all_gather")
    assert pair.second_step() == [{"backward": 600, "transfer": 400}, {"backward": 900, "other": 100}]


def test_where_one_ranks_arrivals_are_lost_all_communication_stays_in_backward(pair: TwoRanks) -> None:
    pair.add(0, Kind.BACKWARD, 0, 1000)
    pair.add(0, Kind.ARRIVAL, 600, 600, name="all_reduce")
    pair.add(1, Kind.BACKWARD, 0, 1000)
    assert pair.second_step() == [{"backward": 1000}, {"backward": 1000}]


def test_a_barrier_is_waiting_until_the_last_rank_comes(pair: TwoRanks) -> None:
    pair.add(0, Kind.COLLECTIVE, 100, 820, name="barrier")
    pair.add(1, Kind.COLLECTIVE, 800, 820, name="barrier")
    assert pair.second_step() == [{"wait": 700, "transfer": 20, "forward": 280}, {"transfer": 20, "forward": 980}]


def test_waiting_inside_an_evaluation_is_waiting(pair: TwoRanks) -> None:
    for rank, arrival in ((0, 200), (1, 600)):
        pair.add(rank, Kind.EVALUATION, 0, 700)
        pair.add(rank, Kind.COLLECTIVE, arrival, 650, name="all_reduce")
    assert pair.second_step() == [
        {"wait": 400, "evaluation": 300, "forward": 300},
        {"evaluation": 700, "forward": 300},
    ]


def test_a_broadcast_of_buffers_waits_for_its_source_inside_forward(pair: TwoRanks) -> None:
    for rank, arrival in ((0, 250), (1, 100)):
        pair.add(rank, Kind.ARRIVAL, arrival, arrival, name="broadcast")
        pair.add(rank, Kind.BACKWARD, 600, 1000)
    assert pair.second_step() == [{"forward": 600, "backward": 400}, {"forward": 450, "wait": 150, "backward": 400}]


def test_the_source_of_a_broadcast_waits_for_who_receives(pair: TwoRanks) -> None:
    for rank, arrival in ((0, 100), (1, 300)):
        pair.add(rank, Kind.ARRIVAL, arrival, arrival, name="broadcast")
        pair.add(rank, Kind.BACKWARD, 600, 1000)
    assert pair.second_step() == [{"forward": 400, "wait": 200, "backward": 400}, {"forward": 600, "backward": 400}]


def test_a_broadcast_runs_down_a_tree() -> None:
    # 0 sends to 1, 2 and 4; 1 to 3 and 5; 2 to 6; 3 to 7
    arrivals = np.array([[10, 20, 30, 40, 50, 5, 5, 90], [10, 0, 0, 0, 0, 0, 0, 0]])
    assert released(arrivals).tolist() == [[50, 40, 30, 90, 50, 20, 30, 90], [10] * 8]


def test_computing_after_the_last_bucket_is_backward_not_transfer(pair: TwoRanks) -> None:
    for rank, end in ((0, 700), (1, 950)):
        pair.add(rank, Kind.BACKWARD, 200, end)
        pair.add(rank, Kind.ARRIVAL, 600, 600, name="all_reduce")
    assert pair.second_step() == [
        {"forward": 200, "backward": 400, "transfer": 100, "other": 300},
        {"forward": 200, "backward": 650, "transfer": 100, "other": 50},
    ]


def test_groups_are_not_mixed_up(pair: TwoRanks) -> None:
    pair.add(0, Kind.COLLECTIVE, 100, 300, name="all_reduce@2")
    pair.add(1, Kind.COLLECTIVE, 800, 900, name="all_reduce@3")
    assert pair.second_step() == [{"transfer": 200, "forward": 800}, {"transfer": 100, "forward": 900}]


def test_point_to_point_has_no_partner_to_compare_with(pair: TwoRanks) -> None:
    pair.add(0, Kind.COLLECTIVE, 100, 300, name="recv", in_step=False)
    pair.add(1, Kind.COLLECTIVE, 800, 900, name="recv", in_step=False)
    assert pair.second_step() == [{"transfer": 200, "forward": 800}, {"transfer": 100, "forward": 900}]


def test_a_rank_arrives_where_it_launches_and_stands_where_it_waits(pair: TwoRanks) -> None:
    # rank 1 launches last, at 600, and begins to wait before rank 0 does
    for rank, launch, wait in ((0, 100, 700), (1, 600, 650)):
        pair.add(rank, Kind.COLLECTIVE, launch, launch + 10, name="all_reduce.launched@2")
        pair.add(rank, Kind.COLLECTIVE, wait, 900, name="all_reduce.awaited@2")
    first, second = pair.second_step()
    assert (first["transfer"], first.get("wait", 0)) == (200, 10)  # the launch itself is communication, too
    assert (second["transfer"], second.get("wait", 0)) == (250 + 10, 0)


def test_who_waits_for_a_launch_that_another_rank_has_not_made_waits_for_that_rank(pair: TwoRanks) -> None:
    for rank, launch in ((0, 100), (1, 600)):
        pair.add(rank, Kind.COLLECTIVE, launch, launch, name="all_reduce.launched")
        pair.add(rank, Kind.COLLECTIVE, launch, 700, name="all_reduce.awaited")
    assert pair.second_step() == [{"wait": 500, "transfer": 100, "forward": 400}, {"transfer": 100, "forward": 900}]


def test_a_wait_for_something_unknown_is_transfer(pair: TwoRanks) -> None:
    for rank, start in ((0, 100), (1, 600)):
        pair.add(rank, Kind.COLLECTIVE, start, 700, name=".awaited", in_step=False)
    assert pair.second_step() == [{"transfer": 600, "forward": 400}, {"transfer": 100, "forward": 900}]


def test_a_launch_and_the_wait_for_it_are_one_collective(pair: TwoRanks) -> None:
    for rank in (0, 1):
        pair.add(rank, Kind.COLLECTIVE, 100, 110, name="all_reduce.launched")
        pair.add(rank, Kind.ARRIVAL, 105, 105, name="all_reduce")
        pair.add(rank, Kind.COLLECTIVE, 200, 300, name="all_reduce.awaited")
    pair.phases()
    pair.folder.run_json.write_text('{"version": 1}')
    assert measure_run(pair.folder)[0].communication.num_collectives_per_step == 1


def test_what_others_launch_while_a_rank_waits_is_counted_and_the_wait_is_not(pair: TwoRanks) -> None:
    for rank in (0, 1):
        pair.add(rank, Kind.ARRIVAL, 100, 100, name="all_reduce")
        pair.add(rank, Kind.COLLECTIVE, 200, 400, name="synchronize.awaited@2")
        pair.add(rank, Kind.ARRIVAL, 250, 250, name="all_reduce")
    pair.phases()
    pair.folder.run_json.write_text('{"version": 1}')
    communication = measure_run(pair.folder)[0].communication
    assert (communication.num_collectives_per_step, communication.bytes_per_step) == (2, 128)


def test_what_the_script_called_is_counted_once(pair: TwoRanks) -> None:
    for rank in (0, 1):
        pair.add(rank, Kind.COLLECTIVE, 100, 300, name="all_reduce")
        pair.add(rank, Kind.ARRIVAL, 150, 150, name="all_reduce")
    pair.phases()
    pair.folder.run_json.write_text('{"version": 1}')
    measures, _ = measure_run(pair.folder)
    assert measures.communication.num_collectives_per_step == 1
    assert measures.communication.bytes_per_step == 64


def test_a_side_group_does_not_hide_that_arrivals_were_forgotten(pair: TwoRanks) -> None:
    for rows in pair.rows:
        for step in range(3, pair.num_steps):
            rows.add(Kind.ARRIVAL, START_NS + 1000 * step + 100, name="all_reduce", value=64, ref=20_000 + step)
        rows.add(Kind.ARRIVAL, START_NS + 4900, name="barrier@side", value=0, ref=1)
    assert pair.phases().steps[0] >= 3


def test_the_split_is_withheld_when_clocks_scatter_more_than_the_wait(tmp_path: Path) -> None:
    pair = TwoRanks(tmp_path, hosts=("n01", "n02"))
    pair.add(0, Kind.BACKWARD, 200, 900)
    pair.add(0, Kind.ARRIVAL, 500, 500, name="all_reduce")
    for step, late in enumerate((-60, -20, 10, 50, 30, -50)):
        start = START_NS + 1000 * step
        pair.rows[1].add(Kind.BACKWARD, start + 200, 700 + late)
        pair.rows[1].add(Kind.ARRIVAL, start + 510, name="all_reduce", value=64, ref=step)
    phases = pair.phases()
    assert phases.skew_ns is not None and phases.skew_ns > 15
    assert phases.is_split_withheld
    assert phases.phase_ns[:, :, PHASES.index("wait")].sum() == 0
    assert phases.phase_ns[0, 1, PHASES.index("transfer")] == 400


@pytest.mark.parametrize("is_hidden_by", ["polling", "a helper thread", None])
def test_a_rate_is_left_out_where_waiting_may_be_unseen(pair: TwoRanks, is_hidden_by: str | None) -> None:
    for rank in range(2):
        pair.add(rank, Kind.BACKWARD, 100, 300)
        pair.add(rank, Kind.COLLECTIVE, 310, 320, name="all_reduce.launched")
        pair.add(rank, Kind.COLLECTIVE, 320, 420, name="all_reduce.awaited")
        pair.add(rank, Kind.ARRIVAL, 315, 315, name="all_reduce")
        if is_hidden_by == "a helper thread":
            pair.rows[rank].add(
                Kind.COLLECTIVE, START_NS + 500, 100, name="all_reduce.awaited", flags=Flag.OFF_MAIN_THREAD
            )
    pair.folder.run_json.write_text('{"version": 1}')
    for rank, rows in enumerate(pair.rows):
        facts = {"host": "n01", "polls_collectives": is_hidden_by == "polling"}
        pair.folder.events(rank).write_bytes(b"".join(rows.blocks(facts)))
    measures, _ = measure_run(pair.folder)
    assert measures.communication.bytes_per_step
    assert (measures.communication.bytes_per_s is None) == (is_hidden_by is not None)
    said = any(sentence.startswith("The rate of transfer") for sentence in measures.not_measured)
    assert said == (is_hidden_by is not None)
