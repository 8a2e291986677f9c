"""A launcher starts at once: what it does not need before its ranks run is not loaded before."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SLOW = ("dataclasses", "hashlib", "importlib.metadata", "inspect", "msgspec", "multiprocessing", "numpy", "pathlib",
        "psutil", "shutil", "subprocess", "tempfile", "torch", "typing")  # fmt: skip
"""Each takes longer to load than two launchers need to find each other."""
SLOW_TOGETHER = ("collections", "contextlib", "ctypes", "enum", "functools", "importlib", "json", "operator", "re",
                 "reprlib", "resource", "selectors", "signal", "socket", "threading", "types",
                 "warnings")  # fmt: skip
"""They load each other: together they take longer than Python itself takes to start, and one brings most of them."""
NEEDED = ("topout.cli.main", "topout.cli.run_options", "topout.cli.training", "topout.launch.tasks",
          "topout.launch.agent", "topout.launch.company", "topout.launch.gathering", "topout.launch.head",
          "topout.launch.rounds", "topout.record.rank")  # fmt: skip
"""All that a task of a scheduler loads until its rank's script begins, whether it leads or follows."""
PLUGINS = tuple(f"topout.launch.schedulers.{name}" for name in ("slurm", "openmpi", "hydra"))
"""Of those who start a task for every rank. Others find their hosts in files, or ask a command."""


def loaded_by(*modules: str) -> list[str]:
    # without the site's own files, which may load anything
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\nimport {', '.join(modules)}\n"
    code += "loaded = sorted(sys.modules)\nimport json\nprint(json.dumps(loaded))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_nothing_slow_is_loaded_before_the_script_begins() -> None:
    assert sorted(set(loaded_by(*NEEDED, *PLUGINS)) & {*SLOW, *SLOW_TOGETHER}) == []


def test_what_is_called_slow_is_found_when_it_is_loaded() -> None:
    found = set(loaded_by("dataclasses", "pathlib"))
    assert {"dataclasses", "inspect", "pathlib"} <= found & set(SLOW)
    assert {"collections", "enum", "functools", "re", "types"} <= found & set(SLOW_TOGETHER)


SCRIPT = """
import sys
with open("loaded.txt", "w") as file:
    file.write(" ".join(sys.modules))
"""


def test_a_rank_of_a_local_run_begins_without_them_too(launch, tmp_path: Path) -> None:
    assert launch(SCRIPT, options=("-n", "1")).code == 0
    loaded = (tmp_path / "loaded.txt").read_text().split()
    # those before it are Python's own, which it loads to run a module
    assert not {*SLOW, *SLOW_TOGETHER} & set(loaded[loaded.index("topout") :])
