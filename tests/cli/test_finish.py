"""What follows a run never costs the job its exit code: neither by an error nor by the memory or time it takes."""

import pytest

from tests.tables import StepPlan, build_run
from topout.cli import finish as module
from topout.cli.finish import finish


@pytest.fixture
def folder(tmp_path):
    return build_run(tmp_path / "run", [[StepPlan(forward=10, backward=20)] * 12] * 2).folder


def num_bytes(folder):
    return sum(path.stat().st_size for path in folder.path.iterdir() if path.suffix in (".events", ".counters"))


@pytest.mark.parametrize("is_free_enough", [True, False])
def test_a_run_too_large_for_this_host_is_left_to_a_larger_one(folder, monkeypatch, is_free_enough):
    needed = 6 * num_bytes(folder)
    monkeypatch.setattr(module, "_free_bytes", lambda: 2 * needed if is_free_enough else 2 * needed - 2)
    done = finish(folder)
    assert folder.report_html.exists() == folder.analysis_json.exists() == is_free_enough
    assert (done.json_text is not None) == is_free_enough
    if not is_free_enough:
        problem, command = done.text.splitlines()
        assert problem.startswith("topout: the run is too large to be explained here: ")
        assert command.startswith("Next    topout analyze ") and command.endswith("run   on a host with more memory")


def test_what_is_needed_and_what_is_free_are_told(folder, monkeypatch):
    with folder.events(0).open("r+b") as file:
        file.truncate(24_000_000_000)  # a hole, which takes no room
    monkeypatch.setattr(module, "_free_bytes", lambda: 64_000_000_000)
    assert "24.0 GB of recordings may take 144.0 GB of memory, more than half of the 64.0 GB" in finish(folder).text


@pytest.mark.parametrize(("num_bytes", "is_short"), [(1_400_000_000, True), (6_000_000_000, False)])
def test_a_run_that_would_hold_up_the_end_of_its_job_is_left_to_later(folder, monkeypatch, num_bytes, is_short):
    with folder.events(0).open("r+b") as file:
        file.truncate(num_bytes)  # a hole, which takes no room
    monkeypatch.setattr(module, "_free_bytes", lambda: 1 << 50)
    monkeypatch.setattr(module, "_finish", lambda folder: module.Finished(text="explained"))
    if is_short:
        assert finish(folder).text == "explained"
        return
    problem, command = finish(folder).text.splitlines()
    assert problem.endswith("its 6.0 GB of recordings may take 4 min, in which the job would not end")
    assert command.startswith("Next    topout analyze ") and command.endswith("run")


def test_free_is_what_the_kernel_gives_and_never_more_than_the_control_group_allows(monkeypatch):
    found = module._free_bytes()
    assert found > 0
    monkeypatch.setattr("topout.host.topology.memory_bytes", lambda: 1000)
    assert module._free_bytes() == 1000
    monkeypatch.setattr("topout.host.topology.memory_bytes", lambda: 1 << 60)
    monkeypatch.setattr("topout.host.kernel_files.read_text", lambda path: "MemFree: 1 kB\nMemAvailable:    7 kB\n")
    assert module._free_bytes() == 7 * 1024
    monkeypatch.setattr("topout.host.kernel_files.read_text", lambda path: "")
    assert module._free_bytes() == 1 << 60
