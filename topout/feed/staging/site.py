"""What is staged and where: a pack's contents, where it comes from, and the folder near the ranks."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from topout.feed.staging.folder import StagingFolder, State
from topout.feed.staging.origin import Origin
from topout.packs.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Site:
    """All that a store needs to fetch and to keep."""

    folder: StagingFolder
    state: State
    origin: Origin
    manifest: Manifest
    index: NDArray[Any]
