"""Waiting for a future of a collective is waiting for the collective; asking until it is over is kept in mind."""

import pytest
import torch

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps import waits

LAUNCHED_AS = (7, 3)
"""Code and sequence number."""


class Work:
    """Over when its future has a value."""

    def __init__(self):
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future.then(lambda future: future.value())

    def wait(self):
        return self.future.wait()

    def is_completed(self):
        return self.future.done()


class Tapped:
    """A work as a tapped collective left it, and what is recorded of it."""

    def __init__(self, monkeypatch):
        for owner, names in ((torch._C.Future, ("wait", "then", "done")), (torch._C, ("_collect_all",))):
            for name in names:
                monkeypatch.setattr(owner, name, getattr(owner, name))
        monkeypatch.setattr(waits, "_WORTH_A_ROW_NS", 0)
        self.work_class = type("TappedWork", (Work,), dict(vars(Work)))
        self.recorder = Recorder(Settings(record=False), StatusLine(None))
        self.rows, self.facts = [], {}
        self.recorder.span = lambda code, start_ns, value, sequence: self.rows.append((code, sequence))
        self.recorder.fact = self.facts.update
        launches = waits.Launches()
        waits.install(self.work_class, launches, self.recorder)
        self.work = self.work_class()
        launches.remember(self.work, LAUNCHED_AS)


@pytest.fixture
def tapped(monkeypatch):
    return Tapped(monkeypatch)


@pytest.mark.parametrize(
    "wait",
    [
        lambda work: work.get_future().wait(),
        lambda work: work.get_future().then(lambda future: future.value()).wait(),
        lambda work: torch.futures.wait_all([work.get_future()])[0],
        lambda work: torch.futures.collect_all([work.get_future()]).wait()[0].value(),
    ],
    ids=["future", "then", "wait_all", "collect_all"],
)
def test_waiting_for_a_future_is_waiting_for_its_collective(tapped, wait):
    tapped.work.future.set_result("sum")
    assert wait(tapped.work) == "sum"
    assert set(tapped.rows) == {LAUNCHED_AS}
    assert tapped.recorder.notes == []


def test_futures_of_something_else_have_no_rows(tapped):
    class Unhashable(torch.futures.Future):
        __hash__ = None

    for future in (torch.futures.Future(), Unhashable()):
        future.set_result(1)
        assert future.then(lambda done: done.value() + 1).wait() == 2
        assert torch.futures.wait_all([future]) == [1]
    assert tapped.rows == []


def test_an_error_reaches_the_script_as_it_was(tapped):
    def fail(future):
        raise ValueError("the link is down")

    tapped.work.future.set_result("sum")
    with pytest.raises(Exception, match="the link is down"):
        tapped.work.get_future().then(fail).wait()
    assert tapped.rows == [LAUNCHED_AS]


@pytest.mark.parametrize("ask", [lambda tapped: tapped.work.is_completed, lambda tapped: tapped.work.get_future().done])
def test_asking_twice_within_a_step_may_be_waiting(tapped, ask):
    is_over = ask(tapped)
    assert is_over() is False
    tapped.recorder.num_steps += 1  # once a step is a look in passing
    assert is_over() is False
    assert tapped.facts == {}
    assert is_over() is False
    assert tapped.facts == {"polls_collectives": True}
    tapped.work.future.set_result("sum")
    assert is_over() is True
