"""What this host's arithmetic and memory reach: matrix products, convolutions, a recurrent layer, triad and copy.

The fastest of some repeats, each kind bounded to a fraction of a second. Not a model's speed: large, regular operands,
nothing but the kernel. Without torch, numpy does the matrix product.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from topout.preflight.facts import BACKWARD, BY_ONEDNN, SMALL_PRODUCT, WITHOUT_ONEDNN, Kernel

_BUDGET_S = 0.3
_FEWEST_REPEATS = 3
_MOST_REPEATS = 50
_TOO_LONG_S = 1.5
CPU_PRODUCT = 1536
_SMALL_PRODUCT = (32, 64, 64)
"""A layer of a small net: rows of its input, and features in and out."""
_EMULATED_PRODUCT = 192
_GPU_PRODUCT = 8192
_ERROR_OF_FP32 = 1e-5
"""Well above a small product's in single precision (some 1e-7), and below that of tf32 (3e-4)."""
_MEMORY_SHARE = 1 / 16
"""Of the available memory, for one array of the triad."""
_ARRAY_BYTES = 256 << 20
_GPU_ARRAY_BYTES = 2 << 30

FORCED = "TOPOUT_DOCTOR_ISA"
"""Names the instructions that were forced, in a process that compares them."""
SWEPT_PRODUCTS = (256, 512, 1024, 2048, 4096)
SWEPT_GPU_PRODUCTS = (1024, 2048, 4096, 8192, 16384)
SWEPT_CONVOLUTIONS = ((64, 56, 3), (128, 28, 3), (256, 14, 3), (512, 7, 3), (256, 56, 1), (512, 28, 1))
"""(channels, edge, kernel): the layers a ResNet-50 spends its time in."""
SWEPT_HIDDEN = (128, 512, 1024)


def time_kernels(*, sweeps: bool, available_bytes: int | None) -> tuple[Kernel, ...]:
    import torch

    bench = Bench(torch, "cuda" if torch.cuda.is_available() else "cpu")
    found = list(bench.memory(available_bytes))
    for dtype in bench.dtypes():
        found += [bench.product(size, dtype) for size in bench.product_sizes(dtype, sweeps=sweeps)]
    for channels, edge, kernel in SWEPT_CONVOLUTIONS if sweeps else SWEPT_CONVOLUTIONS[:1]:
        found.append(bench.convolution(channels, edge, kernel))
    found += bench.convolution_backward(*SWEPT_CONVOLUTIONS[1])
    found += bench.small_product(*_SMALL_PRODUCT)
    for hidden in SWEPT_HIDDEN if sweeps else SWEPT_HIDDEN[1:2]:
        found.append(bench.recurrent(hidden))
    return tuple(found)


