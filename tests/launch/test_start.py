"""A launcher starts at once: what it does not need before its ranks run is not loaded before."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SLOW = ("ctypes.util", "dataclasses", "hashlib", "importlib.metadata", "inspect", "msgspec", "multiprocessing", "numpy",
        "pathlib", "psutil", "shutil", "subprocess", "tempfile", "torch", "typing")  # fmt: skip
"""Each takes longer to load than two launchers need to find each other."""
NEEDED = ("topout.cli.training", "topout.launch.tasks", "topout.launch.agent", "topout.launch.company",
          "topout.launch.gathering", "topout.launch.head", "topout.launch.rounds", "topout.record.rank")  # fmt: skip
"""All that a task of a scheduler loads until its rank's script begins, whether it leads or follows."""


def loaded_by(*modules: str) -> list[str]:
    # without the site's own files, which may load anything
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\nimport {', '.join(modules)}\nimport json\n"
    code += "print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_nothing_slow_is_loaded_before_the_script_begins() -> None:
    assert sorted(set(loaded_by(*NEEDED)) & set(SLOW)) == []


def test_what_is_called_slow_is_found_when_it_is_loaded() -> None:
    assert {"dataclasses", "inspect", "pathlib"} <= set(loaded_by("dataclasses", "pathlib")) & set(SLOW)


SCRIPT = """
import json, sys
with open("loaded.json", "w") as file:
    json.dump(sorted(sys.modules), file)
"""


def test_a_rank_of_a_local_run_begins_without_them_too(launch, tmp_path: Path) -> None:
    assert launch(SCRIPT, options=("-n", "1")).code == 0
    assert not {"msgspec", "psutil", "numpy", "dataclasses"} & set(json.loads((tmp_path / "loaded.json").read_text()))
