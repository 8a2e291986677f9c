"""A torch.profiler window over chosen steps (`--profile 20-29`), written into the run folder.

Not for timing: the profiler slows small steps by half. It tells which operations and kernels a step is made of.
"""

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.schema.run_folder import RunFolder, write_whole


def install(torch: ModuleType, recorder: Recorder) -> None:
    settings = recorder.settings
    if settings.profile is None or settings.run is None:
        return
    window = _Window(torch, recorder, *settings.profile)
    recorder.at_step_end.append(window.step_ended)
    recorder.at_finish.insert(0, window.close)
    if settings.profile[0] == 0:
        recorder.guard(window.open)


class _Window:
    """Opens before the first chosen step and closes after the last."""

    def __init__(self, torch: ModuleType, recorder: Recorder, first: int, last: int) -> None:
        self._torch = torch
        self._recorder = recorder
        self._first = first
        self._last = last
        self._profiler: Any = None

    def step_ended(self, step: int) -> None:
        if step + 1 == self._first:
            self._recorder.guard(self.open)
        elif step == self._last:
            self._recorder.guard(self.close)
        elif self._profiler is not None and step < self._first:
            # steps are numbered anew: it was opened for such as were none
            profiler, self._profiler = self._profiler, None
            self._recorder.guard(profiler.stop)
        elif self._profiler is not None:
            self._recorder.guard(self._profiler.step)

    def open(self) -> None:
        import torch.profiler as profiling

        activities = [profiling.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(profiling.ProfilerActivity.CUDA)
        self._profiler = profiling.profile(activities=activities, record_shapes=True, acc_events=True)
        self._profiler.start()

    def close(self) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self._recorder.fact(profiled_steps=[self._first, self._last])
        self._recorder.at_finish.append(functools.partial(self._export, profiler))

    def _export(self, profiler: Any) -> None:
        """At the end of the run: writing a trace takes seconds, which no step should carry."""
        run = self._recorder.settings.run
        if run is not None:
            path = RunFolder(run).profile(self._recorder.settings.rank)
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(path))
            if self._recorder.settings.filter:
                _leave_out(path, self._recorder.settings)


class _Name(msgspec.Struct):
    name: str = ""


def _leave_out(path: Path, settings: Settings) -> None:
    """Drops the events that `--filter` names; the others stay as they are, to the byte."""
    trace = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(trace["traceEvents"], type=list[msgspec.Raw])
    read_name = msgspec.json.Decoder(_Name).decode
    kept = [event for event in events if not settings.leaves_out(read_name(event).name)]
    trace["traceEvents"] = msgspec.Raw(msgspec.json.encode(kept))
    write_whole(path, msgspec.json.encode(trace))
