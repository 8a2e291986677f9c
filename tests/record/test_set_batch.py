"""`--batch` is taken by the loaders that feed training, exactly, or the run says that it was not."""

import json

import pytest

from tests.conftest import REPOSITORY
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

SCRIPT = REPOSITORY / "tests" / "scripts" / "batches.py"


def run(run_topout, folder, kind, *, ranks=1, batch=8, **env):
    done = run_topout(
        ["run", "-n", ranks, "-q", "--no-report", "--batch", batch, "--runs", folder, SCRIPT, kind], env=env
    )
    (made,) = folder.iterdir()
    return done, RunFolder(made), json.loads((made / "run.json").read_text())


@pytest.mark.parametrize(("kind", "length"), [("shuffle", "8 a rank"), ("iterable", "no length")])
def test_the_loader_that_shuffles_takes_the_batch_and_the_evaluation_keeps_its_own(run_topout, tmp_path, kind, length):
    done, folder, content = run(run_topout, tmp_path / "runs", kind)
    assert done.code == 0, done.stderr
    assert f"training 8 {length} evaluation 16" in done.stdout
    facts = read_rank(folder, 0).facts
    assert (facts["batch_asked"], facts["batch_size"], len(facts["batch_taken_by"])) == (8, 8, 1)
    assert content["spec"]["batch"] == 8


def test_a_distributed_sampler_shares_what_is_left_among_ranks(run_topout, tmp_path):
    done, _, _ = run(run_topout, tmp_path / "runs", "distributed", ranks=2)
    # 64 samples on two ranks are 32 each
    assert "training 8 4 a rank evaluation 16" in done.stdout


@pytest.mark.parametrize(
    ("kind", "batch", "words"),
    [
        ("batch_sampler", 8, "has a batch_sampler of its own"),
        ("in_order", 8, "does not shuffle, so it is taken for evaluation"),
        ("shuffle", 65, "has 64 samples for a rank, fewer than a batch"),
    ],
)
def test_a_batch_that_nobody_took_ends_the_run_and_is_explained(run_topout, tmp_path, kind, batch, words):
    done, folder, _ = run(run_topout, tmp_path / "runs", kind, batch=batch)
    assert done.code == 2
    assert f"--batch {batch} was not taken" in done.stderr
    assert words in done.stderr
    assert "--batch-arg" in done.stderr
    assert done.stderr.count("was not taken") == 1
    assert "batch_taken_by" not in read_rank(folder, 0).facts


def test_a_loader_of_packs_takes_it_too():
    from topout.feed.counters import batch_asked
    from topout.record.recorder import Recorder, set_current
    from topout.record.set_batch import install
    from topout.record.settings import Settings
    from topout.record.status import StatusLine

    recorder = Recorder(Settings(batch=32, record=False), StatusLine(None))
    install(recorder)
    set_current(recorder)
    try:
        assert (batch_asked(8, shuffle=True), batch_asked(8, shuffle=False)) == (32, 8)
    finally:
        set_current(None)


def test_a_batch_of_none_is_refused_before_anything_runs(run_topout, tmp_path):
    done = run_topout(["run", "--batch", "0", "--runs", tmp_path / "runs", SCRIPT])
    assert (done.code, "--batch 0 is not possible" in done.stderr) == (2, True)
