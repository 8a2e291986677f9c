"""Host lists as schedulers write them: `n[01-03,7],gpu-a[1-2]-ib0` is six names, `2(x3),1` is four counts.

Read in Python, for a container has none of the scheduler's commands. Order is Slurm's own, since its first name is
where rank 0 runs: of several brackets the last turns fastest, then the first, the second and so on. Not for resolving
the names; whoever connects does.
"""

from __future__ import annotations

from topout.schema.errors import ExitCode, TopoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_HOSTS = 65_536
"""As many as Slurm accepts in one range; a typing error must not fill the memory."""

_ALPHANUMERIC = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_OF_NAMES = _ALPHANUMERIC | frozenset("._:%-")
# looked at character by character: to load and compile expressions takes longer than tasks need to find each other


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
        character = text[position]
        if character in _OF_NAMES:
            parts[-1] += character
            position += 1
        elif character == "," or character.isspace():
            if parts != [""]:
                yield start, parts
            position += 1
            parts, start = [""], position
        else:
            inside, closing, _ = text[position + 1 :].partition("]")
            if character != "[" or not closing or "[" in inside:
                raise _unreadable(text, source, position, _wrong_character(character))
            parts += [inside, ""]
            position += len(inside) + 2
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
    from itertools import product

    # it turns its last argument fastest: the last bracket, and before it the first
    for chosen in product(*reversed(choices[:-1]), *choices[-1:]):
        inside = [*reversed(chosen[:-1]), *chosen[-1:]]
        yield parts[0] + "".join(number + literal for number, literal in zip(inside, parts[2::2], strict=True))


def _numbers(text: str, source: str, position: int, inside: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not _is_number(first, 18) or not _is_number(last, 18):
            raise _unreadable(text, source, position, f"{part!r} is neither a number nor a range such as 01-04")
        if int(last) < int(first):
            raise _unreadable(text, source, position, f"the range {part} runs backwards")
        if int(last) - int(first) >= MOST_HOSTS:
            raise _unreadable(text, source, position, f"it stands for more than {MOST_HOSTS} hosts")
        # the first number's zeros set the width: 08-11 is 08, 09, 10, 11
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        position += len(part) + 1
    return numbers


def _is_number(text: str, most_digits: int) -> bool:
    return text.isdecimal() and len(text) <= most_digits


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
        count, opening, times = part.strip().partition("(x")
        times = times.removesuffix(")") if opening and times.endswith(")") else "" if opening else "1"
        if not _is_number(count, 9) or not _is_number(times, 9) or int(times) > MOST_HOSTS:
            raise TopoutError(
                f"{source} cannot be read: {text!r}.",
                why=f"{part!r} is not a count such as 4 or 4(x2)",
                do=f"correct {source}, or unset it",
                exit_code=ExitCode.ENVIRONMENT,
            )
        counts += [int(count)] * int(times)
    return tuple(counts)


def compress_counts(counts: Iterable[int]) -> str:
    """2, 2, 2, 1 is `2(x3),1`."""
    runs: list[tuple[int, int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1] = count, runs[-1][1] + 1
        else:
            runs.append((count, 1))
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in runs)


def read_host_file(path: str, *, source: str) -> dict[str, int]:
    """Name -> how often it stands in the file, in order: one line a slot. A second column is not read."""
    found: dict[str, int] = {}
    for line in read_host_table(path, source=source):
        found[line[0]] = found.get(line[0], 0) + 1
    return found


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
        if words[0][0] not in _ALPHANUMERIC or not _OF_NAMES.issuperset(words[0]):
            raise _bad_file(path, source, f"{words[0]!r} is no host name")
    return lines


def _bad_file(path: str, source: str, why: str) -> TopoutError:
    return TopoutError(
        f"The job's host file {path} cannot be read.",
        why=f"{source} names it; {why}",
        do="start topout on the job's first host, where the scheduler keeps it, or set TOPOUT_SCHEDULER=local",
        exit_code=ExitCode.ENVIRONMENT,
    )
