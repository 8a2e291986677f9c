"""Scripts of Keras and JAX train on two nodes as scripts of torch do, and Keras gets a verdict."""

import json
import re
from pathlib import Path

import pytest

from tests.lab import ways
from tests.lab.cluster import Slurm

pytestmark = pytest.mark.lab
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


# Keras takes long to start: one way of Slurm and one of MPI tell for it
CASES = [("jax_data_parallel.py", way) for way in ways.WAYS] + [
    ("keras_multiworker.py", way) for way in ("srun for every rank", "mpirun of Open MPI")
]


@pytest.mark.parametrize(("script", "way"), CASES)
def test_a_script_of_another_framework_trains_on_both_nodes(
    slurm: Slurm, tmp_path: Path, way: str, script: str
) -> None:
    ended = ways.run(way, slurm, tmp_path, "run", SCRIPTS / script)
    assert ended.returncode == 0, ended
    (run,) = (tmp_path / "topout-runs").iterdir()
    outputs = [(run / f"logs/rank-0000{rank}.out").read_text() for rank in range(2)]
    assert ["rank 0 of 2" in outputs[0], "rank 1 of 2" in outputs[1]] == [True, True], outputs
    losses = [re.findall(r"LOSS .*", output) for output in outputs]
    assert losses[0]
    assert losses[0] == losses[1]
    verdict = json.loads((run / "analysis.json").read_text())["verdict"]
    assert (verdict is not None) == script.startswith("keras")
