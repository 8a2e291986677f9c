"""A description made from a recording says what was recorded, and its intervals hold for what was not."""

import json

import numpy as np
import pytest

from tests.tables import START_NS, TRAINING_LOADER, Plan, Rows, StepPlan, build_run
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.schema.event import Kind
from topout.schema.run_folder import RUN_VERSION, RunFolder
from topout.study.bootstrap import ranged_rate
from topout.study.calibrate import calibrate
from topout.study.curve import curve
from topout.study.description import describe
from topout.study.doctor_links import doctor_links
from topout.study.job import Job
from topout.study.step_model import expected_step
from topout.study.system import System

MS = 1_000_000
LINK = {
    "link_class": "between hosts", "operation": "all-reduce", "num_ranks": 2, "alpha_s": 2e-4,
    "beta_bytes_per_s": 1e9, "beta_interval_bytes_per_s": [0.9e9, 1.1e9],
}  # fmt: skip


def recorded(
    path, *, num_ranks=4, num_steps=60, forward=20, backward=40, transient=0.05, persistent=0.0, transfer_ns=MS, seed=0
):
    random = np.random.default_rng(seed)
    speeds = 1 + persistent * random.standard_normal(num_ranks)
    ranks = []
    for rank in range(num_ranks):
        paces = speeds[rank] * (1 + transient * random.standard_normal(num_steps))
        ranks.append(
            [
                StepPlan(
                    forward=int(forward * pace * MS),
                    backward=int(backward * pace * MS),
                    optimizer=int(pace * MS),
                    samples=32,
                )
                for pace in paces
            ]
        )
    hosts = [f"n{rank}" for rank in range(num_ranks)]
    return build_run(path, ranks, Plan(transfer_ns=transfer_ns, hosts=hosts)).folder


def test_times_and_spread_of_a_recording_are_found_again(tmp_path):
    found = calibrate(recorded(tmp_path / "run", num_steps=300), {"links": [LINK]})
    compute = found.job["compute"]
    assert compute["forward_s"]["value"] == pytest.approx(0.020, rel=0.02)
    assert compute["backward_s"]["low"] <= 0.040 <= compute["backward_s"]["high"] * 1.01
    assert compute["transient"]["value"] == pytest.approx(0.05, rel=0.1)
    assert compute["persistent"]["value"] < 0.01
    assert found.job["calibrated_nodes"] == 4


def test_a_rank_that_is_slower_for_good_is_persistent_spread(tmp_path):
    found = calibrate(recorded(tmp_path / "run", num_ranks=8, persistent=0.1, transient=0.01, num_steps=50))
    assert found.job["compute"]["persistent"]["value"] > 5 * found.job["compute"]["transient"]["value"]


def test_links_are_the_doctors_where_the_run_hides_its_transfers(tmp_path):
    found = calibrate(recorded(tmp_path / "run", transfer_ns=0), {"links": [LINK]})
    # an all-reduce of two moves each byte once, in two messages; 80 % of a normal lie within 0.78 of where 90 % do
    assert found.system["between"]["bytes_per_s"] == pytest.approx(
        {"value": 1e9, "low": 0.9221e9, "high": 1.0779e9}, rel=1e-4
    )
    assert found.system["between"]["latency_s"] == pytest.approx(1e-4, rel=0.05)


def test_a_link_that_is_no_line_has_the_rate_of_its_largest_message(tmp_path):
    bent = LINK | {"worst_error_share": 0.5, "largest_bytes_per_s": 0.7e9}
    found = calibrate(recorded(tmp_path / "run", transfer_ns=0), {"links": [bent]})
    assert found.system["between"]["bytes_per_s"] == pytest.approx(
        {"value": 0.7e9, "low": 0.7e9, "high": 1.0779e9}, rel=1e-4
    )


