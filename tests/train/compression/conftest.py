"""Ranks that run once for many tests: each script prints facts, and each test judges one of them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import ended, start_ranks

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
            ranks = [ended(process, *output) for process, output in zip(processes, outputs, strict=True)]
        finally:
            for process in processes:
                process.kill()
        assert [rank.code for rank in ranks] == [0] * num_ranks, "\n".join(rank.stderr for rank in ranks)
        return [rank.said for rank in ranks]

    return run
