"""What a site asks of every job: account, partition, modules, environment, container, lines of its own.

Read from three files, the nearest wins for each key: `[site]` in topout.toml in the current folder or beside the
script, the user's `~/.config/topout/site.toml`, the site's `/etc/topout/site.toml` (or the file that TOPOUT_SITE names,
for sites that provide topout as a module). Flags win over all of them. Not for what `topout run` does; that is `[run]`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from topout.launch.variables import config_home
from topout.schema.config_file import Kind, read_table
from topout.schema.errors import TopoutError
from topout.submit.duration import parse_duration

TABLE = "site"
DEFAULT_WARN_S = 90


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site's settings; None: not set, so the scheduler's own default holds."""

    scheduler: str | None = None
    """A plug-in of `topout.launch.schedulers`; None: found by its command."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    time: str | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    memory: str | None = None
    switches: int | None = None
    """Leaf switches the nodes may lie under; 1 keeps a job together."""
    modules: tuple[str, ...] = ()
    venv: str | None = None
    conda: str | None = None
    """Name or path of an environment."""
    container: str | None = None
    container_options: tuple[str, ...] | None = None
    """Of apptainer; None: `--nv` when the job has GPUs."""
    lines: tuple[str, ...] = ()
    """Directives as the scheduler reads them, passed through."""
    before: tuple[str, ...] = ()
    """Shell lines between the modules and the run."""
    warn_s: int | None = None
    """How long before the time limit the job is warned; None: 90 s where the limit leaves room, 0: not at all."""
    requeue: bool = True
    """A job that stopped because it was warned gets in line again."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where each value that was set came from: `site.toml:3` or `command line`."""


KINDS: dict[str, Kind] = {
    "scheduler": str, "account": str, "partition": str, "qos": str, "time": str, "gpus_per_node": int,
    "cpus_per_task": int, "memory": str, "switches": int, "modules": list, "venv": str, "conda": str,
    "container": str, "container_options": list, "lines": list, "before": list, "warn_s": int, "requeue": bool,
}  # fmt: skip


def site_files(config: Path | None, environ: Mapping[str, str]) -> list[Path]:
    """Files that are there, the nearest first; `config` is the project's topout.toml."""
    home = config_home(environ)
    places = [
        *([config] if config is not None else []),
        *([Path(home) / "topout" / "site.toml"] if home is not None else []),
        Path(environ.get("TOPOUT_SITE") or "/etc/topout/site.toml"),
    ]
    if environ.get("TOPOUT_SITE") and not places[-1].is_file():
        raise TopoutError(
            f"There is no file {places[-1]}.", why="TOPOUT_SITE names it as the site's settings", do="unset TOPOUT_SITE"
        )
    return [place for place in places if place.is_file()]


def resolve_site(flags: Mapping[str, Any], files: Sequence[Path]) -> Site:
    """Flags that were given (None = not given) over the files over the defaults."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    kinds = {key: (kind,) for key, kind in KINDS.items()}
    for path in reversed(files):
        other_tables = ("run",) if path.name == "topout.toml" else ()
        for key, (value, line) in read_table(path, TABLE, kinds, other_tables=other_tables).items():
            values[key], origins[key] = value, f"{path}:{line}"
    for key, value in flags.items():
        if value is not None:
            values[key], origins[key] = value, "command line"
    site = Site(**values, origins=origins)
    _check(site)
    return site


def _check(site: Site) -> None:
    for key in ("gpus_per_node", "cpus_per_task", "switches", "warn_s"):
        value, least = getattr(site, key), 0 if key in ("warn_s", "gpus_per_node") else 1
        if value is not None and value < least:
            raise TopoutError(
                f"{key} = {value} is not possible.", why=f"it comes from {site.origins[key]}", do=f"at least {least}"
            )
    for key in ("account", "partition", "qos"):
        value = getattr(site, key)
        # the rest of it would be another word of the directive, or another line of the job script
        if value and not (value.isprintable() and len(value.split()) == 1):
            raise TopoutError(
                f"{key} = {value!r} is not a name.",
                why=f"a scheduler's names have no blanks and no line breaks; it comes from {site.origins[key]}",
                do="write the name alone",
            )
    homes = [key for key in ("venv", "conda", "container") if getattr(site, key)]
    if len(homes) > 1:
        where = ", ".join(f"{key} from {site.origins[key]}" for key in homes)
        raise TopoutError(
            f"{' and '.join(homes)} contradict each other.",
            why=f"a job runs in one of them: {where}",
            do='keep one; an empty value ("") takes back what a file further away says',
        )
    if site.time:
        parse_duration(site.time)


def shown(site: Site) -> list[tuple[str, str, str]]:
    """Key, value and origin of whatever was set."""
    rows = []
    for item in fields(Site):
        if item.name in site.origins:
            value = getattr(site, item.name)
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            rows.append((item.name, text, site.origins[item.name]))
    return rows
