"""Real jobs of tiny scripts, started as a person would start them."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Outcome, RunTopout

Launch = Callable[..., Outcome]


@pytest.fixture
def heeds_hangups() -> Iterator[None]:
    """Tests under nohup ignore SIGHUP, and what they start would too; a handler is not inherited."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def launch(run_topout: RunTopout, tmp_path: Path) -> Launch:
    """Writes a script, runs it under topout in the test's folder and waits for the end."""

    def run(script: str, *args: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Outcome:
        (tmp_path / "train.py").write_text(script)
        return run_topout(["run", "--no-report", *options, "train.py", *args], env=env)

    return run
