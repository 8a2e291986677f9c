"""Where runs from this folder are kept, and the newest of them, for verbs that are not told which to read."""

from pathlib import Path

from topout.schema.errors import TopoutError
from topout.schema.run_folder import RUN_JSON
from topout.schema.spec import CONFIG_NAME, find_config, resolve_spec


def runs_root() -> Path:
    """Where `topout run` makes run folders: `runs` of the topout.toml in the current folder, else topout-runs."""
    return Path(resolve_spec({}, find_config(None)).runs)


def newest_run() -> Path:
    """The run whose run.json is the youngest."""
    root = runs_root()
    found = [(written_ns, path.name, path) for path in root.glob("*") if (written_ns := _written_ns(path)) is not None]
    if not found:
        raise TopoutError(
            "There is no run to read.",
            why=f"{root}/ holds none{_not_read()}",
            do="topout run train.py   or name a run folder",
        )
    # two runs of one second are told apart by their name
    return max(found)[2]


def _not_read() -> str:
    """Where `topout run` has one more place to look for its topout.toml, since it knows the script."""
    return "" if find_config(None) else f", and a {CONFIG_NAME} beside a script in another folder is not read here"


def _written_ns(run: Path) -> int | None:
    """None for what is no run, or one that may not be read."""
    try:
        return (run / RUN_JSON).stat().st_mtime_ns
    except OSError:
        return None
