"""Speed-up, efficiency and what bends a curve, from runs whose truth is known."""

import json
from dataclasses import replace
from importlib.resources import files
from statistics import stdev

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.scaling import study
from topout.study.scaling_runs import Batch, observe

MS = 1_000_000


def recorded(
    path,
    ranks,
    *,
    compute=30,
    transfer=0,
    samples=32,
    late=0,
    script="train.py",
    threads=1,
    status="finished",
    peak=None,
    job=None,
    input=1,
    evaluation=0,
    trailing=0,
):
    """Each rank computes so many ms a step; the last one `late` ms more; the wire takes `transfer` ms.

    Before each step they evaluate for `evaluation` ms, after the last one for `trailing`.
    """
    steps = [
        [
            StepPlan(forward=compute // 3 * MS, backward=(compute - compute // 3 + late * (rank == ranks - 1)) * MS,
                     input=input * MS, optimizer=MS, evaluation=evaluation * MS, samples=samples)
            for _ in range(20)
        ]
        for rank in range(ranks)
    ]  # fmt: skip
    facts = {"batch_size": samples, "num_threads": threads, **({"peak_resident_bytes": peak} if peak else {})}
    run = {"spec": {"script": script}, "status": status, "exit_code": int(status != "finished"), "job": job}
    tail = [trailing * MS] * ranks
    plan = Plan(transfer_ns=transfer * MS, facts=facts, run=run, trail_evaluation_ns=tail)
    built = build_run(path, steps, plan)
    return built.folder.path


def test_runs_that_lose_nothing_scale_perfectly(tmp_path):
    found = study([observe(recorded(tmp_path / str(n), n)) for n in (1, 2, 4)], "weak")
    assert [point.efficiency for point in found.points] == pytest.approx([1, 1, 1], abs=0.01)
    assert [point.speedup for point in found.points] == pytest.approx([1, 2, 4], abs=0.04)
    assert found.bends is None
    assert found.knee is None


def test_a_wire_that_takes_longer_with_every_rank_bends_the_curve(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=10 * (n - 1))) for n in (1, 2, 4)]
    found = study(runs, "weak")
    assert found.bends == "communication efficiency"
    # a step of 32 ms, then 42 and 62
    assert found.points[-1].efficiency == pytest.approx(32 / 62, abs=0.02)
    assert found.points[-1].phases_s["transfer"] == pytest.approx(0.030, abs=0.002)


def test_no_interval_reaches_below_zero(tmp_path):
    """Two runs of one point, one ten times as long as the other."""
    runs = [observe(recorded(tmp_path / f"{n}-{ms}", n, compute=ms)) for n, ms in ((1, 30), (1, 300), (2, 30))]
    first = study(runs, "weak").points[0]
    assert first.low == 0.0 < first.samples_per_s < first.high


def test_a_rank_that_is_late_shows_as_balance(tmp_path):
    found = study([observe(recorded(tmp_path / str(n), n, late=30 * (n > 1))) for n in (1, 4)], "weak")
    assert found.bends == "load balance"


