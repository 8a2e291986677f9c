"""What threads of torch's loaders say when topout has ended their script in the middle of an epoch: nothing.

Python ends the workers first, and a thread that takes batches from them (the one that pins memory) then fails, with a
traceback that says nothing about the script. Not for what fails before, nor for threads that Python would wait for.
"""

import threading
from types import TracebackType

_LOADERS = "torch.utils.data"


def silence_loaders() -> None:
    """To be called when the end that was planned has begun."""
    tell = threading.excepthook

    def tell_others(args: threading.ExceptHookArgs) -> None:
        is_daemon = args.thread is not None and args.thread.daemon
        if not (is_daemon and _goes_through_loader(args.exc_traceback)):
            tell(args)

    threading.excepthook = tell_others


def _goes_through_loader(trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(_LOADERS):
            return True
        trace = trace.tb_next
    return False
