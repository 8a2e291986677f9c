"""One line of all hosts: the worst counts, and whoever differs is named."""

from tests.preflight.samples import facts
from topout.preflight.check import Check, Reading, Verdict, named, over_hosts
from topout.preflight.facts import Facts


def check_of(*values: float, enough: float = 0.0, is_rate: bool = True, ample: float = float("inf")) -> Check:
    hosts = [facts(f"n{number}") for number in range(1, len(values) + 1)]
    by_host = dict(zip([host.host for host in hosts], values, strict=True))

    def read(one: Facts) -> Reading:
        value = by_host[one.host]
        verdict = Verdict.FINE if value >= enough else Verdict.WARNING
        return Reading(text=f"{value:g} MB/s", verdict=verdict, number=value, fix="buy a disk")

    check = over_hosts(hosts, "Group", "name", "fast", read, is_rate=is_rate, ample=ample)
    assert check is not None
    return check


def test_hosts_that_agree_share_one_line() -> None:
    check = check_of(5, 5, 5)
    assert (check.verdict, check.value, check.hosts, check.fix) == (Verdict.FINE, "5 MB/s", (), None)


def test_the_worst_host_decides_and_is_named() -> None:
    check = check_of(9, 2, 9, enough=5)
    assert check.verdict is Verdict.WARNING
    assert check.hosts == ("n2",)
    assert check.value == "9 MB/s (n1, n3); 2 MB/s (n2)"
    assert (check.number, check.fix) == (2, "buy a disk")


def test_a_host_far_behind_the_others_is_named_even_if_it_is_fast_enough() -> None:
    check = check_of(100, 100, 60)
    assert check.verdict is Verdict.WARNING
    assert check.fix is not None and check.fix.startswith("n3 reaches 60 % of the others")
    assert check_of(100, 100, 80).verdict is Verdict.FINE


def test_nobody_is_behind_with_more_than_enough() -> None:
    assert check_of(100, 100, 60, ample=50).verdict is Verdict.FINE


def test_many_different_hosts_are_told_by_the_slowest_and_the_fastest() -> None:
    check = check_of(10, 12, 11, 13, 14, is_rate=False)
    assert check.value == "10 MB/s (n1) to 14 MB/s (n5)"


def test_nothing_to_say_is_no_check() -> None:
    assert over_hosts([facts()], "Group", "name", "fast", lambda one: None) is None


def test_a_thousand_hosts_fit_on_a_line() -> None:
    assert named(["n1", "n2", "n3", "n4"]) == "n1, n2, n3, n4"
    assert named([f"n{number}" for number in range(1, 1001)]) == "n1, n2, n3, n4 and 996 more"


def test_what_was_not_measured_is_better_than_a_warning_and_worse_than_fine() -> None:
    order = sorted(Verdict, key=lambda verdict: verdict.badness)
    assert order == [Verdict.FINE, Verdict.NOT_MEASURED, Verdict.WARNING, Verdict.UNFIT]
