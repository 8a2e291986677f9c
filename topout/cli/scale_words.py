"""The words of `topout scale`: where its options end and those of the script begin."""

import os

from topout.cli.run_options import ASKING
from topout.schema.errors import TopoutError

FLAGS = frozenset({"--ddp", "--submit", "--dry-run", "--runs-only", "--json", *ASKING})
"""Options without a value. A test holds them to the parameters of `scale`."""


def delimit_script(tokens: list[str]) -> list[str]:
    """Puts `--` before SCRIPT, so that its own --steps stays its own; after run folders options may go on."""
    number = 0
    while number < len(tokens) and tokens[number].startswith("-") and tokens[number] not in ("-", "--"):
        name, equals, _ = tokens[number].partition("=")
        if name == "--nodes":
            raise TopoutError(
                "topout scale has no --nodes.",
                why="It goes through numbers of ranks, and the nodes follow from how many ranks one holds.",
                do="--ranks 4,8,16 --per-node 4",
            )
        number += 1 if equals or name in FLAGS else 2
    if number >= len(tokens) or tokens[number] == "--" or os.path.isdir(tokens[number]):  # noqa: PTH112 (bears long words)
        return tokens
    return [*tokens[:number], "--", *tokens[number:]]
