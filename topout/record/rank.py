"""Runs a script as one rank: `python -P -m topout.record.rank SCRIPT ARGS…`, or `-m MODULE ARGS…`.

`-P` keeps the current folder off the path while topout itself is imported: a script's `random.py` must not become ours.

The script runs as `__main__` with its own `sys.argv` and `sys.path`, as `python SCRIPT` would run it. Around it: taps
before its first line, its traceback to the launcher, and an end within seconds of its last line whatever it left
running, unless that still works (`leaving`).
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from _frozen_importlib_external import SourceFileLoader

from topout.record import horovod_path, jax_cluster, keras_taps, preemption, torch_taps, worker_cores
from topout.record.recorder import Recorder, set_current
from topout.record.script_code import script_code
from topout.record.settings import Settings
from topout.record.status import StatusLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from topout.record.leaving import Leaving

EXIT_LIMIT_S = 4.0
"""From the script's last line to the end of a process that does nothing; the launcher enforces 5 s from outside."""


def main(arguments: list[str]) -> int:
    ended: list[Leaving] = []
    # registered before all others it runs after them, when those children have gone that an exit handler ends
    atexit.register(_await_children, ended)
    worker_cores.note_granted()
    preemption.adopt_page()
    jax_cluster.install()
    horovod_path.install()
    status = StatusLine.from_environment()
    # before the script's folder is in it
    own_path = list(sys.path)
    recorder = _start_recorder(status)
    code = _serve_packs(status)
    if code == 0:
        _parallelise()
        code = _run(arguments, status, recorder)
        # without one no thread of ours starts
        sys.excepthook = getattr(sys, "excepthook", None) or sys.__excepthook__
        if not status.is_of_this_process:
            # a child that the script forked and that came back from its last line
            return code
        if code == 0:
            code = _look_at_replicas(status)
        _let_go_of_loader(status, recorder)
    leaving = _leaving(code, status, recorder, own_path)
    if leaving is not None:
        leaving.await_threads()
    _finish_what_was_begun(leaving)
    status.send("done", code=code)
    if leaving is not None:
        leaving.watch()
    if recorder is not None:
        try:
            recorder.finish(code, leaving.give_time if leaving is not None else None)
        except Exception as error:
            status.send("note", text=f"the recording's end was lost: {error}")
    if code == 0:
        _leave_process_group()
    if leaving is not None:
        leaving.hand_over()
        ended.append(leaving)
    return code


def _start_recorder(status: StatusLine) -> Recorder | None:
    """Taps are needed for recording, and for what they change of a script even without it."""
    try:
        settings = Settings.from_environment()
        is_kept = _keep_memory(status) if settings.keep_memory else None
        asked = (settings.steps, settings.data_share, settings.batch)
        if not settings.record and asked == (None, None, None) and settings.onednn_backward:
            from topout.record import gloo_threads

            worker_cores.install()
            gloo_threads.install_later()
            return None
        recorder = Recorder(settings, status)
        if is_kept is not None:
            recorder.fact(keeps_memory=is_kept)
        recorder.files.install()
        if settings.batch is not None:
            from topout.record import set_batch

            set_batch.install(recorder, settings.batch)
        torch_taps.install(recorder)
        keras_taps.install(recorder)
        set_current(recorder)
        return recorder
    except Exception as error:
        status.send("note", text=f"nothing was recorded: {type(error).__name__}: {error}")
        return None


def _keep_memory(status: StatusLine) -> bool:
    # here, since few ranks need it
    from topout.record import kept_memory

    why_not = kept_memory.keep()
    if why_not is not None:
        status.send("note", text=f"--keep-memory changes nothing: {why_not}")
    return why_not is None


def _serve_packs(status: StatusLine) -> int:
    """Where packs were asked for, a rank without them would train on something else, or not at all: it ends."""
    if "TOPOUT_PACKS" not in os.environ:
        return 0
    from importlib import import_module

    from topout.schema.errors import TopoutError

    try:
        # by name: the room lies above this one, and only such a rank needs it
        import_module("topout.feed.serve.install").install()
    except TopoutError as error:
        status.send("failure", text=str(error))
        print(error, file=sys.stderr)  # noqa: T201 (as the command line says it)
        return int(error.exit_code)
    return 0


def _parallelise() -> None:
    if "TOPOUT_DDP" in os.environ:
        from importlib import import_module

        # by name: the room lies above this one, and only such a rank needs it
        import_module("topout.train.parallelise.install").install()


def _look_at_replicas(status: StatusLine) -> int:
    """With --ddp, after the script: whether ranks trained one model shows at its end where it does not earlier."""
    begun = sys.modules.get("topout.train.parallelise.install")
    try:
        if begun is not None:
            begun.script_ended()
    except Exception as error:
        if type(error).__name__ == "TopoutError":
            return _refused(error, status)
        status.send("note", text=f"ranks were not compared at the end: {type(error).__name__}: {error}")
    return 0


