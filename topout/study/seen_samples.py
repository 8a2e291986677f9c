"""Samples of a rank's step, as a recording shows them.

Peers of a mesh (tensor, pipeline, context) work on the same samples, which are trained on once: a peer counts with its
part of them, so that the ranks of the recording together have the samples that they had.
"""

from collections.abc import Sequence

from topout.analyze.peers import sample_peers
from topout.schema.errors import TopoutError
from topout.schema.measures import Measures
from topout.trace.table import RankTable

_ROUNDED = 0.05
"""A part of a batch is whole to so much of it, or the rate of samples would be off by more."""


def num_peers(tables: Sequence[RankTable]) -> float:
    """Ranks that work on the same samples; 1: each on its own."""
    return len(tables) / len(sample_peers(tables)) if tables else 1.0


def seen_samples(measures: Measures, tables: Sequence[RankTable], notes: list[str]) -> int | None:
    """None where the size of a batch was not seen."""
    samples, peers = measures.rank_samples_per_step, num_peers(tables)
    if samples is None or peers == 1:
        return samples
    part = max(1, round(samples / peers))
    if abs(part * peers / samples - 1) > _ROUNDED:
        raise TopoutError(
            f"The {samples:,} samples of a step do not divide among {peers:g} ranks that work on them together.",
            why="A rank is described by its own part of them, in whole samples.",
            do=f"record a run whose step has a multiple of {peers:g} samples, such as {round(peers * part):,}",
        )
    notes.append(
        f"{peers:g} ranks worked on the same {samples:,} samples (a mesh), so each counts with {part:,}. More nodes "
        "are more of such groups; how long one waits within itself is taken to stay."
    )
    return part
