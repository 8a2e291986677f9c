"""Tensors, groups and batches that taps do not expect: recorded as far as they can be, never in the script's way."""

import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from topout.record.clock import TimeOfDay
from topout.record.keras_taps import lonely, steps
from topout.record.keras_taps.watch import Watch
from topout.record.recorder import Recorder
from topout.record.set_batch import SetBatch
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.torch_taps import (
    backward,
    checkpoint,
    collectives,
    data_parallel,
    flight,
    loader,
    optimizer,
    spawning,
)
from topout.record.torch_taps.waits import Launches
from topout.record.turns import RehearsalOver
from topout.schema.event import NOT_GIVEN, Kind


class Recorded(Recorder):
    """Keeps rows where a file would be."""

    def __init__(self):
        super().__init__(Settings(record=False), StatusLine(None))
        self.rows = []
        self.emit = self.rows.append
        self.code = lambda kind, name="": (kind, name)

    def span(self, code, start_ns, value=NOT_GIVEN, ref=NOT_GIVEN):
        self.rows.append((code, start_ns, 0, value, ref))

    def of(self, kind):
        return [row for row in self.rows if row[0][0] == kind]


@pytest.fixture
def recorder():
    return Recorded()


def broadcast(tensor, src=None, group=None, async_op=False):
    return None


def tapped(recorder):
    module = SimpleNamespace(broadcast=broadcast, Work=SimpleNamespace)
    return collectives._tapped(module, "broadcast", {}, Launches(), recorder)


def test_a_sparse_tensor_is_sent_though_its_bytes_are_not_known(recorder):
    tapped(recorder)(torch.eye(3).to_sparse())
    tapped(recorder)([torch.eye(3).to_sparse(), torch.ones(2)])
    assert [row[3] for row in recorder.of(Kind.COLLECTIVE)] == [NOT_GIVEN, 7]


@pytest.mark.parametrize("is_by_name", [True, False])
def test_a_group_is_known_however_it_is_given(recorder, is_by_name):
    call, group = tapped(recorder), SimpleNamespace(group_name="rows")
    call(torch.ones(2), 0)
    for _ in range(2):
        call(torch.ones(2), 0, group=group) if is_by_name else call(torch.ones(2), 0, group)
    assert [(row[0][1], row[4]) for row in recorder.of(Kind.COLLECTIVE)] == [
        ("broadcast", 0), ("broadcast@rows", 0), ("broadcast@rows", 1)
    ]  # fmt: skip


class Sized:
    """As a graph: its size is no number."""

    def size(self, _=None):
        return None


def counted(recorder, batch):
    class Batches:
        def __next__(self):
            return batch

    loader._tap_next(Batches, recorder)
    assert next(Batches()) is batch
    (row,) = recorder.of(Kind.INPUT)
    return row[3]


def test_the_samples_of_a_single_tensor_are_its_first_dimension(recorder):
    assert counted(recorder, torch.zeros(32, 3, 8, 8)) == 32


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_samples_of_several_tensors_are_those_of_the_first(recorder, kind):
    assert counted(recorder, kind([torch.zeros(32, 3), torch.zeros(32)])) == 32


def test_a_mapping_stays_as_it_is(recorder):
    batch = defaultdict(list, x=torch.zeros(32, 3))
    assert counted(recorder, batch) == 32
    assert list(batch) == ["x"]


@pytest.mark.parametrize("batch", [[Sized()], Sized(), [], "", 3, SimpleNamespace(shape=3)])
def test_a_batch_of_unknown_size_is_a_batch(recorder, batch):
    assert counted(recorder, batch) == NOT_GIVEN


@pytest.mark.parametrize("onednn_backward", [True, False])
def test_losses_out_of_an_iterator_have_gradients(recorder, onednn_backward):
    recorder.settings = Settings(record=False, onednn_backward=onednn_backward)
    module = SimpleNamespace(backward=torch.autograd.backward)
    backward.install(module, recorder)
    for step in range(3):
        recorder.num_steps = step
        weight = torch.ones(2, requires_grad=True)
        module.backward((factor * weight).sum() for factor in (2, 3))
        assert weight.grad.tolist() == [5, 5]
    assert recorder.notes == []


def test_an_optimizer_takes_over_from_one_that_is_gone(recorder):
    taps = optimizer._StepTaps(recorder)
    ends = []
    recorder.end_step = ends.append

    def train(num_steps):
        stepping = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
        for _ in range(num_steps):
            taps.after(stepping, (), {})

    for _ in range(3):  # each round has an optimizer of its own, often where the last one was
        train(3)
    assert len(ends) == 9


