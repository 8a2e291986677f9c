"""`topout scale` as typed: whose option is whose, and what an error says to do is about the verb that was typed."""

import os
from dataclasses import replace

import pytest

from tests.report.study_samples import bent_scaling, scaled
from tests.submit.test_job_script import program
from topout.cli.main import call
from topout.cli.scale_words import FLAGS, delimit_script
from topout.study.largest_batch import Trial

WORDS = ["scale", "--submit", "--dry-run", "--ranks", "1,2", "--per-node", "1"]


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    (tmp_path / "site.toml").write_text("[site]\n")
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("TOPOUT_SITE", str(tmp_path / "site.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("typed", "delimited"),
    [
        ("--ranks 1,2 --ddp train.py --steps 3", "--ranks 1,2 --ddp -- train.py --steps 3"),
        ("--batch-arg --batch-size --batch=8 train.py", "--batch-arg --batch-size --batch=8 -- train.py"),
        ("--json -- -odd.py --json", "--json -- -odd.py --json"),
        ("bin --json", "bin --json"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_what_follows_the_script_is_the_scripts(tmp_path, typed, delimited):
    (tmp_path / "bin").mkdir()
    assert delimit_script(typed.split()) == delimited.split()


def test_every_option_without_a_value_is_known_as_such():
    from topout.cli.app import app

    arguments = app["scale"].assemble_argument_collection()
    without_value = {name for argument in arguments if argument.hint is bool for name in argument.names}
    assert without_value == FLAGS - {"-h", "--help", "--version"}


@pytest.mark.parametrize("argument", ["x" * 300, "closed/inside"])
def test_arguments_of_the_script_are_not_looked_at_as_paths(tmp_path, capsys, monkeypatch, argument):
    def refused(path, *rest, **options):
        """As the kernel does for anybody but root, who runs these tests in places."""
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **options)

    real = os.stat
    monkeypatch.setattr(os, "stat", refused)
    (tmp_path / "topout.toml").write_text('[site]\nscheduler = "slurm"\n')
    assert call([*WORDS, "--time", "1h", "train.py", argument]) == 0
    assert argument in capsys.readouterr().out


def test_a_word_that_is_too_long_for_a_path_is_no_run_folder(capsys):
    assert call(["scale", "x" * 300]) == 2
    assert f"There is no {'x' * 300}." in capsys.readouterr().err


def test_two_schedulers_are_told_apart_by_a_file_since_scale_has_no_option_for_it(tmp_path, capsys):
    for name in ("sbatch", "flux"):
        program(tmp_path / "bin" / name, "#!/bin/bash\n")
    assert call([*WORDS, "--time", "1h", "train.py"]) == 2
    said = capsys.readouterr().err
    assert 'write scheduler = "slurm" under [site] in topout.toml' in said and "topout scale again" in said
    assert "topout submit" not in said
    (tmp_path / "topout.toml").write_text('[site]\nscheduler = "slurm"\n')
    assert call([*WORDS, "--time", "1h", "train.py"]) == 0


def test_without_a_scheduler_the_study_can_run_here(capsys):
    assert call([*WORDS, "--time", "1h", "train.py"]) == 3
    assert "run it here: topout scale without --submit" in capsys.readouterr().err


def test_a_time_is_asked_for_in_the_words_of_the_verb(tmp_path, capsys):
    (tmp_path / "topout.toml").write_text('[site]\nscheduler = "slurm"\n')
    assert call([*WORDS, "train.py"]) == 2
    assert "do   topout scale --submit --time 2h …" in capsys.readouterr().err


def efficiency_band(found):
    """Low and high of each point, as many times its efficiency."""
    (section,) = (section for section in scaled(found).sections if section.key == "strong-efficiency")
    measured = section.content[0].lines[-1]
    return [
        edge / value for edges in (measured.low, measured.high) for edge, value in zip(edges, measured.y, strict=True)
    ]


def test_an_efficiency_is_as_doubtful_as_both_of_its_rates_and_the_first_is_exact():
    found = bent_scaling()
    first, *others = found.points
    # 3 % at one rank and 4 % at the others are 5 % of their ratio
    points = [replace(first, low=0.97 * first.samples_per_s, high=1.03 * first.samples_per_s), *others]
    assert efficiency_band(replace(found, points=points)) == pytest.approx([1, 0.95, 0.95, 0.95, 1, 1.05, 1.05, 1.05])
    # what the reference is uncertain by is not known: then neither is the ratio
    alone = replace(first, num_runs=1, low=first.samples_per_s, high=first.samples_per_s)
    assert efficiency_band(replace(found, points=[alone, *others])) == [1] * 8


@pytest.fixture
def batches_run(monkeypatch):
    """Of each point that would have run. Trials stand in for runs of a script with 640 samples."""
    found = {}

    def trial(_ended, size):
        return Trial(fits=size <= 640, bound="data")

    def run(_place, points, *_):
        found.update({(point.ranks, point.batch): None for point in points})
        return []

    monkeypatch.setattr("topout.cli.scale.start_run", lambda *_: None)
    monkeypatch.setattr("topout.cli.scale.judge", trial)
    monkeypatch.setattr("topout.cli.scale._Place.run", run)
    return found


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ([], [(1, 320), (2, 320)]),
        (["--mode", "weak"], [(1, 320), (2, 320)]),
        (["--mode", "strong"], [(1, 640), (2, 320)]),
        (["--mode", "both"], [(1, 320), (2, 320), (2, 160)]),
    ],
)
def test_the_largest_batch_of_few_data_is_one_that_all_ranks_have(batches_run, capsys, mode, points):
    call(["scale", "--ranks", "1,2", *mode, "--batch", "largest", "train.py"])
    assert list(batches_run) == points
    said = capsys.readouterr().err
    assert "Largest batch of a rank on 1 rank: 640, bound by data" in said
    assert ("For weak scaling: 320, since 2 ranks share the same data" in said) == (mode != ["--mode", "strong"])


def test_data_that_do_not_give_every_rank_a_sample_are_refused_before_a_point_runs(batches_run, capsys):
    assert call(["scale", "--ranks", "1,641", "--mode", "weak", "--batch", "largest", "train.py"]) == 2
    assert not batches_run
    assert "641 ranks have no sample each" in capsys.readouterr().err
