"""torch and its kernels: built for what is here, and as fast as the table says."""

from dataclasses import replace

import pytest

from tests.preflight.samples import FRAMEWORK, built, facts, kernel, named_check
from topout.preflight.check import Verdict
from topout.preflight.cpu_peak import cpu_peak, flops_per_cycle, has_one_fma
from topout.preflight.facts import BACKWARD, BY_ONEDNN, SMALL_PRODUCT, WITHOUT_ONEDNN
from topout.preflight.judges.framework import is_built_for, judge_framework
from topout.preflight.judges.kernels import judge_kernels, roof_of


def test_a_host_without_torch_is_told_so_and_is_not_unfit() -> None:
    (check,) = judge_framework([facts(framework=None, versions={"python": "3.11.7"})])
    assert (check.verdict, check.value) == (Verdict.NOT_MEASURED, "torch is not installed")


def test_a_torch_that_cannot_be_imported_makes_a_host_unfit() -> None:
    (check,) = judge_framework([facts(framework=None, not_measured={"torch": "ImportError: libcudart.so.12"})])
    assert (check.verdict, check.value) == (Verdict.UNFIT, "ImportError: libcudart.so.12")


@pytest.mark.parametrize(
    ("capability", "flags", "forced", "verdict"),
    [
        ("AVX512", ("avx2", "avx512f"), {}, Verdict.FINE),
        ("AVX2", ("avx2",), {}, Verdict.FINE),
        ("AVX2", ("avx2", "avx512f"), {}, Verdict.WARNING),
        ("DEFAULT", ("avx2",), {}, Verdict.WARNING),
        ("AVX2", ("avx2", "avx512f"), {"ATEN_CPU_CAPABILITY": "avx2"}, Verdict.WARNING),
        ("SVE256", ("asimd", "sve"), {}, Verdict.FINE),
    ],
)
def test_unused_vector_instructions_are_noticed(capability, flags, forced, verdict) -> None:
    check = named_check(judge_framework([built(flags=flags, cpu_capability=capability, forced=forced)]), "vector")
    assert check.verdict is verdict
    assert all(name in check.value for name in forced)


@pytest.mark.parametrize(
    ("kernel_name", "verdict"),
    [
        ("brg_matmul:avx10_1_512_amx", Verdict.FINE),
        ("brg_matmul:avx512_core_bf16", Verdict.WARNING),
        (None, Verdict.WARNING),
    ],
)
def test_amx_is_in_use_or_not(kernel_name, verdict) -> None:
    flags = ("avx2", "avx512f", "amx_bf16")
    assert named_check(judge_framework([built(flags=flags, bf16_kernel=kernel_name)]), "matrix").verdict is verdict


def test_a_processor_without_amx_is_not_asked_for_it() -> None:
    assert "matrix instructions" not in [check.name for check in judge_framework([built()])]


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", True),
        ("Intel(R) Xeon(R) Bronze 3204 CPU @ 1.90GHz", True),
        ("Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz", True),
        ("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz", False),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", False),
        ("Intel(R) Xeon(R) Silver 4310 CPU @ 2.10GHz", False),
        ("Intel(R) Xeon(R) Platinum 8160 CPU @ 2.10GHz", False),
        ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", True),
        ("AMD EPYC 9654 96-Core Processor", False),
    ],
)
def test_parts_with_one_fma_unit_are_known(model: str, is_one: bool) -> None:
    assert has_one_fma(model) is is_one


def test_on_a_part_with_one_fma_unit_avx2_is_suggested() -> None:
    silver = replace(built(), hardware={"processor": "Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz"})
    check = named_check(judge_framework([silver]), "vector")
    assert check.verdict is Verdict.WARNING
    assert "AVX2 may win" in str(check.fix)


@pytest.mark.parametrize(
    ("architecture", "built_for", "is_fit"),
    [
        ("sm_90", ("sm_80", "sm_90"), True),
        ("sm_86", ("sm_80",), True),
        ("sm_75", ("sm_80", "sm_90"), False),
        ("sm_120", ("sm_80", "sm_90"), False),
        ("sm_120", ("sm_90", "compute_90"), True),
        ("sm_90", ("sm_90a",), True),
        ("gfx942", ("gfx90a", "gfx942"), True),
        ("gfx906", ("gfx90a", "gfx942"), False),
        ("sm_90", (), True),
    ],
)
def test_machine_code_must_fit_the_gpu(architecture: str, built_for: tuple[str, ...], is_fit: bool) -> None:
    assert is_built_for(architecture, built_for) is is_fit
    gpu = {"device_architecture": architecture, "device_name": "G", "gpu_architectures": built_for, "cuda": "13.0"}
    assert (named_check(judge_framework([built(**gpu)]), "GPU").verdict is Verdict.FINE) is is_fit


