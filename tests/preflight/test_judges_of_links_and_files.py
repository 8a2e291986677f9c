"""Links, clocks, file systems, imports: what is slow or unreachable is named with its host."""

from dataclasses import replace
from typing import Any

import pytest

from tests.preflight.samples import FRAMEWORK, GIB, facts, link, named_check
from topout.preflight.check import Verdict
from topout.preflight.facts import ClockReading, Facts, ImportTime, Place
from topout.preflight.judges.clocks import drift_ppm, judge_clocks
from topout.preflight.judges.imports import judge_imports
from topout.preflight.judges.links import fit_classes, judge_links, ring_bytes_per_s
from topout.preflight.judges.storage import judge_storage


def test_each_class_of_link_gets_its_alpha_and_beta() -> None:
    near = link(10e-6, 5e9, link_class="within a host", hosts=("n1", "n1"))
    far = link(50e-6, 10e9)
    fitted = fit_classes([facts(links=(near, far))])
    assert [(one.link_class, one.transport) for one in fitted] == [("within a host", "tcp"), ("between hosts", "tcp")]
    assert fitted[1].alpha_s == pytest.approx(50e-6, rel=1e-6)
    assert fitted[1].beta_bytes_per_s == pytest.approx(10e9, rel=1e-6)
    assert fitted[1].largest_num_bytes == 8 << 20
    check = named_check(judge_links([facts(links=(far,))]), "point-to-point between hosts")
    assert (check.verdict, check.value) == (Verdict.FINE, "α 50 µs (50 µs to 50 µs), β 10 GB/s (10 GB/s to 10 GB/s)")


@pytest.mark.parametrize(
    ("device", "num_ranks", "beta", "verdict"),
    [
        # a ring of 8 over 450 GB/s one way: 257 GB/s, of which 0.3 are 77
        ("NVIDIA H100 80GB HBM3", 8, 250e9, Verdict.FINE),
        ("NVIDIA H100 80GB HBM3", 8, 23e9, Verdict.WARNING),
        # two of a board of four share 150 GB/s: 45
        ("NVIDIA H100 80GB HBM3", 2, 120e9, Verdict.FINE),
        ("NVIDIA H100 80GB HBM3", 2, 20e9, Verdict.WARNING),
        ("NVIDIA H100 PCIe", 8, 23e9, Verdict.FINE),
        (None, 8, 23e9, Verdict.FINE),
    ],
)
def test_gpus_with_nvlink_that_talk_over_something_else_are_a_warning(
    device: str | None, num_ranks: int, beta: float, verdict: Verdict
) -> None:
    ring = link(
        20e-6,
        beta,
        link_class="within a host",
        operation="all-reduce",
        transport="nccl",
        hosts=("n1",),
        num_ranks=num_ranks,
    )
    host = facts(links=(ring,), framework=replace(FRAMEWORK, device_name=device))
    check = named_check(judge_links([host]), "all-reduce within a host, nccl")
    assert check.verdict is verdict
    assert ("nvidia-smi topo -m" in str(check.fix)) is (verdict is Verdict.WARNING)


def test_a_gigabit_between_hosts_is_slow_for_training() -> None:
    check = named_check(judge_links([facts(links=(link(100e-6, 118e6),), interface="eth0")]), "point-to-point between")
    assert check.verdict is Verdict.WARNING
    assert "is eth0 the fast network?" in str(check.fix)


def test_an_interface_that_does_not_keep_what_it_promises_is_slow() -> None:
    host = facts(links=(link(20e-6, 2e9),), interface_bits_per_s=100e9)
    check = named_check(judge_links([host]), "point-to-point between")
    assert (check.verdict, check.expectation) == (Verdict.WARNING, "at least 50 % of the interface's 12.5 GB/s")
    assert named_check(judge_links([facts(links=(link(20e-6, 9e9),), interface_bits_per_s=100e9)]), "point").fix is None


def test_one_link_far_behind_the_others_is_named() -> None:
    pairs = (("n1", "n2", 10e9), ("n2", "n3", 2e9), ("n3", "n4", 10e9))
    hosts = [facts(first, links=(link(20e-6, beta, hosts=(first, second)),)) for first, second, beta in pairs]
    (fitted,) = fit_classes(hosts)
    assert fitted.slowest == "n2 – n3: 2 GB/s"
    check = named_check(judge_links(hosts), "point-to-point")
    assert check.verdict is Verdict.WARNING and "n2 – n3" in str(check.fix)


