"""Peaks of devices: found by the names that torch gives them."""

import pytest

from topout.schema.hardware import assumed_cpu_flops_per_s, device_peaks, find_device


@pytest.mark.parametrize(
    ("torch_name", "name"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
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


def test_the_peak_follows_the_precision() -> None:
    a100 = find_device("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.flops_per_s("bfloat16") == 312e12
    assert (a100.flops_per_s("float32"), a100.flops_per_s("float32", uses_tf32=True)) == (19.5e12, 156e12)
    v100 = find_device("V100")
    assert v100 is not None
    assert v100.flops_per_s("bfloat16") == 15.7e12  # it has none, and falls back


def test_narrow_types_are_never_slower() -> None:
    for peak in device_peaks():
        for dtype in ("bfloat16", "float16"):
            assert peak.flops_per_s(dtype) >= peak.flops_per_s("float32", uses_tf32=True) >= peak.fp32_flops_per_s


def test_a_processors_peak_grows_with_its_cores() -> None:
    assert assumed_cpu_flops_per_s(1) == 192e9
    assert assumed_cpu_flops_per_s(64) == 64 * 192e9
