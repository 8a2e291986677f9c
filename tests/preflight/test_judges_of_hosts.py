"""Attendance, versions, hardware, limits: a mixed or starved allocation is named."""

import pytest

from tests.preflight.samples import GIB, LIMITS, facts, limited, named_check
from topout.preflight.check import Verdict
from topout.preflight.judges.attendance import judge_attendance
from topout.preflight.judges.limits import judge_limits
from topout.preflight.judges.sameness import judge_sameness


def test_hosts_without_findings_make_an_allocation_unfit() -> None:
    checks = judge_attendance([facts("n1")], 2, ["n2"])
    assert checks[0].verdict is Verdict.UNFIT
    assert checks[0].hosts == ("n2",)
    assert "n2 left no findings" in str(checks[0].fix)
    assert "--runs DIR" in str(checks[0].fix), "it may have kept them where nobody sees them"


def test_a_probe_that_hung_is_named_with_where() -> None:
    check = named_check(judge_attendance([facts("n1"), facts("n2", stage="storage: data")], 2, []), "probes")
    assert (check.verdict, check.value) == (Verdict.UNFIT, "n2 in 'storage: data'")


def test_a_host_that_could_not_join_is_named() -> None:
    lost = facts("n2", not_measured={"meeting": "10.0.0.1:29500: timed out"})
    check = named_check(judge_attendance([facts("n1"), lost], 2, []), "meeting")
    assert check.verdict is Verdict.UNFIT
    assert check.value == "n2: 10.0.0.1:29500: timed out"


def test_equal_hosts_need_two_lines() -> None:
    checks = judge_sameness([facts("n1"), facts("n2")])
    assert [check.name for check in checks] == ["versions", "hardware"]
    assert checks[0].value == "python 3.11.7 · torch 2.13.0 · kernel 6.1"
    assert checks[0].expectation == "equal on 2 hosts"


@pytest.mark.parametrize(("name", "verdict"), [("torch", Verdict.UNFIT), ("kernel", Verdict.WARNING)])
def test_a_version_that_differs_is_named_with_its_hosts(name: str, verdict: Verdict) -> None:
    hosts = [facts(host) for host in ("n1", "n2", "n3")]
    odd = facts("n2", versions={**hosts[1].versions, name: "1.0"})
    check = named_check(judge_sameness([hosts[0], odd, hosts[2]]), name)
    usual = hosts[0].versions[name]
    assert (check.verdict, check.value, check.hosts) == (verdict, f"{usual} (n1, n3); 1.0 (n2)", ("n2",))


def test_a_package_that_one_host_lacks_differs() -> None:
    without = facts("n2", versions={"python": "3.11.7", "kernel": "6.1"})
    check = named_check(judge_sameness([facts("n1"), without]), "torch")
    assert (check.verdict, check.value) == (Verdict.UNFIT, "2.13.0 (n1); none (n2)")


def test_a_mixed_allocation_is_named() -> None:
    other = facts("n2", hardware={**facts().hardware, "processor": "Other CPU"})
    check = named_check(judge_sameness([facts("n1"), other, facts("n3")]), "processor")
    assert (check.verdict, check.hosts) == (Verdict.WARNING, ("n2",))
    assert "mixed allocation" in str(check.fix)


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("memory", {}, Verdict.FINE),
        ("memory", {"memory_bytes": GIB}, Verdict.WARNING),
        ("memory", {"available_bytes": 2 * GIB}, Verdict.WARNING),
        ("/dev/shm", {"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, Verdict.UNFIT),
        ("/dev/shm", {"shm_bytes": None}, Verdict.UNFIT),
        ("/dev/shm", {"shm_free_bytes": 100 << 20}, Verdict.WARNING),
        ("open files", {"open_files": None}, Verdict.FINE),
        ("open files", {"open_files": 1024, "open_files_hard": 4096}, Verdict.WARNING),
        ("open files", {"open_files": 64}, Verdict.UNFIT),
        ("processes", {"processes": 100}, Verdict.WARNING),
        ("locked memory", {"locked_bytes": 8 << 20}, Verdict.FINE),
        ("locked memory", {"locked_bytes": 8 << 20, "infiniband": ("mlx5_0",)}, Verdict.UNFIT),
        ("stack", {"stack_bytes": 1 << 20}, Verdict.WARNING),
        ("processor time", {"cpu_limit": 2.5}, Verdict.WARNING),
        ("processor time", {"cpu_limit": 8.0}, Verdict.FINE),
        ("other load", {"load_per_core": 0.9}, Verdict.WARNING),
        ("stolen time", {"steal_share": 0.1}, Verdict.WARNING),
        ("clock governor", {"governor": "powersave"}, Verdict.WARNING),
        ("huge pages", {"huge_pages": "never"}, Verdict.WARNING),
        ("swap", {"swap_bytes": 8 * GIB, "swap_used_bytes": 2 * GIB}, Verdict.WARNING),
        ("OpenMP binding", {"traps": {"OMP_PROC_BIND": "close"}}, Verdict.WARNING),
        ("OpenMP binding", {"traps": {"OMP_PROC_BIND": "false"}}, Verdict.FINE),
        ("OpenMP binding", {"traps": {"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}}, Verdict.FINE),
        ("OpenMP binding", {"traps": {"KMP_AFFINITY": "compact"}}, Verdict.WARNING),
        ("OpenMP binding", {"traps": {"GOMP_CPU_AFFINITY": "0"}}, Verdict.WARNING),
        ("own name", {"name_address": None}, Verdict.WARNING),
        ("own name", {"name_address": "127.0.1.1"}, Verdict.FINE),
    ],
)
def test_a_limit_is_judged(name: str, changes: dict[str, object], verdict: Verdict) -> None:
    check = named_check(judge_limits([limited(**changes)]), name)
    assert check.verdict is verdict
    assert (check.fix is None) == (verdict is Verdict.FINE)


def test_a_name_that_means_the_loopback_matters_between_hosts() -> None:
    hosts = [limited("n1"), limited("n2", name_address="127.0.1.1")]
    check = named_check(judge_limits(hosts), "own name")
    assert (check.verdict, check.hosts) == (Verdict.WARNING, ("n2",))


def test_what_a_system_does_not_have_is_not_judged() -> None:
    names = [check.name for check in judge_limits([facts()])]
    assert LIMITS.governor is None and "clock governor" not in names
