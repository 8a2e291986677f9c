"""Asked for the ranks it was calibrated on, the model says what was seen there."""

import json

import numpy as np
import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.cli.plan_work import look_into_run
from topout.schema.errors import TopoutError
from topout.schema.event import Kind
from topout.study.calibrate import calibrate
from topout.study.description import describe
from topout.study.devices import rank_devices
from topout.study.job import Gradients, Job
from topout.study.mesh_proposal import propose_each
from topout.study.scaling_runs import observe
from topout.study.step_model import expected_step
from topout.study.system import System
from topout.study.work import Work

MS = 1_000_000
BUCKET = 1 << 20


def predicted(found, nodes=1):
    job, system = describe(Job, found.job, "job").value, describe(System, found.system, "system").value
    return expected_step(job, system, nodes)


def accumulating(path, batches, **facts):
    """A step of 80 ms in so many batches of 32 samples; the first group leaves a quarter of the last backward."""
    step = StepPlan(forward=20 * MS, backward=40 * MS, optimizer=20 * MS, samples=32, batches=batches)
    plan = Plan(hosts=["n0"], facts={"batch_size": 32, "torch_version": "2.9", **facts})
    return build_run(path, [[step] * 40], plan).folder


def test_a_step_of_several_batches_has_the_samples_of_all(tmp_path):
    folder = accumulating(tmp_path / "run", 4)
    measures, _ = measure_run(folder)
    assert measures.step.batches_per_step == 4
    found = calibrate(folder)
    assert (found.job["input"]["samples"], found.job["input"]["batches"]) == (128, 4)
    assert predicted(found).samples_per_s == pytest.approx(measures.step.samples_per_s, rel=0.01)
    assert measure_run(accumulating(tmp_path / "one", 1))[0].step.batches_per_step == 1


def test_groups_of_the_last_of_several_backwards_come_late_in_all(tmp_path):
    gradients = {num: calibrate(accumulating(tmp_path / f"run{num}", num)).job["gradients"] for num in (1, 4)}
    assert gradients[1]["ready"] == [0.75, 1.0]
    assert gradients[4]["ready"] == [pytest.approx(1 - 0.25 / 4), 1.0]
    # the same for groups that a what-if makes: usually the first is ready after a fifth
    assert "first_ready" not in gradients[1]
    assert gradients[4]["first_ready"] == pytest.approx(1 - 0.8 / 4)


def test_plans_and_devices_count_the_samples_of_all_batches(tmp_path):
    folder = accumulating(tmp_path / "run", 4, device_name="Tesla V100-SXM2-32GB")
    (tmp_path / "run" / "calibration.json").write_text("{}")
    assert look_into_run(str(folder.path)).batch == observe(folder.path).batch == 128
    fits = {fit.device: fit for fit in rank_devices(measure_run(folder)[0])}
    assert fits["V100"].samples_per_s == pytest.approx(128 / 0.080, rel=0.01)


def test_a_job_that_ran_in_several_batches_fits_as_it_did(tmp_path):
    found = calibrate(accumulating(tmp_path / "run", 4, parameter_bytes=10**9, peak_device_bytes=12 * 10**9))
    job = found.job | {"memory": found.job["memory"] | {"device_bytes": 16e9}}
    # 10 GB of activations beside 2 GB of state; in one batch it would be 40
    work = Work(samples=1e6)
    assert propose_each(describe(Job, job, "job"), describe(System, found.system, "system"), [1], work) == {}


@pytest.mark.parametrize("alone", [False, True])
def test_evaluations_and_saves_count_once_where_ranks_waited_for_input(tmp_path, alone):
    def steps(serves):
        return [
            StepPlan(
                input=10 * MS,
                forward=3 * MS,
                backward=3 * MS,
                optimizer=MS,
                evaluation=serves * (number % 10 == 5) * 80 * MS,
                checkpoint=serves * (number % 20 == 9) * 40 * MS,
            )
            for number in range(120)
        ]

    plan = Plan(hosts=["n0", "n0"], facts={"num_workers": 2})
    folder = build_run(tmp_path / "run", [steps(True), steps(not alone)], plan).folder
    # 17 ms, an evaluation of 80 in ten steps and a save of 40 in twenty
    assert predicted(calibrate(folder)).seconds == pytest.approx(0.017 + 0.008 + 0.002, rel=0.05)


def test_batches_that_a_rank_makes_itself_hide_behind_nothing(tmp_path):
    step = StepPlan(input=10 * MS, forward=3 * MS, backward=3 * MS, optimizer=4 * MS)
    found = calibrate(build_run(tmp_path / "run", [[step] * 40], Plan(facts={"num_workers": 0})).folder)
    assert found.job["compute"]["forward_s"]["value"] == pytest.approx(0.013)
    assert "loader_samples_per_s" not in found.job["input"]
    assert any("num_workers=0" in note for note in found.notes)
    assert predicted(found).seconds == pytest.approx(0.020, rel=0.01)


