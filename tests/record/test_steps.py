"""Where one step ends and the next begins, with one optimizer and with several."""

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


def test_a_rehearsal_ends_only_when_every_optimizer_had_its_turn():
    counter = StepCounter()
    complete = []
    for number in [0, 1, 0, 1]:
        counter.stepped(number)
        complete.append(counter.is_turn_complete)
    assert complete == [True, True, False, True]