@pytest.mark.parametrize("seen_ms", [1.0, 2.5])
def test_links_are_as_fast_as_the_job_s_own_transfers(tmp_path, seen_ms):
    found = calibrate(recorded(tmp_path / "run", transfer_ns=int(seen_ms * MS)), {"links": [LINK]})
    job, system = describe(Job, found.job, "job").value, describe(System, found.system, "system").value
    assert expected_step(job, system, 4).parts["communication"] == pytest.approx(seen_ms / 1e3, rel=0.02)
    # all of the link by one factor
    doctors = doctor_links({"links": [LINK]}, [])["between hosts"]
    assert system.between.latency_s / doctors["latency_s"] == pytest.approx(1e9 / system.between.bytes_per_s)


def test_a_link_is_made_twice_as_slow_at_most(tmp_path):
    found = calibrate(recorded(tmp_path / "run", transfer_ns=50 * MS), {"links": [LINK]})
    assert found.system["between"]["bytes_per_s"]["value"] == pytest.approx(0.5e9)
    assert any("2 times as long" in note for note in found.notes)


def test_what_messages_cost_the_processors_is_the_doctors(tmp_path):
    busy = LINK | {"link_class": "within a host", "cpu_alpha_s": 4e-4, "cpu_s_per_byte": 5e-10}
    hosts = [{"limits": {"num_cores": 8, "cpu_limit": 4.0}}, {"limits": {"num_cores": 8}}]
    found = calibrate(recorded(tmp_path / "run"), {"links": [busy], "hosts": hosts})
    assert found.system["inside"]["message_cpu_s"] == 2e-4
    assert found.system["inside"]["byte_cpu_s"] == 5e-10
    assert found.system["cores"] == 4


def test_groups_are_as_large_and_as_early_as_they_were_seen(tmp_path):
    gradients = calibrate(recorded(tmp_path / "run")).job["gradients"]
    # the builder's first of two buckets comes a quarter of backward before its end
    assert gradients["groups"] == 2
    assert gradients["ready"] == pytest.approx([0.75, 1.0], abs=1e-3)
    assert gradients["shares"] == [0.5, 0.5]


def test_evaluations_and_saves_cost_what_each_was_seen_to_take(tmp_path):
    steps = [
        StepPlan(forward=MS, backward=MS, optimizer=MS, evaluation=(number % 10 == 5) * (90 + number) * MS,
                 checkpoint=(number % 20 == 9) * 40 * MS)
        for number in range(60)
    ]  # fmt: skip
    folder = build_run(tmp_path / "run", [steps, steps], Plan(transfer_ns=MS, hosts=["n0", "n1"])).folder
    job = calibrate(folder).job
    evaluation, checkpoint = job["evaluation"], job["checkpoint"]
    # after the steps that warm up: 105 to 145 ms every ten steps, on both ranks at once
    assert evaluation["every_steps"] in (9, 10, 11)
    seconds = evaluation["samples"] / evaluation["samples_per_s"]["value"] / 2
    assert 0.110 < seconds < 0.135
    assert evaluation["samples_per_s"]["low"] < evaluation["samples_per_s"]["value"]
    assert evaluation["is_sharded"]
    assert checkpoint["bytes"] / checkpoint["bytes_per_s"]["value"] == pytest.approx(0.040, rel=0.01)


def paused(path, ranks, epoch=60, begins=(Kind.LOADER, Kind.INPUT), facts=None, every=10, ago=3, **plan):
    """Sixty steps of 32 samples a rank; `ranks` evaluate and save for so many ms each before `every` so many.

    The loader begins anew every `epoch` steps, with a row of these kinds, so many ms ago when the step ends.
    """
    plain = {"forward": MS, "backward": MS, "optimizer": MS, "samples": 32}
    steps = [
        [
            StepPlan(**plain, evaluation=is_due * evaluation * MS, checkpoint=is_due * checkpoint * MS)
            for is_due in (number % every == every - 1 for number in range(60))
        ]
        for evaluation, checkpoint in ranks
    ]
    facts = {"batch_size": 32} | (facts or {})
    built = build_run(path, steps, Plan(hosts=["n0"] * len(ranks), facts=facts, **plan))
    rows = Rows()
    rows.names = ["", "all_reduce"]
    for number in range(epoch - 1, 60, epoch):
        # 3: where its forward begins, after what it evaluates and saves
        for kind in begins:
            rows.add(kind, int(built.ends_ns[0, number]) - ago * MS, value=0, ref=TRAINING_LOADER)
    built.folder.events(0).write_bytes(built.folder.events(0).read_bytes() + b"".join(rows.blocks({})))
    return built.folder