def two_gpus(path, num_ranks=2):
    """A step of 100 ms, of which backward is 60 on the device, communication included."""
    step = StepPlan(forward=30 * MS, backward=60 * MS, optimizer=10 * MS)
    # what is seen are the gradients, in two groups
    facts = {"backend": "nccl", "device_total_bytes": 2**36, "gradient_bytes": 2 * BUCKET}
    plan = Plan(hosts=["n0"] * num_ranks, facts=facts)
    folder = build_run(path, [[step] * 30] * num_ranks, plan).folder
    rows = Rows()
    rows.names = ["", "all_reduce"]
    for number in range(30):
        for name, length in (("forward", 30), ("backward", 60), ("optimizer", 10)):
            rows.add(Kind.DEVICE, START_NS + 100 * MS * number, length * MS, name=name, ref=number)
    for rank in range(num_ranks):
        folder.events(rank).write_bytes(folder.events(rank).read_bytes() + b"".join(rows.blocks({})))
    return folder


def profiled(folder, rank, computing=80):
    """The rest of the time, 20 %, a device only communicates."""
    kernels = [("sgemm", 0, computing), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", computing - 1, 100)]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "pid": 0, "tid": tid,
         "args": {"device": 0, "stream": tid}}
        for tid, (name, start, end) in enumerate(kernels)
    ]  # fmt: skip
    folder.profile(rank).parent.mkdir(exist_ok=True)
    folder.profile(rank).write_text(json.dumps({"traceEvents": events}))


def test_communication_inside_a_device_s_backward_is_said_or_taken_off(tmp_path):
    folder = two_gpus(tmp_path / "run")
    found = calibrate(folder)
    assert found.job["compute"]["backward_s"]["value"] == pytest.approx(0.060)
    assert any("holds communication that nothing hid" in note and "--profile" in note for note in found.notes)
    for rank in range(2):
        profiled(folder, rank)
    found = calibrate(folder)
    assert found.job["compute"]["backward_s"]["value"] == pytest.approx(0.040)
    assert not any("nothing hid" in note for note in found.notes)
    step = predicted(found)
    assert step.parts["communication"] == pytest.approx(0.020, rel=0.02)
    assert step.seconds == pytest.approx(0.100, rel=0.02)


def adding_up_a_loss(path, *, on_device):
    """Two ranks; the script all-reduces 4 bytes a step, and of DDP's own 100 MB nothing is heard."""
    step = StepPlan(forward=30 * MS, backward=60 * MS, optimizer=10 * MS)
    facts = {"backend": "nccl" if on_device else "gloo", "gradient_bytes": 100_000_000}
    folder = build_run(path, [[step] * 30] * 2, Plan(num_buckets=0, facts=facts)).folder
    rows = Rows()
    rows.names = ["", "all_reduce"]
    for number in range(30):
        at_ns = START_NS + 100 * MS * number
        rows.add(Kind.COLLECTIVE, at_ns + 95 * MS, 10, name="all_reduce", value=4, ref=number)
        for name, length in (("forward", 30), ("backward", 60), ("optimizer", 10)) if on_device else ():
            rows.add(Kind.DEVICE, at_ns, length * MS, name=name, ref=number)
    for rank in range(2):
        folder.events(rank).write_bytes(folder.events(rank).read_bytes() + b"".join(rows.blocks({})))
    return folder


@pytest.mark.parametrize("on_device", [True, False], ids=["on devices", "arrivals lost"])
def test_a_loss_that_is_added_up_is_not_taken_for_the_gradients(tmp_path, on_device):
    found = calibrate(adding_up_a_loss(tmp_path / "run", on_device=on_device))
    gradients = found.job["gradients"]
    assert (gradients["bytes"], gradients["groups"]) == (100e6, Gradients.groups)
    assert any("all of them (100,000,000 bytes) are taken to" in note for note in found.notes)


def test_without_a_doctor_a_link_of_devices_carries_all_gradients(tmp_path):
    folder = adding_up_a_loss(tmp_path / "run", on_device=True)
    for rank in range(2):
        profiled(folder, rank)
    found = calibrate(folder)
    assert predicted(found).parts["communication"] == pytest.approx(0.020, rel=0.02)
    # 12.5 MB of the last of eight groups, and what of the others was late, in a fifth of a step of 100 ms
    assert found.system["inside"]["bytes_per_s"]["value"] > 12.5e6 / 0.020


