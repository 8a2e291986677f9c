"""Tensor-parallel peers: which collectives are theirs, and how long they held a rank.

A mesh says which group is which (`mesh_groups`); a functional collective of a group nobody named belongs to tensor
parallelism when it happens inside forward or backward, where nothing else that uses them waits. Not for data-parallel
collectives and sharded parameters: those stay `wait` and `transfer`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topout.analyze.segments import Stretches
from topout.schema.event import Kind
from topout.schema.measures import TensorParallel
from topout.trace.table import Bools, Int64s, RankTable

TENSOR_NAMES = frozenset(
    {"tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel", "sp", "sequence_parallel"}
)
"""What scripts call the dimension of a mesh along which layers are cut."""
_SAMPLE_NAMES = TENSOR_NAMES | {
    "pp", "pipe", "pipeline", "pipeline_parallel", "stage", "cp", "context", "context_parallel"
}  # fmt: skip
"""Dimensions along which ranks work on the same samples: on parts of layers, of their sequence, or of sequences."""


def is_tensor_parallel(table: RankTable, rows: NDArray[np.intp]) -> Bools:
    """For each of these rows of collectives, whether tensor-parallel peers are waited for."""
    named = mesh_names(table)
    by_name = np.array([named.get(name.partition("@")[2], "") for name in table.names] or [""])
    label = by_name[np.minimum(table.name_id[rows], len(by_name) - 1)]
    is_tensor: Bools = np.isin(label, list(TENSOR_NAMES))
    is_loose = (label == "") & (table.kind[rows] == Kind.PEERS)
    if is_loose.any():
        is_tensor |= is_loose & ~_is_between(table, table.start_ns[rows])
    return is_tensor


def mesh_names(table: RankTable) -> dict[str, str]:
    """Group -> name of its dimension in a mesh, in small letters."""
    groups = table.facts.get("mesh_groups")
    if not isinstance(groups, dict):
        return {}
    return {str(group): str(said.get("name", "")).lower() for group, said in groups.items() if isinstance(said, dict)}


def sample_peers(tables: Sequence[RankTable]) -> list[list[int]]:
    """The ranks of these tables, those together that work on the same samples as the groups of a mesh tell it."""
    peers = {table.rank: [table.rank] for table in tables}
    for table in tables:
        for name, ranks in _mesh_groups(table):
            together = [peers[rank] for rank in ranks if rank in peers] if name in _SAMPLE_NAMES else []
            # a rank of several dimensions joins their groups
            merged = sorted({rank for group in together for rank in group})
            peers.update(dict.fromkeys(merged, merged))
    return [group for rank, group in peers.items() if rank == group[0]]


def _mesh_groups(table: RankTable) -> list[tuple[str, list[int]]]:
    """Name of the dimension, in small letters, and ranks of each group that the rank is in."""
    groups = table.facts.get("mesh_groups")
    told = [said for said in groups.values() if isinstance(said, dict)] if isinstance(groups, dict) else []
    return [
        (str(said.get("name", "")).lower(), [rank for rank in said.get("ranks") or [] if isinstance(rank, int)])
        for said in told
    ]


def _is_between(table: RankTable, times_ns: Int64s) -> Bools:
    """Whether each time lies after the last backward of a step: clipping gradients, logging, the optimizer.

    After it means that no backward follows before the step ends.
    """
    steps_ns = table.end_ns[table.rows(Kind.STEP)]
    backward_ns = np.sort(table.end_ns[table.rows_of_any_thread(Kind.BACKWARD, Kind.CHUNK)])
    never = np.iinfo(np.int64).max
    next_step = np.append(np.sort(steps_ns), never)[np.searchsorted(np.sort(steps_ns), times_ns)]
    next_backward = np.append(backward_ns, never)[np.searchsorted(backward_ns, times_ns)]
    between: Bools = next_backward >= next_step
    return between


def measure_tensor_parallel(
    tables: Sequence[RankTable],
    waits: Sequence[tuple[Stretches, Stretches]],
    window_ns: tuple[int, int],
    num_steps: int,
    share: float,
    *,
    skew_ns: float | None,
) -> TensorParallel | None:
    """`waits` are each rank's stretches of waiting and of transfer among peers; None when there were none."""
    num_collectives = sum(_num_inside(transfer, window_ns) for _, transfer in waits) / max(len(tables), 1) / num_steps
    if num_collectives == 0:
        return None
    elapsed_ns = window_ns[1] - window_ns[0]
    wait_ns = float(np.mean([_inside_ns(wait, window_ns) for wait, _ in waits]))
    is_told = skew_ns is not None and (skew_ns == 0 or skew_ns < wait_ns / num_steps)
    # the phase is what is left beside evaluations; the rows tell how it divides
    transfer_ns = float(np.mean([_inside_ns(transfer, window_ns) for _, transfer in waits]))
    waiting = share * wait_ns / max(wait_ns + transfer_ns, 1.0) if elapsed_ns else 0.0
    sizes, spans_hosts = _groups(tables)
    return TensorParallel(
        share=share,
        wait_share=waiting if is_told else None,
        transfer_share=share - waiting if is_told else None,
        num_collectives_per_step=num_collectives,
        num_ranks=max(sizes) if sizes else None,
        spans_hosts=spans_hosts if sizes else None,
    )


def _num_inside(stretches: Stretches, window_ns: tuple[int, int]) -> int:
    return int(((stretches.start_ns >= window_ns[0]) & (stretches.start_ns < window_ns[1])).sum())


def _inside_ns(stretches: Stretches, window_ns: tuple[int, int]) -> int:
    inside = np.clip(stretches.end_ns, *window_ns) - np.clip(stretches.start_ns, *window_ns)
    return int(inside.sum())


def _groups(tables: Sequence[RankTable]) -> tuple[list[int], bool]:
    """Sizes of the groups of peers, and whether one of them has ranks on several hosts."""
    hosts = {table.rank: table.host for table in tables}
    sizes, spans_hosts = [], False
    for table in tables:
        for name, ranks in _mesh_groups(table):
            if name in TENSOR_NAMES:
                sizes.append(len(ranks))
                spans_hosts |= len({hosts[rank] for rank in ranks if rank in hosts}) > 1
    return sizes, spans_hosts
