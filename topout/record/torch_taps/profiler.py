"""A torch.profiler window over chosen steps (`--profile 20-29`), written into the run folder.

Not for timing: the profiler slows small steps by half. It tells which operations and kernels a step is made of.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.torch_taps.uncompiled import has_compiled
from topout.schema.run_folder import RunFolder, write_whole


def install(torch: ModuleType, recorder: Recorder) -> None:
    settings = recorder.settings
    if settings.profile is None or settings.run is None:
        return
    window = _Window(torch, recorder, *settings.profile)
    recorder.at_step_end.append(window.step_ended)
    recorder.at_finish.insert(0, window.finish)
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
        self._finished: Any = None
        self._is_held = False
        self._is_by_backward = False
        """It was opened at a step told by backward, which may turn out to be none."""

    def step_ended(self, step: int) -> None:
        is_by_backward = self._recorder.backwards is not None
        if is_by_backward and step in (self._first - 1, self._last) and _awaits_optimizer():
            # gradients add up, and the first step is still to come
            self._is_held = self._profiler is None
            return
        if self._is_by_backward and not is_by_backward:
            self._recorder.guard(self._start_over)
        if step + 1 == self._first:
            self._is_by_backward = is_by_backward
            self._recorder.guard(self.open)
        elif step == self._last:
            self._recorder.guard(self.close)
        elif self._profiler is not None:
            self._recorder.guard(self._profiler.step)

    def _start_over(self) -> None:
        """Steps are numbered anew: what was profiled were none."""
        self._is_by_backward = False
        profiler, self._profiler, self._finished = self._profiler, None, None
        self._recorder.fact(profiled_steps=None)
        if profiler is not None:
            profiler.stop()

    def open(self) -> None:
        import torch.profiler as profiling

        activities = [profiling.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(profiling.ProfilerActivity.CUDA)
        self._profiler = profiling.profile(activities=activities, record_shapes=True, acc_events=True)
        self._profiler.start()

    def finish(self) -> None:
        if self._is_held and self._recorder.backwards is not None:
            self._recorder.note(
                "--profile: an optimizer was made and never stepped, so where steps end is not known; call "
                "topout.step() at the end of each"
            )
        num_steps = self._recorder.num_steps
        if 0 < num_steps <= self._first and self._recorder.backwards is None and self._recorder.exit_code == 0:
            self._recorder.note(f"--profile {self._first}-{self._last}: the run had {num_steps} steps only")
        if self._profiler is not None:
            # as long as writing it
            self._recorder.at_last.append(self.close)

    def close(self) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self._finished = profiler
        self._recorder.fact(profiled_steps=[self._first, self._last])
        self._recorder.at_last.append(self._export)

    def _export(self) -> None:
        """At the end of the run: writing a trace takes seconds, which no step should carry."""
        run = self._recorder.settings.run
        profiler, self._finished = self._finished, None
        if run is not None and profiler is not None:
            path = RunFolder(run).profile(self._recorder.settings.rank)
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(path))
            if self._recorder.settings.filter:
                _leave_out(path, self._recorder.settings)


def _awaits_optimizer() -> bool:
    """One was made, and not stepped yet. Where something is compiled its steps may be, which are never seen."""
    module: Any = sys.modules.get("torch.optim.optimizer")
    if module is None or has_compiled():
        return False
    waiting = [module.Optimizer]
    while waiting:
        found = waiting.pop()
        # torch marks a class's step when it makes the first of the class
        if getattr(found.step, "hooked", False):
            return True
        waiting += found.__subclasses__()
    return False


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
