"""`topout simulate` as typed: what is missing is named with its meaning, and a what-if without effect is said."""

import json
import re
from dataclasses import replace

import pytest

from tests.conftest import REPOSITORY
from tests.report.study_samples import simulated
from topout.cli.main import call
from topout.cli.simulate_page import Simulation, simulate_page

WORDS = ["simulate", "resnet50-v100", "--system", "summit", "--nodes", "1,2", "--steps", "5"]


def what_if(capsys, *changes):
    assert call([*WORDS, *(word for change in changes for word in ("--what-if", change))]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note    ")]


@pytest.mark.parametrize("change", ["evaluation.is_sharded=true", "input.samples=256", "nodes=4608"])
def test_a_change_to_what_is_so_already_is_said(capsys, change):
    assert what_if(capsys, change) == [f"Note    --what-if {change} changes nothing: it is so already."]


def test_a_value_that_only_loses_its_range_is_said(capsys):
    change = "between.bytes_per_s=12.5e9"
    assert what_if(capsys, change) == [f"Note    --what-if {change} is the value already; only its range is left out."]


def test_a_change_that_the_job_has_no_use_for_is_said(capsys):
    # it evaluates nothing, sharded or not
    (note,) = what_if(capsys, "evaluation.is_sharded=false")
    assert note.startswith("Note    What was changed has no effect")


def test_more_slow_ranks_than_there_are_is_said(capsys):
    assert call([*WORDS, "--slow", "7x2"]) == 0
    assert "--slow names 7 ranks: where there are fewer, up to 6 here, all" in capsys.readouterr().err


def test_a_change_that_shows_needs_no_word(capsys):
    assert what_if(capsys, "between.bytes_per_s=1e9") == []
    assert what_if(capsys) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("simulate resnet50-v100", ["topout simulate needs --system.", "why  --system: A system of topout's"]),
        ("simulate resnet50-v100 --system", ["--system needs a value.", "why  --system: A system of topout's"]),
        ("simulate resnet50-v100 --sytem summit", ["topout simulate needs --system. Did you mean --system instead of"]),
        ("simulate --system summit", ["topout simulate needs JOB.", "why  JOB: A job of topout's"]),
        ("analyze run extra", ["'extra' is more than topout analyze takes.", "why  it takes RUN beside its options"]),
        ("plan x --system summit --samples abc", ["--samples abc is not a number.", "why  --samples: Samples in one"]),
        ("data bench pack --seconds 0", ["--seconds 0 is no time."]),
        ("data bench pack --seconds nan", ["--seconds nan is no time."]),
        ("data head", ["topout data head needs PATH.", "why  PATH: A pack.", "do   topout data head --help"]),
    ],
)
def test_what_does_not_fit_is_named_with_its_meaning(capsys, words, says):
    assert call(words.split()) == 2
    said = capsys.readouterr().err
    assert [line[:7] for line in said.splitlines()[-2:]] == ["  why  ", "  do   "]
    assert [text for text in says if text not in said] == []