def test_ranks_that_share_the_same_cores_are_told(tmp_path):
    found = study([observe(recorded(tmp_path / str(n), n, compute=15 * n, threads=2 // n)) for n in (1, 2)])
    assert any("1 rank 2 each, 2 ranks 1 each" in note for note in found.notes)
    assert found.bends == "computation"


@pytest.mark.parametrize(
    ("mode", "first", "last", "bends"),
    [
        ("weak", {"input": 1}, {"input": 31}, "input"),
        ("weak", {"evaluation": 2}, {"evaluation": 40}, "evaluation and saving"),
        ("weak", {"compute": 30}, {"compute": 90, "input": 20}, "computation"),
        # computing takes 18 ms more and input 15: together more than the wire's 32, and each less
        ("weak", {}, {"compute": 48, "input": 16, "transfer": 32}, "communication efficiency"),
        # of 60 ms that become 15, as they should, 20 of input stay
        ("strong", {"compute": 60, "input": 20}, {"compute": 15, "input": 20}, "input"),
        ("strong", {"compute": 60, "evaluation": 20}, {"compute": 15, "evaluation": 20}, "evaluation and saving"),
        ("strong", {"compute": 60, "evaluation": 4}, {"compute": 45, "evaluation": 4}, "computation"),
    ],
)
def test_of_what_pop_calls_useful_the_phase_that_does_not_scale_is_named(tmp_path, mode, first, last, bends):
    samples = 32 if mode == "weak" else 8
    runs = [recorded(tmp_path / "1", 1, **first), recorded(tmp_path / "4", 4, samples=samples, **last)]
    assert study([observe(run) for run in runs], mode).bends == bends


def test_an_evaluation_after_the_last_step_is_part_of_what_the_phases_add_up_to(tmp_path):
    """Twenty steps of 32 ms and one evaluation of 200: 10 ms a step of twenty."""
    runs = [observe(recorded(tmp_path / str(n), n, trailing=200)) for n in (1, 2)]
    window = runs[0].measures.window
    point = study(runs, "weak").points[0]
    assert point.phases_s["evaluation"] * window.num_steps == pytest.approx(0.2)
    assert point.phases_s["backward"] == pytest.approx(0.020)
    assert sum(point.phases_s.values()) == pytest.approx(point.step_s) == pytest.approx(0.032 + 0.2 / window.num_steps)
    assert point.samples_per_s == pytest.approx(32 / point.step_s)


@pytest.mark.parametrize(("counts", "unseen"), [((1, 4), 4), ((2, 4), 2)])
def test_nothing_is_said_to_bend_a_curve_where_communication_was_not_seen(tmp_path, counts, unseen):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=10 * (n - 1))) for n in counts]
    runs = [replace(run, measures=replace(run.measures, pop=None)) for run in runs]
    found = study(runs, "weak")
    assert found.points[-1].efficiency < 0.95
    assert found.bends is None and found.is_bend_unseen
    assert any(f"communication was not seen at {unseen} ranks" in n for n in found.notes)


def test_one_rank_needs_no_communication_to_be_compared_with(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=10 * (n - 1))) for n in (1, 4)]
    found = study([replace(runs[0], measures=replace(runs[0].measures, pop=None)), runs[1]], "weak")
    assert found.bends == "communication efficiency" and not found.is_bend_unseen


@pytest.mark.parametrize(("num_runs", "quantile"), [(3, 1.886), (10, 1.383), (11, 1.372), (31, 1.310), (1001, 1.282)])
def test_intervals_are_student_s_however_many_runs(tmp_path, num_runs, quantile):
    runs = [observe(recorded(tmp_path / f"{n}-{ms}", n, compute=ms)) for n, ms in ((1, 30), (1, 36), (2, 30))]
    alike = [replace(runs[number % 2], name=str(number)) for number in range(num_runs)]
    point = study([*alike, runs[2]], "weak").points[0]
    spread = stdev(run.samples_per_s for run in alike)
    assert (point.high - point.samples_per_s) * num_runs**0.5 / spread == pytest.approx(quantile, abs=0.001)


def test_the_knee_is_where_doubling_stops_to_pay(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=wire)) for n, wire in ((1, 0), (2, 4), (4, 60))]
    assert study(runs, "weak").knee == 2


def test_laws_are_fitted_where_there_is_a_point_of_one_rank(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=n - 1)) for n in (1, 2, 4, 8)]
    found = study(runs, "weak")
    # 33 ms at two, 35 at four, 39 at eight: PMNF's linear term says 47 at sixteen
    assert found.forecasts["PMNF"][16] == pytest.approx(16 * 32 / 0.047, rel=0.03)
    assert found.errors["PMNF"] < 0.001 < found.errors["constant efficiency"]
    assert study(runs[1:], "weak").forecasts == {}


def test_laws_with_as_many_numbers_as_points_are_left_out_and_said(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=n - 1)) for n in (1, 2, 4)]
    three = study(runs, "weak")
    assert three.parameters == {"constant efficiency": 2, "Amdahl": 2}
    assert any("points (3) or more: USL (3), PMNF (3), step model (3)" in note for note in three.notes)
    assert study(runs[:2], "weak").forecasts == {}


def test_the_step_model_follows_a_ring_that_others_cannot(tmp_path):
    """A ring of n ranks sends 2 (n-1)/n of the gradients: what does not hide behind backward levels off."""
    wire = {1: 0, 2: 40, 4: 60, 8: 70}
    runs = [observe(recorded(tmp_path / str(n), n, transfer=ms)) for n, ms in wire.items()]
    found = study(runs, "weak")
    # 75 ms more at sixteen: 107 in all
    assert found.forecasts["step model"][16] == pytest.approx(16 * 32 / 0.107, rel=0.08)
    assert found.errors["step model"] < 0.08 < found.errors["Amdahl"]
    assert found.parameters["step model"] == 3


def test_the_step_model_has_more_of_a_serial_evaluation_in_a_step_of_more_ranks(tmp_path):
    """Each epoch of a batch that grows has fewer steps; the same evaluation is 4 ms of a step, then 8, 16 and 32."""
    runs = [observe(recorded(tmp_path / str(n), n, evaluation=4 * n)) for n in (1, 2, 4, 8)]
    found = study(runs, "weak")
    assert [point.serial_s for point in found.points] == pytest.approx([0.004, 0.008, 0.016, 0.032], rel=0.05)
    assert found.forecasts["step model"][32] == pytest.approx(32 * 32 / (0.032 + 0.128), rel=0.03)
    assert found.errors["step model"] < 0.01


