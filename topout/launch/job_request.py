"""What a job script asks of its scheduler, in words that all schedulers share; each plug-in writes them in its own.

Not what the job runs; `submit` writes that below the directives.
"""

from __future__ import annotations

from topout.schema.errors import TopoutError
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job. What is None was not asked for, and the site's default holds."""

    name: str
    nodes: int
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    time_s: int
    account: str | None = None
    partition: str | None = None
    """Or queue."""
    qos: str | None = None
    memory: str | None = None
    """Of each node, with its unit: `64G`."""
    output: Path
    warn_s: int | None = None
    """How long before its end the job wants to be warned; None: not at all."""
    is_requeued: bool = False
    outlives_nodes: bool = False
    """It goes on with the nodes that are left when one fails."""
    switches: int | None = None
    """Leaf switches the nodes may lie under at most."""
    extra: tuple[str, ...] = ()
    """Whole lines, as the site wants them."""
    working_folder: Path

    @property
    def wants_whole_nodes(self) -> bool:
        """Nobody said how much of a node, and a job that names nodes means all of them."""
        return self.tasks_per_node is None and self.cpus_per_task is None and self.gpus_per_node is None

    @property
    def cpus_per_node(self) -> int | None:
        return None if self.cpus_per_task is None else self.cpus_per_task * (self.tasks_per_node or 1)


def hours_minutes_seconds(seconds: int) -> str:
    """7200 is 02:00:00; hours may be more than a day's."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def in_directive(path: Path | str) -> str:
    """As schedulers read it there, where a blank ends a word; plain where nothing needs it. Not for shells."""
    path = str(path)
    if "\n" in path or "\r" in path:
        raise TopoutError(
            f"The folder {path!r} cannot stand in a job script.",
            why="a directive is one line of text, and the name holds a line break",
            do="submit from a folder with another name, or name another place with --runs",
        )
    if not set(path) & set(" \t'\"\\#"):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def refuse(title: str, request: JobRequest, names: Sequence[str], *, do: str) -> None:
    """Raises when something is asked for that a scheduler has no word for; to leave it out would be silently wrong."""
    for name in names:
        value = getattr(request, name)
        if value is not None and value is not False:
            raise TopoutError(
                f"{title} has no common way to ask for {name} ({value}).",
                why="its sites name such things each in their own way",
                do=do,
            )
