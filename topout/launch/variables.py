"""Numbers and tasks out of the variables that schedulers set, with errors that name the variable.

Not for knowing which variables: each file in `schedulers/` is a table of them.
"""

from __future__ import annotations

import _socket
import os

from topout.host.kernel_files import read_text
from topout.launch.allocation import Task
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PLACE_VARIABLE = "TOPOUT_PLACE"
"""`1/4`: the second of four hosts; for starters that run one command a host and tell it nothing."""

_ENV = "/usr/bin/env"
_STAYS_HERE = {"_", "BASHOPTS", "EUID", "HOSTNAME", "PBS_NODENUM", "PBS_TASKNUM", "PPID", "SHELLOPTS", "UID"}
"""Of this host or this shell; bash gives up on a file that sets some of them."""
_private_files: list[str] = []


def read_number(environ: Mapping[str, str], name: str) -> int | None:
    """None when the variable is not set, or empty."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise contradiction(
            f"{name}={text} is not a number.", why="a scheduler sets it to a count from 0 up", names=[name]
        )
    return int(text)


def read_task(environ: Mapping[str, str], table: Mapping[str, str]) -> Task | None:
    """This process as a task; `table` says which variable holds which field. None when it has no rank."""
    numbers = {field: read_number(environ, name) for field, name in table.items()}
    if numbers["rank"] is None:
        return None
    for field in ("world_size", "local_rank"):
        if numbers[field] is None:
            raise TopoutError(
                f"{table['rank']}={numbers['rank']} is set, {table[field]} is not.",
                why=f"a task must know its {field.replace('_', ' ')}; to guess would start several jobs instead of one",
                do=f"export {table[field]} for every task, or unset {table['rank']} if it is left over from elsewhere",
                exit_code=ExitCode.ENVIRONMENT,
            )
    task = Task(**numbers)  # type: ignore[arg-type]
    _check_below(table, "rank", task.rank, "world_size", task.world_size)
    _check_below(table, "local_rank", task.local_rank, "local_size", task.local_size)
    _check_below(table, "local_size", task.local_size, "world_size", task.world_size + 1)
    return task


def _check_below(table: Mapping[str, str], field: str, value: int | None, limit: str, number: int | None) -> None:
    if value is not None and number is not None and value >= number:
        raise contradiction(
            f"{table[field]}={value} and {table[limit]}={number - (field == 'local_size')} contradict each other.",
            why="they are of different jobs, or somebody set one of them by hand",
            names=[table[field], table[limit]],
        )


def contradiction(problem: str, *, why: str, names: Sequence[str]) -> TopoutError:
    return TopoutError(
        problem,
        why=why,
        do=f"unset {' '.join(names)} if they are left over from elsewhere; TOPOUT_SCHEDULER=local runs on this machine "
        "alone",
        exit_code=ExitCode.ENVIRONMENT,
    )


def config_home(environ: Mapping[str, str]) -> str | None:
    """The folder of this user's settings; None for a user without a home, as some containers have them."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (pathlib is slow to load)
    # what nobody could expand stays as it is
    return environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home.startswith("/") else None)


def is_this_host(name: str) -> bool:
    """Whether a scheduler's name for a host means the one this runs on; domains are left out by some and not others."""
    return short_name(name) == short_name(_socket.gethostname())


def short_name(host: str) -> str:
    """As hosts are compared: some schedulers write names in capitals, and names of hosts have none."""
    return host.partition(".")[0].lower()


def at_place(place: int, num_hosts: int, command: Sequence[str]) -> list[str]:
    """The command, told which host of how many it is on."""
    return [_ENV, f"{PLACE_VARIABLE}={place}/{num_hosts}", *command]


def with_private_variables(
    environ: Mapping[str, str], variables: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """The command in this folder, with these and this environment's variables, for starters that pass on neither.

    They travel in a file that only its owner can read and that its reader removes: a command line is everybody's.
    Files that nobody has read, since starting failed, `remove_private_files` removes.
    """
    import shlex
    import tempfile
    from pathlib import Path

    home = config_home(environ)
    if home is None:
        raise _not_passed_on("this user's home folder", "there is none", do="export XDG_CONFIG_HOME to a folder")
    passed = {name: value for name, value in environ.items() if name.isidentifier() and name not in _STAYS_HERE}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in (passed | dict(variables)).items()]
    try:
        folder = Path(home) / "topout"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix="start-", dir=folder)
        _private_files.append(path)
        with os.fdopen(descriptor, "wb") as file:
            # a variable may hold bytes that are no text
            file.write(os.fsencode("".join([*lines, f"cd {shlex.quote(str(Path.cwd()))}\n"])))
    except OSError as error:
        remove_private_files()
        do = "make that folder writable, or export XDG_CONFIG_HOME to one"
        raise _not_passed_on(f"{home}/topout", error.strerror or str(error), do=do) from error
    return ["/bin/sh", "-c", '. "$0" && rm -f "$0" && exec "$@"', path, *command]


def _not_passed_on(place: str, why: str, *, do: str) -> TopoutError:
    return TopoutError(
        f"What the other hosts need to know cannot be written to {place}.",
        why=f"{why}; this scheduler's starter passes no variables on",
        do=f"{do} that all hosts share",
        exit_code=ExitCode.ENVIRONMENT,
    )


def remove_private_files() -> None:
    while _private_files:
        with ignoring(OSError):
            os.unlink(_private_files.pop())  # noqa: PTH108 (pathlib is slow to load)


def parents(num: int = 6) -> Iterator[list[str]]:
    """Command lines of the processes above this one, the nearest first; what cannot be read is left out."""
    pid = os.getppid()
    for _ in range(num):
        words = read_text(f"/proc/{pid}/cmdline").split("\0")
        try:
            pid = int(read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except (ValueError, IndexError):
            return
        yield words
        if pid <= 1:
            return


def has_terminal() -> bool:
    """Whether somebody sits at a terminal of this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
