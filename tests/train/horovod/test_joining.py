"""A rank that has joined goes on with the others' sparse gradients too; what it cannot go on with is refused."""

import json
from pathlib import Path

from tests.train.conftest import start_ranks
from tests.train.horovod.test_collectives import ENV

SCRIPT = Path(__file__).with_name("joins.py")


def said(*words: str) -> list:
    processes = start_ranks(SCRIPT, 2, words, env=ENV)
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_sparse_gradients_go_on_after_the_first_has_joined() -> None:
    first, second = said()
    assert first["last"] == second["last"] == 1
    # the joined rank's own replica stays as it was at its last step
    assert first["weights"] != second["weights"]


def test_a_compression_of_the_scripts_own_is_refused() -> None:
    assert all("compression of the script's own" in text for text in said("own"))
