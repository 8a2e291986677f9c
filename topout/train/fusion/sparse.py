"""Sparse gradients summed over ranks: their rows are gathered, as many as each rank has.

Not for gradients that are nearly full: those are cheaper as dense ones.
"""

from typing import Any

import torch
import torch.distributed as dist

from topout.train.fusion.agreement import gather_numbers


def reduce_sparse(gradient: Any, group: Any, scale: float) -> Any:
    """Duplicate rows are added up, as an optimizer for sparse gradients expects."""
    gradient = gradient.detach().coalesce()
    indices, values = gradient.indices(), gradient.values()
    counts = [row[0] for row in gather_numbers([indices.shape[1]], group)]
    all_indices = _gather_columns(indices.t().contiguous(), counts, group).t()
    all_values = _gather_columns(values, counts, group)
    summed = torch.sparse_coo_tensor(all_indices, all_values, gradient.shape, device=gradient.device).coalesce()
    return summed * scale if scale != 1.0 else summed


def _gather_columns(rows: Any, counts: list[int], group: Any) -> Any:
    """All ranks' rows, one rank after the other; padded on the way, since not every backend sends unequal numbers."""
    padded = rows.new_zeros((max(1, *counts), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])


def like_sparse(parameter: Any) -> Any:
    """No rows at all, for a rank whose batch touched none."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape)
