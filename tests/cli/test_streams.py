"""Where output goes may be full, closed or unable to show a character; that is said, or borne."""

import os
import re
import subprocess
import sys

import pytest


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


def test_letters_that_stderr_does_not_have_are_spelled_out(tmp_path) -> None:
    done = shell("topout run 'д….py'", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "There is no script \\u0434\\u2026.py.")
    done = shell("topout watch '…д'", tmp_path, PYTHONIOENCODING="ascii")
    assert done.stderr.splitlines()[0] == "There is neither a run folder ...\\u0434 nor a job ...\\u0434."


def test_a_log_that_cannot_be_written_does_not_fail_the_job(tmp_path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    done = shell("topout run -n 1 train.py 2> /dev/full", tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