@pytest.mark.parametrize(
    "words",
    [
        "simulate resnet50-v100 --system summit --steps 2.5",
        "plan resnet50-v100 --system summit --samples 1e6 --max-nodes 2.5",
        "scale --ranks 1,2 --repeats 2.5 train.py",
        "doctor --nodes 2.5",
        "data head pack -n 2.5",
        "submit --time 1h --nodes 2.5 train.py",
        "submit --time 1h --steps 2.5 train.py",
    ],
)
def test_a_number_with_a_fraction_is_not_rounded(capsys, words):
    assert call(words.split()) == 2
    assert " 2.5 is not a whole number.\n  why  " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["watch", ""], "RUN"),
        (["analyze", " "], "RUN"),
        (["compare", "", ""], "A"),
        (["explain", ""], "CODE"),
        (["calibrate", "--out", ""], "--out"),
        (["plan", "resnet50-v100", "--system", "summit", "--samples", "1e6", "--nodes", ""], "--nodes"),
        (["hardware", "--for="], "--for"),
        (["data", "info", ""], "PATH"),
        (["submit", "--time", "1h", "--partition", "", "train.py"], "--partition"),
        (["submit", "--time", "1h", "--interface", "", "train.py"], "--interface"),
        (["run", "--interface", "", "train.py"], "--interface"),
        (["run", "--runs=", "train.py"], "--runs"),
        (["run", ""], "The name of the script"),
        (["submit", "--time", "1h", ""], "The name of the script"),
        (["scale", "--ranks", "1,2", ""], "The name of the script"),
    ],
)
def test_an_empty_word_is_neither_a_name_nor_this_folder(capsys, words, named):
    assert call(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{named} is empty.\n  why  ") and said.splitlines()[-1].startswith("  do   ")


def test_every_command_of_the_page_works_with_the_pages_own_files(tmp_path, monkeypatch, capsys):
    page = (REPOSITORY / "docs/simulate.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.replace("\\\n", ""), re.MULTILINE | re.DOTALL)
    job, system = (text for language, text in blocks if language == "toml")
    (tmp_path / "my-job.toml").write_text(job)
    (tmp_path / "my-cluster.toml").write_text(system)
    monkeypatch.chdir(tmp_path)
    few = ["--steps", "5"]
    for _, text in blocks:
        for shown, line in re.findall(r"^(\$ )?topout (simulate .*)", text, re.MULTILINE):
            if "RUN" not in line:
                assert call([*line.split(), *([] if shown else few)]) == 0, line
        if text.startswith("$ "):
            printed = capsys.readouterr().out
            assert [line for line in text.splitlines()[1:] if line not in printed] == []
    assert sum(text.startswith("$ ") for _, text in blocks) == 2
    words = ["simulate", "my-job.toml", "--system", "my-cluster.toml", "--nodes", "1,2", *few]
    for change in re.findall(r"`(--(?:what-if|device|slow|failures) [^`]+)`", page):
        assert call([*words, *change.split()]) == 0, change


def test_a_run_folder_stands_for_its_calibration(tmp_path, capsys):
    words = ["simulate", str(tmp_path), "--system", "summit", "--nodes", "1", "--steps", "5"]
    assert call(words) == 2
    assert f"do   topout calibrate {tmp_path}\n" in capsys.readouterr().err
    job = {"title": "mine", "compute": {"forward_s": 0.1, "backward_s": 0.2}, "gradients": {"bytes": 1e6, "tensors": 9}}
    (tmp_path / "calibration.json").write_text(json.dumps({"job": job | {"input": {"samples": 8}}}))
    assert call(words) == 0
    assert capsys.readouterr().out.startswith("mine on Summit")


def test_other_values_are_read_as_ever(capsys):
    """The parser's own reading of floats, flags, lists and paths."""
    words = "plan resnet50-v100 --system summit --samples 1.5e6 --epochs 0.5 --max-nodes 2 --json"
    assert call([*words.split(), "--what-if", "input.samples=128", "--what-if=between.bytes_per_s=25e9"]) == 0
    assert '"choices"' in capsys.readouterr().out


def test_the_band_of_an_efficiency_is_that_of_the_ratio():
    wide, exact = simulated(4), simulated(1)
    points = [exact, replace(wide, low=0.5 * wide.samples_per_s, efficiency_range=(0.9, 0.97))]
    page = simulate_page(Simulation(job="a", system="b", calibrated_nodes=1, points=points))
    (section,) = (section for section in page.sections if section.key == "efficiency")
    predicted = section.content[0].lines[-1]
    # of one without ranges nothing is known but the value
    assert predicted.low == (exact.efficiency, 0.9)
    assert predicted.high == (exact.efficiency, 0.97)


def test_json_has_the_range_of_an_efficiency(capsys):
    assert call([*WORDS, "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["points"]
    assert one["efficiency_range"] == [1, 1]
    low, high = two["efficiency_range"]
    assert low < two["efficiency"] < high
