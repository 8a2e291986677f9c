"""Dictionaries for fields stored with zstd, trained on entries spread over the source; kept in the manifest.

Small values (records of a few hundred bytes) shrink well only with one. Not for large ones, which need none.
"""

from collections.abc import Sequence

import numpy as np

from topout.packs.codecs import zstd
from topout.packs.fields import Field, Sample
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.record import RecordLayout
from topout.packs.sources import BadEntry, Listing

_MOST_ENTRIES = 2000
_MOST_BYTES = 32 << 20
_LARGEST_MEAN_BYTES = 1 << 20


def train_dictionaries(listing: Listing, fields: Sequence[Field], preprocessor: Preprocessor) -> dict[str, bytes]:
    """Field -> dictionary, of those that profit."""
    wanted = [field for field in fields if field.codec == "zstd"]
    if not wanted or not len(listing.names) or float(np.mean(listing.sizes)) > _LARGEST_MEAN_BYTES:
        return {}
    samples = _some_samples(listing, preprocessor)
    plain = RecordLayout(
        [Field(name=field.name, kind=field.kind, shape=None, dtype=field.dtype) for field in wanted], {}
    )
    values: dict[str, list[bytes]] = {field.name: [] for field in wanted}
    for sample in samples:
        try:
            parts = plain.encode({field.name: sample[field.name] for field in wanted})
        except (ValueError, KeyError):
            # named when it is packed
            continue
        for field, stored in zip(wanted, parts[1:], strict=True):
            values[field.name].append(stored)
    trained = {name: zstd.train(found) for name, found in values.items()}
    return {name: dictionary for name, dictionary in trained.items() if dictionary is not None}


def _some_samples(listing: Listing, preprocessor: Preprocessor) -> list[Sample]:
    num_entries = len(listing.names)
    samples: list[Sample] = []
    num_bytes = 0
    for number in range(0, num_entries, max(1, num_entries // _MOST_ENTRIES)):
        for found in listing.read_range(number, number + 1):
            if isinstance(found, BadEntry):
                continue
            try:
                samples += [sample for _, sample in preprocessor.apply(listing.names[number], found)]
            except ValueError:
                continue
        num_bytes += int(listing.sizes[number])
        if num_bytes > _MOST_BYTES:
            break
    return samples
