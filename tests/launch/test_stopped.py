"""A stopped rank is not forgiven for ever."""

from topout.launch.stopped import StoppedRanks


def test_the_job_ends_when_nobody_continues_it():
    watch = StoppedRanks(ended_after_s=4)
    assert [watch.look(now, {0: "S", 1: "T"}) for now in (0, 2, 3, 4)] == [None, None, None, 1]


def test_one_that_was_continued_starts_anew():
    watch = StoppedRanks(ended_after_s=4)
    watch.look(0, {1: "T"})
    watch.look(2, {1: "R"})
    assert [watch.look(now, {1: "T"}) for now in (3, 5, 6, 7)] == [None, None, None, 1]


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count():
    watch = StoppedRanks(ended_after_s=4)
    watch.look(0, {1: "T"})
    assert watch.look(100, {1: "T"}) is None


def test_a_traced_rank_is_not_stopped():
    watch = StoppedRanks(ended_after_s=0)
    assert watch.look(0, {0: "t", 1: "D", 2: None}) is None
