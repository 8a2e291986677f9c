"""The run folder: where a run is written and from where it is read, on this machine or another.

topout-runs/<date>-<script>-<n>/
    run.json                 what was asked, where it ran, how it ended
    rank-00000.events        what the rank recorded of itself (blocks, see `block`)
    rank-00000.counters      what was sampled of the rank from outside (same format)
    logs/rank-00000.out|err  what the rank printed
    profile/rank-00000.json  a torch.profiler window, with --profile
    first_failure.txt        the first failing rank's traceback, when there is one
    hang/rank-00000.txt      stacks of the ranks that could still answer, when the job hung
    analysis.json            measures, verdict and findings (versioned)
    report.html              the same to read
"""

# paths are texts here, see RunFolder.text
# ruff: noqa: PTH102, PTH103, PTH105, PTH108, PTH110, PTH116, PTH118, PTH119, PTH122

from __future__ import annotations

import errno
import os
import stat
import time

from topout.schema.errors import ExitCode, TopoutError
from topout.schema.ignoring import ignoring
from topout.schema.launcher_process import is_launcher_alive
from topout.schema.light_json import dumps_indented

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

RUN_VERSION = 1
DEFAULT_ROOT = "topout-runs"
RUN_JSON = "run.json"
LOST = "lost"
"""Status of a run whose launcher was killed, or could not write how the run ended; never written, see `open_run`."""
TO_READ_NEWER = "install the topout that wrote it, or a newer one: pip install . in its folder"
"""What to do with a file whose format is newer than this topout."""
_OPENING_BYTES = 4096
_MOST_A_DAY = 100_000
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)


class RunFolder:
    """The paths inside one run folder. Creating the object touches nothing."""

    def __init__(self, path: str | Path) -> None:
        self.text = str(path)
        """As a launcher and a rank use it: `pathlib` takes longer to load than they have."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"RunFolder({self.text!r})"

    def inside(self, name: str) -> str:
        """`name` as the functions below give it."""
        return f"{self.text}/{name}"

    @property
    def path(self) -> Path:
        from pathlib import Path

        return Path(self.text)

    @property
    def run_json(self) -> Path:
        return self.path / RUN_JSON

    @property
    def analysis_json(self) -> Path:
        return self.path / "analysis.json"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def first_failure(self) -> Path:
        return self.path / "first_failure.txt"

    def events(self, rank: int) -> Path:
        return self.path / events_name(rank)

    def counters(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.counters"

    def log(self, rank: int, stream: str) -> Path:
        """`stream` is `out` or `err`."""
        return self.path / log_name(rank, stream)

    def profile(self, rank: int) -> Path:
        return self.path / "profile" / f"rank-{rank:05d}.json"

    def ranks_recorded(self) -> list[int]:
        names = {path.name for path in self.path.glob("rank-*.events")}
        numbers = {int(digits) for name in names if (digits := name[5:-7]).isdecimal()}
        # copies that somebody made beside them have other names
        return sorted(rank for rank in numbers if events_name(rank) in names)


def events_name(rank: int) -> str:
    return f"rank-{rank:05d}.events"


def log_name(rank: int, stream: str) -> str:
    return f"logs/rank-{rank:05d}.{stream}"


def create_run_folder(root: str | Path, script_name: str) -> RunFolder:
    """Makes a folder of its own for a run; two runs that start together get different ones."""
    stem = os.path.splitext(os.path.basename(script_name))[0]
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "run"
    number = 1
    while number < _MOST_A_DAY:
        folder = f"{root}/{_of_today(stem)}{number}"
        try:
            os.makedirs(folder)
        except FileExistsError:
            # not one by one: a shared file system takes a millisecond to refuse each
            number = max(number, _last_number(root, stem)) + 1
            continue
        except OSError as error:
            raise TopoutError(
                f"Cannot create the run folder {folder}.",
                why=error.strerror or str(error),
                do="choose a writable place with --runs DIR",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error
        os.mkdir(f"{folder}/logs")
        return RunFolder(folder)
    raise TopoutError(
        f"{root} holds {_MOST_A_DAY:,} runs of {stem} today.", why="every number is taken", do="use --runs DIR"
    )


def next_run_folder(root: str | Path, stem: str) -> str:
    """The path that `create_run_folder` would find free now."""
    first = f"{root}/{_of_today(stem)}1"
    return f"{root}/{_of_today(stem)}{_last_number(root, stem) + 1}" if os.path.exists(first) else first


def _of_today(stem: str) -> str:
    return f"{time.strftime('%Y-%m-%d')}-{stem}-"


def _last_number(root: str | Path, stem: str) -> int:
    """Of today's runs; 0 without any."""
    start = _of_today(stem)
    try:
        names = os.listdir(root)  # noqa: PTH208
    except OSError:
        return 0
    found = [name.removeprefix(start) for name in names if name.startswith(start)]
    numbers = [int(digits) for digits in found if digits.isdecimal() and digits.isascii()]
    return max([number for number in numbers if number < _MOST_A_DAY], default=0)


