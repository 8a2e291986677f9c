"""Which matrix products torch hands to oneDNN on ARM though they are too small for it: on most the call takes longest.

torch does so for float32 products of a matrix with a transposed one (what every `nn.Linear` is) from some 20³ on; where
that limit lies is an environment variable of its own.
"""

import os
from typing import Any

_LARGE = 4_000_000
"""Multiplications of a product from which oneDNN's call no longer shows: 4 of 290 µs (Neoverse N1, torch 2.13)."""
_LEAST_EDGE, _LEAST_SIZE = 8, 8 * 1024
"""torch's own limits; products above them go to oneDNN."""


def is_small_for_onednn(node: Any) -> bool:
    """`node`: of the graph, the gradient of a product; of layout and size alone, wherever it runs."""
    given = "mat1" if hasattr(node, "_saved_mat1_sym_sizes") else "self"
    rows, inner = map(int, getattr(node, f"_saved_{given}_sym_sizes"))
    columns = int(node._saved_mat2_sym_sizes[1])
    is_transposed = _strides(node, "mat2")[0] == 1 and columns > 1
    is_plain = _strides(node, given)[1] == 1
    least_edge = _limit("TORCH_MKLDNN_MATMUL_MIN_DIM", _LEAST_EDGE)
    least_size = _limit("TORCH_MKLDNN_MATMUL_MIN_SIZE", _LEAST_SIZE)
    is_taken = min(rows, inner, columns) > least_edge and rows * inner * columns > least_size
    return is_taken and is_transposed and is_plain and rows * inner * columns < _LARGE


def _strides(node: Any, operand: str) -> Any:
    """Kept by the node where the operand needs a gradient; where it needs none, the operand is kept for the other's."""
    return getattr(node, f"_saved_{operand}_sym_strides") or getattr(node, f"_saved_{operand}").stride()


def _limit(variable: str, usual: int) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return usual
