"""Descriptions are checked where they are read, and every mistake names its place."""

import json

import numpy as np
import pytest

from topout.schema.errors import TopoutError
from topout.study.curve import curve, node_counts
from topout.study.description import Ranged, change, get, names, put, read_job, read_system
from topout.study.what_if import apply, on_device, slow_ranks

JOB = """
title = "mine"
[compute]
forward_s = 0.1
backward_s = {value = 0.2, low = 0.1, high = 0.3}
[gradients]
bytes = 1e6
tensors = 10
[input]
samples = 32
"""


def written(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", names("systems"))
def test_every_system_that_comes_along_can_be_read(name):
    assert read_system(name).value.nodes > 1


@pytest.mark.parametrize("name", names("jobs"))
def test_every_job_that_comes_along_can_be_read(name):
    assert read_job(name).value.compute.backward_s > 0


def test_a_range_is_kept_and_drawn_from(tmp_path):
    job = read_job(written(tmp_path, JOB))
    assert job.ranges == {("compute", "backward_s"): (0.1, 0.3)}
    random = np.random.default_rng(0)
    drawn = np.array([job.draw(random).compute.backward_s for _ in range(2000)])
    assert np.mean((drawn > 0.1) & (drawn < 0.3)) == pytest.approx(0.8, abs=0.03)


def draws(described):
    random = np.random.default_rng(0)
    return [described.draw(random) for _ in range(500)]


def test_a_whole_number_is_drawn_whole(tmp_path):
    ranged = "groups = {value = 8, low = 4, high = 16}\ntensors"
    few = JOB.replace("tensors", ranged).replace("samples = 32", "samples = {value = 2, low = 0, high = 3}")
    job = read_job(written(tmp_path, few))
    drawn = draws(job)
    groups, samples = ([get(one, path) for one in drawn] for path in (("gradients", "groups"), ("input", "samples")))
    assert {type(count) for count in (*groups, *samples)} == {int}
    assert min(samples) == 1 < max(samples)
    assert np.mean([4 <= count <= 16 for count in groups]) == pytest.approx(0.82, abs=0.05)
    assert curve(job, read_system("summit"), [2], steps=5)[0].low > 0


@pytest.mark.parametrize(
    ("path", "value"), [(("between", "bytes_per_s"), 25e9), (("shared_storage", "bytes_per_s"), 1e12), (("cores",), 8)]
)
def test_a_range_down_to_0_is_never_drawn_as_impossible_or_without_limit(path, value):
    system = Ranged(put(read_system("summit").value, path, value), {path: (0.0, 1.2 * value)})
    least = min(get(one, path) for one in draws(system))
    assert least == (pytest.approx(0.1 * value) if isinstance(value, float) else 1)
    assert curve(read_job("resnet50-v100"), system, [2], steps=5)[0].low >= 0


def test_what_was_measured_as_nothing_stays_so():
    job = Ranged(
        put(read_job("resnet50-v100").value, ("compute", "optimizer_s"), 0.0), {("compute", "optimizer_s"): (0, 0)}
    )
    assert {one.compute.optimizer_s for one in draws(job)} == {0.0}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("forward_s = 0.1", "foward_s = 0.1", ["compute.foward_s", "forward_s"]),
        ("forward_s = 0.1", "", ["compute.forward_s is missing"]),
        ("forward_s = 0.1", "forward_s = -1", ["compute.forward_s is -1", "above 0"]),
        ("forward_s = 0.1", "forward_s = '1 s'", ["compute.forward_s", "number"]),
        ("samples = 32", "samples = 0", ["input.samples is 0", "at least 1"]),
        ("samples = 32", "samples = 32\nsource = 'locl'", ["input.source = 'locl'", "local"]),
        ("tensors = 10", "tensors = 1.5", ["gradients.tensors is 1.5", "whole"]),
        ("low = 0.1, high = 0.3", "low = 0.3, high = 0.1", ["compute.backward_s", "between"]),
        ("low = 0.1, high = 0.3", "high = 0.3", ["compute.backward_s", "value, low and high"]),
        ("[compute]", "[compute", ["cannot be read"]),
        ("samples = 32", "samples = 1" + 30 * "0", ["input.samples is 1000", "below 2^63"]),
        ("forward_s = 0.1", "forward_s = 1" + 400 * "0", ["compute.forward_s is 1000", "number"]),
        ("high = 0.3", "high = 1" + 400 * "0", ["compute.backward_s", "value, low and high"]),
        ("forward_s = 0.1", "forward_s = " + 3000 * "[" + 3000 * "]", ["cannot be read"]),
    ],
)
def test_a_mistake_names_its_place_and_what_would_do(tmp_path, old, new, words):
    with pytest.raises(TopoutError) as caught:
        read_job(written(tmp_path, JOB.replace(old, new)))
    for word in words:
        assert word in str(caught.value)


