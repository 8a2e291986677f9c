"""The run folder names its own files, and passes over those of others; a run that was lost is called so."""

import errno
import json
import subprocess
import sys

import pytest

from topout.schema import run_folder
from topout.schema.launcher_process import describe_launcher
from topout.schema.run_folder import RunFolder, is_led_by, open_run


def test_copies_beside_recordings_are_no_ranks(tmp_path):
    for name in ("rank-00001.events", "rank-00000.events", "rank-00001 (1).events", "rank-2.events", "rank-.events"):
        (tmp_path / name).touch()
    assert RunFolder(tmp_path).ranks_recorded() == [0, 1]


def write_run(path, **content):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"version": 1, **content}))
    return path


def gone():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return {**describe_launcher(), "pid": ended.pid}


@pytest.mark.parametrize(
    ("status", "launcher", "read"),
    [
        ("running", gone, "lost"),
        ("running", describe_launcher, "running"),
        ("running", dict, "running"),
        ("finished", gone, "finished"),
    ],
)
def test_a_run_whose_launcher_was_killed_is_lost(status, launcher, read, tmp_path):
    run = write_run(tmp_path / "run", status=status, launcher=launcher())
    before = (run / "run.json").read_bytes()
    assert open_run(run)[1]["status"] == read
    assert (run / "run.json").read_bytes() == before


def test_a_run_that_ends_while_it_is_looked_at_has_ended_well(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", status="running", launcher=gone())

    def end(launcher):
        (run / "run.json").write_text('{"version": 1, "status": "finished"}')
        return False

    monkeypatch.setattr(run_folder, "is_launcher_alive", end)
    assert open_run(run)[1]["status"] == "finished"


def test_a_run_that_its_launcher_writes_anew_meanwhile_is_read_again(tmp_path, monkeypatch):
    """On NFS whoever has opened the file that was there before hears so."""
    launcher = describe_launcher()
    (tmp_path / "run.json").write_text(json.dumps({"version": 1, "launcher": launcher}, indent=1))
    failures = [OSError(errno.ESTALE, "Stale file handle")]

    def open_stale(*arguments, **named):
        if failures:
            raise failures.pop()
        return open(*arguments, **named)

    monkeypatch.setattr(run_folder, "open", open_stale, raising=False)
    assert is_led_by(RunFolder(tmp_path), launcher)
    assert not failures
    assert not is_led_by(RunFolder(tmp_path), {**launcher, "pid": 1})


def test_runs_of_a_day_are_numbered_in_turn_without_trying_each_number(tmp_path, monkeypatch):
    folders = [run_folder.create_run_folder(tmp_path, "train.py").text for _ in range(3)]
    assert [folder.rpartition("-")[2] for folder in folders] == ["1", "2", "3"]
    (tmp_path / f"{folders[0].removesuffix('1')}200").mkdir()
    (tmp_path / f"{folders[0].removesuffix('1')}7b").touch()
    tried = []
    make = run_folder.os.makedirs

    def count(folder):
        tried.append(folder)
        make(folder)

    monkeypatch.setattr(run_folder.os, "makedirs", count)
    expected = run_folder.next_run_folder(tmp_path, "train")
    assert run_folder.create_run_folder(tmp_path, "train.py").text == expected
    assert expected.endswith("-201")
    assert len(tried) == 2


def test_two_runs_that_start_together_get_folders_of_their_own(tmp_path, monkeypatch):
    first = run_folder.create_run_folder(tmp_path, "train.py")
    # as seen before the other was made
    monkeypatch.setattr(run_folder, "_last_number", lambda root, stem: 0)
    assert run_folder.create_run_folder(tmp_path, "train.py").text == f"{first.text.removesuffix('1')}2"
