"""A stopped rank is named once, and not forgiven for ever."""

from topout.launch.stopped import StoppedRanks


def test_named_after_a_while_and_ended_later():
    watch = StoppedRanks(named_after_s=2, ended_after_s=4)
    assert watch.look(0, {0: "S", 1: "T"}) == ([], None)
    assert watch.look(1, {0: "S", 1: "T"}) == ([], None)
    assert watch.look(2, {0: "S", 1: "T"}) == ([1], None)
    assert watch.look(3, {0: "S", 1: "T"}) == ([], None)
    assert watch.look(4, {0: "S", 1: "T"}) == ([], 1)


def test_one_that_was_continued_starts_anew():
    watch = StoppedRanks(named_after_s=2, ended_after_s=4)
    watch.look(0, {1: "T"})
    watch.look(2, {1: "R"})
    assert watch.look(3, {1: "T"}) == ([], None)
    assert watch.look(5, {1: "T"}) == ([1], None)


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count():
    watch = StoppedRanks(named_after_s=2, ended_after_s=4)
    watch.look(0, {1: "T"})
    assert watch.look(100, {1: "T"}) == ([], None)


def test_a_traced_rank_is_not_stopped():
    watch = StoppedRanks(named_after_s=0, ended_after_s=0)
    assert watch.look(0, {0: "t", 1: "D", 2: None}) == ([], None)
