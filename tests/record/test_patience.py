"""What counts as work of a rank that should end, and for how long; told from literal looks at it."""

from topout.record.leaving import Doings, Effort, Patience, Training


def did(written_bytes: int = 0, cpu_s: float = 0.0, *, is_held: bool = False) -> Doings:
    return Doings(written_bytes=written_bytes, cpu_ns=round(cpu_s * 1e9), is_held=is_held)


def quiet_at(patience: Patience, end_s: int, doings) -> list[float]:
    """How long it has been quiet after each second."""
    quiet_s = []
    for now_s in range(1, end_s + 1):
        patience.look(now_s, doings(now_s))
        quiet_s.append(patience.quiet_s(now_s))
    return quiet_s


def test_who_does_nothing_is_quiet_from_the_last_line_on():
    assert quiet_at(Patience(0), 4, lambda now_s: did(1 << 30, 10)) == [1, 2, 3, 4]


def test_who_writes_is_waited_for_and_no_longer_than_half_an_hour():
    quiet_s = quiet_at(Patience(0), 1810, lambda now_s: did(now_s << 20))
    assert max(quiet_s[1:1800]) == 0
    assert quiet_s[-1] == 10


def test_after_a_failure_who_writes_is_waited_for_half_a_minute():
    quiet_s = quiet_at(Patience(0, limit_s=30), 40, lambda now_s: did(now_s << 20))
    assert max(quiet_s[1:30]) == 0
    assert quiet_s[-1] == 10


def test_a_few_lines_now_and_then_are_nobodys_checkpoint():
    assert quiet_at(Patience(0), 4, lambda now_s: did(1000 * now_s)) == [1, 2, 3, 4]


def test_who_computes_is_waited_for_a_minute():
    quiet_s = quiet_at(Patience(0), 70, lambda now_s: did(0, now_s / 2))
    assert max(quiet_s[1:60]) == 0
    assert quiet_s[-1] == 10


def test_the_minute_begins_anew_with_what_was_written():
    quiet_s = quiet_at(Patience(0), 140, lambda now_s: did(100_000 * (now_s // 50), now_s))
    assert max(quiet_s[1:]) == 0


def test_a_long_fsync_is_waited_for():
    assert quiet_at(Patience(0), 20, lambda now_s: did(is_held=True))[-1] == 0


def test_after_a_failure_only_writing_counts():
    assert quiet_at(Patience(0, is_for_computing=False), 4, lambda now_s: did(0, now_s)) == [1, 2, 3, 4]


def test_time_in_which_it_was_stopped_is_no_quiet_time_and_counts_for_no_limit():
    patience = Patience(0)
    patience.look(1, did(0))
    patience.put_off(3601, 3600)
    assert patience.quiet_s(3601) == 1
    assert patience.look(3602, did(1 << 20))
    patience.put_off(3603, 600)
    assert patience.quiet_s(3603) == 0
    patience.stir(4000)
    patience.put_off(3700, 50)
    assert patience.quiet_s(4000) == 0


def test_what_the_recorder_writes_is_not_the_scripts():
    patience = Patience(0)
    patience.look(1, did(0))
    patience.leave_out()
    assert not patience.look(2, did(1 << 20))
    assert patience.quiet_s(2) == 2


def efforts(share: float, *, burst_s: float, every_s: float) -> list[bool]:
    """Of looks twice a second at somebody who computes for a while once in `every_s`."""
    effort = Effort(share)
    return [effort.is_made(look / 2, round(burst_s * (look // (2 * every_s)) * 1e9)) for look in range(21)]


def test_a_burst_now_and_then_is_no_effort():
    assert not any(efforts(0.1, burst_s=0.06, every_s=1))
    assert any(efforts(0.1, burst_s=0.15, every_s=1))
    assert not any(efforts(0.25, burst_s=0.3, every_s=2))


def test_an_effort_is_seen_although_another_ended():
    effort = Effort(0.1)
    assert [effort.is_made(s, round(cpu_s * 1e9)) for s, cpu_s in [(0, 9), (1, 10), (2, 0.5), (3, 1.5)]] == [
        False,
        True,
        False,
        True,
    ]


def is_training_likely(own_share: float, workers_share: float) -> bool:
    """After looks twice a second, ten seconds long."""
    training = Training()
    looks = [
        training.is_likely(look / 2, round(own_share * look / 2 * 1e9), round(workers_share * look / 2 * 1e9))
        for look in range(21)
    ]
    return any(looks)


def test_workers_count_where_the_rank_itself_computes_at_all():
    assert is_training_likely(0.3, 0.0)
    assert is_training_likely(0.05, 0.9)
    assert not is_training_likely(0.05, 0.0)
    assert not is_training_likely(0.01, 3.0)