def test_hosts_that_cannot_reach_each_other_are_unfit() -> None:
    broken = link(1e-6, 1e9, samples=(), problem="10.0.0.2:4711 from n1: timed out")
    check = named_check(judge_links([facts(links=(broken,))]), "reachability")
    assert (check.verdict, check.hosts) == (Verdict.UNFIT, ("n1", "n2"))
    assert "10.0.0.2:4711" in check.value


def test_an_all_reduce_is_measured_against_a_ring_over_the_plain_link() -> None:
    assert ring_bytes_per_s(1e9, 2) == 1e9
    assert ring_bytes_per_s(1e9, 4) == pytest.approx(2e9 / 3)
    plain = link(20e-6, 10e9)
    slow = link(100e-6, 1e9, operation="all-reduce", transport="gloo")
    checks = judge_links([facts(links=(plain, slow))])
    assert named_check(checks, "all-reduce between hosts, gloo, 2 ranks").verdict is Verdict.WARNING
    fast = link(100e-6, 6e9, operation="all-reduce", transport="gloo")
    assert named_check(judge_links([facts(links=(plain, fast))]), "all-reduce").verdict is Verdict.FINE


def test_a_link_that_was_not_measured_says_why() -> None:
    host = facts(not_measured={"all-reduce between hosts": "RuntimeError: connection refused"})
    check = named_check(judge_links([host]), "all-reduce between hosts")
    assert (check.verdict, check.value) == (Verdict.NOT_MEASURED, "RuntimeError: connection refused")


def reading(at_s: float = 0.0, realtime_s: float = 0.0, monotonic_s: float = 0.0) -> ClockReading:
    return ClockReading(
        host="n2", at_s=at_s, realtime_offset_s=realtime_s, monotonic_offset_s=monotonic_s, uncertainty_s=50e-6
    )


@pytest.mark.parametrize(
    ("offset_s", "verdict"),
    [
        (0.02, Verdict.FINE),
        (-0.02, Verdict.FINE),
        (2.0, Verdict.WARNING),
        (-2.0, Verdict.WARNING),
        (400.0, Verdict.UNFIT),
    ],
)
def test_a_clock_that_is_off_is_named(offset_s: float, verdict: Verdict) -> None:
    check = named_check(judge_clocks([facts(clocks=(reading(realtime_s=offset_s),))]), "time of day")
    assert (check.verdict, check.number) == (verdict, offset_s)
    assert check.hosts == (() if verdict is Verdict.FINE else ("n2",))


def test_drift_is_told_with_its_uncertainty() -> None:
    # 10 ms more after 20 s is 500 ppm, known to 5 ppm
    first, second = reading(at_s=0.0, monotonic_s=3.0), reading(at_s=20.0, monotonic_s=3.01)
    assert drift_ppm(first, second) == pytest.approx((500, 5))
    check = named_check(judge_clocks([facts(clocks=(first, second))]), "drift")
    assert (check.verdict, check.value) == (Verdict.WARNING, "+500 ± 5 ppm (n2)")
    steady = (first, reading(at_s=20.0, monotonic_s=3.0001))
    assert named_check(judge_clocks([facts(clocks=steady)]), "drift").verdict is Verdict.FINE


def test_one_host_has_no_clock_to_compare() -> None:
    assert judge_clocks([facts()]) == []


def place(**changes: Any) -> Place:
    default: dict[str, Any] = {
        "purpose": "data",
        "path": "/scratch/data",
        "file_system": "lustre",
        "mounted_from": "10.1.1.1@o2ib:/scratch",
        "mounted_at": "/scratch",
        "free_bytes": 100 * GIB,
        "opens_per_s": 5000.0,
        "stats_per_s": 9000.0,
        "read_bytes_per_s": 800e6,
        "write_bytes_per_s": 300e6,
        "method": "files that the neighbour wrote",
    }
    return Place(**{**default, **changes})


def test_a_file_system_is_named_with_its_rates() -> None:
    checks = judge_storage([facts(places=(place(),))])
    assert named_check(checks, "data").value == "lustre from 10.1.1.1@o2ib:/scratch at /scratch, 100 GiB free"
    rates = named_check(checks, "data: rates")
    assert rates.value == "5,000 opens/s, 9,000 stat/s, read 800 MB/s, write 300 MB/s"
    assert (rates.verdict, rates.number, rates.unit) == (Verdict.FINE, 5000.0, "opens/s")


def test_a_slow_file_system_is_warned_of() -> None:
    assert (
        named_check(judge_storage([facts(places=(place(opens_per_s=200.0),))]), "data: rates").verdict
        is Verdict.WARNING
    )
    slow = facts(places=(place(read_bytes_per_s=10e6),))
    assert named_check(judge_storage([slow]), "data: rates").verdict is Verdict.WARNING


