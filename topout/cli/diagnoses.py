"""What `topout doctor` left behind, for verbs that build on it."""

import json
from pathlib import Path
from typing import Any

from topout.cli.kept_runs import runs_root
from topout.schema.errors import TopoutError
from topout.schema.run_folder import DEFAULT_ROOT


def read_diagnosis(path: Path | None) -> dict[str, Any] | None:
    """The document at `path`, or the newest that doctor kept; None where none was named and there is none."""
    if path is None:
        # beside the runs, and where doctor keeps it unless it is told
        places = {runs_root(), Path(DEFAULT_ROOT)}
        kept = [entry for place in places for entry in place.glob("doctor/*/doctor.json")]
        if not kept:
            return None
        path = max(kept, key=lambda entry: entry.stat().st_mtime_ns)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="topout doctor --json > doctor.json") from error
    if not isinstance(found, dict) or not isinstance(found.get("links"), list):
        raise TopoutError(f"{path} is no diagnosis.", why="It has no links.", do="topout doctor --json > doctor.json")
    return found
