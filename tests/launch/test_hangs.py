"""Real ranks that hold each other up: who is missing, where, and what it does instead, in one line."""

import re
import signal

import pytest

from tests.launch.hung_job import HungJob
from tests.launch.jobs import wait_for

pytestmark = pytest.mark.alone

IN_THE_LOOP = re.compile(r"hangs.py:\d+ in (keeps_training|train|tokenize)\b")


def trains(job: HungJob) -> bool:
    return job.page(0).num_steps > 0 < job.page(1).num_steps


def waits_at_the_start(job: HungJob) -> bool:
    return job.page(0).phase == "init" and "in load_shard" in job.page(1).line


@pytest.fixture
def hung(tmp_path):
    """Nobody looks before the ranks have come so far: of a slow start on a busy machine something else is said."""
    jobs = []

    def start(how: str, so_far=trains, **more) -> HungJob:
        job = HungJob(tmp_path, how, **more)
        jobs.append(job)
        assert wait_for(lambda: so_far(job), 120), [job.page(0), job.page(1), (job.run / "1.err").read_text()]
        return job

    yield start
    for job in jobs:
        job.__exit__()


def first_line(job: HungJob) -> str:
    """The first thing said, its process number and seconds replaced; lines of a loop that runs count as one."""
    assert job.watch(lambda: job.lines), [job.page(0), job.page(1), (job.run / "1.err").read_text()]
    assert len(job.lines) == 1
    said = re.sub(r"for \d+ s", "for N s", re.sub(r"(pid|-CONT) \d+", r"\1 P", job.lines[0]))
    return IN_THE_LOOP.sub("hangs.py:L in LOOP", said)


def test_a_stopped_rank_is_named_with_its_last_line_and_goes_on(hung):
    job = hung("keeps_training", named_after_s=8.0)
    assert job.watch(lambda: job.page(1).num_steps > 20)
    job.ranks[1].send_signal(signal.SIGSTOP)
    said = first_line(job)
    number = re.search(r"all_reduce #(\d+)", said)[1]
    assert said == (
        f"topout: no step for N s: rank 1 on n2 (pid P) is stopped, and rank 0 waits in all_reduce #{number} (1 MB); "
        "last seen at hangs.py:L in LOOP; continue it with kill -CONT P; stacks in hang"
    )
    assert job.watch(lambda: "hangs.py:71 in train" in job.stacks(0))
    assert f"not over: all_reduce #{number}, 1001000 bytes, group gloo:0" in job.stacks(0)
    assert job.stacks(1) == ""
    job.ranks[1].send_signal(signal.SIGCONT)
    assert job.watch(lambda: len(job.lines) > 1)
    assert re.fullmatch(rf"topout: goes on after \d+ s \(rank 1 was stopped at {IN_THE_LOOP.pattern}\)", job.lines[1])
    assert job.watch(lambda: job.page(0).step_age_s < 1)


def test_a_rank_that_sleeps_outside_the_collective_is_missing_from_it(hung):
    job = hung("sleeps")
    assert first_line(job) == (
        "topout: no step for N s: rank 1 on n2 (pid P) has not reached all_reduce #26 (1 MB), in which rank 0 waits; "
        "it sleeps at hangs.py:27 in load_shard; stacks in hang"
    )
    assert job.watch(lambda: job.stacks(0) and job.stacks(1))
    assert "  hangs.py:23 in sleeps\n  hangs.py:27 in load_shard\n" in job.stacks(1)
    assert [rank.poll() for rank in job.ranks] == [None, None]


def test_a_rank_that_sleeps_is_missing_although_its_last_collectives_ended_out_of_order(hung):
    job = hung("ends_out_of_order")
    assert first_line(job) == (
        "topout: no step for N s: rank 1 on n2 (pid P) has not reached all_reduce #28 (1 MB), in which rank 0 waits; "
        "it sleeps at hangs.py:27 in load_shard; stacks in hang"
    )
    assert job.watch(lambda: job.stacks(0) and job.stacks(1))
    assert "group gloo:0: 28 collectives begun, 27 over\n" in job.stacks(0)
    assert "group gloo:0: 27 collectives begun, 27 over\n" in job.stacks(1)


def test_a_rank_that_computes_for_long_is_named_and_left_alone(hung):
    job = hung("is_busy")
    assert first_line(job) == (
        "topout: no step for N s: rank 1 on n2 (pid P) has not reached all_reduce #26 (1 MB), in which rank 0 waits; "
        "it computes at hangs.py:L in LOOP; stacks in hang"
    )
    assert job.watch(lambda: len(job.lines) > 1)
    assert re.fullmatch(rf"topout: goes on after \d+ s \(rank 1 was late at {IN_THE_LOOP.pattern}\)", job.lines[1])
    assert job.watch(lambda: job.page(1).num_steps > 40)


def test_mismatched_collectives_are_told_side_by_side(hung):
    assert first_line(hung("mismatches")) == (
        "topout: no step for N s: the ranks wait in different collectives: rank 0 in all_reduce #26 (4 MB) "
        "at hangs.py:49 in mismatches, rank 1 in barrier #26 at hangs.py:49 in mismatches; stacks in hang"
    )


def test_a_rank_that_never_comes_is_missing_from_the_start(hung):
    assert first_line(hung("never_comes", waits_at_the_start)) == (
        "topout: no step yet, held up for N s: rank 1 on n2 (pid P) has not reached init_process_group, in which "
        "rank 0 waits; it sleeps at hangs.py:27 in load_shard; stacks in hang"
    )


def test_a_hang_in_a_group_of_its_own_names_the_group(hung):
    assert first_line(hung("leaves_a_group")) == (
        "topout: no step for N s: rank 1 on n2 (pid P) has not reached all_reduce #2 (1 kB) of group 1, in which "
        "rank 0 waits; it sleeps at hangs.py:27 in load_shard; stacks in hang"
    )


def test_a_rank_whose_interpreter_stands_still_does_not_answer(hung):
    assert first_line(hung("keeps_the_lock", named_after_s=6.0)) == (
        "topout: no step for N s: rank 1 on n2 (pid P) has not answered for N s (C code keeps Python's lock; "
        "last seen at hangs.py:L in LOOP), while rank 0 waits in all_reduce #26 (1 MB); stacks in hang"
    )


def test_a_killed_rank_is_no_hang(hung):
    job = hung("keeps_training", lambda job: job.page(1).num_steps > 20, named_after_s=1.0)
    job.ranks[1].send_signal(signal.SIGKILL)
    assert wait_for(lambda: job.ranks[0].poll() is not None)
    assert not job.watch(lambda: job.lines, 3.0), job.lines


def test_of_a_script_without_torch_only_a_stop_is_told(hung, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(1000)")
    job = hung("", lambda job: job.page(1).line, script=script, named_after_s=1.0)
    assert not job.watch(lambda: job.lines, 3.0)
    job.ranks[1].send_signal(signal.SIGSTOP)
    assert first_line(job) == (
        "topout: held up for N s: rank 1 on n2 (pid P) is stopped; last seen at train.py:2 in <module>; "
        "continue it with kill -CONT P; stacks in hang"
    )
