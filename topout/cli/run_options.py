"""The words of `topout run`, read without a parser library: that one alone takes as long to load as srun to start.

Reads what is right and nothing else: help, mistakes and anything unusual are left to the full parser, which explains.
A test holds this table to the parameters of `run`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-n": ("num_ranks", int), "--num-ranks": ("num_ranks", int), "--nodes": ("nodes", int),
    "--per-node": ("per_node", str), "--steps": ("steps", int), "--data-share": ("data_share", str),
    "--batch": ("batch", int),
    "--profile": ("profile", str), "--filter": ("filter", str), "--bind": ("bind", str),
    "--interface": ("interface", str), "--start-timeout": ("start_timeout", float), "--restarts": ("restarts", int),
    "--min-nodes": ("min_nodes", int), "--packs": ("packs", str), "--runs": ("runs", str),
}  # fmt: skip
"""Option -> parameter, and how its value is read."""

FLAGS: dict[str, tuple[str, bool]] = {
    "-m": ("module", True), "--module": ("module", True), "--no-bind": ("no_bind", True), "--record": ("record", True),
    "--no-record": ("record", False), "--report": ("report", True), "--no-report": ("report", False),
    "--ddp": ("ddp", True), "--no-onednn-backward": ("no_onednn_backward", True),
    "--keep-memory": ("keep_memory", True), "--json": ("json_output", True),
    "-q": ("quiet", True), "--quiet": ("quiet", True),
}  # fmt: skip
"""Options without a value."""

REPEATABLE = frozenset({"filter", "packs"})
"""Parameters that hold all values given, in order."""

ASKING = frozenset({"-h", "--help", "--version"})


def delimit_script(tokens: list[str]) -> list[str]:
    """Puts `--` before SCRIPT, so that every word from there on reaches the script as it stands."""
    number = 0
    while number < len(tokens):
        token = tokens[number]
        if token == "--":
            return tokens
        if not token.startswith("-") or token == "-":
            return [*tokens[:number], "--", *tokens[number:]]
        is_whole = token in FLAGS or token in ASKING or "=" in token or (token[1] != "-" and len(token) > 2)
        number += 1 if is_whole else 2
    return tokens


def read_quickly(tokens: list[str]) -> dict[str, Any] | None:
    """Parameters of `run` by name; None when the full parser shall look at it."""
    found: dict[str, Any] = {"filter": []}
    words = iter(tokens)
    for word in words:
        if word == "--" or not word.startswith("-") or word == "-":
            rest = list(words)
            found["script_and_args"] = rest if word == "--" else [word, *rest]
            break
        name, equals, value = word.partition("=")
        if word in FLAGS:
            parameter, meaning = FLAGS[word]
            found[parameter] = meaning
        elif name in OPTIONS:
            parameter, read = OPTIONS[name]
            try:
                text = value if equals else next(words)
                value = read(text)
            except (StopIteration, ValueError):
                return None
            if not text.strip():
                return None
            if parameter in REPEATABLE:
                found.setdefault(parameter, []).append(value)
            else:
                found[parameter] = value
        else:
            return None
    return found
