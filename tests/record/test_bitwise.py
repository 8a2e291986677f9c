"""Recording changes no bit, nor does keeping memory: losses and weights are the same with either and without."""

import re

import pytest

from tests.conftest import REPOSITORY

CASES = {1: ["in-place activations", "loader workers", "fullgraph"], 2: ["ddp", "no_sync", "own comm hook"], 3: ["ddp"]}


def digests(text: str) -> dict[str, str]:
    return dict(re.findall(r"^DIGEST \d (.+) ([0-9a-f]{64})$", text, re.MULTILINE))


@pytest.mark.parametrize("num_ranks", list(CASES))
def test_training_is_bit_identical_with_and_without_the_recorder_and_kept_memory(num_ranks, run_topout, tmp_path):
    seen = []
    for flags in ([], ["--no-record"], ["--keep-memory"]):
        words = ["run", "--no-report", *flags, "-n", str(num_ranks), REPOSITORY / "tests" / "scripts" / "bitwise.py"]
        done = run_topout(words, cwd=tmp_path)
        assert done.code == 0, done.stderr
        seen.append(digests(done.stdout))
    assert list(seen[0]) == CASES[num_ranks]
    assert seen[0] == seen[1] == seen[2]
