"""Where a pack's samples can go back to: one format a file, each with `write(pack, destination, progress)`.

So that nobody is locked in. Not for moving a pack to other codecs or shard sizes, which `topout data convert` does.
"""

from pathlib import Path
from typing import Any, Protocol

from topout.packs.pack import Pack
from topout.schema.plugin import load_plugin, plugin_names

_PACKAGE = "topout.packs.targets"


class Progress(Protocol):
    """Told after each sample or batch of samples; never raises."""

    def add(self, num_samples: int, num_bytes: int) -> None: ...


class NoProgress:
    """For callers whom nobody watches."""

    def add(self, num_samples: int, num_bytes: int) -> None: ...


def target_names() -> list[str]:
    return plugin_names(_PACKAGE)


def unpack(pack: Pack, destination: Path, target: str, progress: Progress | None = None) -> None:
    """Writes every sample of the pack to `destination` in the target's format."""
    module: Any = load_plugin(_PACKAGE, target)
    module.write(pack, destination, progress or NoProgress())
