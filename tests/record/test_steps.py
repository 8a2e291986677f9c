"""Where one step ends and the next begins, with one optimizer and with several."""

import pytest

from topout.record.turns import StepCounter


def turns(order: list[int]) -> list[bool]:
    counter = StepCounter()
    return [counter.stepped(number) for number in order]


def test_each_step_of_the_only_optimizer_ends_a_step():
    assert turns([0, 0, 0]) == [True, True, True]


def test_the_optimizer_that_stepped_first_leads():
    assert turns([0, 1, 0, 1, 0]) == [True, False, True, False, True]


def test_a_leader_that_falls_silent_hands_over():
    assert turns([0, 0, *[1] * 10])[-2:] == [True, True]


@pytest.mark.parametrize("num_optimizers", [12, 300])
def test_many_optimizers_make_one_step_a_round(num_optimizers: int):
    """As with one for each parameter, stepped in hooks of backward."""
    assert sum(turns(list(range(num_optimizers)) * 20)) == 20


def test_a_leader_that_falls_silent_among_many_hands_over():
    assert sum(turns([0, *list(range(1, 12)) * 20])) == 1 + 20 - 8


def test_a_leader_hands_over_when_others_come_and_go_without_it():
    counter = StepCounter()
    ended = []
    for number in [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]:
        counter.keep({0, number})
        ended.append(counter.stepped(number))
    assert ended == [True, *[False] * 10, True, True, True]


def test_a_rehearsal_ends_only_when_every_optimizer_had_its_turn():
    counter = StepCounter()
    complete = []
    for number in [0, 1, 0, 1]:
        counter.stepped(number)
        complete.append(counter.is_turn_complete)
    assert complete == [True, True, False, True]
