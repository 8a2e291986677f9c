"""Inside `topout run` a loader's waits are the step's input, and its totals are in the run folder."""

import threading
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

from tests.conftest import REPOSITORY, RunTopout
from tests.feed.image_packs import write_images
from topout.feed import counters
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank

SCRIPT = REPOSITORY / "tests" / "scripts" / "feed_loop.py"


def test_waits_are_input_and_totals_are_counters(run_topout: RunTopout, tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", 20)
    done = run_topout(["run", "-n", 1, "--runs", tmp_path / "runs", SCRIPT, pack])
    assert done.code == 0, done.stderr
    assert "position 2 40" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    table = read_rank(RunFolder(run), 0)
    batches = table.rows(Kind.INPUT)
    assert table.value[batches].tolist() == [0, *[4] * 5, 0, *[4] * 5]
    assert np.all(table.duration_ns[batches] > 0)
    loaders = table.rows(Kind.LOADER)
    assert table.value[loaders].tolist() == [4, 4]
    # each batch names the iteration that it came from
    numbers = table.ref[loaders].tolist()
    assert table.ref[batches].tolist() == [numbers[0]] * 6 + [numbers[1]] * 6
    assert table.facts["batch_size"] == 4 and table.facts["num_workers"] >= 1
    assert table.facts["takes_batch"] is True
    assert table.counters["feed_samples"].values[-1] == 40
    assert table.counters["feed_bytes"].values[-1] > 10_000
    assert table.counters["feed_wait_ns"].values[-1] > 0
    assert table.counters["feed_skipped"].values[-1] == 0
    assert "feed_queue_depth" in table.counters
    assert table.facts.get("notes", []) == []


def test_two_loaders_are_counted_together(monkeypatch) -> None:
    recorder = MagicMock(at_pulse=[], at_finish=[], mark=None, main_thread=threading.get_ident())
    recorder.code.return_value = 1
    monkeypatch.setattr(counters, "current", lambda: recorder)
    monkeypatch.setattr(counters, "_of_all", counters.FeedCounters())
    training, validation = counters.FeedCounters(), counters.FeedCounters()
    for own, num_samples in ((training, 8), (validation, 2), (training, 8)):
        counters.WaitRecord(own, 8, 1, shuffle=True).took(0, num_samples, 100, 0, 3)
    for tell in recorder.at_pulse:
        tell()
    told = [call.args for call in recorder.counter.call_args_list if call.args[0] == "feed_samples"]
    assert told == [("feed_samples", 18)]
    assert (training.totals()["samples"], validation.totals()["samples"]) == (16, 2)


def test_a_loader_in_order_is_not_said_to_take_a_batch() -> None:
    made = [counters.WaitRecord(counters.FeedCounters(), 8, 1, shuffle=shuffle) for shuffle in (True, False)]
    assert [record._topout_facts["takes_batch"] for record in made] == [True, False]


def test_two_ranks_share_the_samples_and_a_share_of_the_data_is_a_share(run_topout: RunTopout, tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", 24)
    options = ["-n", 2, "--data-share", "0.5", "--no-report", "--runs", tmp_path / "runs"]
    done = run_topout(["run", *options, SCRIPT, pack])
    assert done.code == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    for rank in range(2):
        table = read_rank(RunFolder(run), rank)
        # 24 samples are 3 batches of 4 on each of 2 ranks; ceil(3 * 0.5) = 2 of them, twice
        assert table.counters["feed_samples"].values[-1] == 16