def test_two_optimizers_take_turns_while_both_live(recorder):
    taps = optimizer._StepTaps(recorder)
    ends = []
    recorder.end_step = ends.append
    pair = [torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1) for _ in range(2)]
    for _ in range(3):
        for stepping in pair:
            taps.after(stepping, (), {})
    assert len(ends) == 3


def test_a_forked_child_that_trains_with_keras_is_left_alone(recorder, monkeypatch):
    # another test of this process may have something that joins ranks
    monkeypatch.setattr(lonely, "_is_alone", lambda model: True)
    recorder.settings = Settings(record=False, world_size=2, steps=1)
    watch = Watch(recorder)
    with pytest.raises(RehearsalOver):
        lonely.refuse_lonely_ranks(None, watch)
    recorder._leave_child()
    lonely.refuse_lonely_ranks(None, watch)
    recorder.num_steps = 1
    steps.end_rehearsal(watch)


def test_a_forked_child_is_not_asked_for_the_batch_of_the_rank(recorder):
    recorder.at_step_end.append(SetBatch(8, recorder).check)
    with pytest.raises(RehearsalOver):
        recorder.end_step(0)
    recorder.num_steps = 0
    recorder._leave_child()
    recorder.end_step(0)
    assert recorder.num_steps == 1


def test_a_thread_that_saves_does_not_hide_what_another_saves(recorder):
    is_begun, may_end = threading.Event(), threading.Event()

    def save(what):
        if what == "long":
            is_begun.set()
            may_end.wait(10)

    tapped_save = checkpoint._tapped(save, "save", recorder)
    thread = threading.Thread(target=tapped_save, args=("long",))
    thread.start()
    is_begun.wait(10)
    tapped_save("short")
    assert len(recorder.of(Kind.CHECKPOINT)) == 1
    may_end.set()
    thread.join()
    assert len(recorder.of(Kind.CHECKPOINT)) == 2


class FlightRecorder:
    """torch's, with one collective more each time it is read."""

    def __init__(self):
        self.time_ns = flight.clock_pair()[1]
        self.record_id = flight._last_record_id

    def dump(self, **_):
        self.record_id += 1
        entry = f'{{"record_id": {self.record_id}, "collective_seq_id": 1, "profiling_name": "gloo:all_reduce", '
        return entry_list(entry + f'"time_created_ns": {self.time_ns}}}')


def entry_list(entry):
    return f'{{"entries": [{entry}]}}'.encode()


@pytest.fixture
def arrivals(recorder, monkeypatch):
    for name in ("_last_record_id", "_num_lives"):
        monkeypatch.setattr(flight, name, getattr(flight, name))
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", FlightRecorder().dump)
    recorder.is_active = True

    day = TimeOfDay()

    def read():
        flight.record_arrivals(recorder, day)
        return [row[4] for row in recorder.of(Kind.ARRIVAL)]

    read.day = day
    return read


def test_collectives_of_a_new_default_group_are_others_than_those_of_the_old(arrivals):
    arrivals()
    flight.default_group_gone()
    first, second = arrivals()
    assert first != second
    assert first % (1 << 32) == second % (1 << 32) == 1


@pytest.mark.parametrize("by_ns", [300_000_000, -300_000_000], ids=["forward", "back"])
def test_arrivals_are_left_out_where_the_time_of_day_was_set(arrivals, recorder, by_ns):
    arrivals.day._at_zero_ns -= by_ns
    assert arrivals() == []
    assert "time of day was set" in recorder.notes[0]


@pytest.mark.parametrize(("device_ids", "told"), [([], {}), ([0], {}), ([0, 1], {"uses_data_parallel": True})])
def test_data_parallel_with_one_gpu_is_none(recorder, device_ids, told):
    class Stand:
        def __init__(self, module, ids):
            self.module, self.device_ids = module, ids

    facts = {}
    recorder.fact = lambda **given: facts.update(given)
    data_parallel.install(SimpleNamespace(DataParallel=Stand), recorder)
    assert Stand("model", device_ids).module == "model"
    assert facts == told


@pytest.mark.parametrize("words", [(3,), ()])
def test_processes_that_a_script_starts_are_counted(recorder, words):
    started, facts = [], {}
    recorder.fact = lambda **given: facts.update(given)
    module = SimpleNamespace(start_processes=lambda *given, **named: started.append((given, named)))
    spawning.install(module, recorder)
    module.start_processes(print, ("a",), *words, daemon=True)
    assert started == [((print, ("a",), *(words or (1,))), {"daemon": True})]
    assert facts == {"num_spawned": words[0] if words else 1}
