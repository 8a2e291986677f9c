"""A waterfall adds up, as computed and as printed, and gives each cause its own."""

import pytest

from topout.cli.main import call
from topout.study.description import put, read_job, read_system
from topout.study.simulate import Slow, simulate
from topout.study.waterfall import rounded, waterfall

JOB = read_job("resnet50-v100").value
SUMMIT = read_system("summit").value


def bars(job, nodes=64, slow=None):
    step = simulate(job, SUMMIT, nodes, steps=40, slow=slow).step
    return step, {bar.name: bar for bar in waterfall(step, job, SUMMIT, nodes, steps=40, slow=slow)}


def test_bars_add_up_to_the_step():
    step, found = bars(put(JOB, ("compute", "persistent"), 0.02))
    assert sum(bar.seconds for bar in found.values()) == pytest.approx(step.seconds, rel=1e-12)
    assert sum(bar.share for bar in found.values()) == pytest.approx(1)
    assert list(found.values())[-1].samples_per_s == pytest.approx(step.samples_per_s)


def test_spread_of_a_kind_counts_for_that_kind():
    _, found = bars(JOB)
    assert found["slow ranks, for good"].seconds == 0
    assert found["slow ranks, step by step"].seconds > 0
    _, found = bars(put(put(JOB, ("compute", "transient"), 0.0), ("compute", "persistent"), 0.02))
    assert found["slow ranks, for good"].seconds > 0
    assert found["slow ranks, step by step"].seconds == pytest.approx(0, abs=1e-6)


def test_one_slow_gpu_is_slow_for_good():
    job = put(JOB, ("compute", "transient"), 0.0)
    _, found = bars(job, slow=Slow(1, 1.5))
    # 342 ms alone, of which one of 384 ranks takes half as much again
    assert found["slow ranks, for good"].seconds == pytest.approx(0.5 * 0.342, rel=0.01)


def test_rounded_parts_add_up_to_the_rounded_sum():
    assert rounded([0.04, 0.04, 0.04], 1) == [0.1, 0.0, 0.0]
    assert rounded([33.333, 33.333, 33.334], 1) == [33.3, 33.3, 33.4]


def test_the_printed_waterfall_adds_up(capsys):
    asked = ["--system", "summit", "--nodes", "1,1024", "--steps", "20", "--waterfall"]
    assert call(["simulate", "resnet50-v100", *asked]) == 0
    block = capsys.readouterr().out.split("\n1,024 nodes ")[1]
    rows = [line for line in block.splitlines()[1:] if line.startswith("  ")]
    milliseconds, shares = ([float(line[26:].split()[column].replace(",", "")) for line in rows]
                            for column in (0, 1))  # fmt: skip
    # the last row is what is predicted
    assert sum(milliseconds[:-1]) == pytest.approx(milliseconds[-1], abs=1e-9)
    assert sum(shares[:-1]) == pytest.approx(100, abs=1e-9)
    assert shares[-1] == 100
