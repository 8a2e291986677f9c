"""The samples of a pack one after another, as a target writes them.

Damaged ones are left out where the pack was opened to skip damage; otherwise the first one ends it.
"""

from collections.abc import Iterator

from topout.packs.fields import Sample
from topout.packs.pack import Pack


def named_samples(pack: Pack) -> Iterator[tuple[str, Sample, int]]:
    """Name, sample, and the bytes it takes in the pack."""
    for number in range(len(pack)):
        for sample in pack.samples([number]):
            yield pack.name(number), sample, int(pack.index["length"][number])