def all_reduce(link_class, bytes_per_s):
    return {"link_class": link_class, "operation": "all-reduce", "num_ranks": 2, "alpha_s": 1e-6,
            "beta_bytes_per_s": bytes_per_s}  # fmt: skip


@pytest.mark.parametrize("bytes_per_s", [1e8, 1e12], ids=["near", "far too fast"])
def test_with_a_doctor_what_was_taken_off_backward_comes_back(tmp_path, bytes_per_s):
    folder = two_gpus(tmp_path / "run")
    for rank in range(2):
        profiled(folder, rank)
    found = calibrate(folder, {"links": [all_reduce("within a host", bytes_per_s)]})
    assert predicted(found).seconds == pytest.approx(0.100, rel=0.02)


def test_something_is_left_of_a_backward_that_communicates_nearly_always(tmp_path):
    folder = two_gpus(tmp_path / "run")
    for rank in range(2):
        profiled(folder, rank, computing=5)
    compute = calibrate(folder).job["compute"]
    assert compute["backward_s"]["value"] == pytest.approx(0.003)
    assert compute["forward_s"]["value"] == pytest.approx(0.0015)


def test_one_device_holds_no_communication(tmp_path):
    assert not any("nothing hid" in note for note in calibrate(two_gpus(tmp_path / "run", 1)).notes)


def shown(path, transfer_ns, backward=40, num_ranks=4):
    step = StepPlan(forward=20 * MS, backward=backward * MS, optimizer=MS, samples=32)
    hosts = [f"n{rank}" for rank in range(num_ranks)]
    plan = Plan(transfer_ns=transfer_ns, num_buckets=8, bucket_bytes=BUCKET, hosts=hosts)
    return build_run(path, [[step] * 40] * num_ranks, plan).folder


@pytest.mark.parametrize("shown_ms", [1, 3, 30])
def test_without_a_doctor_a_link_shows_what_was_seen_of_it(tmp_path, shown_ms):
    found = calibrate(shown(tmp_path / "run", shown_ms * MS))
    assert predicted(found, 4).parts["communication"] == pytest.approx(shown_ms / 1e3, rel=0.01)
    assert found.system["between"] == found.system["inside"]
    rate = found.system["between"]["bytes_per_s"]
    assert (rate["low"], rate["high"]) == (rate["value"] / 2, rate["value"] * 2)


def test_a_link_is_no_faster_than_what_hid_behind_backward_lets_it_be(tmp_path):
    # eight groups of 1 MiB, of which only the last shows: 1.5 times each byte in 2 ms, not 8 MiB
    found = calibrate(shown(tmp_path / "run", 2 * MS))
    assert found.system["between"]["bytes_per_s"]["value"] == pytest.approx(1.5 * BUCKET / 2e-3, rel=0.1)