def test_fewer_samples_a_second_on_more_ranks_are_told_with_the_interval(tmp_path):
    def runs(spread):
        return [
            observe(recorded(tmp_path / f"{spread}-{n}-{repeat}", n, compute=base + spread * repeat))
            for n, base in ((1, 30), (2, 80))
            for repeat in range(3)
        ]

    (note,) = [note for note in study(runs(1), "weak").notes if "slower" in note]
    # 32 to 34 ms for 32 samples; 82 to 84 for 64
    assert "2 ranks were slower than 1: 771." in note
    assert "more than the spread" in note
    (note,) = [note for note in study(runs(15), "weak").notes if "slower" in note]
    assert "within the spread" in note
    (note,) = [note for note in study(runs(1)[::3], "weak").notes if "slower" in note]
    assert "single runs" in note


def test_more_than_a_linear_speed_up_is_questioned(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, compute=60 // n)) for n in (1, 2)]
    # 62 ms against 32
    assert any("2 ranks are 1.94 times as efficient as 1" in note for note in study(runs, "weak").notes)


def test_a_run_that_failed_is_left_out_and_said(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n)) for n in (1, 2)]
    failed = observe(recorded(tmp_path / "4", 4, status="failed"))
    found = study([*runs, failed], "weak")
    assert [point.ranks for point in found.points] == [1, 2]
    assert "4 (4 ranks) failed with code 1 and is left out." in found.notes


def test_each_point_says_how_much_memory_its_ranks_held(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, peak=n * 1_000_000)) for n in (1, 2)]
    points = study(runs, "weak").points
    assert [(point.peak_bytes, point.is_device_memory) for point in points] == [(1_000_000, False), (2_000_000, False)]


@pytest.mark.parametrize(
    ("runs", "mode", "words"),
    [
        ([{"ranks": 2}, {"ranks": 2}], "weak", "1 number of ranks"),
        ([{"ranks": 1}, {"ranks": 2, "script": "other.py"}], "weak", "2 scripts"),
        ([{"ranks": 1}, {"ranks": 2, "samples": 16}], "weak", "does not follow weak"),
        ([{"ranks": 1}, {"ranks": 2}], "strong", "does not follow strong"),
        ([{"ranks": 1, "samples": 16}, {"ranks": 1}, {"ranks": 2}], "weak", "1 rank of 16, 1 rank of 32, 2 ranks"),
        (
            [{"ranks": 1}, {"ranks": 2, "status": "failed"}],
            "weak",
            "Fewer than two numbers",
        ),
    ],
)
def test_runs_that_make_no_curve_are_refused(tmp_path, runs, mode, words):
    observed = [observe(recorded(tmp_path / str(number), **run)) for number, run in enumerate(runs)]
    with pytest.raises(TopoutError, match=words):
        study(observed, mode)


@pytest.mark.parametrize("mode", ["weak", "both"])
@pytest.mark.parametrize(
    ("changed", "why", "do", "code"),
    [
        ({"status": "failed"}, "2 (2 ranks) failed with code 1", "topout run -n RANKS SCRIPT", 4),
        ({"status": "running"}, "2 (2 ranks) is still running", "topout watch RUN", 2),
        ({"samples": 0}, "2 (2 ranks) gave no throughput", "a DataLoader or topout.Loader", 2),
    ],
)
def test_runs_that_gave_no_throughput_are_named_with_what_to_do(tmp_path, capsys, mode, changed, why, do, code):
    folders = [str(recorded(tmp_path / "1", 1)), str(recorded(tmp_path / "2", 2, **changed))]
    assert call(["scale", "--mode", mode, *folders]) == code
    said = capsys.readouterr().err
    assert "Fewer than two numbers of ranks gave a throughput for a scaling study.\n" in said
    assert f"why  {why} and is left out.\n" in said and do in said


