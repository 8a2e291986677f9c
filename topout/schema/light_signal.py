"""`signal` for what loads before a training script's first line: the C module, whose numbers are plain ints.

The standard one wraps each function to give names to numbers, and loads `enum` for that (5 ms). A type checker sees the
standard one. Not where a signal's name is needed (`signal.Signals`): whoever tells a person loads that then.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = ["signal"]