@pytest.mark.parametrize(
    ("epoch", "every"),
    [
        (10, {"every_samples": 10 * 64}),
        (5, {"every_samples": 10 * 64}),
        (20, {"every_samples": 10 * 64}),
        (7, {"every_steps": 10}),
        (60, {"every_steps": 10}),
    ],
    ids=["each epoch", "each second epoch", "twice an epoch", "not with epochs", "within one epoch"],
)
def test_what_comes_with_epochs_is_counted_in_samples(tmp_path, epoch, every):
    job = calibrate(paused(tmp_path / "run", [(20, 50), (20, 0)], epoch)).job
    for pause in (job["evaluation"], job["checkpoint"]):
        found = {name: value for name, value in pause.items() if name.startswith("every")}
        assert found == pytest.approx(every, rel=0.15)


def test_one_of_many_that_meets_the_beginning_of_an_epoch_does_so_by_chance(tmp_path):
    job = calibrate(paused(tmp_path / "run", [(20, 50)], 40, every=4)).job
    assert job["checkpoint"]["every_steps"] == 4


def test_a_loader_that_begins_inside_of_an_evaluation_begins_no_epoch(tmp_path):
    job = calibrate(paused(tmp_path / "run", [(20, 0)], 10, ago=8)).job
    assert job["evaluation"]["every_steps"] == 10


@pytest.mark.parametrize(
    ("epoch", "evaluation_by", "every", "seconds"),
    [
        (10, "loader", {"every_samples": 10 * 64 * 20}, 0.020 * 20),
        (10, "row", {"every_samples": 10 * 64 * 20}, 0.020),
        (7, "loader", {"every_steps": 10}, 0.020 * 20),
    ],
    ids=["a loader evaluates", "no loader evaluates", "not with epochs"],
)
def test_epochs_and_evaluations_of_shortened_loaders_are_as_much_longer(tmp_path, epoch, evaluation_by, every, seconds):
    short = {"evaluation_by": evaluation_by, "run": {"spec": {"data_share": 0.05}}}
    found = calibrate(paused(tmp_path / "run", [(20, 50), (20, 0)], epoch, **short))
    evaluation, checkpoint = found.job["evaluation"], found.job["checkpoint"]
    for pause in (evaluation, checkpoint):
        assert {name: pause[name] for name in pause if name.startswith("every")} == pytest.approx(every, rel=0.15)
    assert evaluation["samples"] / evaluation["samples_per_s"]["value"] / 2 == pytest.approx(seconds, rel=0.01)
    # a save writes as much as ever
    assert checkpoint["bytes"] / checkpoint["bytes_per_s"]["value"] == pytest.approx(0.050, rel=0.01)
    notes = " ".join(found.notes)
    assert ("is taken to come 20 times as seldom" in notes) == ("every_samples" in every)
    assert ("are taken to last 20 times as long" in notes) == (evaluation_by == "loader")


def test_a_loader_that_was_only_tried_feeds_no_evaluation(tmp_path):
    """`next(iter(loader))` before training, for a summary of the model."""
    short = {"evaluation_by": "row", "run": {"spec": {"data_share": 0.05}}}
    folder = paused(tmp_path / "run", [(20, 0)], 10, **short)
    rows = Rows()
    rows.names = [""]
    for kind in (Kind.LOADER, Kind.INPUT):
        rows.add(kind, START_NS - 5 * MS, value=0, ref=TRAINING_LOADER + 1)
    folder.events(0).write_bytes(folder.events(0).read_bytes() + b"".join(rows.blocks({})))
    assert not any("Evaluations had" in note for note in calibrate(folder).notes)


