"""Each what-if changes what it must, by a figure that can be worked out by hand; and several go together."""

import json
from dataclasses import replace

import pytest

from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.description import Ranged, read_job, read_system
from topout.study.step_model import expected_step
from topout.study.what_if import apply

PLAIN = read_job("resnet50-v100").value
# 51.1 MB in one piece after backward, and nobody slower than the others
JOB = Ranged(
    replace(
        PLAIN,
        compute=replace(PLAIN.compute, transient=0.0),
        gradients=replace(PLAIN.gradients, groups=1, overlaps=False, negotiation="none"),
    ),
    {},
)
SUMMIT = Ranged(read_system("summit").value, {})


def step(*assignments, nodes=2, job=JOB):
    system = SUMMIT
    for assignment in assignments:
        job, system = apply(assignment, job, system)
    return expected_step(job.value, system.value, nodes)


def test_a_link_twice_as_wide_halves_what_travels_between_nodes():
    saved = step().parts["communication"] - step("between.bytes_per_s=25e9").parts["communication"]
    # two nodes, 1.8 links: 51.1 MB each way in all, by ring
    assert saved == pytest.approx(51.1e6 / 1.8 / 12.5e9 - 51.1e6 / 1.8 / 25e9, rel=1e-6)


def test_storage_of_all_servers_holds_all_nodes():
    found = step("input.source=shared", "input.sample_bytes=602112", nodes=4608)
    assert found.samples_per_s == pytest.approx(2.5e12 / 602112, rel=0.01)


def test_steps_that_are_asked_for_count_where_the_job_counts_samples():
    checkpoint = replace(PLAIN.checkpoint, bytes=1e9, bytes_per_s=1e9, every_samples=1e6)
    job = Ranged(replace(JOB.value, checkpoint=checkpoint), {})
    assert step(job=job).parts["checkpoint"] == pytest.approx(2 * 6 * 256 / 1e6)
    assert step("checkpoint.every_steps=100", job=job).parts["checkpoint"] == pytest.approx(1 / 100)


def test_buckets_are_as_many_as_their_size_makes():
    job, _ = apply("gradients.bucket_bytes=25e6", JOB, SUMMIT)
    # 51.1 MB in pieces of 25 MB
    assert job.value.gradients.groups == 3
    assert apply("gradients.bucket_bytes=1e12", JOB, SUMMIT)[0].value.gradients.groups == 1


def test_smaller_buckets_hide_all_but_the_last():
    overlapping = Ranged(replace(JOB.value, gradients=replace(JOB.value.gradients, overlaps=True)), {})
    whole = step(job=overlapping).parts["communication"]
    tenth = step("gradients.bucket_bytes=5.11e6", job=overlapping).parts["communication"]
    # a message inside a node and one between, which no size makes quicker
    messages_s = 5e-6 + 3e-6
    assert tenth == pytest.approx((whole - messages_s) / 10 + messages_s)


@pytest.mark.parametrize("text", ["0", "-1", "big", "inf"])
def test_a_bucket_has_a_size(text):
    with pytest.raises(TopoutError, match="bytes above 0"):
        apply(f"gradients.bucket_bytes={text}", JOB, SUMMIT)


@pytest.mark.parametrize("text", ["gradients.bucket_bytes=25", "gradients.groups=2e6"])
def test_gradients_do_not_travel_in_millions_of_groups(text):
    with pytest.raises(TopoutError, match="at most 10,000") as caught:
        apply(text, JOB, SUMMIT)
    assert ("unit is bytes" in str(caught.value)) == ("bucket_bytes" in text)


@pytest.mark.parametrize("link", ["inside", "between"])
def test_a_link_has_a_bandwidth(link):
    with pytest.raises(TopoutError, match="above 0"):
        apply(f"{link}.bytes_per_s=0", JOB, SUMMIT)
    # of storage 0 says that it is not known
    assert apply("shared_storage.bytes_per_s=0", JOB, SUMMIT)[1].value.shared_storage.bytes_per_s == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps 0 are none"),
        (["--seed=-1"], "--seed -1 is no seed"),
        (["--slow", "1xnan"], "slows nobody down"),
        (["--slow", "1xinf"], "slows nobody down"),
        (["--slow", "1x1e300"], "the factor between 1 and 1,000,000"),
        (["--steps", "100000000000"], "--steps 100000000000 are too many"),
        (["--what-if", "ranks_per_node=1e12"], "1,000,000,000,000 ranks are too many"),
        (["--what-if", "input.prefetch=1e18"], "It is at most 10,000"),
        (["--what-if", "compute.forward_s=1e308"], "cannot be computed"),
        (["--what-if", "compute.transient=1e308"], "cannot be computed"),
        (["--what-if", "gradients.bytes=1e308"], "cannot be computed"),
        # a rate of 0, and others are compared with it
        (
            (
                "--what-if evaluation.samples=9 --what-if evaluation.every_steps=1 "
                "--what-if evaluation.samples_per_s=1e-320"
            ).split(),
            "cannot be computed",
        ),
    ],
)
def test_numbers_that_cannot_be_simulated_are_explained(words, said, capsys):
    assert call(["simulate", "resnet50-v100", "--system", "summit", "--nodes", "1", *words]) == 2
    assert said in capsys.readouterr().err


