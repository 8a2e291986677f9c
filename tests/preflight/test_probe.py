"""The probe of a host goes through all its stages, whatever one of them does."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from tests.preflight.company import start_company
from topout.preflight.facts import FOLDER, Facts
from topout.preflight.orders import Orders
from topout.preflight.probes.framework import kernel_in
from topout.preflight.probes.imports import container_name, time_import
from topout.preflight.probes.instruction_sets import compare_instruction_sets
from topout.preflight.probes.kernels import Bench
from topout.preflight.probes.limits import _own_address, chosen, read_limits
from topout.preflight.probes.machine import read_clock_hz, read_flags, read_versions
from topout.preflight.probes.meeting import SECRET_VARIABLE

WITHOUT_TORCH = """
import sys
from topout.preflight.probes import collectives, host, imports, machine
versions = machine.read_versions
machine.read_versions = lambda: {k: v for k, v in versions().items() if k != "torch"}
imports._PROGRAM = imports._PROGRAM.replace('attempt("torch")', "(None, None)")
"""
LEAVE = "\nsys.exit(host.main(sys.argv[1:]))\n"


class TorchOfAmd:
    """torch for ROCm on a GPU, played by the CPU; with `has_tf32` it keeps 10 bits of operands where "high" allows."""

    def __init__(self, *, has_tf32: bool) -> None:
        self.version = SimpleNamespace(hip="6.4")
        self.cuda = SimpleNamespace(get_device_name=lambda: "AMD Instinct MI300X")
        self._has_tf32, self._precision = has_tf32, "highest"

    def get_float32_matmul_precision(self) -> str:
        return self._precision

    def set_float32_matmul_precision(self, wanted: str) -> None:
        self._precision = wanted

    def randn(self, *shape: int, device: str) -> torch.Tensor:
        return torch.randn(*shape)

    def mm(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if self._has_tf32 and self._precision == "high" and first.dtype is torch.float32:
            first, second = ((each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (first, second))
        return first @ second


@pytest.mark.parametrize("has_tf32", [False, True])
def test_tf32_is_measured_on_a_gpu_of_amd_only_where_products_use_it(has_tf32: bool) -> None:
    of_amd = TorchOfAmd(has_tf32=has_tf32)
    assert ("tf32" in Bench(of_amd, "cuda").dtypes()) == has_tf32
    assert of_amd.get_float32_matmul_precision() == "highest", "as it was"


def findings(folder: Path, number: int = 0) -> Facts:
    return msgspec.json.decode((folder / FOLDER / f"rank-{number:05d}.json").read_bytes(), type=Facts)


def probe(
    folder: Path, script: str, orders: Orders, size: int = 1, own: Mapping[int, Mapping[str, str]] | None = None
) -> list["subprocess.Popen[str]"]:
    return start_company(folder, size, ["-c", script + LEAVE, orders.to_text()], own=own)


def ended(processes: list["subprocess.Popen[str]"]) -> list[int]:
    for process in processes:
        process.communicate(timeout=120)
    return [process.returncode for process in processes]


@pytest.mark.alone
def test_a_host_without_torch_is_examined_to_the_end(tmp_path: Path) -> None:
    assert ended(probe(tmp_path, WITHOUT_TORCH, Orders(data=str(tmp_path)))) == [0]
    found = findings(tmp_path)
    assert (found.stage, found.not_measured, found.framework) == (None, {}, None)
    assert {asdict(kernel)["library"] for kernel in found.kernels} == {"numpy"}
    assert [place.purpose for place in found.places] == ["data", "run folder", "temporary folder", "shared memory"]
    assert [(link.link_class, link.transport) for link in found.links] == [("within a host", "tcp")]
    assert found.limits is not None and found.limits.num_cores >= 1
    assert found.imports[0].start_s is not None and found.clocks == ()


@pytest.mark.alone
def test_two_hosts_without_torch_find_their_link_and_clocks(tmp_path: Path) -> None:
    assert ended(probe(tmp_path, WITHOUT_TORCH, Orders(), size=2)) == [0, 0]
    first, second = findings(tmp_path, 0), findings(tmp_path, 1)
    assert [link.link_class for link in first.links] == ["within a host", "between hosts"]
    assert [link.link_class for link in second.links] == ["within a host"]
    assert len(first.clocks) == 2 and second.clocks == ()
    assert [entry.num_hosts for entry in first.imports] == [1, 2]
    assert [entry.num_hosts for entry in second.imports] == [2]


@pytest.mark.alone
def test_the_first_host_keeps_the_findings_of_hosts_that_share_nothing_with_it(tmp_path: Path) -> None:
    secret = {SECRET_VARIABLE: "made by the doctor"}
    own = {number: {**secret, "XDG_CONFIG_HOME": str(tmp_path / f"home-{number}")} for number in range(3)}
    own[1]["TOPOUT_RUN"] = str(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    assert ended(probe(tmp_path / "run", WITHOUT_TORCH, Orders(), size=3, own=own)) == [0] * 3
    hosts = [findings(tmp_path / "run", number) for number in range(3)]
    assert [(found.host_number, found.stage, found.not_measured) for found in hosts] == [
        (0, None, {}),
        (1, None, {}),
        (2, None, {}),
    ]
    assert hosts[1] == findings(tmp_path / "elsewhere", 1)


@pytest.mark.alone
def test_a_host_that_can_keep_no_files_still_tells_what_it_found(tmp_path: Path) -> None:
    without = "import os\nif os.environ['GROUP_RANK'] == '1':\n    del os.environ['TOPOUT_RUN']\n"
    assert ended(probe(tmp_path, without + WITHOUT_TORCH, Orders(), size=2)) == [0, 0]
    hosts = [findings(tmp_path, number) for number in range(2)]
    assert [found.not_measured for found in hosts] == [{}, {}]
    assert [[place.purpose for place in found.places] for found in hosts] == [["temporary folder", "shared memory"]] * 2


@pytest.mark.alone
def test_a_stage_that_fails_is_noted_and_the_next_one_runs(tmp_path: Path) -> None:
    broken = WITHOUT_TORCH + "host.read_limits = lambda load: 1 / 0\n"
    assert ended(probe(tmp_path, broken, Orders())) == [0]
    found = findings(tmp_path)
    assert found.not_measured == {"limits": "ZeroDivisionError: division by zero"}
    assert found.limits is None and found.kernels


@pytest.mark.alone
def test_a_stage_that_hangs_is_left_in_time_and_named(tmp_path: Path) -> None:
    hung = WITHOUT_TORCH + "import time\nmachine.read_versions = lambda: time.sleep(600)\n"
    assert ended(probe(tmp_path, hung, Orders(limit_s=5.0))) == [0]
    assert findings(tmp_path).stage == "versions"


def test_a_probe_that_is_told_to_end_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    slow = WITHOUT_TORCH + (
        "import time\n"
        "from topout.preflight.probes import storage\n"
        "storage._read = lambda *a: (print('reading', flush=True), time.sleep(600))\n"
    )
    (process,) = probe(tmp_path, slow, Orders(data=str(tmp_path / "data")))
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    assert list((tmp_path / "data").iterdir()) != []
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert list((tmp_path / "data").iterdir()) == []


def test_only_one_rank_of_a_host_probes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topout.preflight.probes.host", "{}"],
        env={"PATH": "/usr/bin", "LOCAL_RANK": "1", "TOPOUT_RUN": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_imports_are_timed_in_a_fresh_interpreter() -> None:
    found = time_import("python", num_hosts=1)
    assert found.problem is None
    assert found.start_s is not None and found.numpy_s is not None and found.torch_s is not None
    assert found.num_files is not None and found.num_files > 100
    assert found.path is not None and found.path.endswith("torch/__init__.py")


def test_an_interpreter_that_is_not_there_says_so() -> None:
    assert time_import("/no/such/python", num_hosts=1).problem == "No such file or directory"
    assert time_import(f"{sys.executable} -c 'import no_such_module' #", num_hosts=1).problem is not None


def test_the_image_of_a_container_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/torch.sif")
    assert container_name() == "/images/torch.sif"


def test_onednn_names_its_kernel() -> None:
    said = (
        "onednn_verbose,v1,info,cpu,isa:Intel AMX\n"
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef,src:bf16,,,8x8,1.3\n"
    )
    assert kernel_in(said) == "brg_matmul:avx512_core_amx"
    assert kernel_in("nothing of the kind\n") is None


def test_narrower_instructions_are_compared_where_there_is_a_choice() -> None:
    assert compare_instruction_sets(("avx2", "fma")) == ()
    if "avx512f" in read_flags():
        found = compare_instruction_sets(read_flags())
        assert [(kernel.name, kernel.instructions) for kernel in found] == [
            ("matrix product", "avx2"),
            ("convolution", "avx2"),
            ("matrix product", "avx512"),
            ("convolution", "avx512"),
        ]


def test_flags_clock_and_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "model name\t: X\ncpu MHz\t\t: 2100.5\nflags\t\t: fpu avx2 fma amx_bf16 avx512f\n"
    )
    assert read_flags(tmp_path) == ("avx2", "fma", "avx512f", "amx_bf16")
    assert read_clock_hz(tmp_path, tmp_path) == 2100.5e6
    frequency = tmp_path / "devices/system/cpu/cpu0/cpufreq"
    frequency.mkdir(parents=True)
    (frequency / "cpuinfo_max_freq").write_text("3500000\n")
    assert read_clock_hz(tmp_path, tmp_path) == 3.5e9
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release\n"
    )
    versions = read_versions(tmp_path, tmp_path)
    assert versions["NVIDIA driver"] == "580.95.05"
    assert versions["python"] == sys.version.split()[0]


def test_limits_are_those_of_this_process() -> None:
    import resource

    limits = read_limits(1.0)
    assert limits.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limits.memory_bytes <= limits.machine_memory_bytes
    assert chosen("always [madvise] never") == "madvise"
    assert chosen("") is None


def test_orders_survive_the_command_line() -> None:
    orders = Orders(data="/d", kernels=True, pythons=("a b", "c"), talks=True, limit_s=3.0)
    assert Orders.from_text(orders.to_text()) == orders
    assert json.loads(orders.to_text())["data"] == "/d"


@pytest.mark.parametrize(
    ("known", "address"), [(["fd00::1"], "fd00::1"), (["fd00::1", "10.0.0.1"], "10.0.0.1"), ([], None)]
)
def test_a_host_of_either_family_knows_its_address(
    monkeypatch: pytest.MonkeyPatch, known: list[str], address: str | None
) -> None:
    def answer(*_: object, **__: object) -> list[tuple[object, ...]]:
        if not known:
            raise OSError("Name or service not known")
        families = [socket.AF_INET6 if ":" in found else socket.AF_INET for found in known]
        return [(family, socket.SOCK_STREAM, 6, "", (found, 0)) for family, found in zip(families, known, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert _own_address() == address
