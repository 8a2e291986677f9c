"""In CI a skipped test is a failure, unless it needs a GPU or is marked soak."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
CONFIG = "[pytest]\nmarkers =\n    soak\n    gpu\n    browser\n    lab\n"


def run_pytest(folder: Path, tests: str, ci: str, *options: str) -> tuple[int, str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text(CONFIG)
    (folder / "test_some.py").write_text(f"import pytest\n\n{tests}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


UNNEEDED = "def test_a():\n    pass\n\ndef test_b():\n    pytest.skip('not today')\n"
SOAK = "def test_a():\n    pass\n\n@pytest.mark.soak\ndef test_b():\n    assert False\n"


def test_a_needless_skip_fails_in_ci_and_is_named(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, UNNEEDED, "true")
    assert code == 1
    assert "NOT ALLOWED in CI" in said
    assert "test_some.py::test_b  (not today)" in said


@pytest.mark.parametrize("tests", [UNNEEDED, "pytest.importorskip('no_such_package')\n"], ids=["a test", "a file"])
def test_it_does_so_where_tests_run_in_several_processes(tmp_path: Path, tests: str) -> None:
    (tmp_path / "test_fine.py").write_text("def test_a():\n    pass\n")
    code, said = run_pytest(tmp_path, tests, "true", "-n", "2", "--dist", "loadfile")
    assert code == 1
    assert "NOT ALLOWED in CI" in said


def test_a_needless_skip_is_named_elsewhere(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, UNNEEDED, "")
    assert code == 0
    assert "test_some.py::test_b  (not today)" in said


def test_a_file_skipped_as_a_whole_fails_in_ci(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, "pytest.importorskip('no_such_package')\n\ndef test_a():\n    pass\n", "true")
    assert code != 0
    assert "NOT ALLOWED in CI" in said


def test_a_file_skipped_beside_one_that_passes_fails_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_fine.py").write_text("def test_a():\n    pass\n")
    code, _ = run_pytest(tmp_path, "pytest.importorskip('no_such_package')\n", "true")
    assert code == 1


def test_soak_is_listed_and_allowed(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, SOAK, "true")
    assert code == 0
    assert "allowed            test_some.py::test_b  (soak: run by make soak)" in said


def test_soak_runs_when_asked(tmp_path: Path) -> None:
    code, _ = run_pytest(tmp_path, SOAK, "true", "--soak")
    assert code == 1
