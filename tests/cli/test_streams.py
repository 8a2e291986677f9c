"""Where output goes may be full, closed or unable to show a character; that is said, or borne."""

import os
import re
import subprocess
import sys

import pytest

from tests.packs.packs import file_folder, small_pack
from tests.tables import Plan, StepPlan, build_run


def shell(line: str, folder, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-o", "pipefail", "-c", line.replace("topout ", f"{sys.executable} -m topout ", 1)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=os.environ | env
    )


def test_a_full_disk_behind_stdout_is_said_in_three_parts(tmp_path) -> None:
    done = shell("topout hardware > /dev/full", tmp_path)
    assert done.returncode == 3
    assert "why  No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "plan --help", "hardware --json"])
def test_a_reader_may_go(tmp_path, words) -> None:
    done = shell(f"topout {words} | true", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def damaged(tmp_path):
    """A pack with so many damaged samples that its description as JSON does not fit into a buffer."""
    small_pack(tmp_path / "pack", num_samples=300, shard_bytes=1 << 20)
    shard = tmp_path / "pack" / "shard-00000.bin"
    data = bytearray(shard.read_bytes())
    data[4096:8192] = bytes(4096)
    shard.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("lost", ["| true", "2> /dev/full", "2> >(true)"])
@pytest.mark.parametrize("words", ["check pack", "check pack --json"])
def test_what_was_found_is_told_by_the_code_although_nobody_reads_it(damaged, words, lost) -> None:
    done = shell(f"topout data {words} {lost}", damaged)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("analyze nowhere", 2),
        ("run nowhere.py", 2),
        ("explain nothing", 2),
        ("pack files packed", 0),
        ("data info files", 0),
        ("compare run run --fail-on 3%", 0),
    ],
)
def test_a_full_disk_behind_stderr_leaves_the_code_as_it_is(tmp_path, words, code) -> None:
    file_folder(tmp_path / "files", 3, 100)
    steps = [StepPlan(forward=5_000_000, backward=10_000_000, optimizer=1_000_000)] * 30
    build_run(tmp_path / "run", [steps], Plan(transfer_ns=1_000_000))
    assert shell(f"topout {words} 2> /dev/full", tmp_path).returncode == code


def test_a_closed_stdout_is_borne(tmp_path) -> None:
    assert shell("topout hardware >&-", tmp_path).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_stdout_does_not_have_are_replaced(tmp_path, encoding) -> None:
    done = shell("topout hardware", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert "H100" in done.stdout


def test_the_verdict_of_a_run_is_drawn_with_what_the_log_has(tmp_path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nweight = torch.ones(1, requires_grad=True)\noptimizer = torch.optim.SGD([weight])\n"
        "for _ in range(30):\n    weight.sum().backward()\n    optimizer.step()\n"
    )
    done = shell("topout run -n 1 train.py", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\" not in done.stderr
    bars = done.stderr.partition("Where the time goes\n")[2].partition("\n\n")[0].splitlines()
    assert bars and all(re.fullmatch(r"  \w+ +\d+ %  #+", line) for line in bars)


def test_a_name_is_shown_in_the_c_locale_as_far_as_it_has_the_letters(tmp_path) -> None:
    run = tmp_path / os.fsdecode("ü\udcff".encode("utf-8", "surrogateescape"))
    steps = [StepPlan(forward=5_000_000, backward=10_000_000)] * 30
    build_run(run, [steps], Plan(run={"spec": {"script": "ü ñ.py"}}))
    command = [sys.executable, "-m", "topout", "analyze", str(run)]
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    # of the folder its bytes, of a script that another locale has named what there is in this one
    assert done.stdout.startswith(os.fsencode(run.name) + b" | ? ?.py | ")


def test_letters_that_stderr_does_not_have_are_spelled_out(tmp_path) -> None:
    done = shell("topout run 'д….py'", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "There is no script \\u0434\\u2026.py.")
    done = shell("topout watch '…д'", tmp_path, PYTHONIOENCODING="ascii")
    assert done.stderr.splitlines()[0] == "There is neither a run folder ...\\u0434 nor a job ...\\u0434."


def test_a_log_that_cannot_be_written_does_not_fail_the_job(tmp_path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    done = shell("topout run -n 1 train.py 2> /dev/full", tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
