"""The device tree, from the kernels of a profiler window: what the accelerators did with their time.

    compute C = union of kernels that compute        parallel      = mean(C) / elapsed
    exposed X = communication outside C              load_balance  = mean(C) / max(C)
    copies  M = copies outside both                  communication = max(C) / max(C + X + M)
                                                     orchestration = max(C + X + M) / elapsed

A device that spins in an NCCL kernel until its peers come does nothing useful: those kernels are communication.
Streams overlap, so lengths of unions are taken, never sums. Not for processors: without kernels there is no tree.
"""

import re
from collections.abc import Sequence

import numpy as np

from topout.schema.measures import Device
from topout.trace.readers.kineto import Events, Profile
from topout.trace.table import Bools, Int64s

COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|oneccl|msccl", re.IGNORECASE)
TENSOR_CORE = re.compile(
    r"[hs]884|[hs]?1688|[hs]?16816|i8816|hmma|imma|wgmma|gmma|tensorop|xmma|flash_(fwd|bwd)|FlashAttn(Fwd|Bwd)|fmha|mfma"
    r"|nvjet_|_MT\d+x\d+x\d+.*MI\d",
    re.IGNORECASE,
)
ARITHMETIC = re.compile(
    r"(?<!fb)gemm|gemv2T|nvjet_|conv(?!ert)|cutlass|xmma|cudnn|flash|fmha|attention|wgrad|dgrad|matmul|triton_tem_|Cijk_",
    re.IGNORECASE,
)
"""Kernels limited by arithmetic; the others stream through memory, also those of FBGEMM that look embeddings up."""
STREAMING = re.compile(
    r"triton_(poi|red|per|for|spl)_|cudnn::ops::|\bbn_(fw|bw)|batchnorm|pooling_(fw|bw)|nchwToNhwc|nhwcToNchw"
    r"|convertTensor|scalePackedTensor|OffsetsKernel",
    re.IGNORECASE,
)
"""Never limited by arithmetic, also where a name tells of it: cuDNN's own, and what is fused with a convolution."""
ARITHMETIC_OPERATORS = re.compile(
    r"::(_?(add)?[bm]?mm|addmm_|baddbmm|linear|_?convolution\w*|mkldnn_\w+|conv\dd|slow_conv\w*|thnn_conv\w*"
    r"|_?scaled_dot_product\w*|matmul|mkl_linear|einsum)$"
)
DISPATCH_NS = 10_000
"""An operator shorter than this mostly costs its own dispatch; its time says nothing about memory."""


def measure_device(profiles: Sequence[Profile]) -> Device | None:
    """None when no profile holds a kernel."""
    if not any(len(profile.kernels.names) for profile in profiles):
        return None
    elapsed_ns = max(profile.elapsed_ns for profile in profiles)
    lengths = np.array([_lengths(profile) for profile in profiles], dtype=np.float64)
    compute, exposed, copies = lengths.T
    occupied = compute + exposed + copies
    return Device(
        parallel_efficiency=float(compute.mean() / elapsed_ns),
        load_balance=_ratio(compute.mean(), compute.max()),
        communication_efficiency=_ratio(compute.max(), occupied.max()),
        orchestration_efficiency=float(occupied.max() / elapsed_ns),
        compute_share=float(compute.mean() / elapsed_ns),
        exposed_communication_share=float(exposed.mean() / elapsed_ns),
        exposed_copy_share=float(copies.mean() / elapsed_ns),
        idle_share=float(1 - occupied.mean() / elapsed_ns),
        tensor_core_share=_tensor_core_share(profiles),
    )


def memory_bound_share(profiles: Sequence[Profile], computing_share: float = 1.0) -> float | None:
    """Of the time in computing kernels (on a processor: of computing) the share that streams through memory.

    `computing_share` is that of the profiled time: on a processor, Python between operators is part of computing.
    """
    kernels = [_computing_ns(profile.kernels, ARITHMETIC) for profile in profiles]
    on_device = any(total for _, total in kernels)
    parts = kernels if on_device else [_operator_ns(profile.operators) for profile in profiles]
    arithmetic, total = (sum(column) for column in zip(*parts, strict=True)) if parts else (0, 0)
    if not total:
        return None
    if on_device:
        return 1 - arithmetic / total
    return (total - arithmetic) / max(total, computing_share * sum(profile.elapsed_ns for profile in profiles))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0


def _lengths(profile: Profile) -> tuple[int, int, int]:
    """Compute, exposed communication, exposed copies."""
    kernels = profile.kernels
    talks = _matches(kernels.names, COMMUNICATION)
    compute = union_ns(kernels.start_ns[~talks], kernels.end_ns[~talks])
    with_talk = union_ns(kernels.start_ns, kernels.end_ns)
    with_copies = union_ns(
        np.concatenate([kernels.start_ns, profile.copies.start_ns]),
        np.concatenate([kernels.end_ns, profile.copies.end_ns]),
    )
    return compute, with_talk - compute, with_copies - with_talk


def union_ns(start_ns: Int64s, end_ns: Int64s) -> int:
    """Length of what the intervals cover together."""
    if len(start_ns) == 0:
        return 0
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    begins = np.append(start_ns[0], np.maximum(start_ns[1:], reach_ns[:-1]))
    return int(np.maximum(reach_ns - begins, 0).sum())


def _matches(names: Sequence[str], pattern: re.Pattern[str]) -> Bools:
    known = {name: pattern.search(name) is not None for name in set(names)}
    return np.array([known[name] for name in names], dtype=bool)


def _computing_ns(kernels: Events, pattern: re.Pattern[str]) -> tuple[int, int]:
    """Time of the kernels that match, and of all that compute."""
    counts = ~_matches(kernels.names, COMMUNICATION)
    is_chosen = _matches(kernels.names, pattern) & ~_matches(kernels.names, STREAMING)
    length_ns = kernels.end_ns - kernels.start_ns
    return int(length_ns[is_chosen & counts].sum()), int(length_ns[counts].sum())


def _tensor_core_share(profiles: Sequence[Profile]) -> float | None:
    parts = [_computing_ns(profile.kernels, TENSOR_CORE) for profile in profiles]
    total = sum(whole for _, whole in parts)
    return sum(part for part, _ in parts) / total if total else None


def _operator_ns(operators: Events) -> tuple[int, int]:
    """Own time of arithmetic operators and of all; an operator's own time leaves out those it calls."""
    own_ns = (operators.end_ns - operators.start_ns).tolist()
    length_ns = list(own_ns)
    open_by_thread: dict[str, list[int]] = {}
    for number, (thread, start, end) in enumerate(
        zip(operators.threads, operators.start_ns.tolist(), operators.end_ns.tolist(), strict=True)
    ):
        stack = open_by_thread.setdefault(thread, [])
        while stack and operators.end_ns[stack[-1]] <= start:
            stack.pop()
        if stack and end <= operators.end_ns[stack[-1]]:
            own_ns[stack[-1]] -= length_ns[number]
        stack.append(number)
    is_arithmetic = _matches(operators.names, ARITHMETIC_OPERATORS)
    arithmetic = total = 0
    for own, counts in zip(own_ns, is_arithmetic, strict=True):
        if own >= DISPATCH_NS:
            total += own
            arithmetic += own if counts else 0
    return arithmetic, total
