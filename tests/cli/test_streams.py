"""Where output goes may be full, closed or unable to show a character; that is said, or borne."""

import os
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


def test_a_log_that_cannot_be_written_does_not_fail_the_job(tmp_path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    done = shell("topout run -n 1 train.py 2> /dev/full", tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
