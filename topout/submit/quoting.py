"""Words for a shell script, so that bash reads back exactly what was typed.

Control characters are written as escapes: a line break inside an argument would start a new line of the script, and
some schedulers look for directives on every line.
"""

import shlex
from collections.abc import Iterable


def quoted(word: str) -> str:
    if all(character >= " " and character != "\x7f" for character in word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def joined(words: Iterable[str]) -> str:
    return " ".join(map(quoted, words))


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character < " " or character == "\x7f":
        # three octal digits end by themselves; \xHH would swallow a digit that follows
        return f"\\{ord(character):03o}"
    return character
