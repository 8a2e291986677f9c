"""A profile is of steps: while gradients add up before the first one, none is opened."""

import pytest
import torch
import torch._dynamo.utils

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps import profiler

FIRST, LAST = 2, 4


class Profile:
    def __init__(self, log):
        self._log = log

    def stop(self):
        self._log.append("closed")

    def step(self):
        pass


@pytest.fixture
def window(monkeypatch):
    """A window over steps told by backward, and what happened to it."""
    recorder = Recorder(Settings(record=False), StatusLine(None))
    recorder.backwards = object()
    window = profiler._Window(torch, recorder, FIRST, LAST)
    window.log, window.recorder, window.facts = [], recorder, {}
    recorder.fact = window.facts.update

    def open_window():
        window.log.append("opened")
        window._profiler = Profile(window.log)

    monkeypatch.setattr(window, "open", open_window)
    monkeypatch.setattr(torch._dynamo.utils, "counters", {})
    return window


def take(window, num_steps):
    for step in range(num_steps):
        window.step_ended(step)


def test_it_is_opened_once_though_gradients_add_up_before_the_first_step(window):
    torch.optim.SGD([torch.zeros(1)])
    take(window, 10)
    assert window.log == []
    window.recorder.backwards = None
    take(window, 10)
    assert window.log == ["opened", "closed"]
    assert window.facts["profiled_steps"] == [FIRST, LAST]


@pytest.mark.parametrize(("num_backwards", "log"), [(3, ["opened", "closed"]), (10, ["opened", "closed"])])
def test_what_was_profiled_of_steps_that_were_none_is_left_out(window, monkeypatch, num_backwards, log):
    monkeypatch.setattr(profiler, "_awaits_optimizer", lambda: False)
    take(window, num_backwards)
    window.recorder.backwards = None
    take(window, 1)
    assert (window.log, window.facts["profiled_steps"], window._finished) == (log, None, None)


def test_a_loop_by_hand_is_profiled_by_its_backwards(window, monkeypatch):
    monkeypatch.setattr(profiler, "_awaits_optimizer", lambda: False)
    take(window, 10)
    window.finish()
    assert (window.log, window.facts["profiled_steps"]) == (["opened", "closed"], [FIRST, LAST])


def test_where_something_is_compiled_an_optimizers_steps_may_be_unseen(window):
    torch.optim.SGD([torch.zeros(1)])
    torch._dynamo.utils.counters["frames"] = {"total": 1}
    take(window, 10)
    assert window.log == ["opened", "closed"]


def test_an_optimizer_that_never_steps_is_said_to_keep_it_closed(window):
    torch.optim.SGD([torch.zeros(1)])
    take(window, 10)
    window.finish()
    assert window.log == []
    assert "never stepped" in window.recorder.notes[0]


@pytest.mark.parametrize(
    ("num_steps", "log"),
    [(10, ["opened", "closed", "arrivals", "written"]), (3, ["opened", "arrivals", "closed", "written"])],
    ids=["closed", "open"],
)
def test_it_is_written_when_all_else_is(window, monkeypatch, num_steps, log):
    recorder = window.recorder
    recorder.backwards = None
    recorder.at_finish.append(window.finish)
    monkeypatch.setattr(window, "_export", lambda: window.log.append("written"))
    take(window, num_steps)
    recorder.at_finish.append(lambda: window.log.append("arrivals"))
    recorder.finish()
    assert window.log == log