def test_more_nodes_than_any_machine_has_are_not_simulated(capsys):
    words = ["--what-if", "nodes=1e15", "--nodes", "1..1000000000000000"]
    assert call(["simulate", "resnet50-v100", "--system", "summit", *words]) == 2
    said = capsys.readouterr().err
    assert "6,000,000,000,000,000 ranks are too many." in said and "do   --nodes 1..666666\n" in said


def test_a_job_scaled_to_a_device_is_not_warned_of(capsys):
    words = ["--system", "h100-pod", "--nodes", "1", "--steps", "5", "--device", "H200"]
    assert call(["simulate", "resnet50-v100", *words]) == 0
    assert "measured on" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "do"),
    [
        (["simulate", "--steps", "5"], "topout simulate --device 'H100' scales them."),
        (["plan", "--samples", "1e6"], "Calibrate a run on H100 SXM for those there."),
    ],
)
def test_another_device_is_warned_of_with_what_the_verb_can_do(verb, do, capsys):
    name, *words = verb
    assert call([name, "resnet50-v100", "--system", "h100-pod", "--nodes", "1", *words]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "measured on" in line]
    assert note.endswith(do)


def test_twice_the_batch_takes_twice_as_long_and_travels_as_often():
    plain, twice = step(), step("input.samples=512")
    assert twice.parts["compute"] == pytest.approx(2 * plain.parts["compute"])
    assert twice.parts["communication"] == pytest.approx(plain.parts["communication"])
    assert twice.samples == 2 * plain.samples
    # or less, where kernels were too small: 2^0.9
    job, _ = apply("input.samples=512", JOB, SUMMIT)
    low, high = job.ranges["compute", "backward_s"]
    assert low == pytest.approx(0.228 * 2**0.9)
    assert high == pytest.approx(0.228 * 2)


def test_half_the_batch_may_take_more_than_half_as_long():
    job, _ = apply("input.samples=128", JOB, SUMMIT)
    assert job.ranges["compute", "forward_s"] == pytest.approx((0.057, 0.114 * 0.5**0.9))


def test_several_changes_count_together(capsys):
    asked = ["--system", "summit", "--nodes", "2", "--steps", "20", "--json", "--what-if", "compute.transient=0",
             "--what-if", "input.samples=512", "--what-if", "between.bytes_per_s=25e9", "--slow", "1x1.5"]  # fmt: skip
    assert call(["simulate", "resnet50-v100", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    # 684 ms, and one of twelve ranks half as long again
    assert found["points"][0]["step_s"] == pytest.approx(0.684 * 1.5, rel=0.01)
    assert found["before"][0]["step"]["parts"]["compute"] == pytest.approx(0.342, rel=0.02)


def test_failures_are_drawn_over_a_training(capsys):
    asked = ["--system", "summit", "--nodes", "4608", "--steps", "20", "--failures", "30d",
             "--what-if", "checkpoint.bytes=50e9", "--what-if", "checkpoint.bytes_per_s=1e9",
             "--what-if", "checkpoint.every_steps=4000", "--what-if", "failures.restart_s=600"]  # fmt: skip
    assert call(["simulate", "resnet50-v100", *asked]) == 2
    assert "how often nodes fail" in capsys.readouterr().err
    assert call(["simulate", "resnet50-v100", *asked, "--what-if", "failures.node_hours=46080", "--json"]) == 0
    [training] = json.loads(capsys.readouterr().out)["trainings"]
    assert training["undisturbed_hours"] == 720
    assert training["low_hours"] < training["hours"] < training["high_hours"]
    assert training["hours"] == pytest.approx(training["expected_hours"], rel=0.005)