def write_whole(path: str | Path, content: str | bytes, *, is_synced: bool = True) -> None:
    """A reader sees the old file or the new one, never a part: temporary name, fsync, rename.

    Without `is_synced` a machine that loses power may lose it, and nobody waits for the disk.
    """
    data = content.encode() if isinstance(content, str) else content
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with ignoring(FileNotFoundError):
            os.unlink(temporary)
        raise


def is_led_by(folder: RunFolder, launcher: dict[str, Any]) -> bool:
    """Whether run.json names this launcher; by its path alone a folder may be that of another run on another host.

    Looks at the opening only: a thousand hosts ask at once, and all ranks stand further below.
    """
    named = dumps_indented({"launcher": launcher})[2:-2].encode()
    for _ in range(3):
        try:
            with open(folder.inside(RUN_JSON), "rb", buffering=0) as file:
                return named in file.read(_OPENING_BYTES)
        except OSError as error:
            # written anew meanwhile, on another host
            if error.errno != errno.ESTALE:
                return False
    return False


def is_folder(path: str | Path) -> bool:
    """False where there is none; where one may not look, an error that says so."""
    return _is_kind(path, stat.S_ISDIR)


def is_file(path: str | Path) -> bool:
    """As `is_folder`."""
    return _is_kind(path, stat.S_ISREG)


def _is_kind(path: str | Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        return is_kind(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return False
        raise unreadable(path, error) from error
    except ValueError:
        # a name that no file can have
        return False


def unreadable(path: str | Path, error: OSError) -> TopoutError:
    return TopoutError(
        f"{path} cannot be read.",
        why=error.strerror or str(error),
        do="see who may with ls -ld, and ask for the right; or name another",
        exit_code=ExitCode.ENVIRONMENT,
    )


def open_run(path: str | Path) -> tuple[RunFolder, dict[str, Any]]:
    """The folder and its run.json, or an error that says what the path is instead.

    A run that says `running` and whose launcher is known to be gone has the status `lost`.
    """
    folder = RunFolder(path)
    if not is_folder(path):
        if os.path.exists(path):
            raise TopoutError(
                f"{path} is not a run folder.", why="it is a file", do=f"pass a folder under {DEFAULT_ROOT}/"
            )
        do = "look at the path, or make one: topout run FILE"
        raise TopoutError(f"{path} is not a run folder.", why="there is no such folder", do=do)
    run = _read_run(folder)
    if run.get("status") == "running" and is_launcher_alive(run.get("launcher")) is False:
        # it may have ended well between the two looks
        run = _read_run(folder)
        if run.get("status") == "running":
            run["status"] = LOST
    return folder, run


def _read_run(folder: RunFolder) -> dict[str, Any]:
    # a launcher that starts ranks reads none
    import json

    from topout.schema.plain_file import check_plain

    check_plain(folder.inside(RUN_JSON))
    try:
        run = json.loads(folder.run_json.read_text())
    except FileNotFoundError:
        raise TopoutError(
            f"{folder.text} is not a run folder.", why="it holds no run.json", do=f"pass a folder under {DEFAULT_ROOT}/"
        ) from None
    except OSError as error:
        raise unreadable(folder.run_json, error) from error
    except ValueError as error:
        raise TopoutError(
            f"{folder.run_json} cannot be read.", why=str(error), do="the file is damaged; restore it or run again"
        ) from error
    version = run.get("version") if isinstance(run, dict) else None
    if not isinstance(version, int):
        raise TopoutError(
            f"{folder.run_json} cannot be read.",
            why="it holds no version, so a run did not write it, or not all of it",
            do=f"pass a folder under {DEFAULT_ROOT}/; if it is one, the file is damaged: run again",
        )
    if version > RUN_VERSION:
        raise TopoutError(
            f"{folder.text} was written by a newer topout.",
            why=f"its format is version {version}, this topout reads up to {RUN_VERSION}",
            do=TO_READ_NEWER,
        )
    found: dict[str, Any] = run
    return found