def test_a_size_may_be_written_out_in_full(tmp_path):
    job = read_job(written(tmp_path, JOB.replace("bytes = 1e6", "bytes = 1" + 25 * "0")))
    assert job.value.gradients.bytes == 1e25


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(TopoutError, match=r"do   did you mean summit\?"):
        read_system("sumit")


def test_a_script_is_sent_to_be_run_first():
    with pytest.raises(TopoutError, match=r"do   topout run fit\.py, then topout calibrate"):
        read_job("fit.py")


def test_a_file_of_topout_s_without_a_job_is_sent_to_be_calibrated(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    for name, content in (("run.json", {"version": 1, "job": None}), ("analysis.json", {"version": 1})):
        (run / name).write_text(json.dumps(content))
        for read, what in ((read_job, "job"), (read_system, "system")):
            with pytest.raises(TopoutError) as caught:
                read(str(run / name))
            assert caught.value.problem == f"{run / name} holds no {what}."
            assert caught.value.do == f"topout calibrate '{run}', and name the run folder"
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(TopoutError, match=r"list\.json holds no job\.\n.*\n  do   topout calibrate RUN,"):
        read_job(str(tmp_path / "list.json"))


def test_a_what_if_changes_the_job_or_the_system():
    job, system = read_job("resnet50-v100"), read_system("summit")
    same_job, changed = apply("between.bytes_per_s=25e9", job, system)
    assert same_job is job
    assert changed.value.between.bytes_per_s == 25e9
    # no longer doubtful
    assert ("between", "bytes_per_s") not in changed.ranges
    changed_job, _ = apply("input.source=shared", job, system)
    assert changed_job.value.input.source == "shared"
    with pytest.raises(TopoutError, match="groups"):
        change(job, "gradients.group=3")


def test_another_device_scales_by_the_hardware_table():
    job = read_job("resnet50-v100")
    swapped = on_device(job, "H200")
    faster = job.value.compute.backward_s / swapped.value.compute.backward_s
    # 989 over 125 TFLOP/s and 4.8 over 0.9 TB/s
    assert faster == pytest.approx((989 / 125 * 4.8 / 0.9) ** 0.5, rel=0.05)
    low, high = swapped.ranges["compute", "backward_s"]
    assert low < get(swapped.value, ("compute", "backward_s")) < high


def test_another_device_keeps_what_was_doubtful_of_the_job():
    value = read_job("resnet50-v100").value
    backward_s = value.compute.backward_s
    path = ("compute", "backward_s")
    exact = on_device(Ranged(value, {}), "H200").ranges[path]
    doubtful = on_device(Ranged(value, {path: (0.9 * backward_s, 1.2 * backward_s)}), "H200").ranges[path]
    assert doubtful == pytest.approx((0.9 * exact[0], 1.2 * exact[1]))


def test_a_job_of_a_device_that_nobody_knows_is_not_scaled_to_one_that_all_know():
    job = Ranged(put(read_job("resnet50-v100").value, ("device",), "CPU"), {})
    with pytest.raises(TopoutError, match="cannot be scaled to H200") as caught:
        on_device(job, "H200")
    assert "It was measured on 'CPU'" in caught.value.why
    with pytest.raises(TopoutError, match="No device 'H2000'"):
        on_device(job, "H2000")


@pytest.mark.parametrize("text", ["3", "0x2", "1x0.5", "ax2"])
def test_slow_ranks_are_a_number_and_a_factor(text):
    with pytest.raises(TopoutError, match="RANKSxFACTOR"):
        slow_ranks(text)


def test_more_nodes_than_there_are_is_an_error():
    with pytest.raises(TopoutError, match="4,608"):
        curve(read_job("resnet50-v100"), read_system("summit"), [9999])


@pytest.mark.parametrize("text", ["4..1", "x", "1..", "1,,2"])
def test_words_that_are_no_node_counts_are_refused(text):
    with pytest.raises(TopoutError, match="no node counts"):
        node_counts(text)


def test_commands_in_errors_can_be_pasted(tmp_path):
    script, run = tmp_path / "my job.py", tmp_path / "my run"
    run.mkdir()
    for path, command in ((script, f"topout run '{script}', then"), (run, f"topout calibrate '{run}'")):
        with pytest.raises(TopoutError) as caught:
            read_job(str(path))
        assert caught.value.do.startswith(command)
