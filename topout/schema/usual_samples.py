"""How many samples a rank's step takes: what its loader is set to, checked against what was seen."""


def whole_samples(batch_size: int | None, batches_per_step: int | None, seen: float | None) -> int | None:
    """The usual ones, in whole samples."""
    samples = usual_samples(batch_size, batches_per_step, seen)
    return None if samples is None else max(1, round(samples))


def usual_samples(batch_size: int | None, batches_per_step: int | None, seen: float | None) -> float | None:
    """Samples of a rank's step by the size of its batch, unless those seen on average speak against it."""
    if not batch_size:
        return None
    usual = batch_size * (batches_per_step or 1)
    # smaller ones at the ends of epochs are no other batch; more than it, or half of it and less, come of other loaders
    return usual if seen is None or 0.5 * usual < seen <= 1.05 * usual else seen
