"""`topout.Loader` and `topout.PackedDataset`: samples from packs, for scripts that want them by name.

Not needed by unmodified scripts: `topout run --packs` serves those from packs too.
"""

from topout.feed.dataset import PackedDataset
from topout.feed.loader import Loader

__all__ = ["Loader", "PackedDataset"]
