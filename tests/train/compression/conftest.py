"""Ranks that run once for many tests: each script prints facts, and each test judges one of them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import start_ranks

HERE = Path(__file__).parent
Facts = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def facts() -> Facts:
    """`facts("exchange_ranks.py", 2, "bf16")`: what each rank of that script said."""

    @cache
    def run(script: str, num_ranks: int, *args: str) -> list[Any]:
        processes = start_ranks(HERE / script, num_ranks, args)
        try:
            outputs = [process.communicate(timeout=240) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * num_ranks, "\n".join(out[1] for out in outputs)
        return [json.loads(stdout.strip().splitlines()[-1]) for stdout, _ in outputs]

    return run
