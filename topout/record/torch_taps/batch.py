"""Gives the DataLoaders that feed training the batch of `--batch`, when they are made.

Then `len(loader)`, and every schedule made from it, fits. A loader feeds training where its sampler shuffles or its
data set is iterable; one that reads in order evaluates and keeps its own batch. Whoever makes batches itself
(`batch_sampler`, `batch_size=None`) cannot be given another size. The learning rate is not touched.
"""

import functools
import inspect
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from topout.record.set_batch import SetBatch


def install(loader_class: Any, order: SetBatch) -> None:
    original = loader_class.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            # the script's own mistake, which torch explains
            original(self, *args, **kwargs)
            return
        bound.apply_defaults()
        where = _script_line()
        why = why_not(bound.arguments, order.size)
        if why is not None:
            order.kept(where, why)
            original(self, *args, **kwargs)
            return
        bound.arguments["batch_size"] = order.size
        original(*bound.args, **bound.kwargs)
        order.took(where)

    loader_class.__init__ = initialise


def takes_batch(loader: Any) -> bool:
    """Whether `--batch` would have set the batch of this loader, where there are samples enough for it."""
    with suppress(Exception):  # a class of its own may know nothing of what torch's loaders know
        given = {"dataset": loader.dataset, "sampler": loader.sampler, "batch_size": loader.batch_size}
        return _why_never(given) is None
    return False


def why_not(given: dict[str, Any], size: int) -> str | None:
    """What keeps a loader of these arguments from taking a batch of this size; None: nothing."""
    never = _why_never(given)
    dataset, sampler = given["dataset"], given.get("sampler")
    if never is not None or _is_iterable(dataset):
        return never
    num_samples = _length(sampler if sampler is not None else dataset)
    if num_samples is not None and num_samples < size:
        return f"has {num_samples} samples for a rank, fewer than a batch"
    return None


def _why_never(given: dict[str, Any]) -> str | None:
    """What keeps it from any batch but its own."""
    if given.get("batch_sampler") is not None:
        return "has a batch_sampler of its own"
    if given.get("batch_size") is None:
        return "has batch_size=None: its data set makes the batches"
    if not _is_iterable(given["dataset"]) and not given.get("shuffle") and not _shuffles(given.get("sampler")):
        return "does not shuffle, so it is taken for evaluation"
    return None


def _is_iterable(dataset: Any) -> bool:
    module = sys.modules.get("torch.utils.data.dataset")
    return module is not None and isinstance(dataset, module.IterableDataset)


def _shuffles(sampler: Any) -> bool:
    """A DistributedSampler says it; of others, those that go through in order do not."""
    if sampler is None:
        return False
    module = sys.modules.get("torch.utils.data.sampler")
    if module is not None and isinstance(sampler, module.SequentialSampler):
        return False
    return bool(getattr(sampler, "shuffle", True))


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _script_line() -> str:
    """`train.py:41`: the innermost line outside of torch, torchdata and topout."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "torchdata", "topout")