def test_loaders_that_a_share_left_whole_are_taken_as_they_came(tmp_path):
    run = {"spec": {"data_share": 0.05}}
    whole = {"notes": ["--data-share needs a loader with a length"]}
    found = calibrate(paused(tmp_path / "whole", [(20, 50), (20, 0)], 10, facts=whole, run=run))
    assert found.job["checkpoint"]["every_samples"] == pytest.approx(10 * 64, rel=0.15)
    assert any("--data-share 0.05 left a loader whole" in note for note in found.notes)
    # iterators of Keras, which it does not shorten
    found = calibrate(paused(tmp_path / "keras", [(20, 50), (20, 0)], 10, begins=(Kind.INPUT,), run=run))
    assert found.job["checkpoint"]["every_samples"] == pytest.approx(10 * 64, rel=0.15)
    assert not any("--data-share" in note for note in found.notes)


@pytest.mark.parametrize(
    ("ranks", "is_sharded", "seconds"),
    [
        ([(20, 50), (20, 0)], True, 0.020),
        ([(20, 0), (0, 0)], False, 0.020),
        ([(20, 0), (0, 50)], False, 0.020),
    ],
    ids=["all evaluate, one saves", "one evaluates", "one evaluates, another saves"],
)
def test_who_evaluates_is_told_by_evaluations_alone(tmp_path, ranks, is_sharded, seconds):
    evaluation = calibrate(paused(tmp_path / "run", ranks)).job["evaluation"]
    assert evaluation["is_sharded"] == is_sharded
    together = evaluation["samples_per_s"]["value"] * (2 if is_sharded else 1)
    assert evaluation["samples"] / together == pytest.approx(seconds)


def test_of_one_rank_nobody_can_tell_whether_evaluations_are_shared(tmp_path):
    alone, together = (calibrate(paused(tmp_path / str(num), [(20, 0)] * num)) for num in (1, 2))
    assert not alone.job["evaluation"]["is_sharded"]
    assert [("is not known of a run of one" in " ".join(found.notes)) for found in (alone, together)] == [True, False]


def unseen(path, length_ns):
    """Thirty steps of JAX that the script marks: nothing tells forward from backward."""
    path.mkdir()
    folder = RunFolder(path)
    rows = Rows()
    for step in range(30):
        rows.add(Kind.STEP, START_NS + step * length_ns, length_ns, ref=step)
    folder.run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished"}))
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01", "jax_version": "0.10.2"})))
    return folder


def test_the_rate_of_two_evaluations_far_apart_is_not_unknown():
    found = ranged_rate(np.array([10.0, 3.0]), 130.0, np.random.default_rng(0))
    # 6.5 s on average, between 3 and 10; of the rates themselves the range would reach 0, which costs nothing
    assert found == pytest.approx({"value": 20.0, "low": 13.0, "high": 130 / 3})
    alike = ranged_rate(np.array([0.1, 0.1, 0.1]), 1.0, np.random.default_rng(0))
    assert alike["low"] <= alike["value"] <= alike["high"]


def test_cores_that_a_rank_kept_busy_are_those_of_its_counters(tmp_path):
    step = StepPlan(forward=20 * MS, backward=29 * MS, optimizer=MS)
    # 0.6 s on processors in a second, and as much of a worker's: 1.2 cores; computing takes all of a step
    grown = [(at * 100 * MS, at * 60 * MS) for at in range(40)]
    plan = Plan(hosts=["n0"], counters={"cpu_ns": grown, "worker_cpu_ns": grown})
    found = calibrate(build_run(tmp_path / "run", [[step] * 60], plan).folder)
    assert found.job["compute"]["cores"] == pytest.approx(1.2, rel=0.01)
    assert "backward_cores" not in found.job["compute"]


