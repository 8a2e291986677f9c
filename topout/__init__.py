"""topout: find out why training scales badly, mend it, and know how many nodes are worth asking for.

The names below are what a script may import. They load on first use; marks do nothing outside `topout run`; the loader,
the data set and `init` work anywhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from topout.api.feed import Loader, PackedDataset
    from topout.api.instrument import count, span, step
    from topout.api.large_batch import LAMB, LARS, large_batch, large_batch_from, probe_batch
    from topout.api.preemption import should_stop
    from topout.api.train import Context, init

__version__ = "0.1.0"
__all__ = [
    "LAMB", "LARS", "Context", "Loader", "PackedDataset", "count", "init", "large_batch", "large_batch_from",
    "probe_batch", "should_stop", "span", "step",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "should_stop":
        from topout.api.preemption import should_stop

        # kept, since a script asks on every step
        globals()[name] = should_stop
        return should_stop
    if name in ("Loader", "PackedDataset"):
        from topout.api import feed

        return getattr(feed, name)
    if name in ("Context", "init"):
        from topout.api import train

        return getattr(train, name)
    if name in ("LAMB", "LARS", "large_batch", "large_batch_from", "probe_batch"):
        from topout.api import large_batch

        return getattr(large_batch, name)
    if name in __all__:
        from topout.api import instrument

        return getattr(instrument, name)
    raise AttributeError(f"module 'topout' has no attribute {name!r}")
