"""The rank to blame is the one that failed by its own doing, not the one that complained loudest."""

import signal

from topout.launch.first_failure import RankEnd, describe, first_failure, is_peer_error

VALUE_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch\n'
PEER_ERROR = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
    "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4321\n"
)


def end(rank: int, at_s: float, **more) -> RankEnd:
    return RankEnd(rank=rank, host="n1", pid=100 + rank, ended_at_ns=int(at_s * 1e9), **more)


def raised(rank: int, at_s: float, text: str, **more) -> RankEnd:
    return end(rank, at_s + 0.2, exit_code=1, failure=text, failed_at_ns=int(at_s * 1e9), **more)


def test_nobody_failed():
    assert first_failure([end(0, 1, exit_code=0), end(1, 2, exit_code=0)]) is None


def test_the_earlier_traceback_wins_even_if_its_rank_ended_later():
    early = RankEnd(
        rank=1, host="n1", pid=1, ended_at_ns=9_000, exit_code=1, failure=VALUE_ERROR, failed_at_ns=1_000
    )  # fmt: skip
    late = RankEnd(rank=0, host="n1", pid=2, ended_at_ns=5_000, exit_code=1, failure=VALUE_ERROR, failed_at_ns=2_000)
    assert first_failure([late, early]) is early


def test_a_rank_that_lost_its_peer_comes_last():
    lost, culprit = raised(0, 1.0, PEER_ERROR), raised(1, 1.5, VALUE_ERROR)
    assert first_failure([lost, culprit]) is culprit


def test_a_killed_rank_wins_over_its_peers_complaints():
    killed = end(2, 1.3, signal=signal.SIGKILL)
    assert first_failure([raised(0, 1.0, VALUE_ERROR), killed, raised(1, 1.1, PEER_ERROR)]) is killed


def test_a_traceback_long_before_a_signal_is_the_cause():
    culprit = raised(0, 1.0, VALUE_ERROR)
    assert first_failure([end(1, 9.0, signal=signal.SIGABRT), culprit]) is culprit


def test_a_rank_we_ended_is_not_to_blame():
    told = end(0, 2.0, signal=signal.SIGTERM, signals_sent=frozenset({signal.SIGTERM}), told_at_ns=int(1.9e9))
    exited = end(2, 2.0, exit_code=1, told_at_ns=int(1.9e9), signals_sent=frozenset({signal.SIGTERM}))
    culprit = end(1, 1.8, exit_code=7)
    assert first_failure([told, exited, culprit]) is culprit
    assert first_failure([told, exited]) is None


def test_somebody_elses_kill_counts_although_we_had_asked_politely():
    killed = end(1, 2.0, signal=signal.SIGKILL, signals_sent=frozenset({signal.SIGTERM}), told_at_ns=int(1.9e9))
    assert first_failure([killed]) is killed


def test_codes_are_the_scripts_own():
    assert end(0, 1, exit_code=7).code == 7
    assert end(0, 1, signal=signal.SIGSEGV).code == 4
    assert end(0, 1, signal=signal.SIGABRT, reported_code=0).code == 0
    assert end(0, 1, signal=signal.SIGKILL, failure=VALUE_ERROR).code == 1


def test_only_the_message_makes_a_peer_error():
    assert is_peer_error(PEER_ERROR)
    inside_a_frame = VALUE_ERROR.replace("in <module>", "in <module>\n    raise_if('connection reset')")
    assert not is_peer_error(inside_a_frame)
    assert not is_peer_error(None)


def test_a_kill_for_lack_of_memory_is_said_so():
    killed = end(3, 1.0, signal=signal.SIGKILL)
    text = describe(killed, log="logs/rank-00003.err", stderr_tail="step 1\nstep 2\n", num_oom_kills=1)
    assert text.startswith("Rank 3 on n1 (pid 103) died by SIGKILL.\n  why  out of memory")
    assert text.endswith("    step 1\n    step 2")
    assert "out-of-memory" in describe(killed, log=None, stderr_tail="", num_oom_kills=0)


def test_a_traceback_is_the_last_thing_said():
    text = describe(raised(1, 1.0, VALUE_ERROR), log="logs/rank-00001.err", stderr_tail="noise")
    assert text.splitlines()[0] == "Rank 1 on n1 failed first (log logs/rank-00001.err):"
    assert text.splitlines()[-1] == "ValueError: bad batch"
