"""`--packs`: which pack stands in for which folder, from what the user wrote to what a rank is told.

`DIR` is a pack, which knows the folder it was made from, or a folder of packs; `ROOT=PACK` says it outright. Imports
nothing that opens packs: the launcher looks at them in a process of its own, since ranks are forked from it and would
find numpy loaded, with the launcher's number of threads.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from topout.schema.errors import ExitCode, TopoutError

VARIABLE = "TOPOUT_PACKS"
Order = tuple[str, str]
"""Root and pack, both absolute."""


def check_packs(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """`ROOT=PACK` of every pack, absolute, after each was opened; and what the user should know."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "topout.feed.serve.check", *texts], capture_output=True, text=True, check=False
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        raise TopoutError(
            "The packs could not be looked at.",
            why=(done.stderr.strip().splitlines() or [f"the check ended with code {done.returncode}"])[-1],
            do="topout data check PACK",
            exit_code=ExitCode.ENVIRONMENT,
        ) from None
    if "problem" in said:
        raise TopoutError(said["problem"], why=said["why"], do=said["do"], exit_code=ExitCode(said["exit_code"]))
    return [f"{root}={pack}" for root, pack in said["packs"]], list(said["notes"])


def split_order(text: str) -> tuple[str | None, str]:
    """Root and pack; without a root, the text is a path. An `=` may also belong to either path."""
    if os.path.isdir(text):  # noqa: PTH112 (started for every rank)
        return None, text
    places = [place for place, letter in enumerate(text) if letter == "="]
    for place in places:
        if os.path.isdir(text[place + 1 :]):  # noqa: PTH112
            return text[:place], text[place + 1 :]
    if places:
        return text[: places[0]], text[places[0] + 1 :]
    return None, text


def orders_in(environment: Mapping[str, str]) -> list[Order]:
    """As `launch.rank_env` put them there."""
    pairs = (split_order(text) for text in json.loads(environment.get(VARIABLE, "[]")))
    return [(root, pack) for root, pack in pairs if root]