def test_data_that_one_host_does_not_see_makes_it_unfit() -> None:
    gone = place(free_bytes=None, opens_per_s=None, problem="No such file or directory")
    checks = judge_storage([facts("n1", places=(place(),)), facts("n2", places=(gone,))])
    check = named_check(checks, "data")
    assert (check.verdict, check.hosts) == (Verdict.UNFIT, ("n2",))
    assert "/scratch/data: No such file or directory (n2)" in check.value


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"free_bytes": 1 << 20}, Verdict.UNFIT),
        ({"free_bytes": 100 << 20}, Verdict.WARNING),
        ({"free_inodes": 0}, Verdict.UNFIT),
        ({}, Verdict.FINE),
    ],
)
def test_where_a_run_writes_there_must_be_room(changes: dict[str, int], verdict: Verdict) -> None:
    check = named_check(judge_storage([facts(places=(place(purpose="run folder", **changes),))]), "run folder")
    assert check.verdict is verdict


def test_a_run_folder_that_some_hosts_do_not_see_is_warned_of() -> None:
    shared, own = place(purpose="run folder", path="/home/me/runs/1"), place(purpose="run folder", path="/tmp/runs/1")
    hosts = [facts("n1", places=(shared,)), facts("n2", places=(own,)), facts("n3", places=(own,))]
    check = named_check(judge_storage(hosts), "run folder: shared")
    assert (check.verdict, check.hosts) == (Verdict.WARNING, ("n2", "n3"))
    assert check.value == "/home/me/runs/1 (n1); /tmp/runs/1 (n2, n3)"
    assert "--runs DIR" in str(check.fix)
    assert "run folder: shared" not in {
        check.name for check in judge_storage([hosts[0], facts("n2", places=(shared,))])
    }


def test_a_stage_that_failed_is_not_silent() -> None:
    checks = judge_storage([facts(not_measured={"storage: data": "OSError: stale file handle"})])
    assert [(check.name, check.value) for check in checks] == [("data on n1", "OSError: stale file handle")]


def imported(num_hosts: int = 1, torch_s: float | None = 2.0, **changes: Any) -> ImportTime:
    default = {"command": "python", "start_s": 0.1, "numpy_s": 0.4, "num_files": 1100, "file_system": "nfs4"}
    return ImportTime(num_hosts=num_hosts, torch_s=torch_s, **{**default, **changes})


def test_imports_are_told_with_where_they_come_from() -> None:
    check = named_check(judge_imports([facts(imports=(imported(),))]), "python, one host")
    assert check.value == "start 100 ms, numpy 400 ms, torch 2 s; 1,100 files from nfs4, a network file system"
    assert (check.verdict, check.number) == (Verdict.FINE, 2.5)
    assert named_check(judge_imports([facts(imports=(imported(torch_s=60.0),))]), "python").verdict is Verdict.WARNING


def test_all_hosts_at_once_are_compared_with_one_alone() -> None:
    def hosts(together_s: float) -> list[Facts]:
        return [
            facts("n1", imports=(imported(), imported(num_hosts=2, torch_s=1.5))),
            facts("n2", imports=(imported(num_hosts=2, torch_s=together_s),)),
        ]

    slow = named_check(judge_imports(hosts(12.0)), "python, 2 hosts at once")
    assert (slow.verdict, slow.value) == (Verdict.WARNING, "12.5 s on the slowest (n2), 5.0 times as long as alone")
    assert named_check(judge_imports(hosts(3.0)), "python, 2 hosts at once").verdict is Verdict.FINE


def test_interpreters_are_compared_where_they_do_the_same() -> None:
    image = imported(command="apptainer exec t.sif python", torch_s=0.9, container="t.sif")
    bare = imported(command="/usr/bin/python3", torch_s=None)
    check = named_check(judge_imports([facts(imports=(imported(), image, bare))]), "which costs what")
    assert check.value == "python 2.5 s; apptainer exec t.sif python 1.4 s"
    assert check.expectation == "cheapest: apptainer exec t.sif python"


def test_an_interpreter_that_does_not_start_says_why() -> None:
    broken = ImportTime(command="/no/python", num_hosts=1, problem="No such file or directory")
    check = named_check(judge_imports([facts(imports=(imported(), broken))]), "/no/python")
    assert (check.verdict, check.value) == (Verdict.WARNING, "No such file or directory")