def test_cores_of_backward_are_those_of_its_calls_without_what_messages_need(tmp_path):
    step = StepPlan(forward=20 * MS, backward=29 * MS, optimizer=MS, backward_cpu=25 * MS)
    # 0.6 s on processors in a second: 30 ms of a step of 50, 25 of them in backward; and 0.1 cores of a worker
    counters = {"cpu_ns": [(at * 100 * MS, at * 60 * MS) for at in range(40)],
                "worker_cpu_ns": [(at * 100 * MS, at * 10 * MS) for at in range(40)]}  # fmt: skip
    folder = build_run(tmp_path / "run", [[step] * 60] * 2, Plan(hosts=["n0", "n0"], counters=counters)).folder
    compute = calibrate(folder).job["compute"]
    assert compute["cores"] == pytest.approx(0.1 + 5 / 21, rel=0.02)
    assert compute["backward_cores"] == pytest.approx(0.1 + 25 / 29, rel=0.02)
    # two groups, two messages each way of 1 ms: 4 ms that computing does not need
    link = LINK | {"link_class": "within a host", "cpu_alpha_s": 2e-3, "cpu_s_per_byte": 0.0}
    compute = calibrate(folder, {"links": [link], "hosts": [{"limits": {"num_cores": 8}}]}).job["compute"]
    assert compute["backward_cores"] == pytest.approx(0.1 + 21 / 29, rel=0.02)


def test_storage_that_many_hosts_share_is_told_from_a_disk(tmp_path):
    def place(kind):
        measured = {"read_bytes_per_s": 2e9, "opens_per_s": 500.0, "num_hosts": 2, "free_bytes": 9}
        return {"hosts": [{"places": [{"purpose": "data", "file_system": kind, **measured}]}]}

    shared = calibrate(recorded(tmp_path / "run"), place("lustre"))
    assert shared.system["shared_storage"] == {"bytes_per_s": 4e9, "client_bytes_per_s": 2e9, "opens_per_s": 1000.0}
    assert any("what all servers give" in note for note in shared.notes)
    assert calibrate(recorded(tmp_path / "other"), place("ext4")).system["local_storage"]["bytes_per_s"] == 2e9


def test_what_was_not_seen_is_said(tmp_path):
    notes = calibrate(recorded(tmp_path / "run")).notes
    assert any("Nobody waited for input" in note for note in notes)


def test_few_steps_are_refused(tmp_path):
    with pytest.raises(TopoutError, match="too few steps"):
        calibrate(recorded(tmp_path / "run", num_steps=5))


def test_a_run_that_does_not_compute_is_refused(tmp_path, capsys):
    folder = build_run(tmp_path / "run", [[StepPlan(input=MS)] * 12]).folder
    rows = Rows()
    for step in range(12):
        rows.add(Kind.EVALUATION, START_NS + step * MS, MS)
        rows.add(Kind.STEP, START_NS + step * MS, MS, ref=step)
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    assert call(["calibrate", str(folder.path)]) == 2
    problem, why, do = capsys.readouterr().err.splitlines()
    assert "shows no computing to calibrate from" in problem
    assert "evaluation" in why and "topout analyze" in do


def test_intervals_hold_for_numbers_of_nodes_that_were_not_measured(tmp_path):
    """20 machines whose true step is known, one point each; of an 80 % interval 12 or more hold with 99 in 100."""
    inside = 0
    for seed in range(20):
        random = np.random.default_rng(100 + seed)
        truth = {"forward": random.uniform(10, 40), "backward": random.uniform(20, 80),
                 "transient": random.uniform(0.02, 0.1)}  # fmt: skip
        folder = recorded(tmp_path / f"run{seed}", num_steps=40, seed=seed, **truth)
        found = calibrate(folder, {"links": [LINK]}, seed=seed)
        job, system = describe(Job, found.job, "job"), describe(System, found.system, "system")
        exact = found.job | {"compute": {"forward_s": truth["forward"] / 1e3, "backward_s": truth["backward"] / 1e3,
                                         "optimizer_s": 1e-3, "transient": truth["transient"]}}  # fmt: skip
        real = describe(Job, exact, "truth").value
        (point,) = curve(job, system, [(8, 16, 64, 256)[seed % 4]], seed=seed)
        inside += point.low <= expected_step(real, system.value, point.nodes).samples_per_s <= point.high
    assert inside >= 12


