"""`topout doctor` as typed: one line a check, JSON for programs, exit code 3 when unfit; a real job on this machine."""

import json
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.preflight.samples import facts, limited
from topout.preflight.diagnosis import Diagnosis, diagnose, json_schema, to_json
from topout.preflight.facts import Facts
from topout.preflight.orders import KERNELS_LIMIT_S, QUICK_LIMIT_S
from topout.preflight.table import render

REPOSITORY = Path(__file__).resolve().parents[2]


def diagnosis_of(*hosts: Facts, absent: tuple[str, ...] = ()) -> Diagnosis:
    return diagnose(
        hosts, num_hosts=len(hosts) + len(absent), absent=absent, sweeps=False, started_at="", duration_s=12.3
    )


@pytest.mark.alone
def test_this_machine_is_examined_with_torch(run_topout, tmp_path):
    (tmp_path / "data").mkdir()
    done = run_topout(["doctor", "--json", "--data", "data"], timeout=240)
    document = json.loads(done.stdout)
    assert done.code == (3 if document["verdict"] == "unfit" else 0), done.stderr
    assert document["version"] == 1
    (host,) = document["hosts"]
    assert host["not_measured"] == {} and host["stage"] is None
    # torch hands small products to oneDNN on ARM alone
    small = {"small product"} if platform.machine() == "aarch64" else set()
    assert {kernel["name"] for kernel in host["kernels"]} == small | {
        "matrix product",
        "convolution",
        "convolution backward",
        "recurrent layer",
        "triad",
        "copy",
    }
    assert {(link["operation"], link["transport"]) for link in document["links"]} == {
        ("point-to-point", "tcp"),
        ("all-reduce", "gloo"),
    }
    assert host["places"][0]["path"] == str(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    groups = dict.fromkeys(check["group"] for check in document["checks"])
    assert list(groups) == [
        "Hosts",
        "Versions and hardware",
        "Limits and settings",
        "Framework",
        "Kernels and memory",
        "Links",
        "File systems",
        "Start of the stack",
    ]
    assert all(check["value"] and check["expectation"] for check in document["checks"])
    kept = tmp_path / "topout-runs" / "doctor"
    assert [json.loads(path.read_text()) for path in kept.glob("*/doctor.json")] == [document]
    assert list((tmp_path / "topout-runs").glob("*/run.json")) == [], "no run for `topout analyze` to take"


@pytest.mark.alone
def test_a_torch_that_is_broken_makes_the_machine_unfit(run_topout, tmp_path, torchless):
    done = run_topout(["doctor"], env={**torchless, "COLUMNS": "110"}, timeout=240)
    assert done.code == 3
    assert done.stdout.startswith("UNFIT  1 host")
    assert "torch is blocked in this test" in done.stdout
    assert "matrix product float32" in done.stdout, "numpy stands in"
    assert done.stderr.splitlines()[-1] == "Next    topout run train.py"


@pytest.mark.alone
def test_an_interrupted_examination_says_so_and_leaves_no_files(tmp_path):
    (tmp_path / "data").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "topout", "doctor", "--data", "data"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # with a file system under way, the interruption finds files of ours
    while "storage: data" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in errors
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("words", [["--nodes", "two"], ["--nodse", "2"], ["extra"]])
def test_words_that_do_not_fit_are_explained(run_topout, words, tmp_path):
    done = run_topout(["doctor", *words])
    assert (done.code, done.stdout) == (2, "")
    assert "topout doctor --help" in done.stderr
    assert not (tmp_path / "topout-runs").exists()


def test_all_well_is_fit():
    diagnosis = diagnosis_of(facts("n1"), facts("n2"))
    assert not diagnosis.is_unfit
    assert render(diagnosis, width=100, color=False).startswith("FIT  2 hosts: n1, n2 · ")


def test_warnings_leave_a_machine_fit():
    diagnosis = diagnosis_of(limited("n1", load_per_core=3.0))
    assert not diagnosis.is_unfit
    page = render(diagnosis, width=100, color=False)
    assert page.startswith("FIT, with warnings  1 host: n1 · 1 warning, ")
    (line,) = [line for line in page.splitlines() if "other load" in line]
    assert line.split()[:3] == ["!", "other", "load"]
    assert "expected  the cores are idle" in line


def test_what_is_not_fine_says_what_to_do():
    page = render(diagnosis_of(limited("n1", shm_bytes=64 << 20, shm_free_bytes=64 << 20)), width=100, color=False)
    lines = page.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["UNFIT", "/dev/shm"])
    block = " ".join(" ".join(lines[at : at + 5]).split())
    assert "64 MiB, 64 MiB free" in block
    assert "expected at least 1 GiB" in block
    assert "do docker run --shm-size 8g" in block


