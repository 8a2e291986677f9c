"""Real ranks for the tests of training: processes of their own that meet over Gloo on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train.preloaded import ForkedRank, Preloaded

REPOSITORY = Path(__file__).resolve().parents[2]
ABORTED_AT_EXIT = "terminate called without an active exception"
READ_LATE = ("TOPOUT_", "HOROVOD_", "XDG_")
"""How names of variables begin that nobody reads while torch loads."""


@dataclass(frozen=True)
class Ended:
    """How one rank ended; `said` is what it printed as one JSON value on its last line, or None."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> Any:
        lines = self.stdout.strip().splitlines()
        try:
            return json.loads(lines[-1]) if lines else None
        except json.JSONDecodeError:
            return None


RunRanks = Callable[..., list[Ended]]


def rank_variables(num_ranks: int, port: int) -> list[dict[str, str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPOUT_")}
    return [
        {
            **inherited,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        for rank in range(num_ranks)
    ]


def start_ranks(
    script: Path, num_ranks: int, args: Sequence[object] = (), env: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """One process a rank; the caller waits for them or kills them."""
    return [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, args)],
            cwd=script.parent,
            env={**variables, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in rank_variables(num_ranks, free_port())
    ]


def ended(process: "subprocess.Popen[str] | ForkedRank", stdout: str, stderr: str) -> Ended:
    """torch alone may abort a script after its last line; with topout it may not (`topout.host.settling`)."""
    aborted_at_exit = process.returncode == -signal.SIGABRT and stderr.strip().endswith(ABORTED_AT_EXIT) and stdout
    is_torch_alone = "init_process_group" in Path(process.args[1]).read_text()  # type: ignore[index]
    return Ended(0 if aborted_at_exit and is_torch_alone else process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Callable[[int], Preloaded]]:
    """The process from which a rank is forked, by the rank's number."""
    servers: dict[int, Preloaded] = {}

    def of(rank: int) -> Preloaded:
        if rank % 2 not in servers:
            servers[rank % 2] = Preloaded(rank_variables(1, 0)[0])
        return servers[rank % 2]

    yield of
    for server in servers.values():
        server.close()


@pytest.fixture
def run_ranks(tmp_path: Path, preloaded: Callable[[int], Preloaded]) -> RunRanks:
    """Runs a script's text, or a file, on some ranks and returns how each ended; a failure is the test's to judge.

    The ranks are forked from processes that have loaded torch, unless a variable is set that torch may read then.
    """

    def start(
        script: Path, num_ranks: int, args: Sequence[object], env: Mapping[str, str]
    ) -> "Sequence[subprocess.Popen[str] | ForkedRank]":
        if not all(name.startswith(READ_LATE) for name in env):
            return start_ranks(script, num_ranks, args, env)
        words = [str(script), *map(str, args)]
        return [
            preloaded(rank).start(words, script.parent, {**variables, **env})
            for rank, variables in enumerate(rank_variables(num_ranks, free_port()))
        ]

    def run(
        source: str | Path,
        num_ranks: int = 2,
        args: Sequence[object] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> list[Ended]:
        script = source if isinstance(source, Path) else tmp_path / "script.py"
        if isinstance(source, str):
            script.write_text(source)
        processes = start(script, num_ranks, args, env or {})
        try:
            outputs = [process.communicate(timeout=timeout) for process in processes]
            return [ended(process, *output) for process, output in zip(processes, outputs, strict=True)]
        finally:
            for process in processes:
                process.kill()

    return run
