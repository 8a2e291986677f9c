"""Steps, phases and batches are seen however the loop is written, and nothing needs a note."""

import json

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

STEPS = 8
LOOPS = {  # loop -> ranks, kinds that must be there beside steps, backward and optimizer
    "plain": (1, {Kind.INPUT, Kind.LOADER}),
    "workers": (1, {Kind.INPUT, Kind.LOADER}),
    "iterable": (1, {Kind.INPUT, Kind.LOADER}),
    "no_loader": (1, set()),
    "ddp": (2, {Kind.INPUT, Kind.ARRIVAL}),
    "accumulation": (2, {Kind.INPUT, Kind.ARRIVAL}),
    "fsdp2": (2, {Kind.INPUT, Kind.ARRIVAL}),
    "several_optimizers": (1, {Kind.INPUT}),
    "scaler_and_autocast": (1, {Kind.INPUT}),
    "compiled": (1, {Kind.INPUT}),
    "lbfgs": (1, {Kind.INPUT, Kind.CLOSURE}),
    "fabric": (2, {Kind.INPUT, Kind.ARRIVAL}),
    "accelerate": (2, {Kind.INPUT, Kind.ARRIVAL}),
}


@pytest.mark.parametrize("loop", list(LOOPS))
def test_every_step_of_the_loop_is_recorded_and_every_batch_is_waited_for_once(loop, run_topout, tmp_path):
    num_ranks, kinds = LOOPS[loop]
    script = REPOSITORY / "tests" / "scripts" / "loops.py"
    done = run_topout(["run", "-n", num_ranks, "--no-report", "--runs", tmp_path / "runs", script, loop])
    assert done.code == 0, done.stderr
    assert f"world {num_ranks}" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["notes"] == []
    for rank in range(num_ranks):
        table = read_rank(RunFolder(run), rank)
        seen = table.kind
        assert np.count_nonzero(seen == Kind.STEP) == STEPS
        assert {Kind.BACKWARD, Kind.OPTIMIZER} | kinds <= {Kind(int(kind)) for kind in set(seen)}
        assert table.facts["ended"] is True
        if Kind.LOADER in kinds:
            batches = table.value[(seen == Kind.INPUT) & (table.value > 0)]
            assert batches.tolist() == [4] * STEPS
