"""Who holds a job up, told from what is known of its ranks; when it is said, how often, and when it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.test_status_page import snapshots
from topout.launch.holdup import find_holdup
from topout.launch.observation import Observation
from topout.launch.watchdog import Look, Watchdog
from topout.record.page_snapshot import Call, Position, Snapshot


def seen(rank: int, *, state: str = "S", host: str | None = None, ended: bool = False, heard_s: float = 0.0, **page):
    """One rank that looked at itself just now and ended ten steps of 0.1 s, unless said otherwise."""
    usual = {"num_steps": 10, "usual_step_s": 0.1, "look_age_s": 0.5, "has_process_group": True}
    return Observation(
        rank=rank,
        host=host or f"n{rank + 1}",
        pid=4710 + rank,
        process_state=state,
        page=Snapshot(**(usual | page)),
        has_ended=ended,
        heard_age_s=heard_s,
    )


def at(group: str, reached: int, completed: int, age_s: float = 9.0) -> Position:
    return Position(group=group, reached=reached, completed=completed, age_s=age_s)


def pending(
    operation: str, number: int, age_s: float = 9.0, group: str = "gloo:0", num_bytes: int = 44_900_000
) -> Call:
    return Call(operation=operation, group=group, sequence=number, num_bytes=num_bytes, age_s=age_s)


def waiting(rank: int, number: int = 57, age_s: float = 9.0, operation: str = "all_reduce", group: str = "gloo:0"):
    return seen(
        rank,
        step_age_s=age_s,
        pending=pending(operation, number, age_s, group),
        positions=(at(group, number, number - 1, age_s),),
        line="train.py:50 in train",
    )


def missing(rank: int, number: int = 56, age_s: float = 9.0, **more):
    page = {"line": "train.py:42 in load_shard", "positions": (at("gloo:0", number, number, age_s),)}
    return seen(rank, step_age_s=age_s, **(page | more))


def sentence(*ranks: Observation, activity: dict[int, str] | None = None) -> str:
    holdup = find_holdup(ranks, activity or {})
    return holdup.sentence if holdup is not None else ""


def hear(watchdog: Watchdog, job, seconds: range) -> list[tuple[int, str]]:
    """What is said, and when; `job` gives the ranks at each second."""
    return [(second, line) for second in seconds for line in watchdog.look(second, job(second)).lines]


# who is missing


def test_the_rank_that_has_not_reached_the_collective_is_missing():
    assert sentence(waiting(0), missing(1), waiting(2), waiting(3), activity={1: "S"}) == (
        "rank 1 on n2 (pid 4711) has not reached all_reduce #57 (44.9 MB), in which 3 ranks wait; "
        "it sleeps at train.py:42 in load_shard"
    )


def test_several_missing_ranks_are_listed_and_the_first_described():
    assert sentence(waiting(0), *(missing(rank) for rank in range(1, 7)), activity={1: "R"}) == (
        "ranks 1, 2, 3, 4 and 2 more have not reached all_reduce #57 (44.9 MB), in which rank 0 waits; "
        "rank 1 on n2 (pid 4711) computes at train.py:42 in load_shard"
    )


def test_a_stopped_rank_comes_before_all_others():
    assert sentence(waiting(0), missing(1), missing(2, state="T")) == (
        "rank 2 on n3 (pid 4712) is stopped, and rank 0 waits in all_reduce #57 (44.9 MB); "
        "last seen at train.py:42 in load_shard; continue it with kill -CONT 4712"
    )


def test_the_end_of_a_chain_of_waiting_ranks_is_to_blame():
    """Rank 0 waits for 1 in a group of both; 1 waits for 2 in another, and 2 is elsewhere."""
    first = seen(0, pending=pending("all_reduce", 5, group="gloo:a"), positions=(at("gloo:a", 5, 4),))
    second = seen(
        1, pending=pending("all_gather", 9, group="gloo:b"), positions=(at("gloo:a", 4, 4), at("gloo:b", 9, 8))
    )
    third = seen(2, positions=(at("gloo:b", 8, 8),), line="train.py:7 in f")
    assert sentence(first, second, third, activity={2: "S"}) == (
        "rank 2 on n3 (pid 4712) has not reached all_gather #9 (44.9 MB) of group b, in which rank 1 waits; "
        "it sleeps at train.py:7 in f"
    )


def test_a_rank_outside_the_group_is_not_missing_from_it():
    outside = seen(2, step_age_s=9.0, positions=(at("gloo:0", 3, 3),))
    ranks = [waiting(rank, group="gloo:pair", number=2) for rank in (0, 1)]
    assert sentence(*ranks, outside) == (
        "2 ranks wait in all_reduce #2 (44.9 MB) of group pair at train.py:50 in train, and no rank is missing there"
    )


def test_ranks_in_different_collectives_are_told_side_by_side():
    assert sentence(waiting(0), waiting(1, operation="broadcast"), waiting(2)) == (
        "the ranks wait in different collectives: ranks 0, 2 in all_reduce #57 (44.9 MB) at train.py:50 in train, "
        "rank 1 in broadcast #57 (44.9 MB) at train.py:50 in train"
    )


def test_a_rank_that_does_not_answer_is_blamed_when_nobody_else_is():
    silent = waiting(1, number=40)
    silent = seen(1, look_age_s=12.0, positions=silent.page.positions, line="train.py:9 in f")
    assert sentence(waiting(0), silent, activity={1: "D"}) == (
        "rank 1 on n2 (pid 4711) has not answered for 12 s (the kernel holds it: storage or a driver; "
        "last seen at train.py:9 in f), while rank 0 waits in all_reduce #57 (44.9 MB)"
    )
    assert "rank 2 on n3 (pid 4712) has not reached" in sentence(waiting(0), silent, missing(2))


def test_a_rank_whose_script_is_over_is_missing():
    assert sentence(waiting(0), missing(1, ended=True)).endswith("in which rank 0 waits; it has ended")
    assert sentence(waiting(0), missing(1, phase="ended")).endswith("in which rank 0 waits; it has ended")


def test_a_rank_that_has_not_started_recording_is_missing():
    starting = Observation(rank=1, host="n2", pid=4711, process_state="R")
    assert sentence(seen(0, num_steps=0, phase="init", place_age_s=9.0), starting) == (
        "rank 1 on n2 (pid 4711) has not reached init_process_group, in which rank 0 waits; it is still starting"
    )


def test_ranks_that_have_left_the_start_are_not_missing_from_it():
    ranks = [seen(0, num_steps=0, phase="init", place_age_s=9.0), seen(1, num_steps=0)]
    assert "no rank is missing there" in sentence(*ranks)


def test_without_a_flight_recorder_the_scripts_own_calls_tell():
    call = Call(operation="barrier", group="", sequence=3, num_bytes=None, age_s=9.0)
    inside = seen(0, called=call, is_inside=True)
    left = seen(
        1, called=Call(operation="barrier", group="", sequence=2, num_bytes=None, age_s=30.0), line="a.py:1 in f"
    )
    never = seen(2, line="a.py:2 in g")
    assert sentence(inside, left).startswith(
        "rank 1 on n2 (pid 4711) has not reached barrier #3, in which rank 0 waits"
    )
    assert sentence(inside, never).startswith("rank 2 on n3 (pid 4712) has not reached barrier #3")


def test_the_partner_of_a_receive_is_not_guessed():
    call = Call(operation="recv", group="", sequence=None, num_bytes=8, age_s=9.0)
    assert sentence(seen(0, called=call, is_inside=True), seen(1, line="a.py:1 in f"), activity={1: "S"}) == (
        "rank 1 on n2 (pid 4711) sleeps at a.py:1 in f, while rank 0 waits in recv (8 B)"
    )


def test_a_host_that_has_gone_silent_is_named():
    assert sentence(waiting(0), missing(1, heard_s=7.0), missing(2, host="n2", heard_s=7.0)) == (
        "no word from n2 (ranks 1, 2) for 7 s; last seen at train.py:42 in load_shard"
    )


@pytest.mark.parametrize(
    ("page", "letter", "words"),
    [
        ({"phase": "compile", "inner": "torch/_inductor/codecache.py:9 in load"}, "S",
         "it compiles (torch/_inductor/codecache.py:9 in load), called from train.py:42 in load_shard"),
        ({"phase": "checkpoint"}, "D", "it saves a checkpoint at train.py:42 in load_shard"),
        ({"phase": "evaluation"}, "R", "it evaluates at train.py:42 in load_shard"),
        ({"phase": "import"}, "R", "it imports at train.py:42 in load_shard"),
        ({"phase": "input"}, "S", "it waits for input at train.py:42 in load_shard"),
        ({}, "D", "it is held by the kernel (storage or a driver) at train.py:42 in load_shard"),
        ({}, "", "it was last seen at train.py:42 in load_shard"),
        ({"line": ""}, "S", "it sleeps at no line of the script"),
    ],
)  # fmt: skip
def test_what_the_missing_rank_does_is_said(page, letter, words):
    assert sentence(waiting(0), missing(1, **page), activity={1: letter}).endswith("; " + words)


def test_without_collectives_the_rank_with_fewer_steps_is_named():
    ranks = [seen(0, step_age_s=9.0, num_steps=118), seen(1, step_age_s=9.5, num_steps=117, line="fit.py:3 in f")]
    assert sentence(*ranks, activity={1: "S"}) == "rank 1 on n2 (pid 4711) sleeps at fit.py:3 in f"


def test_with_equal_steps_the_rank_at_another_line_is_named():
    ranks = [seen(rank, step_age_s=9.0, line="fit.py:3 in f" if rank == 1 else "fit.py:9 in g") for rank in range(3)]
    assert sentence(*ranks, activity={1: "S"}) == "rank 1 on n2 (pid 4711) sleeps at fit.py:3 in f"


def test_ranks_that_cannot_be_told_apart_are_named_together():
    ranks = [seen(rank, step_age_s=9.0, line="fit.py:9 in g") for rank in range(2)]
    assert sentence(*ranks, activity={0: "R"}) == (
        "ranks 0, 1 do not get on; rank 0 on n1 (pid 4710) computes at fit.py:9 in g"
    )


def test_nothing_is_known_without_steps_and_collectives():
    assert find_holdup([seen(0, num_steps=0), seen(1, num_steps=0)], {}) is None
    assert find_holdup([Observation(rank=0, host="n1", pid=1, process_state="S")], {}) is None
    assert find_holdup([], {}) is None


# when it is said


def standing_still(second: int) -> list[Observation]:
    return [waiting(0, age_s=second), missing(1, age_s=second)]


def test_a_hang_is_said_after_eight_seconds_and_then_less_and_less_often():
    said = hear(Watchdog(), standing_still, range(260))
    assert [second for second, _ in said] == [8, 30, 60, 120, 240]
    assert said[0][1] == (
        "topout: no step for 8 s: rank 1 on n2 (pid 4711) has not reached all_reduce #57 (44.9 MB), in which rank 0 "
        "waits; it sleeps at train.py:42 in load_shard"
    )
    assert said[2][1].startswith("topout: no step for 60 s: rank 1")


def test_a_job_that_gets_on_is_left_in_peace():
    def training(second: int) -> list[Observation]:
        return [
            seen(rank, num_steps=second, step_age_s=0.3, positions=(at("gloo:0", second, second, 0.5),))
            for rank in range(2)
        ]

    assert hear(Watchdog(), training, range(100)) == []


def test_a_step_may_take_five_times_as_long_as_usual():
    def slow(second: int) -> list[Observation]:
        return [waiting(0, age_s=second), missing(1, age_s=second, usual_step_s=4.0)]

    assert [second for second, _ in hear(Watchdog(), slow, range(25))] == [20]


def test_progress_is_said_with_who_was_late():
    def late(second: int) -> list[Observation]:
        if second < 41:
            return standing_still(second)
        return [seen(rank, num_steps=12, step_age_s=0.2, positions=(at("gloo:0", 59, 59, 0.2),)) for rank in range(2)]

    said = hear(Watchdog(), late, range(60))
    assert said[-1] == (41, "topout: goes on after 41 s (rank 1 was late at train.py:42 in load_shard)")
    assert len(said) == 3


def test_progress_elsewhere_is_not_taken_for_the_end_of_a_hang():
    """Rank 2 trains on in a group of its own."""

    def partly(second: int) -> list[Observation]:
        alone = seen(2, num_steps=second, step_age_s=0.1, positions=(at("gloo:alone", second, second, 0.1),))
        return [*standing_still(second), alone]

    assert [second for second, _ in hear(Watchdog(), partly, range(50))] == [8, 30]


def test_a_stop_is_counted_from_when_it_was_seen():
    def stopped(second: int) -> list[Observation]:
        return [seen(0, step_age_s=0.1), seen(1, state="T" if second >= 5 else "S", step_age_s=0.1)]

    ((second, line),) = hear(Watchdog(), stopped, range(20))
    assert second == 12  # it may have been stopped at 4, right after the look before
    assert line == "topout: no step for 0 s: rank 1 on n2 (pid 4711) is stopped; continue it with kill -CONT 4711"


def test_a_stopped_rank_that_is_continued_is_not_blamed_for_what_others_have_not_seen_yet():
    """Looks of other ranks are up to a second old: for a moment they still seem to wait."""

    def continued(second: int) -> list[Observation]:
        if second < 20:
            return [waiting(0, age_s=second), missing(1, age_s=second, state="T")]
        if second < 22:
            return [waiting(0, age_s=second), missing(1, age_s=second)]
        return [seen(rank, num_steps=12, step_age_s=0.1, positions=(at("gloo:0", 58, 58, 0.2),)) for rank in range(2)]

    said = hear(Watchdog(), continued, range(40))
    assert [second for second, _ in said] == [8, 22]
    assert said[1][1] == "topout: goes on after 22 s (rank 1 was stopped at train.py:42 in load_shard)"


def test_another_rank_to_blame_is_said_at_once_but_not_at_the_first_glance():
    def changing(second: int) -> list[Observation]:
        late = 1 if second < 15 else 2
        return [missing(rank, age_s=second) if rank == late else waiting(rank, age_s=second) for rank in range(3)]

    said = hear(Watchdog(), changing, range(25))
    assert [(second, "rank 1" in line, "rank 2" in line) for second, line in said] == [
        (8, True, False),
        (18, False, True),
    ]


def test_one_rank_that_works_while_others_wait_is_named_later_and_the_second_time_much_later():
    def evaluating(second: int) -> list[Observation]:
        """Rank 1 evaluates from 0 to 40 and from 50 on, while rank 0 waits at a barrier."""
        if 40 <= second < 50:
            return [
                seen(rank, num_steps=second, step_age_s=0.1, positions=(at("gloo:0", second, second, 0.1),))
                for rank in range(2)
            ]
        since_s = second if second < 40 else second - 50
        number = 57 if second < 40 else 107
        return [
            waiting(0, number, age_s=since_s, operation="barrier"),
            missing(1, number - 1, age_s=since_s, stir_age_s=0.4, phase="evaluation"),
        ]

    said = hear(Watchdog(), evaluating, range(150))
    assert [second for second, _ in said] == [30, 40, 130]
    assert said[0][1].endswith("it evaluates at train.py:42 in load_shard")


@pytest.mark.parametrize(
    ("page", "state", "said_at"),
    [({}, "S", 8), ({}, "R", 30), ({"phase": "compile"}, "S", 30), ({"usual_step_s": None, "num_steps": 1}, "S", 30)],
)
def test_a_lonely_rank_is_named_sooner_when_it_sleeps_than_when_it_works(page, state, said_at):
    said = hear(Watchdog(), lambda second: [seen(0, state=state, step_age_s=second, **page)], range(35))
    assert said[0][0] == said_at


def test_before_the_first_step_a_rank_that_works_says_nothing():
    assert hear(Watchdog(), lambda second: [seen(0, state="R", num_steps=0, stir_age_s=second)], range(200)) == []


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count():
    watchdog = Watchdog()
    assert hear(watchdog, standing_still, range(4)) == []
    assert [second for second, _ in hear(watchdog, standing_still, range(100, 115))] == [108]


def test_the_living_are_asked_for_their_stacks():
    watchdog = Watchdog(stacks="runs/1/hang")
    ranks = [waiting(0), missing(1, state="T"), missing(2, ended=True), Observation(rank=3, host="n4", pid=1)]
    looks = [watchdog.look(second, ranks) for second in range(9)]
    assert [look.ask_stacks for look in looks] == [()] * 8 + [(0,)]
    assert looks[8].lines[0].endswith("; stacks in runs/1/hang")


states = st.sampled_from(["R", "S", "D", "T", "Z", None])
observations = st.builds(
    Observation,
    rank=st.integers(0, 9),
    host=st.just("n1"),
    pid=st.none() | st.just(4711),
    process_state=states,
    page=st.none() | snapshots,
    has_ended=st.booleans(),
    heard_age_s=st.floats(0, 20),
)


@given(st.lists(st.lists(observations, max_size=4, unique_by=lambda item: item.rank), max_size=30))
def test_whatever_ranks_tell_it_is_one_line_at_a_time(looks):
    watchdog = Watchdog(named_after_s=1.0)
    for second, seen_then in enumerate(looks):
        look = watchdog.look(second, seen_then)
        assert isinstance(look, Look)
        assert len(look.lines) <= 2
        assert all("\n" not in line and line.startswith("topout: ") for line in look.lines)


@given(observations)
def test_an_observation_survives_the_wire(observation):
    again = Observation.from_wire(observation.to_wire(), observation.heard_age_s)
    assert again == observation