def test_a_calibration_is_what_simulate_takes(tmp_path, capsys):
    folder = recorded(tmp_path / "run")
    (tmp_path / "doctor.json").write_text(json.dumps({"links": [LINK | {"largest_bytes_per_s": 1e9}]}))
    assert call(["calibrate", str(folder.path), "--doctor", str(tmp_path / "doctor.json")]) == 0
    written = str(folder.path / "calibration.json")
    assert call(["simulate", written, "--system", written, "--nodes", "1,4,64", "--steps", "20"]) == 0
    captured = capsys.readouterr()
    assert "64" in captured.out
    # sixteen times the four hosts it was recorded on
    assert "sample_bytes" not in captured.err
    assert "16 times the 4" in captured.err


@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_a_step_that_is_one_function_is_split_as_usual_and_simulate_takes_it(tmp_path, capsys, framework):
    if framework == "jax":
        folder = unseen(tmp_path / "run", 90 * MS)
    else:
        steps = [StepPlan(backward=90 * MS)] * 30
        folder = build_run(tmp_path / "run", [steps], Plan(num_buckets=0, facts={"keras_backend": "jax"})).folder
    assert call(["calibrate", str(folder.path)]) == 0
    written = folder.path / "calibration.json"
    compute = json.loads(written.read_text())["job"]["compute"]
    assert (compute["forward_s"]["value"], compute["backward_s"]["value"]) == pytest.approx((0.030, 0.060))
    assert "Forward was not told from backward" in capsys.readouterr().err
    assert call(["simulate", str(written), "--system", str(written), "--nodes", "1,2", "--steps", "20"]) == 0


def test_storage_that_would_cost_nothing_is_said(tmp_path, capsys):
    folder = recorded(tmp_path / "run")
    assert call(["calibrate", str(folder.path)]) == 0
    written = str(folder.path / "calibration.json")
    words = ["simulate", written, "--system", written, "--nodes", "1,2", "--what-if", "input.source=shared"]
    assert call(words) == 0
    assert "input.sample_bytes is 0: reading costs nothing" in capsys.readouterr().err


def test_a_file_that_is_no_diagnosis_is_refused(tmp_path, capsys):
    folder = recorded(tmp_path / "run")
    (tmp_path / "x.json").write_text("[]")
    assert call(["calibrate", str(folder.path), "--doctor", str(tmp_path / "x.json")]) == 2
    assert "no diagnosis" in capsys.readouterr().err


def test_seconds_of_a_processor_are_not_taken_for_a_gpu_s_without_a_word(tmp_path, capsys):
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    told = build_run(tmp_path / "told", [steps], Plan(facts={"torch_version": "2.9"})).folder
    for folder, words in (
        (told, "measured on CPU, and"),
        (recorded(tmp_path / "untold"), "does not say what it was measured on, and"),
    ):
        assert call(["calibrate", str(folder.path)]) == 0
        written = str(folder.path / "calibration.json")
        capsys.readouterr()
        assert call(["simulate", written, "--system", "summit", "--nodes", "1", "--steps", "20"]) == 0
        assert f"{words} Summit" in capsys.readouterr().err
        assert call(["simulate", written, "--system", written, "--nodes", "1", "--steps", "20"]) == 0
        assert "not scaled" not in capsys.readouterr().err


def test_a_calibration_that_cannot_be_written_is_said(tmp_path, capsys):
    folder = recorded(tmp_path / "run")
    assert call(["calibrate", str(folder.path), "--out", str(tmp_path / "absent" / "x.json")]) == 2
    assert "There is no folder" in capsys.readouterr().err
    assert call(["calibrate", str(folder.path), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "calibration.json").is_file()
    (folder.path / "calibration.json").mkdir()
    assert call(["calibrate", str(folder.path)]) == 2
    assert "do   --out calibration.json" in capsys.readouterr().err
