"""Speed-up, efficiency and what bends a curve, from runs whose truth is known."""

import json
from importlib.resources import files

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.scaling import study
from topout.study.scaling_runs import Batch, observe

MS = 1_000_000


def recorded(path, ranks, *, compute=30, transfer=0, samples=32, late=0, script="train.py", threads=1):
    """Each rank computes so many ms a step; the last one `late` ms more; the wire takes `transfer` ms."""
    steps = [
        [
            StepPlan(forward=compute // 3 * MS, backward=(compute - compute // 3 + late * (rank == ranks - 1)) * MS,
                     input=MS, optimizer=MS, samples=samples)
            for _ in range(20)
        ]
        for rank in range(ranks)
    ]  # fmt: skip
    facts = {"batch_size": samples, "num_threads": threads}
    built = build_run(path, steps, Plan(transfer_ns=transfer * MS, facts=facts, run={"spec": {"script": script}}))
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


def test_a_rank_that_is_late_shows_as_balance(tmp_path):
    found = study([observe(recorded(tmp_path / str(n), n, late=30 * (n > 1))) for n in (1, 4)], "weak")
    assert found.bends == "load balance"


def test_ranks_that_share_the_same_cores_are_told(tmp_path):
    found = study([observe(recorded(tmp_path / str(n), n, compute=15 * n, threads=2 // n)) for n in (1, 2)])
    assert any("1 ranks 2 each, 2 ranks 1 each" in note for note in found.notes)
    assert found.bends == "computation"


def test_the_knee_is_where_doubling_stops_to_pay(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=wire)) for n, wire in ((1, 0), (2, 4), (4, 60))]
    assert study(runs, "weak").knee == 2


def test_laws_are_fitted_where_there_is_a_point_of_one_rank(tmp_path):
    runs = [observe(recorded(tmp_path / str(n), n, transfer=n - 1)) for n in (1, 2, 4)]
    forecasts = study(runs, "weak").forecasts
    # 33 ms at two, 35 at four: PMNF's linear term says 39 at eight
    assert forecasts["PMNF"][8] == pytest.approx(8 * 32 / 0.039, rel=0.03)
    assert study(runs[1:], "weak").forecasts == {}


@pytest.mark.parametrize(
    ("runs", "mode", "words"),
    [
        ([{"ranks": 2}, {"ranks": 2}], "weak", "1 number of ranks"),
        ([{"ranks": 1}, {"ranks": 2, "script": "other.py"}], "weak", "2 scripts"),
        ([{"ranks": 1}, {"ranks": 2, "samples": 16}], "weak", "does not follow weak"),
        ([{"ranks": 1}, {"ranks": 2}], "strong", "does not follow strong"),
    ],
)
def test_runs_that_make_no_curve_are_refused(tmp_path, runs, mode, words):
    observed = [observe(recorded(tmp_path / str(number), **run)) for number, run in enumerate(runs)]
    with pytest.raises(TopoutError, match=words):
        study(observed, mode)


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "no numbers of ranks"),
        (["--ranks", "1", "train.py"], "no numbers of ranks"),
        (["--ranks", "1,2", "--mode", "both", "train.py"], "strong or weak"),
        (["--ranks", "1,2", "--batch", "32", "train.py"], "--batch stands alone"),
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
