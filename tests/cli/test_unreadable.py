"""What may not be read, entered or written is an error that says so, of the environment, and no bug."""

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.schema.run_folder import open_run


def forbid(monkeypatch, forbidden):
    """Also for root, whom no permission stops: the kernel's answer for `forbidden` and all that lies in it."""
    stat = os.stat

    def stat_or_refuse(path, *args, **options):
        if is_in(path, forbidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat_or_refuse)
    forbid_reading(monkeypatch, forbidden)


def forbid_reading(monkeypatch, forbidden):
    """What is there can be seen, and not opened."""
    open_file = io.open

    def open_or_refuse(path, *args, **options):
        if is_in(path, forbidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *args, **options)

    monkeypatch.setattr(io, "open", open_or_refuse)


def is_in(path, forbidden):
    return isinstance(path, str | os.PathLike) and str(path).startswith(str(forbidden))


def write_run(path):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"version": 1, "status": "finished"}))
    return path


@pytest.mark.parametrize(
    "words",
    [
        "analyze {}",
        "calibrate {}",
        "watch {}",
        "compare {} {}",
        "hardware --for {}",
        "plan {} --system summit --samples 1e6",
        "simulate {} --system summit",
        "simulate resnet50-v100 --system {}",
        "simulate resnet50-v100 --system summit --html {}/deep/page.html",
    ],
)
def test_a_folder_that_one_may_not_enter_is_said_to_be(words, tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run")
    # the folder can be seen, and nothing in it
    forbid(monkeypatch, f"{run}/")
    assert call(words.replace("{}", str(run)).split()) == 3
    problem, why, do = capsys.readouterr().err.splitlines()
    assert problem.startswith(str(run)) and problem.endswith("cannot be read.")
    assert "Permission denied" in why and "damaged" not in do


def test_a_folder_inside_one_that_one_may_not_enter_is_said_to_be(tmp_path, monkeypatch):
    forbid(monkeypatch, tmp_path)
    with pytest.raises(TopoutError, match="cannot be read") as caught:
        open_run(tmp_path / "run")
    assert (caught.value.exit_code, caught.value.why) == (3, "Permission denied")


def test_settings_that_one_may_not_read_are_said_to_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    settings = tmp_path / "topout.toml"
    settings.write_text("[run]\n")
    forbid_reading(monkeypatch, settings)
    assert call(["submit", "--dry-run", "--time", "1h", "--scheduler", "slurm", "train.py"]) == 3
    problem, why, do = capsys.readouterr().err.splitlines()
    assert problem == f"{settings} cannot be read."
    assert "Permission denied" in why and "mend" not in do


@pytest.mark.parametrize("verb", ["analyze", "watch", "plan --system summit --samples 1", "simulate --system summit"])
def test_a_name_that_is_too_long_for_any_file_is_no_bug(verb, capsys):
    first, *others = verb.split()
    assert call([first, "x" * 5000, *others]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["simulate", "plan --samples 1e6"])
def test_a_page_that_cannot_be_written_is_said_before_anything_is_computed(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    first, *others = verb.split()
    assert call([first, "resnet50-v100", "--system", "summit", *others, "--html", str(tmp_path / "page.html")]) == 3
    told = capsys.readouterr()
    assert (told.out, list(tmp_path.iterdir())) == ("", [])
    assert "page.html cannot be written." in told.err and f"{tmp_path} may not be written" in told.err


@pytest.mark.parametrize("words", ["run -n 1 {}/train.py", "pack {} packed", "doctor"])
def test_a_current_folder_that_was_removed_is_said_to_be(words, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / "gone").mkdir()
    line = f"rmdir ../gone; exec {sys.executable} -P -m topout {words.replace('{}', str(tmp_path))}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[0] == "The current folder is gone."