def test_the_mode_is_found_out_from_the_batches(tmp_path):
    strong = [observe(recorded(tmp_path / f"s{n}", n, samples=64 // n)) for n in (1, 2)]
    weak = [observe(recorded(tmp_path / f"w{n}", n)) for n in (1, 2)]
    assert (study(strong).mode, study(weak).mode) == ("strong", "weak")


def test_strong_scaling_keeps_the_batch_of_all_ranks(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, compute=60 // n, samples=64 // n)) for n in (1, 2, 4)]
    found = study(runs, "strong")
    assert found.points[-1].speedup == pytest.approx(62 / 17, abs=0.1)


def test_run_folders_can_be_given(tmp_path, capsys):
    folders = [str(recorded(tmp_path / str(n), n, transfer=5 * (n - 1))) for n in (1, 2)]
    assert call(["scale", *folders]) == 0
    text = capsys.readouterr().out
    assert "weak scaling" in text
    assert "What bends it   communication efficiency" in text
    assert call(["scale", "--json", *folders]) == 0
    assert [point["ranks"] for point in json.loads(capsys.readouterr().out)["points"]] == [1, 2]


def test_no_number_of_the_tables_is_cut_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folders = [str(recorded(tmp_path / str(n), n, peak=n * 2**20)) for n in (1, 2, 4)]
    assert call(["scale", *folders]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(" memory"))
    assert [line.split()[-3:] for line in lines[at + 1 : at + 4]] == [["1.00", f"{n}.00", "MiB"] for n in (1, 2, 4)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "There are no numbers of ranks"),
        (["runs/nowhere-1", "runs/nowhere-2"], "There is no runs/nowhere-1"),
        (["--ranks", "1", "train.py"], "--ranks 1 is one number of ranks.\n  why  There are two at least"),
        (["--ranks", "1.5", "train.py"], "'1.5' is not a whole number above 0."),
        (["--ranks", "0,1", "train.py"], "'0' is not a whole number above 0."),
        (["--ranks", "-1,2", "train.py"], "'-1' is not a whole number above 0."),
        (["--ranks", "4,2,x", "train.py"], "'x' is not a whole number above 0."),
        (["--ranks", ",", "train.py"], "A number is missing."),
        (["--nodes", "1.5", "train.py"], "topout scale has no --nodes."),
        (["--ranks", "1,2", "--repeet", "3", "train.py"], "Unknown option: --repeet. Did you mean --repeats?"),
        (["--ranks", "1,2", "--mode", "wide", "train.py"], "strong, weak or both"),
        (["--ranks", "1,2", "--mode", "both", "train.py"], "--mode both needs a batch"),
        (["--ranks", "1,2", "--batch-arg", "--b", "train.py"], "--batch-arg stands alone"),
        (["--ranks", "1,2", "--batch", "many", "train.py"], "a number of samples, or largest"),
        (["--ranks", "1,2", "--batch", "0", "train.py"], "one sample at least"),
        (["--ranks", "1,2", "--batch", "8", "--batch-of", "all", "train.py"], "--batch-of all stands alone"),
        (["--ranks", "1,2", "--repeats", "0", "train.py"], "once at least"),
        (["--ranks", "1,2", "--steps", "0", "train.py"], "--steps 0 is not possible.\n  why  it must be at least 1"),
        (["--ranks", "1,2", "--per-node", "0", "train.py"], "--per-node 0 is not possible."),
        (["--ranks", "1,2", "--per-node", "-4", "train.py"], "--per-node -4 is not possible."),
        (["--ranks", "1,2", "--submit", "--per-node", "-4", "train.py"], "--per-node -4 is not possible."),
        (["--ranks", "1,2,4", "--per-node", "2", "train.py"], "4 ranks do not fit on this host."),
        (["--ranks", "1,2", "--time", "1h", "train.py"], "--time does nothing here"),
        (["--ranks", "1,2", "--submit", "--batch", "largest", "train.py"], "cannot be found from here"),
        (["--ranks", "1,3", "--mode", "strong", "--batch-arg", "--b", "--batch", "32", "x.py"], "does not divide"),
        ([], "nothing to scale"),
        (["--ranks", "1,2", "nosuch.py"], "There is no script nosuch.py"),
    ],
)
def test_words_that_do_not_fit_are_explained(words, said, capsys):
    assert call(["scale", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "counts", "words"),
    [
        ("strong", "rank", ["64", "32"]),
        ("strong", "all", ["64", "64"]),
        ("weak", "rank", ["64", "64"]),
        (None, "all", ["64", "128"]),
    ],
)
def test_the_batch_follows_the_mode_whatever_the_script_counts(mode, counts, words):
    batch = Batch(64, "--batch-size", counts)
    assert [batch.words(count, 1, mode)[1] for count in (1, 2)] == words


def test_a_script_is_run_at_every_point(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = str(files("topout.recipes").joinpath("digits.py"))
    words = ["--ranks", "1,2", "--repeats", "1", "--steps", "12", "--runs", str(tmp_path / "runs")]
    assert call(["scale", *words, digits]) == 0
    captured = capsys.readouterr()
    # digits.py divides its batch among the ranks
    assert "strong scaling" in captured.out
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 2
    assert "Fewer than three runs" in captured.err
