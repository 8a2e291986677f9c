"""A launcher starts at once: what it does not need before its ranks run is not loaded before."""

import json
import os
import subprocess
import sys
from pathlib import Path

from topout.launch import start_code

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


def test_all_that_is_loaded_before_the_script_begins_is_kept_in_one_file_and_nothing_else() -> None:
    own = {name for name in loaded_by(*NEEDED, *PLUGINS, "topout.launch.starters") if name.startswith("topout.")}
    kept = {name for group in start_code.GROUPS for name in start_code._names(group)}
    assert own - kept == {"topout.cli", "topout.cli.main", "topout.launch", "topout.launch.start_code"}
    assert kept - own == set()


def test_extensions_that_are_loaded_before_the_script_begins_are_known_by_their_place() -> None:
    begun = set(loaded_by("os"))
    needed = [name for name in loaded_by(*NEEDED, *PLUGINS) if name not in begun and start_code._place(name)]
    assert set(needed) <= set(start_code.EXTENSIONS)


COUNTED = """
import sys
sys.path.insert(0, sys.argv[1])
from topout.launch import start_code

start_code.use()
asked, find = [], start_code._finder.find_spec


def found(name, *more):
    spec = find(name, *more)
    if spec is not None and name.startswith("topout"):
        asked.append(name)
    return spec


start_code._finder.find_spec = found
import IMPORTED
print(*asked)
"""


def test_a_group_is_loaded_in_one_go(tmp_path: Path) -> None:
    # asked for one by one, each would take half as long again
    script = tmp_path / "script.py"
    script.write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    words = [sys.executable, "-m", "topout", "run", "-n", "1", "--no-report", "-q", str(script)]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True)
    code = COUNTED.replace("IMPORTED", ", ".join((*NEEDED, *PLUGINS, "topout.launch.starters")))
    done = subprocess.run([sys.executable, "-c", code, REPOSITORY], capture_output=True, text=True, check=True)
    asked = done.stdout.split()
    assert 5 < len(asked) < 3 * len(start_code.GROUPS)


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
