"""The arrows between rooms hold, and reading a run needs no torch."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT_TORCH = (
    "schema", "host", "launch", "trace", "analyze", "recommend", "verify", "report", "preflight", "submit", "cli",
)  # fmt: skip
OUTSIDE_THE_LAYERS = {"recipes"}  # scripts, started by path and imported by nobody


def layers() -> list[set[str]]:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [{room.strip().removeprefix("topout.") for room in floor.split("|")} for floor in floors]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [program, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_rooms_import_only_downward() -> None:
    done = lint_imports(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_arrow_upward_is_noticed(tmp_path: Path) -> None:
    rooms = sorted(set.union(*layers()))
    for room in rooms:
        (tmp_path / "topout" / room).mkdir(parents=True)
        (tmp_path / "topout" / room / "__init__.py").touch()
    (tmp_path / "topout" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    assert lint_imports(tmp_path).returncode == 0
    (tmp_path / "topout" / "schema" / "upward.py").write_text("import topout.cli\n")
    assert lint_imports(tmp_path).returncode == 1


def test_every_room_stands_on_a_floor() -> None:
    rooms = {path.parent.name for path in (REPOSITORY / "topout").glob("*/__init__.py")}
    assert rooms - OUTSIDE_THE_LAYERS == set.union(*layers())


def modules_of(room: str) -> list[str]:
    package = REPOSITORY / "topout"
    paths = sorted((package / room).rglob("*.py"))
    names = [".".join(("topout", *path.relative_to(package).with_suffix("").parts)) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_room_that_reads_imports_without_torch(room: str, torchless: dict[str, str]) -> None:
    modules = modules_of(room)
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}:\n    importlib.import_module(name)\n"
        "print(json.dumps(sorted(set(sys.modules) & {'torch', 'ray', 'pandas', 'matplotlib'})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **torchless}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_the_environment_without_torch_has_no_torch(torchless: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, **torchless},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "torch is blocked in this test" in done.stderr


def test_importing_topout_loads_no_room() -> None:
    program = "import sys, topout; print(sorted(name for name in sys.modules if name.startswith('topout.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