def test_where_nearly_nothing_shows_a_link_has_a_lower_bound_alone(tmp_path):
    found = calibrate(shown(tmp_path / "run", MS // 10))
    rate = found.system["between"]["bytes_per_s"]
    assert any(f"only known that it gives {rate['low'] / 1e9:.2g} GB/s or more" in note for note in found.notes)
    assert rate["value"] >= 3 * rate["low"] and rate["high"] == 3 * rate["value"]
    # a link of the lower bound would have shown more than was seen, and a hundredth of a step at most
    slow = found.system | {name: found.system[name] | {"bytes_per_s": rate["low"]} for name in ("inside", "between")}
    exposed = predicted(type(found)(found.job, slow), 4).parts["communication"]
    assert 0.0001 < exposed < 0.0102 * 0.061


def test_of_a_link_beside_one_that_explains_all_nothing_is_made_up(tmp_path):
    step = StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)
    plan = Plan(transfer_ns=3 * MS, num_buckets=8, bucket_bytes=BUCKET, hosts=["n0", "n0", "n1", "n1"])
    folder = build_run(tmp_path / "run", [[step] * 40] * 4, plan).folder
    found = calibrate(folder, {"links": [all_reduce("within a host", 1e8)]})
    assert any("tell nothing of the other" in note for note in found.notes)
    assert found.system["between"]["bytes_per_s"]["value"] < 1e10


def test_a_step_that_asks_two_loaders_has_the_samples_of_both(tmp_path):
    step = StepPlan(forward=20 * MS, backward=40 * MS, optimizer=20 * MS, samples=64)
    folder = build_run(tmp_path / "run", [[step] * 40], Plan(facts={"batch_size": 448})).folder
    rows = Rows()
    rows.names = ["", "all_reduce"]
    for number in range(40):
        rows.add(Kind.INPUT, START_NS + 80 * MS * number + 10, 10, value=448, ref=number)
    folder.events(0).write_bytes(folder.events(0).read_bytes() + b"".join(rows.blocks({})))
    measures, _ = measure_run(folder)
    assert (measures.step.batches_per_step, measures.step.samples_per_step) == (1, 512)
    assert measures.rank_samples_per_step == 512
    assert calibrate(folder).job["input"]["samples"] == 512


def tensor_parallel(path, samples=32, name="tp", **facts):
    """Two groups of four ranks that work on the same samples; a step of 80 ms, of which peers are waited for 10."""
    step = StepPlan(forward=30 * MS, backward=40 * MS, optimizer=10 * MS, samples=samples)
    groups = [{"5": {"name": name, "ranks": [0, 1, 2, 3]}}, {"6": {"name": name, "ranks": [4, 5, 6, 7]}}]
    plan = Plan(hosts=["n0"] * 8, facts={"batch_size": samples, **facts})
    folder = build_run(path, [[step] * 40] * 8, plan).folder
    for rank in range(8):
        (group,) = groups[rank // 4]
        rows = Rows()
        rows.names = ["", "all_reduce"]
        for number in range(40):
            rows.add(Kind.PEERS, START_NS + (80 * number + 10) * MS, 10 * MS, name=f"all_reduce@{group}", ref=number)
        told = {"mesh_groups": groups[rank // 4]}
        folder.events(rank).write_bytes(folder.events(rank).read_bytes() + b"".join(rows.blocks(told)))
    return folder


def test_peers_of_a_mesh_have_their_samples_once(tmp_path):
    folder = tensor_parallel(tmp_path / "run")
    measures, _ = measure_run(folder)
    assert measures.tensor_parallel.share == pytest.approx(1 / 8, rel=0.01)
    found = calibrate(folder)
    assert found.job["input"]["samples"] == 8
    assert any("4 ranks worked on the same 32 samples" in note for note in found.notes)
    step = predicted(found)
    assert step.samples == 64
    assert step.seconds == pytest.approx(0.080, rel=0.02)
    assert step.samples_per_s == pytest.approx(measures.step.samples_per_s, rel=0.02)


def test_the_batch_of_a_plan_has_the_samples_of_peers_once(tmp_path):
    folder = tensor_parallel(tmp_path / "run")
    (folder.path / "calibration.json").write_text("{}")
    assert look_into_run(str(folder.path)).batch == 64


def test_fewer_samples_than_peers_cannot_be_divided_among_them(tmp_path):
    with pytest.raises(TopoutError, match="The 2 samples of a step do not divide among 4 ranks"):
        calibrate(tensor_parallel(tmp_path / "run", samples=2))


def test_activations_of_a_sample_are_those_of_all_ranks_that_hold_a_part_of_it(tmp_path):
    facts = {"parameter_bytes": 10**9, "gradient_bytes": 10**9, "peak_device_bytes": 10 * 10**9}
    memory = calibrate(tensor_parallel(tmp_path / "run", name="cp", **facts)).job["memory"]
    # 8 GB beside the state, of a quarter of each of 32 samples
    assert memory["activation_bytes"] == pytest.approx(1e9)


def test_links_that_the_doctor_measured_are_not_said_to_be_unknown(tmp_path):
    link = {"link_class": "within a host", "operation": "all-reduce", "num_ranks": 2, "alpha_s": 2e-4,
            "beta_bytes_per_s": 1e9}  # fmt: skip
    steps = [StepPlan(forward=MS, backward=MS)] * 20
    notes = calibrate(build_run(tmp_path / "run", [steps]).folder, {"links": [link]}).notes
    assert not any("was not seen, and no link measured" in note for note in notes)


def test_ranks_that_held_parts_of_the_model_do_not_say_what_the_whole_takes(tmp_path):
    steps = [StepPlan(forward=MS, backward=MS)] * 20
    facts = {"parameter_bytes": 10**9, "is_sharded": True}
    folder = build_run(tmp_path / "run", [steps] * 2, Plan(hosts=["n0", "n0"], facts=facts)).folder
    assert measure_run(folder)[0].memory.is_sharded
    found = calibrate(folder)
    assert found.job["memory"] == {}
    assert any("Ranks held parts of the model" in note for note in found.notes)


def test_rates_of_many_ranks_with_spread_are_found_again(tmp_path):
    random = np.random.default_rng(0)
    ranks = [
        [StepPlan(forward=int(20 * MS * pace), backward=int(40 * MS * pace), optimizer=MS) for pace in paces]
        for paces in 1 + 0.05 * random.standard_normal((4, 60))
    ]
    plan = Plan(transfer_ns=3 * MS, hosts=[f"n{rank}" for rank in range(4)])
    found = calibrate(build_run(tmp_path / "run", ranks, plan).folder)
    assert predicted(found, 4).parts["communication"] == pytest.approx(0.003, rel=0.02)
