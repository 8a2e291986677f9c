"""torch: is it built for this processor and this GPU, and linked to the libraries that make it fast?"""

from collections.abc import Callable, Sequence

from topout.preflight.check import Check, Reading, Verdict, over_hosts, unmeasured
from topout.preflight.cpu_peak import has_one_fma
from topout.preflight.facts import Facts, Framework
from topout.schema.counted import counted

GROUP = "Framework"
_INSTALL = "pip install torch, in the environment that the job uses"


def judge_framework(hosts: Sequence[Facts]) -> list[Check]:
    if not any(facts.framework for facts in hosts):
        return [_absent(hosts)]
    table: list[tuple[str, str, Callable[[Facts, Framework], Reading | None]]] = [
        ("torch", "installed and importable", _present),
        ("vector instructions", "the widest that the processor has", _vectors),
        ("matrix instructions", "AMX in use where the processor has it", _matrices),
        ("libraries", "oneDNN, BLAS, OpenMP, gloo", _libraries),
        ("GPU", "built for the GPU that is here", _gpu),
        ("GPU libraries", "cuDNN or MIOpen, NCCL or RCCL", _gpu_libraries),
    ]
    checks = [over_hosts(hosts, GROUP, name, expectation, _with(read)) for name, expectation, read in table]
    return [check for check in checks if check is not None]


def _absent(hosts: Sequence[Facts]) -> Check:
    is_installed = any("torch" in facts.versions for facts in hosts)
    if is_installed and any("torch" in facts.not_measured for facts in hosts):
        reason = next(facts.not_measured["torch"] for facts in hosts if "torch" in facts.not_measured)
        fix = "torch is installed but broken here: python -c 'import torch' shows all of it"
        return Check(
            group=GROUP, name="torch", verdict=Verdict.UNFIT, value=reason, expectation="importable", fix=fix
        )  # fmt: skip
    if is_installed:
        return unmeasured(hosts, GROUP, "torch", "installed and importable", "framework")
    return Check(
        group=GROUP,
        name="torch",
        verdict=Verdict.NOT_MEASURED,
        value="torch is not installed",
        expectation="installed and importable",
        fix=_INSTALL,
    )


def _with(read: Callable[[Facts, Framework], Reading | None]) -> Callable[[Facts], Reading | None]:
    return lambda facts: read(facts, facts.framework) if facts.framework else None


def _present(facts: Facts, torch: Framework) -> Reading:
    threads = "" if torch.num_threads is None else f", {counted(torch.num_threads, 'thread')}"
    return Reading(text=f"{torch.version}{threads}")


def _vectors(facts: Facts, torch: Framework) -> Reading:
    used = torch.cpu_capability.upper()
    has = "AVX512" if "avx512f" in facts.cpu_flags else "AVX2" if "avx2" in facts.cpu_flags else None
    model = facts.hardware.get("processor", "")
    if torch.forced and has and has not in used:
        forced = " ".join(f"{name}={value}" for name, value in torch.forced.items())
        return Reading(
            text=f"{used}, forced by {forced}", verdict=Verdict.WARNING, fix="unset it, unless it was measured to help"
        )
    if has and has not in used:
        fix = f"this processor has {has}, torch uses {used}: install a torch that was not built for older processors"
        return Reading(text=f"{used} of {has}", verdict=Verdict.WARNING, fix=fix)
    if has == "AVX512" and has_one_fma(model):
        fix = "one 512-bit unit a core: AVX2 may win; topout doctor --kernels tries both (ATEN_CPU_CAPABILITY=avx2)"
        return Reading(text=f"{used}, one FMA unit", verdict=Verdict.WARNING, fix=fix)
    return Reading(text=f"{used} in use")


def _matrices(facts: Facts, torch: Framework) -> Reading | None:
    if "amx_bf16" not in facts.cpu_flags:
        return None
    kernel = torch.bf16_kernel or "no oneDNN"
    if "amx" in kernel:
        return Reading(text=f"AMX in use for bfloat16 ({kernel})")
    fix = "bfloat16 runs without AMX: a torch with oneDNN 3 or newer, and no ONEDNN_MAX_CPU_ISA"
    return Reading(text=f"AMX not in use ({kernel})", verdict=Verdict.WARNING, fix=fix)


def _libraries(facts: Facts, torch: Framework) -> Reading:
    there = {
        "oneDNN": torch.has_onednn,
        "MKL": torch.has_mkl,
        "OpenMP": torch.has_openmp,
        "torch.distributed": torch.has_distributed,
        "gloo": torch.has_gloo,
    }
    text = ", ".join(f"{name}{'' if is_there else ' missing'}" for name, is_there in there.items())
    is_x86 = any(flag.startswith("avx") for flag in facts.cpu_flags)
    if not torch.has_distributed or not torch.has_gloo:
        return Reading(
            text=text, verdict=Verdict.UNFIT, fix="this torch cannot train on several ranks: install a released wheel"
        )
    if not torch.has_onednn or not torch.has_openmp or (is_x86 and not torch.has_mkl):
        return Reading(
            text=text, verdict=Verdict.WARNING, fix="this torch computes slowly on processors: install a released wheel"
        )
    return Reading(text=text)


def _gpu(facts: Facts, torch: Framework) -> Reading | None:
    if torch.device_problem is not None:
        fix = "install a torch for this GPU (CUDA or ROCm wheel), or mend the driver: nvidia-smi, rocm-smi"
        return Reading(text=torch.device_problem, verdict=Verdict.UNFIT, fix=fix)
    if torch.device_architecture is None:
        return None
    runtime = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
    text = f"{torch.device_name} ({torch.device_architecture}), {runtime}"
    if is_built_for(torch.device_architecture, torch.gpu_architectures):
        return Reading(text=text)
    built = " ".join(torch.gpu_architectures)
    fix = f"this torch was built for {built}: install one for {torch.device_architecture}"
    return Reading(text=text, verdict=Verdict.UNFIT, fix=fix)


def is_built_for(architecture: str, built: Sequence[str]) -> bool:
    """Machine code of the same major version runs; PTX (`compute_90`) is compiled for any newer GPU at first use."""
    if architecture in built or not built:
        return True
    number = _number(architecture)
    if number is None:
        return False
    for entry in built:
        other = _number(entry)
        if other is None:
            continue
        is_same_major = other // 10 == number // 10
        if other <= number and (entry.startswith("compute_") or (is_same_major and entry.startswith("sm_"))):
            return True
    return False


def _gpu_libraries(facts: Facts, torch: Framework) -> Reading | None:
    if torch.device_architecture is None:
        return None
    names = ("MIOpen", "RCCL") if torch.hip else ("cuDNN", "NCCL")
    text = ", ".join(
        f"{name} {value or 'missing'}" for name, value in zip(names, (torch.cudnn, torch.nccl), strict=True)
    )
    if torch.cudnn and torch.nccl:
        return Reading(text=text)
    return Reading(text=text, verdict=Verdict.WARNING, fix="install a released wheel of torch: it brings both")


def _number(architecture: str) -> int | None:
    kind, _, digits = architecture.partition("_")
    digits = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if kind in ("sm", "compute") and digits.isdigit() else None