def test_an_absent_host_makes_an_allocation_unfit():
    diagnosis = diagnosis_of(facts("n1"), absent=("n2",))
    assert diagnosis.is_unfit
    assert "n2 left no findings" in render(diagnosis, width=100, color=False)


def test_no_line_is_wider_than_the_terminal():
    page = render(
        diagnosis_of(limited("n1", load_per_core=3.0, swap_bytes=1 << 33, swap_used_bytes=1 << 32)),
        width=80,
        color=False,
    )
    assert max(len(line) for line in page.splitlines()[1:]) <= 80


@pytest.mark.parametrize("width", [30, 50, 53, 60])
def test_advice_keeps_its_words_where_the_terminal_is_narrow(width):
    diagnosis = diagnosis_of(limited("n1", load_per_core=3.0))
    [advice] = [check.fix for check in diagnosis.checks if check.name == "other load"]
    page = render(diagnosis, width=width, color=False)
    assert advice and f" do {advice} " in " ".join(page.split())


def test_colour_only_adds():
    diagnosis = diagnosis_of(limited("n1", load_per_core=3.0))
    plain = render(diagnosis, width=100, color=False)
    assert re.sub(r"\033\[[0-9;]*m", "", render(diagnosis, width=100, color=True)) == plain


def test_json_comes_back_as_it_was():
    diagnosis = diagnosis_of(facts("n1"), facts("n2"))
    assert msgspec.json.decode(to_json(diagnosis), type=Diagnosis) == diagnosis


def test_the_page_documents_every_flag_and_no_other():
    from cyclopts import App

    from topout.cli.doctor import doctor

    app = App()
    app.default(doctor)
    flags = {name for argument in app.assemble_argument_collection() for name in argument.names if name[0] == "-"}
    table = (REPOSITORY / "docs/doctor.md").read_text().partition("## Options")[2].partition("## ")[0]
    first_cells = " ".join(re.findall(r"^\|(.*?)\|", table, flags=re.MULTILINE))
    assert set(re.findall(r"`(--?[\w-]+)", first_cells)) == flags - {"--help", "-h", "--version"}


def test_the_page_says_how_long_a_probe_may_take():
    page = (REPOSITORY / "docs/doctor.md").read_text()
    assert f"is left after {QUICK_LIMIT_S:g} s ({KERNELS_LIMIT_S:g} s with `--kernels`)" in page


def test_the_schema_of_the_json_is_documented():
    documented = (REPOSITORY / "docs/doctor.schema.json").read_text()
    assert documented == json_schema(), "python -m topout.preflight.diagnosis > docs/doctor.schema.json"


def test_two_hosts_of_one_name_are_told_apart(tmp_path):
    from topout.preflight.doctor import read_findings
    from topout.preflight.facts import FOLDER
    from topout.schema.run_folder import RunFolder

    (tmp_path / FOLDER).mkdir()
    for number in (0, 1):
        content = msgspec.json.encode(Facts(host="node", host_number=number))
        (tmp_path / FOLDER / f"rank-{number:05d}.json").write_bytes(content)
    (tmp_path / FOLDER / "rank-00002.json").write_text("torn {")
    assert [found.host for found in read_findings(RunFolder(tmp_path))] == ["node#0", "node#1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--start-timeout -1", "--start-timeout -1 is not possible."),
        ("--nodes 0", "--nodes 0 is not possible."),
        ("--nodes 4", "--nodes 4 is more than there are."),
        ("--interface no-such0", "cannot use --interface no-such0."),
    ],
)
def test_what_cannot_be_examined_is_said_before_anything_is(run_topout, tmp_path, words, says):
    done = run_topout(["doctor", *words.split()])
    assert (done.code, done.stdout) == (2, "")
    assert says in done.stderr
    assert [line[:7] for line in done.stderr.splitlines()[-2:]] == ["  why  ", "  do   "]
    assert not (tmp_path / "topout-runs").exists()
