"""The two commands of the quick start set up what they need, in the right order."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def planned(tmp_path: Path, target: str) -> list[str]:
    """The commands make would run on a fresh machine, with nothing but PATH and HOME set."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(["make", "-n", target], cwd=tmp_path, env=bare, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def position(lines: list[str], what: str) -> int:
    [found] = [number for number, line in enumerate(lines) if what in line]
    return found


@pytest.mark.parametrize(("target", "extras"), [("run", "'.[torch]'"), ("test", "'.[torch,dev]'")])
def test_torch_is_installed_before_what_depends_on_it(tmp_path: Path, target: str, extras: str) -> None:
    lines = planned(tmp_path, target)
    assert position(lines, "grep '^torch=='") < position(lines, extras)


def test_run_ends_with_topout_run_and_no_script(tmp_path: Path) -> None:
    assert planned(tmp_path, "run")[-1] == ".venv/bin/topout run"


def test_test_runs_lint_types_contracts_and_every_test(tmp_path: Path) -> None:
    lines = planned(tmp_path, "test")
    steps = ["ruff check .", "ruff format --check .", "bin/mypy", "bin/lint-imports", "-m pytest"]
    places = [position(lines, step) for step in steps]
    assert places == sorted(places)
    assert lines[-1] == ".venv/bin/python -m pytest"


def test_ci_runs_make_test() -> None:
    script = REPOSITORY / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
