"""Peaks of devices: found by the names that torch gives them, each figure with unit, density, source and confidence."""

import pytest

from topout.schema.hardware import (
    CONFIDENCES,
    PRECISIONS,
    assumed_cpu_flops_per_s,
    device_peaks,
    devices,
    find_device,
    find_row,
    sources,
)

ASKED_FOR = (
    "MI25", "MI50", "MI60", "P100", "V100", "TPU v3", "GTX 1080 Ti", "Xeon Phi 7250", "Xeon Platinum 8160",
    "Xeon Platinum 8180", "EPYC 7601", "A100", "H100", "H200", "B200", "MI250X", "MI300X", "Grace",
    "Xeon Platinum 8480+",
)  # fmt: skip


@pytest.mark.parametrize(
    ("torch_name", "name"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE"),
        ("Tesla P100-SXM2-16GB", "P100"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI250X", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_devices_are_known_by_torchs_names(torch_name: str, name: str) -> None:
    found = find_device(torch_name)
    assert found is not None and found.name == name


def test_an_unknown_device_has_no_peak() -> None:
    assert find_device("Matrox Millennium") is None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A1000",
        "NVIDIA L400",
        "AMD EPYC 9654 96-Core Processor",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
    ],
)
def test_a_name_that_only_contains_a_known_one_is_another_device(name: str) -> None:
    assert find_device(name) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Platinum 8160 CPU @ 2.10GHz", "Xeon Platinum 8160"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon Platinum 8480+"),
        ("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz", "Xeon Phi 7250"),
        ("AMD EPYC 7601 32-Core Processor", "EPYC 7601"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
    ],
)
def test_processors_are_known_by_the_kernels_names(model: str, name: str) -> None:
    found = find_row(model, kinds=("cpu",))
    assert found is not None and found.name == name


def test_the_classic_devices_and_todays_are_there() -> None:
    assert set(ASKED_FOR) <= {device.name for device in devices()}
    assert len({device.name for device in devices()}) == len(devices())


def test_every_figure_has_unit_density_source_and_confidence() -> None:
    for device in devices():
        for key, figure in device.figures.items():
            where = f"{device.name}: {key}"
            is_rate = key.split("_")[0] in PRECISIONS
            expected = (
                ("OP/s" if key.startswith("int8") else "FLOP/s") if is_rate else "B" if key == "memory" else "B/s"
            )
            assert figure.unit == expected, where
            assert figure.density == (("sparse" if key.endswith("_sparse") else "dense") if is_rate else None), where
            assert figure.source in sources() and figure.confidence in CONFIDENCES, where
            assert (figure.confidence == "disputed") <= (figure.note is not None), where
            assert (figure.confidence == "recalled") <= (figure.source == "recollection"), where
            assert (figure.confidence == "read") <= (figure.source != "recollection"), where
            assert figure.value > 0, where


def test_sparse_figures_are_twice_the_dense_ones() -> None:
    pairs = [
        (figure.value, device.figures[key.removesuffix("_sparse")].value)
        for device in devices()
        for key, figure in device.figures.items()
        if key.endswith("_sparse")
    ]
    assert len(pairs) > 10
    for sparse, dense in pairs:
        assert sparse == pytest.approx(2 * dense, rel=0.02)


def test_no_peak_is_a_sparse_one() -> None:
    h200 = find_device("NVIDIA H200")
    assert h200 is not None and h200.flops_per_s("bfloat16") == 989e12


def test_the_ridge_point_is_rate_over_bandwidth() -> None:
    h200 = find_row("NVIDIA H200")
    assert h200 is not None
    # 989 TFLOP/s over 4.8 TB/s
    assert h200.ridge_flops_per_byte("bf16") == pytest.approx(206.04, abs=0.01)
    tpu = find_row("TPU v3")
    assert tpu is not None and tpu.ridge_flops_per_byte("fp64") is None


def test_halves_slower_than_single_precision_are_computed_in_single_precision() -> None:
    gtx = find_device("NVIDIA GeForce GTX 1080 Ti")
    assert gtx is not None and gtx.fp16_flops_per_s == 0.18e12
    assert gtx.flops_per_s("float16") == gtx.fp32_flops_per_s


def test_the_peak_follows_the_precision() -> None:
    a100 = find_device("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.flops_per_s("bfloat16") == 312e12
    assert (a100.flops_per_s("float32"), a100.flops_per_s("float32", uses_tf32=True)) == (19.5e12, 156e12)
    v100 = find_device("V100")
    assert v100 is not None
    assert v100.flops_per_s("bfloat16") == 15.7e12  # it has none, and falls back


@pytest.mark.parametrize("name", ["MI100", "MI210", "MI250X", "H200"])
def test_the_peak_in_single_precision_is_the_one_that_the_table_prints(name: str) -> None:
    peak, row = find_device(name), find_row(name)
    assert peak is not None and row is not None
    printed = row.rate("fp32")
    assert printed is not None and peak.fp32_flops_per_s == printed.value


def test_narrow_types_are_never_slower() -> None:
    for peak in device_peaks():
        for dtype in ("bfloat16", "float16"):
            assert peak.flops_per_s(dtype) >= peak.flops_per_s("float32", uses_tf32=True) >= peak.fp32_flops_per_s


def test_a_processors_peak_grows_with_its_cores() -> None:
    assert assumed_cpu_flops_per_s(1) == 192e9
    assert assumed_cpu_flops_per_s(64) == 64 * 192e9
