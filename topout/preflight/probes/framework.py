"""How torch was built, what of it is used here, and whether it fits this processor and this GPU.

Asks torch itself; what it reaches is in `kernels`. Call it after everything that forks: it wakes the GPU.
"""

import os
import sys
import tempfile
from typing import Any

from topout.preflight.facts import Framework

FORCING = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def read_framework(num_gpus: int) -> Framework:
    import torch

    cuda = torch.cuda
    facts: dict[str, Any] = {}
    if cuda.is_available():
        facts = _gpu_facts(torch)
    elif num_gpus > 0:
        facts["device_problem"] = _why_no_gpu(torch)
    return Framework(
        version=str(torch.__version__),
        cpu_capability=str(torch.backends.cpu.get_cpu_capability()),
        forced={name: value for name in FORCING if (value := os.environ.get(name))},
        has_mkl=bool(torch.backends.mkl.is_available()),
        has_onednn=bool(torch.backends.mkldnn.is_available()),
        has_openmp=bool(torch.backends.openmp.is_available()),
        has_distributed=bool(torch.distributed.is_available()),
        has_gloo=bool(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        bf16_kernel=bf16_kernel(torch),
        num_threads=int(torch.get_num_threads()),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        gpu_architectures=tuple(cuda.get_arch_list()) if torch.version.cuda or torch.version.hip else (),
        **facts,
    )


def bf16_kernel(torch: Any) -> str | None:
    """The implementation oneDNN names for a bfloat16 product; None where oneDNN is not asked."""
    if not torch.backends.mkldnn.is_available():
        return None
    operand = torch.ones(256, 256, dtype=torch.bfloat16)
    # oneDNN writes to the C library's standard output, which Python cannot replace: the descriptor is
    sys.stdout.flush()
    kept_fd = os.dup(1)
    try:
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 1)
            try:
                with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                    torch.mm(operand, operand)
            finally:
                os.dup2(kept_fd, 1)
            said.seek(0)
            return kernel_in(said.read().decode(errors="replace"))
    finally:
        os.close(kept_fd)


def kernel_in(text: str) -> str | None:
    """The implementation in a line such as `onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core,…`."""
    for line in text.splitlines():
        words = line.split(",")
        if line.startswith("onednn_verbose") and "exec" in words:
            after = words[words.index("exec") :]
            return after[3] if len(after) > 3 else None
    return None


def _gpu_facts(torch: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    architecture = getattr(properties, "gcnArchName", None)
    if not torch.version.hip or not architecture:
        architecture = f"sm_{properties.major}{properties.minor}"
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "device_name": str(properties.name),
        "device_architecture": str(architecture).partition(":")[0],
        "cudnn": None if cudnn is None else str(cudnn),
        "nccl": nccl,
    }


def _why_no_gpu(torch: Any) -> str:
    if not torch.version.cuda and not torch.version.hip:
        return "torch was built for CPUs only"
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error).splitlines()[0][:200]
    return "torch sees no GPU"
