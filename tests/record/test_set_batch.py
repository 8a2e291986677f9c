"""`--batch` is taken by the loaders that feed training, exactly, or the run says that it was not."""

import json

import pytest

from tests.conftest import REPOSITORY
from topout.record.torch_taps.batch import takes_batch, why_not
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


@pytest.mark.parametrize(("kind", "takes"), [("shuffle", True), ("in_order", False), ("batch_sampler", False)])
def test_a_run_says_whether_its_loader_would_take_a_batch(run_topout, tmp_path, kind, takes):
    done = run_topout(["run", "-q", "-n", 1, "--no-report", "--runs", tmp_path / "runs", SCRIPT, kind])
    assert done.code == 0, done.stderr
    (made,) = (tmp_path / "runs").iterdir()
    assert read_rank(RunFolder(made), 0).facts["takes_batch"] is takes


def test_what_is_said_of_a_loader_holds_when_it_is_made():
    torch_data = pytest.importorskip("torch.utils.data")
    data, stream = (
        list(range(64)),
        type("Stream", (torch_data.IterableDataset,), {"__iter__": lambda _: iter(range(64))}),
    )
    in_turn = torch_data.distributed.DistributedSampler(data, 2, 0, shuffle=False)
    mixed = torch_data.distributed.DistributedSampler(data, 2, 0)
    for given, takes in (
        ({"dataset": data, "shuffle": True}, True),
        ({"dataset": data}, False),
        ({"dataset": data, "sampler": mixed}, True),
        ({"dataset": data, "sampler": in_turn}, False),
        ({"dataset": stream()}, True),
        ({"dataset": stream(), "batch_size": None}, False),
        ({"dataset": data, "batch_sampler": [[0, 1]]}, False),
    ):
        # arguments that are left out have torch's defaults there
        assert (why_not({"batch_size": 1, **given}, 8) is None, takes_batch(torch_data.DataLoader(**given))) == (
            takes,
        ) * 2
    assert takes_batch(object()) is False


def test_a_loader_of_packs_takes_it_too():
    from topout.feed.counters import batch_asked
    from topout.record.recorder import Recorder, set_current
    from topout.record.set_batch import install
    from topout.record.settings import Settings
    from topout.record.status import StatusLine

    recorder = Recorder(Settings(batch=32, record=False), StatusLine(None))
    install(recorder, 32)
    set_current(recorder)
    try:
        assert (batch_asked(8, shuffle=True), batch_asked(8, shuffle=False)) == (32, 8)
    finally:
        set_current(None)


def test_a_batch_of_none_is_refused_before_anything_runs(run_topout, tmp_path):
    done = run_topout(["run", "--batch", "0", "--runs", tmp_path / "runs", SCRIPT])
    assert (done.code, "--batch 0 is not possible" in done.stderr) == (2, True)
