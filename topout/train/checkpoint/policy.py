"""What may be asked of `Checkpoints`: names of the parts of a state, and which checkpoints stay."""

from collections.abc import Mapping
from typing import Any

from topout.schema.errors import TopoutError
from topout.train.dealing import DEALT


def check_policy(state: Mapping[str, Any], keep: int, keep_every: int | None) -> None:
    for name, value in (("keep", keep), ("keep_every", keep_every)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise TopoutError(
                f"{name}={value!r} is no number of checkpoints or steps.",
                why="It decides which checkpoints are deleted.",
                do="pass 1 or more",
            )
    given = [name for name in state if name != DEALT]
    wrong = [name for name in given if not isinstance(name, str) or not name or name.startswith("@") or "/" in name]
    if wrong or not state:
        raise TopoutError(
            f"state has an entry called {wrong[0]!r}." if wrong else "state is empty.",
            why="Every part of a checkpoint has a name: a word that does not begin with @ and has no / in it.",
            do='pass for instance {"model": model, "optimizer": optimizer}',
        )
