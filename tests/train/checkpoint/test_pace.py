"""Every so many minutes, at steps that all ranks agree on."""

import pytest

from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.pace import EverySeconds, pace
from topout.train.place import alone


class Counting(Agreement):
    """Counts how often the ranks would have talked."""

    num_asked = 0

    def first(self, value: object) -> object:
        self.num_asked += 1
        return value


def due_steps(seconds: float, step_s: list[float]) -> tuple[list[int], int]:
    now, agreement, due = [0.0], Counting(alone()), []
    chosen = EverySeconds(seconds, agreement, clock=lambda: now[0])
    for step, took in enumerate(step_s, start=1):
        now[0] += took
        if chosen.is_due(step):
            due.append(step)
            chosen.begin(step)
    return due, agreement.num_asked


def test_equal_steps_are_saved_at_the_minute_and_seldom_talked_about() -> None:
    due, num_asked = due_steps(60, [0.1] * 1800)
    assert due == [600, 1200, 1800]
    assert num_asked <= 3 * 35


def test_steps_that_get_slower_are_noticed() -> None:
    """After 50 steps and 5 s every step takes ten times as long: 5 more would do, a quarter of 50 is 13."""
    due, _ = due_steps(10, [0.1] * 50 + [1.0] * 50)
    assert 55 <= due[0] <= 50 + 13


def test_a_step_longer_than_the_time_is_saved_each_time() -> None:
    assert due_steps(1, [5.0] * 3)[0] == [1, 2, 3]


@pytest.mark.parametrize(("every", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_times_are_read(every: str, seconds: float) -> None:
    chosen = pace(every, Agreement(alone()))
    assert isinstance(chosen, EverySeconds)
    assert chosen._seconds == seconds