def test_a_gpu_that_torch_cannot_use_makes_a_host_unfit() -> None:
    check = named_check(judge_framework([built(device_problem="torch was built for CPUs only")]), "GPU")
    assert (check.verdict, check.value) == (Verdict.UNFIT, "torch was built for CPUs only")


def test_missing_libraries_are_named() -> None:
    assert named_check(judge_framework([built(has_gloo=False)]), "libraries").verdict is Verdict.UNFIT
    slow = named_check(judge_framework([built(has_mkl=False)]), "libraries")
    assert (slow.verdict, "MKL missing" in slow.value) == (Verdict.WARNING, True)
    gpu = {"device_architecture": "sm_90", "device_name": "H200", "cuda": "13.0", "cudnn": "91002", "nccl": None}
    assert "NCCL missing" in named_check(judge_framework([built(**gpu)]), "GPU libraries").value
    assert FRAMEWORK.device_architecture is None


def test_an_unknown_processors_peak_is_assumed_and_says_how() -> None:
    peak = cpu_peak("Some CPU", 8, 1, 2e9, ("avx2", "fma", "avx512f"))
    assert peak.fp32_flops_per_s == 8 * 2e9 * 64
    assert peak.how["float32"] == "assumed: 8 cores x 2.0 GHz x 64 a cycle, AVX-512, two FMA units"
    assert cpu_peak("Some CPU", 8, 1, None, ("avx2", "fma")).fp32_flops_per_s == 8 * 3e9 * 32
    assert cpu_peak("Some CPU", 1, 1, 2e9, ("avx512f", "amx_bf16")).bf16_flops_per_s == 2e9 * 1024


@pytest.mark.parametrize(
    ("model", "flags", "per_cycle"),
    [
        ("AMD EPYC 9354 32-Core Processor", ("avx2", "fma", "avx512f"), 32),
        ("AMD EPYC 9R14 96-Core Processor", ("avx2", "fma", "avx512f"), 32),
        ("AMD EPYC 9V33X 96-Core Processor", ("avx2", "fma", "avx512f"), 32),
        ("AMD EPYC 8324P 32-Core Processor", ("avx2", "fma", "avx512f"), 32),
        ("AMD EPYC 4564P 16-Core Processor", ("avx2", "fma", "avx512f"), 32),
        ("AMD Instinct MI300A Accelerator", ("avx2", "fma", "avx512f"), 32),
        ("AMD EPYC 9575F 64-Core Processor", ("avx2", "fma", "avx512f"), 64),
        ("AMD EPYC 4565P 16-Core Processor", ("avx2", "fma", "avx512f"), 64),
        ("AMD EPYC 9R45 96-Core Processor", ("avx2", "fma", "avx512f"), 64),
        ("Intel(R) Xeon(R) Gold 6448Y", ("avx2", "fma", "avx512f"), 64),
        ("Neoverse N1", ("fp", "asimd"), 16),
        ("Neoverse-N1", ("fp", "asimd"), 16),
        ("Neoverse N2", ("fp", "asimd", "sve"), 16),
        ("Kunpeng 920", ("fp", "asimd"), 16),
        ("Ampere-1", ("fp", "asimd"), 16),
        ("Neoverse V1", ("fp", "asimd", "sve"), 32),
        ("Neoverse V2", ("fp", "asimd", "sve"), 32),
    ],
)
def test_cores_differ_in_what_they_do_in_a_cycle(model: str, flags: tuple[str, ...], per_cycle: int) -> None:
    assert flops_per_cycle(model, flags)[0] == per_cycle


def test_a_known_processors_peak_is_its_share_of_the_table() -> None:
    peak = cpu_peak("AMD EPYC 7601 32-Core Processor", 16, 1, 2.2e9, ("avx2", "fma"))
    assert peak.fp32_flops_per_s == pytest.approx(0.7e12)
    assert peak.memory_bytes_per_s == pytest.approx(170.7e9)


def test_the_roof_is_what_was_measured() -> None:
    host = facts(kernels=(kernel(rate=1e12), kernel("triad", rate=100e9)))
    roof = roof_of(host)
    assert roof is not None
    # at 2 FLOP/byte memory allows 200 GFLOP/s, at 1000 arithmetic allows 1 TFLOP/s
    assert roof.attainable_flops_per_s(kernel("convolution", flops=2e9, moved_bytes=1e9)) == pytest.approx(200e9)
    assert roof.attainable_flops_per_s(kernel("convolution", flops=1e12, moved_bytes=1e9)) == pytest.approx(1e12)
    assert named_check(judge_kernels([host], sweeps=False), "ridge point").value == "10 FLOP/byte"