def time_kernels_of_numpy(available_bytes: int | None) -> tuple[Kernel, ...]:
    import numpy as np

    size = 1024
    operand = np.ones((size, size), dtype=np.float32)
    length = _array_bytes(available_bytes, _ARRAY_BYTES) // 4
    source, target = (np.ones(length, dtype=np.float32) for _ in range(2))
    product = Work(name="matrix product", shape=f"{size}³", flops=2.0 * size**3, moved_bytes=12.0 * size**2)
    copy = Work(name="copy", shape=f"arrays of {length * 4 >> 20} MiB", flops=0.0, moved_bytes=8.0 * length)
    return (
        _kernel(product, _repeat(lambda: operand @ operand), dtype="float32", device="cpu", library="numpy"),
        _kernel(
            copy,
            _repeat(lambda: np.copyto(target, source)),
            dtype="float32",
            device="cpu",
            library="numpy",
            num_threads=1,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a kernel has to do, whoever does it."""

    name: str
    shape: str
    flops: float
    moved_bytes: float


class Bench:
    """torch on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._is_gpu = device != "cpu"
        self._device_name = torch.cuda.get_device_name() if self._is_gpu else "cpu"
        self._num_threads = None if self._is_gpu else int(torch.get_num_threads())

    def dtypes(self) -> tuple[str, ...]:
        if not self._is_gpu:
            return ("float32", "bfloat16")
        has_tf32 = not self._torch.version.hip or self._computes_in_tf32()
        return ("float32", *(["tf32"] if has_tf32 else []), "bfloat16", "float16")

    def _computes_in_tf32(self) -> bool:
        """On AMD's GPUs it depends on the model, the version of torch and HIPBLASLT_ALLOW_TF32; a product tells."""
        torch = self._torch
        operand = torch.randn(256, 256, device=self._device)
        exact = torch.mm(operand.double(), operand.double())
        with self._precision("high"):
            error = torch.mm(operand, operand).double() - exact
        return bool(error.norm() > _ERROR_OF_FP32 * exact.norm())

    @contextmanager
    def _precision(self, wanted: str) -> Iterator[None]:
        before = self._torch.get_float32_matmul_precision()
        self._torch.set_float32_matmul_precision(wanted)
        try:
            yield
        finally:
            self._torch.set_float32_matmul_precision(before)

    def product_sizes(self, dtype: str, *, sweeps: bool) -> tuple[int, ...]:
        if dtype == "bfloat16" and not self._is_gpu and not self._computes_in_bf16():
            # emulated: a hundred times as long, so that a product of the usual size would take a minute
            return (_EMULATED_PRODUCT,)
        if sweeps:
            return SWEPT_GPU_PRODUCTS if self._is_gpu else SWEPT_PRODUCTS[: None if dtype == "float32" else 4]
        return (_GPU_PRODUCT if self._is_gpu else CPU_PRODUCT,)

    def _computes_in_bf16(self) -> bool:
        torch = self._torch
        return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def product(self, size: int, dtype: str) -> Kernel:
        torch = self._torch
        # random: a GPU clocks higher on zeros than on any data
        operand = torch.randn(size, size, device=self._device).to(self._type(dtype))
        with self._precision("high" if dtype == "tf32" else "highest"):
            times_s = self._time(lambda: torch.mm(operand, operand))
        width = operand.element_size()
        work = Work(name="matrix product", shape=f"{size}³", flops=2.0 * size**3, moved_bytes=3.0 * width * size**2)
        return self._kernel(work, dtype, times_s)

    def convolution(self, channels: int, edge: int, kernel: int) -> Kernel:
        torch = self._torch
        given, weight, dtype, work = self._convolution_of(channels, edge, kernel)
        with torch.no_grad():
            times_s = self._time(lambda: torch.nn.functional.conv2d(given, weight, padding=kernel // 2))
        return self._kernel(work, dtype, times_s)

    def convolution_backward(self, channels: int, edge: int, kernel: int) -> tuple[Kernel, ...]:
        """By oneDNN, as torch has it, and by torch's own kernels; on CPUs, since GPUs have neither."""
        torch = self._torch
        if self._is_gpu or not torch.backends.mkldnn.is_available():
            return ()
        given, weight, dtype, forward = self._convolution_of(channels, edge, kernel)
        given.requires_grad_()
        weight.requires_grad_()
        out = torch.nn.functional.conv2d(given, weight, padding=kernel // 2)
        gradient = torch.ones_like(out)
        work = replace(
            forward, name=BACKWARD, flops=2 * forward.flops, moved_bytes=forward.moved_bytes + 4.0 * weight.numel()
        )
        run = partial(torch.autograd.grad, out, (given, weight), gradient, retain_graph=True)
        return self._with_and_without_onednn(work, dtype, run)

    def small_product(self, rows: int, inner: int, columns: int) -> tuple[Kernel, ...]:
        """As of a small `nn.Linear`, with oneDNN and without; on ARM, where torch hands such products to it."""
        torch = self._torch
        is_arm = os.uname().machine in ("aarch64", "arm64")
        if self._is_gpu or not is_arm or not torch.backends.mkldnn.is_available():
            return ()
        given, weight = torch.randn(rows, inner), torch.randn(columns, inner)
        size = rows * inner * columns
        moved = 4.0 * (given.numel() + weight.numel() + rows * columns)
        shape = f"{rows}x{inner}x{columns}"
        work = Work(name=SMALL_PRODUCT, shape=shape, flops=2.0 * size, moved_bytes=moved)
        return self._with_and_without_onednn(work, "float32", lambda: torch.nn.functional.linear(given, weight))

    def _with_and_without_onednn(self, work: Work, dtype: str, run: Callable[[], object]) -> tuple[Kernel, ...]:
        set_enabled = self._torch._C._set_mkldnn_enabled
        found = []
        for library in (BY_ONEDNN, WITHOUT_ONEDNN):
            set_enabled(library == BY_ONEDNN)
            try:
                # the first call may take seconds (a compiler at work), and would be taken for the kernel's time
                run()
                times_s = self._time(run)
            finally:
                set_enabled(True)
            found.append(replace(self._kernel(work, dtype, times_s), library=library))
        return tuple(found)

    def _convolution_of(self, channels: int, edge: int, kernel: int) -> tuple[Any, Any, str, Work]:
        torch = self._torch
        dtype, batch = ("bfloat16", 256) if self._is_gpu else ("float32", 4)
        given = torch.randn(batch, channels, edge, edge, device=self._device).to(self._type(dtype))
        weight = torch.randn(channels, channels, kernel, kernel, device=self._device).to(self._type(dtype))
        given, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (given, weight))
        flops = 2.0 * batch * channels * channels * kernel**2 * edge**2
        moved = float(given.element_size() * (2 * given.numel() + weight.numel()))
        shape = f"{kernel}x{kernel}, {channels} channels of {edge}x{edge}, batch {batch}"
        return given, weight, dtype, Work(name="convolution", shape=shape, flops=flops, moved_bytes=moved)

    def recurrent(self, hidden: int) -> Kernel:
        torch = self._torch
        dtype, batch, steps = ("bfloat16", 256, 64) if self._is_gpu else ("float32", 32, 16)
        layer = torch.nn.LSTM(hidden, hidden).to(device=self._device, dtype=self._type(dtype))
        layer.flatten_parameters()
        given = torch.randn(steps, batch, hidden, device=self._device).to(self._type(dtype))
        with torch.no_grad():
            times_s = self._time(lambda: layer(given))
        flops = 2.0 * steps * batch * 4 * hidden * 2 * hidden
        num_weights = sum(parameter.numel() for parameter in layer.parameters())
        moved = float(given.element_size() * (2 * given.numel() + num_weights))
        shape = f"LSTM {hidden}, batch {batch}, {steps} steps"
        return self._kernel(Work(name="recurrent layer", shape=shape, flops=flops, moved_bytes=moved), dtype, times_s)

    def memory(self, available_bytes: int | None) -> tuple[Kernel, Kernel]:
        torch = self._torch
        num_bytes = _GPU_ARRAY_BYTES if self._is_gpu else _array_bytes(available_bytes, _ARRAY_BYTES)
        if self._is_gpu:
            num_bytes = min(num_bytes, torch.cuda.mem_get_info()[0] // 8)
        length = num_bytes // 4
        first, second = (torch.ones(length, device=self._device) for _ in range(2))
        # written once: the first touch of a page costs more than the triad
        out = torch.ones(length, device=self._device)
        triad_s = self._time(lambda: torch.add(first, second, alpha=3.0, out=out))
        copy_s = self._time(lambda: out.copy_(first))
        shape = f"arrays of {num_bytes >> 20} MiB"
        return (
            self._kernel(
                Work(name="triad", shape=shape, flops=2.0 * length, moved_bytes=12.0 * length), "float32", triad_s
            ),
            self._kernel(Work(name="copy", shape=shape, flops=0.0, moved_bytes=8.0 * length), "float32", copy_s),
        )

    def _type(self, dtype: str) -> Any:
        return getattr(self._torch, "float32" if dtype == "tf32" else dtype)

    def _time(self, run: Callable[[], object]) -> list[float]:
        return _repeat(run, self._torch.cuda.synchronize if self._is_gpu else None)

    def _kernel(self, work: Work, dtype: str, times_s: list[float]) -> Kernel:
        return _kernel(
            work, times_s, dtype=dtype, device=self._device_name, library="torch", num_threads=self._num_threads
        )


def _kernel(
    work: Work, times_s: list[float], *, dtype: str, device: str, library: str, num_threads: int | None = None
) -> Kernel:
    return Kernel(
        name=work.name,
        shape=work.shape,
        flops=work.flops,
        moved_bytes=work.moved_bytes,
        dtype=dtype,
        device=device,
        library=library,
        num_threads=num_threads,
        instructions=os.environ.get(FORCED),
        fastest_s=min(times_s),
        median_s=median(times_s),
        num_repeats=len(times_s),
    )


def _repeat(run: Callable[[], object], finish: Callable[[], object] | None = None) -> list[float]:
    """Times of single runs; the first warms up and is not counted, unless it alone takes far too long."""
    times_s: list[float] = []
    end_s = time.perf_counter() + _BUDGET_S
    for repeat in range(_MOST_REPEATS + 1):
        start_s = time.perf_counter()
        run()
        if finish is not None:
            finish()
        taken_s = time.perf_counter() - start_s
        if repeat > 0 or taken_s > _TOO_LONG_S:
            times_s.append(taken_s)
        if (len(times_s) >= _FEWEST_REPEATS or taken_s > _TOO_LONG_S) and time.perf_counter() > end_s:
            break
    return times_s


def _array_bytes(available_bytes: int | None, most: int) -> int:
    return (
        most if available_bytes is None else max(min(most, int(available_bytes * _MEMORY_SHARE)), 1 << 20) >> 12 << 12
    )
