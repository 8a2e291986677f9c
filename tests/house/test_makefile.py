"""The two commands of the quick start set up what they need, in the right order."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import everything
from tests.conftest import LABORATORY

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


@pytest.mark.parametrize(("target", "extras"), [("run", "'.[torch]'"), ("test", "'.[torch,formats,remote,dev]'")])
def test_torch_is_installed_before_what_depends_on_it(tmp_path: Path, target: str, extras: str) -> None:
    lines = planned(tmp_path, target)
    assert position(lines, "grep '^torch=='") < position(lines, extras)


def test_run_ends_with_topout_run_and_no_script(tmp_path: Path) -> None:
    assert planned(tmp_path, "run")[-1] == ".venv/bin/topout run"


def test_test_runs_lint_types_contracts_and_every_test(tmp_path: Path) -> None:
    lines = planned(tmp_path, "test")
    steps = ["ruff check .", "ruff format --check .", "bin/mypy", "bin/lint-imports", "-m tests.everything"]
    places = [position(lines, step) for step in steps]
    assert places == sorted(places)
    assert lines[-1] == ".venv/bin/python -m tests.everything 2"


@pytest.mark.parametrize(
    ("beside", "alone", "code"),
    [(0, 0, 0), (1, 0, 1), (0, 3, 3), (1, 3, 3), (5, 0, 0), (0, 5, 0), (1, 5, 1), (5, 5, 5), (2, None, 2)],
)
def test_tests_that_need_a_quiet_machine_follow_whatever_the_others_found(
    monkeypatch: pytest.MonkeyPatch, beside: int, alone: int | None, code: int
) -> None:
    codes = iter([beside, alone])
    chosen: list[str] = []

    def run(*options: str) -> int | None:
        chosen.append(options[-1])
        return next(codes)

    monkeypatch.setattr(everything, "run", run)
    assert everything.main("2") == code
    assert chosen == ["not (alone or lab)", "alone or lab"][: 2 if alone is not None else 1]


@pytest.mark.parametrize("half", ["not (alone or lab)", "alone or lab"])
def test_tests_that_a_signal_ends_are_not_taken_for_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, half: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"-m {half}") kill -SEGV $$ ;; esac\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert everything.main("2") == 128 + signal.SIGSEGV


def test_ci_runs_make_test() -> None:
    script = REPOSITORY / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"


def system_packages(tmp_path: Path, user: int) -> subprocess.CompletedProcess[str]:
    """`make system-packages` of one program that is there and one that is not, with another id and apt-get."""
    programs = tmp_path / "bin"
    programs.mkdir()
    policy = tmp_path / "policy-rc.d"
    for name, text in {"id": f"echo {user}", "apt-get": f'echo "apt-get $*"; test -x {policy}'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        ["make", "-s", "system-packages", "NEEDED=ls:coreutils no-such-program:no-such-package", f"POLICY={policy}"],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_only_missing_packages_are_installed_and_their_services_are_not_started(tmp_path: Path) -> None:
    done = system_packages(tmp_path, user=0)
    assert done.stdout.splitlines()[-1] == "apt-get install -q -y --no-install-recommends no-such-package"
    assert done.stderr == ""
    assert not (tmp_path / "policy-rc.d").exists()


def test_missing_packages_are_named_where_they_cannot_be_installed(tmp_path: Path) -> None:
    done = system_packages(tmp_path, user=1000)
    assert "Not installed: no-such-package (installing them needs root on Debian)." in done.stderr
    assert done.stdout == ""


def test_what_the_laboratory_and_the_tests_of_training_need_is_installed() -> None:
    [listed] = re.findall(r"^NEEDED := ((?:.*\\\n)*.*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    programs = dict(pair.split(":") for pair in listed.replace("\\\n", " ").split())
    data = {"/usr/share/datasets/fashion-mnist": "dataset-fashion-mnist"}
    assert programs == {"chromium": "chromium", **data, **LABORATORY}
