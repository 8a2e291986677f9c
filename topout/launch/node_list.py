"""Host lists as schedulers write them: `n[01-03,7],gpu-a[1-2]-ib0` is six names, `2(x3),1` is four counts.

Read in Python, for a container has none of the scheduler's commands. Order is Slurm's own, since its first name is
where rank 0 runs: of several brackets the last turns fastest, then the first, the second and so on. Not for resolving
the names; whoever connects does.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product

from topout.schema.errors import ExitCode, TopoutError

MOST_HOSTS = 65_536
"""As many as Slurm accepts in one range; a typing error must not fill the memory."""

_PIECE = re.compile(r"[A-Za-z0-9._:%-]+|\[[^\[\]]*\]|[,\s]+")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


def expand_hosts(text: str, *, source: str) -> tuple[str, ...]:
    """Names in order, each once. `source` is the variable or file the text comes from."""
    hosts: dict[str, None] = {}
    for start, parts in _items(text, source):
        if parts[0].startswith(("-", ".", ":", "%")):
            raise _unreadable(text, source, start, "a host name starts with a letter or a digit")
        for name in _names(text, source, start, parts):
            hosts[name] = None
            if len(hosts) > MOST_HOSTS:
                raise _unreadable(text, source, start, f"it stands for more than {MOST_HOSTS} hosts")
    if not hosts:
        raise _unreadable(text, source, 0, "it names no host")
    return tuple(hosts)


def _items(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """(where it starts, literal, inside of a bracket, literal, inside of a bracket, …) of every item."""
    position, start, parts = 0, 0, [""]
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise _unreadable(text, source, position, _wrong_character(text[position]))
        if piece[0][0] == "[":
            parts += [piece[0][1:-1], ""]
        elif piece[0][0] == "," or piece[0][0].isspace():
            if parts != [""]:
                yield start, parts
            parts, start = [""], piece.end()
        else:
            parts[-1] += piece[0]
        position = piece.end()
    if parts != [""]:
        yield start, parts


def _wrong_character(character: str) -> str:
    if character == "[":
        return "a bracket opens that is never closed, or inside another one"
    if character == "]":
        return "a bracket closes that was never opened"
    return f"{character!r} is no part of a host name"


def _names(text: str, source: str, start: int, parts: Sequence[str]) -> Iterator[str]:
    """All names of one item; literals stand at even places, insides of brackets at odd ones."""
    position, choices, num_names = start + len(parts[0]), [], 1
    for place in range(1, len(parts), 2):
        numbers = _numbers(text, source, position + 1, parts[place])
        num_names *= len(numbers)
        if num_names > MOST_HOSTS:
            raise _unreadable(text, source, position, f"it stands for more than {MOST_HOSTS} hosts")
        choices.append(numbers)
        position += len(parts[place]) + 2 + len(parts[place + 1])
    # product turns its last argument fastest: the last bracket, and before it the first
    for chosen in product(*reversed(choices[:-1]), *choices[-1:]):
        inside = [*reversed(chosen[:-1]), *chosen[-1:]]
        yield parts[0] + "".join(number + literal for number, literal in zip(inside, parts[2::2], strict=True))


def _numbers(text: str, source: str, position: int, inside: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _unreadable(text, source, position, f"{part!r} is neither a number nor a range such as 01-04")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _unreadable(text, source, position, f"the range {part} runs backwards")
        if int(last) - int(first) >= MOST_HOSTS:
            raise _unreadable(text, source, position, f"it stands for more than {MOST_HOSTS} hosts")
        # the first number's zeros set the width: 08-11 is 08, 09, 10, 11
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        position += len(part) + 1
    return numbers


def _unreadable(text: str, source: str, position: int, why: str) -> TopoutError:
    shown = text if len(text) <= 80 else f"…{text[max(0, position - 30) : position + 30]}…"
    return TopoutError(
        f"The host list of {source} cannot be read at character {position + 1}: {shown!r}.",
        why=why,
        do=f"correct {source}, or set TOPOUT_SCHEDULER=local to run on this machine alone",
        exit_code=ExitCode.ENVIRONMENT,
    )


def expand_counts(text: str, *, source: str) -> tuple[int, ...]:
    """`2(x3),1` is 2, 2, 2, 1: one count a host."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None or int(match[2] or 1) > MOST_HOSTS:
            raise TopoutError(
                f"{source} cannot be read: {text!r}.",
                why=f"{part!r} is not a count such as 4 or 4(x2)",
                do=f"correct {source}, or unset it",
                exit_code=ExitCode.ENVIRONMENT,
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def compress_counts(counts: Iterable[int]) -> str:
    """2, 2, 2, 1 is `2(x3),1`."""
    runs = [(count, len(list(run))) for count, run in groupby(counts)]
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in runs)


def read_host_file(path: str, *, source: str) -> dict[str, int]:
    """Name -> how often it stands in the file, in order: one line a slot. A second column is not read."""
    return dict(Counter(line[0] for line in read_host_table(path, source=source)))


def read_host_table(path: str, *, source: str) -> list[list[str]]:
    """The words of every line that names a host."""
    try:
        with open(path) as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _bad_file(path, source, why) from error
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise _bad_file(path, source, "it is empty")
    for words in lines:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:%-]*", words[0]):
            raise _bad_file(path, source, f"{words[0]!r} is no host name")
    return lines


def _bad_file(path: str, source: str, why: str) -> TopoutError:
    return TopoutError(
        f"The job's host file {path} cannot be read.",
        why=f"{source} names it; {why}",
        do="start topout on the job's first host, where the scheduler keeps it, or set TOPOUT_SCHEDULER=local",
        exit_code=ExitCode.ENVIRONMENT,
    )
