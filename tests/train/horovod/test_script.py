"""A script in Horovod's documented style, unmodified, on the ranks of `topout run`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.conftest import REPOSITORY

SCRIPT = Path(__file__).with_name("documented.py")


@pytest.mark.parametrize("options", [(), ("--fp16-allreduce", "--uneven")])
def test_a_horovod_script_runs_unmodified(tmp_path: Path, options) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topout", "run", "-n", "2", "--no-report", str(SCRIPT), *options],
        cwd=tmp_path, env=plain_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said["losses"][-1] < 0.7 * said["losses"][0]
    assert said["checksums"][0] == said["checksums"][1]
    # the scheduler was made for the optimizer before it was wrapped
    assert said["lr"] == 0.01 * 2 * 0.25
    assert said["last"] == (1 if "--uneven" in options else None)
    assert "horovod.torch is served on torch.distributed (gloo), 2 ranks" in done.stderr + done.stdout


def plain_environment() -> dict[str, str]:
    import os

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPOUT_", "HOROVOD_"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
