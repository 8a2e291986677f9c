"""Taps break compiled graphs no more often than what they tap does."""

from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps import collectives, mode, waits


class Work:
    """What the compiler cannot trace, as a process group's."""

    def wait(self):
        torch._dynamo.graph_break()


def all_reduce(tensor):
    torch._dynamo.graph_break()
    return Work()


def count(module):
    """Graphs and breaks of a compiled function that launches a collective and waits for it."""
    graphs = []

    def reduce_later(x):
        y = x * 2
        work = module.all_reduce(y)
        z = x + 1
        work.wait()
        return y + z

    torch._dynamo.reset()
    counters.clear()
    torch.compile(reduce_later, backend=lambda graph, _: graphs.append(graph) or graph.forward)(torch.ones(3))
    return len(graphs), sum(counters["graph_break"].values())


@pytest.fixture
def plain():
    yield SimpleNamespace(all_reduce=all_reduce, Work=Work)
    torch._dynamo.reset()
    counters.clear()


def test_a_tapped_collective_breaks_a_graph_as_often_as_a_plain_one(plain, monkeypatch):
    expected = count(plain)
    recorder = Recorder(Settings(record=False), StatusLine(None))
    launches = waits.Launches()
    monkeypatch.setattr(Work, "wait", Work.wait)
    waits._tap_wait(Work, launches, (0, 0), recorder)
    plain.all_reduce = collectives._tapped(plain, "all_reduce", {}, launches, recorder)
    assert count(plain) == expected


def test_a_model_that_switches_a_part_of_itself_is_still_one_graph(plain, monkeypatch):
    class Frozen(torch.nn.Linear):
        def forward(self, x):
            self.eval()
            return super().forward(x)

    monkeypatch.setattr(torch.nn.Module, "train", torch.nn.Module.train)
    recorder = Recorder(Settings(record=False), StatusLine(None))
    mode.install(SimpleNamespace(Module=torch.nn.Module), recorder)
    model = Frozen(3, 3)
    assert torch.compile(model, backend="eager", fullgraph=True)(torch.ones(3)).shape == (3,)
    assert not model.training and not recorder.is_evaluating
    model.eval()
    assert recorder.is_evaluating
