"""Counts the floating-point operations of a step on its autograd graph, once, without running anything.

Matrix products, convolutions and attention are counted, forward once and backward twice; element-wise work is not, as
is usual for model FLOPs. Not for compiled models: their graph is one opaque node, and the count is then left out.
Saved tensors that need unpacking (activation checkpointing, offloading) are not touched: unpacking would run the
script's code.
"""

import os
from collections.abc import Callable
from typing import Any

from topout.record.recorder import Recorder
from topout.record.torch_taps.leaves import LeafWatch
from topout.record.torch_taps.small_products import is_small_for_onednn

_BACKWARD_AND_FORWARD = 3
_MAX_NODES = 200_000

Node = Any


def _product(sizes: Any) -> int:
    result = 1
    for size in sizes:
        result *= int(size)
    return result


def _mm(node: Node) -> int:
    rows, inner = node._saved_self_sym_sizes
    return 2 * int(rows) * int(inner) * int(node._saved_mat2_sym_sizes[1])


def _addmm(node: Node) -> int:
    rows, inner = node._saved_mat1_sym_sizes
    return 2 * int(rows) * int(inner) * int(node._saved_mat2_sym_sizes[1])


def _bmm(node: Node) -> int:
    batch, rows, inner = node._saved_self.shape
    return int(2 * batch * rows * inner * node._saved_mat2.shape[2])


def _convolution(node: Node) -> int:
    given, weight = node._saved_input.shape, node._saved_weight.shape
    if node._saved_transposed:
        return int(2 * given[0] * _product(given[2:]) * _product(weight))
    out = 1
    for i, size in enumerate(given[2:]):
        reach = node._saved_dilation[i] * (weight[2 + i] - 1) + 1
        out *= (size + 2 * node._saved_padding[i] - reach) // node._saved_stride[i] + 1
    return int(2 * given[0] * out * _product(weight))


def _attention(node: Node) -> int:
    query, value = node._saved_query.shape, node._saved_value.shape
    keys = node._saved_key.shape[-2]
    return int(2 * _product(query) * keys + 2 * _product(query[:-1]) * keys * value[-1])


_COUNTS: dict[str, Callable[[Node], int]] = {
    "MmBackward0": _mm,
    "AddmmBackward0": _addmm,
    "BmmBackward0": _bmm,
    "ConvolutionBackward0": _convolution,
    "ScaledDotProductFlashAttentionBackward0": _attention,
    "ScaledDotProductEfficientAttentionBackward0": _attention,
    "ScaledDotProductFlashAttentionForCpuBackward0": _attention,
    "ScaledDotProductCudnnAttentionBackward0": _attention,
}


class GraphFlops:
    """Adds up the graphs of one step's backward calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begin(recorder.count_flops_at)

    def _begin(self, step: int) -> None:
        self._step = step
        self._total = 0
        self._by_dtype: dict[str, int] = {}
        self._tf32_flops = 0
        self._num_small_products = 0
        self._is_whole = True

    def add(self, tensors: Any) -> None:
        import torch

        if self._step != self._recorder.count_flops_at:
            self._begin(self._recorder.count_flops_at)
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if self._recorder.unpacks_saved_tensors:
            self._is_whole = False
        else:
            self._walk([root.grad_fn for root in roots if root.grad_fn is not None])
        self._recorder.fact(flops_per_step=self._total if self._is_whole else None)
        if self._by_dtype:
            dtype = max(self._by_dtype, key=self._by_dtype.__getitem__)
            self._recorder.fact(flop_dtype=dtype, uses_autocast=dtype in ("bfloat16", "float16"))
            if roots[0].is_cuda:
                self._recorder.fact(uses_tf32=2 * self._tf32_flops > self._by_dtype.get("float32", 0))
        if roots[0].device.type == "cpu":
            # as it is now, where backward begins: scripts turn it off around backward alone
            uses_onednn = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
            self._recorder.fact(processor=os.uname().machine, backward_uses_onednn=uses_onednn)
            self._recorder.fact(num_small_products=self._num_small_products)

    def _walk(self, waiting: list[Node]) -> None:
        seen: set[Node] = set()
        leaves: list[Any] = []
        has_convolutions = False
        while waiting and len(seen) < _MAX_NODES:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            name = type(node).__name__
            if "CompiledFunction" in name or "CheckpointFunction" in name:
                self._is_whole = False
            has_convolutions = has_convolutions or name == "ConvolutionBackward0"
            if name == "AccumulateGrad":
                leaves.append(node.variable)
            count = _COUNTS.get(name)
            if count is not None:
                operand = _operand_of(node)
                flops = _BACKWARD_AND_FORWARD * count(node) // _num_sharers(operand)
                dtype = _dtype_of(operand)
                self._total += flops
                self._by_dtype[dtype] = self._by_dtype.get(dtype, 0) + flops
                if dtype == "float32" and _may_use_tf32(name):
                    self._tf32_flops += flops
                if dtype == "float32" and count in (_mm, _addmm) and is_small_for_onednn(node):
                    self._num_small_products += 1
            waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
        self._recorder.fact(has_convolutions=has_convolutions)
        # what is computed again inside a node has leaves that are not seen
        if self._recorder.backwards is not None and self._is_whole:
            self._recorder.backwards.watch(LeafWatch(self._recorder, leaves).look)


def _may_use_tf32(name: str) -> bool:
    """cuDNN's convolutions may by default; matrix products only when the script allows it."""
    import torch

    if name == "ConvolutionBackward0":
        return bool(torch.backends.cudnn.allow_tf32)
    return bool(torch.get_float32_matmul_precision() != "highest")


def _operand_of(node: Node) -> Any:
    """An operand that the node saved, whichever of them it needed for its own gradient; or None."""
    for name in ("_saved_weight", "_saved_mat1", "_saved_mat2", "_saved_self", "_saved_query"):
        operand = getattr(node, name, None)
        if operand is not None:
            return operand
    return None


def _dtype_of(operand: Any) -> str:
    return "float32" if operand is None else str(operand.dtype).removeprefix("torch.")


def _num_sharers(operand: Any) -> int:
    """Ranks that compute it together: a distributed tensor tells the size of the whole to each rank of its mesh."""
    mesh = getattr(operand, "device_mesh", None)
    return 1 if mesh is None else int(mesh.size())