@pytest.mark.parametrize(("without", "verdict"), [(0.5e9, Verdict.FINE), (3e9, Verdict.WARNING)])
@pytest.mark.parametrize(
    ("name", "how"), [(BACKWARD, "flags(enabled=False)"), (SMALL_PRODUCT, "MATMUL_MIN_SIZE=4000000")]
)
def test_what_is_faster_without_onednn_is_named(name: str, how: str, without: float, verdict: Verdict) -> None:
    rates = {BY_ONEDNN: 1e9, WITHOUT_ONEDNN: without}
    both = tuple(kernel(name, rate=rate, library=library) for library, rate in rates.items())
    checks = judge_kernels([facts(kernels=(kernel(rate=1e12), *both))], sweeps=True)
    check = named_check(checks, name)
    assert check.verdict is verdict
    assert check.value.startswith("1 GFLOP/s by oneDNN")
    assert (how in (check.fix or "")) is (verdict is Verdict.WARNING)
    assert [found.name for found in checks].count(check.name) == 1


def test_a_slow_product_is_measured_against_the_peak() -> None:
    # 8 cores x 2 GHz x 64 = 1.02 TFLOP/s
    fast = named_check(judge_kernels([facts(kernels=(kernel(rate=0.8e12),))], sweeps=False), "matrix product")
    assert (fast.verdict, fast.value) == (Verdict.FINE, "800 GFLOP/s, 78 %")
    slow = named_check(judge_kernels([facts(kernels=(kernel(rate=0.2e12),))], sweeps=False), "matrix product")
    assert slow.verdict is Verdict.WARNING
    assert slow.expectation.startswith("at least 40 % of 1.02 TFLOP/s (assumed: 8 cores")


@pytest.mark.parametrize(
    ("rate", "verdict"), [(700e12, Verdict.FINE), (300e12, Verdict.WARNING), (50e12, Verdict.UNFIT)]
)
def test_a_gpu_is_measured_against_the_table(rate: float, verdict: Verdict) -> None:
    gpu = "NVIDIA H200"
    host = facts(kernels=(kernel(rate=rate, dtype="bfloat16", device=gpu), kernel("triad", rate=4e12, device=gpu)))
    checks = judge_kernels([host], sweeps=False)
    assert named_check(checks, "matrix product bfloat16").verdict is verdict
    assert named_check(checks, "memory triad").expectation == "at least 50 % of the table's 4.8 TB/s"
    assert named_check(checks, "ridge point").expectation == "206 FLOP/byte by the table"


def test_single_precision_on_a_gpu_is_compared_with_vectors_not_with_tensor_cores() -> None:
    host = facts(kernels=(kernel(rate=50e12, device="NVIDIA H200"),))
    assert "66.9 TFLOP/s" in named_check(judge_kernels([host], sweeps=False), "matrix product float32").expectation


@pytest.mark.parametrize("device", ["Matrox", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_a_device_that_is_not_in_the_table_is_not_judged(device: str) -> None:
    check = named_check(judge_kernels([facts(kernels=(kernel(device=device),))], sweeps=False), "matrix product")
    assert (check.verdict, check.expectation) == (Verdict.FINE, "not in the hardware table")


def test_a_host_slower_than_the_others_is_named() -> None:
    hosts = [facts(host, kernels=(kernel(rate=rate),)) for host, rate in (("n1", 1e12), ("n2", 1e12), ("n3", 0.6e12))]
    check = named_check(judge_kernels(hosts, sweeps=False), "matrix product")
    assert check.hosts == ("n3",)
    assert "60 % of the others" in str(check.fix)


def test_where_avx2_wins_it_is_said() -> None:
    def forced(name: str, isa: str, rate: float):
        return kernel(name, rate=rate, instructions=isa)

    names = ("matrix product", "convolution")
    wins = [kernel(), *(forced(name, isa, rate) for name in names for isa, rate in (("avx2", 2e12), ("avx512", 1e12)))]
    check = named_check(judge_kernels([facts(kernels=tuple(wins))], sweeps=True), "AVX-512 against AVX2")
    assert check.verdict is Verdict.WARNING
    assert "ATEN_CPU_CAPABILITY=avx2" in str(check.fix)
    loses = [kernel(), forced("matrix product", "avx2", 1e12), forced("matrix product", "avx512", 2e12)]
    check = named_check(judge_kernels([facts(kernels=tuple(loses))], sweeps=True), "AVX-512 against AVX2")
    assert (check.verdict, check.value) == (Verdict.FINE, "matrix product: AVX-512 2.00 times AVX2")


def test_every_shape_of_a_sweep_gets_a_line() -> None:
    host = facts(
        kernels=(kernel(shape="256³", rate=1e11), kernel(shape="2048³"), kernel("triad", rate=1e11, shape="1 GiB"))
    )
    swept = [check.name for check in judge_kernels([host], sweeps=True)]
    assert [name for name in swept if "³" in name] == ["matrix product 256³ float32", "matrix product 2048³ float32"]
    assert not any("³" in check.name for check in judge_kernels([host], sweeps=False))