def _run(arguments: list[str], status: StatusLine, recorder: Recorder | None) -> int:
    failure: BaseException | None = None
    try:
        if arguments[0] == "-m":
            _run_module(arguments[1:])
        else:
            _run_script(arguments)
    except SystemExit as exit_:
        # not loaded, it was not raised; and a script that has used up its descriptors could not load it
        turns = sys.modules.get("topout.record.turns")
        if turns is not None and isinstance(exit_, turns.RehearsalOver) and status.is_of_this_process:
            from topout.record.quiet_loaders import silence_loaders

            silence_loaders()
        return _exit_code(exit_)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        if "TOPOUT_DDP" in os.environ and type(error).__name__ == "TopoutError":
            return _refused(error, status)
        # here, since a script that does not fail need not wait for it
        import traceback

        from topout.record.outofmemory import record_out_of_memory

        trace = _below_us(error.__traceback__)
        error.__traceback__ = trace
        if recorder is not None and status.is_of_this_process:
            recorder.guard(record_out_of_memory, error, recorder)
        status.send("failure", text="".join(traceback.format_exception(error)))
        failure = error
    # out here, so that what a hook raises does not carry it along as its context
    return 0 if failure is None else _show(failure)


def _show(error: BaseException) -> int:
    """As python shows what nobody caught: by the script's hook, and where that fails it says so."""
    if not hasattr(sys, "excepthook"):
        print("sys.excepthook is missing", file=sys.stderr)  # noqa: T201
        sys.excepthook = sys.__excepthook__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return _exit_code(exit_)
    except BaseException as own:
        own.__traceback__ = _below_us(own.__traceback__)
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(own), own, own.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _refused(error: Any, status: StatusLine) -> int:
    """What --ddp cannot do safely: its sentence names the line, and a traceback through torch would hide it."""
    status.send("failure", text=str(error))
    print(error, file=sys.stderr)  # noqa: T201 (as the command line says it)
    return int(error.exit_code)


def _run_script(arguments: list[str]) -> None:
    # as python has it: whole, so that it is found after the script has changed folders
    path = os.path.abspath(arguments[0])  # noqa: PTH100
    sys.argv[:] = arguments
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = type(sys)("__main__")
    module.__file__ = path
    module.__cached__ = None  # type: ignore[attr-defined]
    module.__annotations__ = {}
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    # for good, not for the time of the call: whoever pickles a class of the script looks it up here, workers included
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        source = file.read()
    exec(script_code(source, path), module.__dict__)


def _run_module(arguments: list[str]) -> None:
    sys.argv[:] = arguments
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    import runpy

    # the module, as `python -m` has it: left to exec, it would be a dict
    runpy.run_module(arguments[0], {"__builtins__": builtins}, run_name="__main__", alter_sys=True)


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        # what does not fit is -1 to python
        return exit_.code & 0xFF if abs(exit_.code) < 1 << 63 else 0xFF
    print(exit_.code, file=sys.stderr)  # noqa: T201 (what python itself does with sys.exit("text"))
    return 1


def _below_us(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on; the frames that started it say nothing to its author."""
    below = trace
    runpy = sys.modules.get("runpy")
    ours = (__file__, script_code.__code__.co_filename, getattr(runpy, "__file__", None), "<frozen runpy>")
    while below is not None and below.tb_frame.f_code.co_filename in ours:
        below = below.tb_next
    # none of it is the script's where the script does not compile
    return below


def _let_go_of_loader(status: StatusLine, recorder: Recorder | None) -> None:
    """Before anybody counts seconds: workers that are in the middle of a batch finish it. After a failure all do."""
    if recorder is not None and not status.has_told_failure:
        recorder.guard(recorder.let_go_of_loader)


def _leaving(code: int, status: StatusLine, recorder: Recorder | None, own_path: list[str]) -> Leaving | None:
    """None where nothing can be loaded any more, as without descriptors: then the launcher alone ends the rank."""
    path_of_script = sys.path
    if "threading" not in sys.modules:
        # loaded now, with what it needs: a script's `functools.py` must not become Python's. Nobody else looks there
        # meanwhile, for without it there are no threads
        sys.path = own_path
    try:
        from topout.record.leaving import Leaving

        return Leaving(code, status, recorder, EXIT_LIMIT_S)
    except Exception as error:
        status.send("note", text=f"threads are not waited for: {type(error).__name__}: {error}")
        return None
    finally:
        sys.path = path_of_script


def _finish_what_was_begun(leaving: Leaving | None) -> None:
    begun = sys.modules.get("topout.record.before_leaving")
    if begun is None:
        return
    if leaving is None:
        begun.finish()
    else:
        leaving.finish(begun.finish)


def _await_children(ended: list[Leaving]) -> None:
    """Of a rank that got as far as that: not in a child that the script forked, nor where nothing could be loaded."""
    for leaving in ended:
        leaving.await_children()


def _leave_process_group() -> None:
    """Scripts forget it; left to destructors, some ranks then abort after the result is computed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if distributed.is_initialized():
        # torch has loaded it
        import threading

        leaving = threading.Thread(target=distributed.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(EXIT_LIMIT_S / 2)
    # also for a script that has left: its model may still hold the group, and the group its threads
    from topout.host.settling import settle

    settle()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
