"""Notes that ranks leave for each other in torch's store, where a collective could wait for ever.

For questions that only some ranks may come to ask, and at a script's end: nobody waits longer than a limit for a rank
that goes another way. Not for what all ranks do together; `exchange` has that.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def leave(subject: str, text: str) -> None:
    """This rank's. Raises RuntimeError, as the store does, where that is gone."""
    _store().set(_key(subject, dist.get_rank()), text)


def await_all(subject: str, ranks: Sequence[int], limit: timedelta) -> list[str]:
    """Those of all these ranks, in their order. Raises RuntimeError where one does not come."""
    keys = [_key(subject, rank) for rank in ranks]
    store = _store()
    store.wait(keys, limit)
    return [found.decode() for found in store.multi_get(keys)]


def _key(subject: str, rank: int) -> str:
    return f"topout/{subject}/{rank}"


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
