"""What `topout doctor` left behind, for verbs that build on it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topout.cli.kept_runs import runs_root
from topout.preflight.check import named
from topout.schema.errors import TopoutError
from topout.schema.run_folder import DEFAULT_ROOT
from topout.study.doctor_document import check_document


def read_diagnosis(path: Path | None) -> dict[str, Any] | None:
    """The document at `path`, or the newest that doctor kept; None where none was named and there is none."""
    if path is None:
        path = next(iter(_kept()), None)
    return None if path is None else _read(path)


def diagnosis_for(run: Mapping[str, Any], path: Path | None) -> tuple[dict[str, Any] | None, list[str]]:
    """The document at `path`, or the newest of a host that took part in `run`; and a note where none is of one."""
    if path is not None:
        return _checked(path), []
    ran = _names(run, "name")
    left_out = []
    for number, kept in enumerate(_kept()):
        try:
            found = _checked(kept)
        except TopoutError:
            if number == 0:
                raise
            # nobody asked for an older one
            continue
        examined = _names(found, "host")
        # one that does not say is believed
        if not ran or not examined or ran & examined:
            return found, []
        left_out.append((kept, examined))
    if not left_out:
        return None, []
    newest, examined = left_out[0]
    note = (
        f"The newest topout doctor examined {named(sorted(examined))}, which took no part in this run; it is left out. "
        f"Where hosts are alike, add --doctor {shlex.quote(str(newest))}."
    )
    return None, [note]


def _kept() -> list[Path]:
    """Newest first."""
    # beside the runs, and where doctor keeps it unless it is told
    places = {runs_root(), Path(DEFAULT_ROOT)}
    found = [entry for place in places for entry in place.glob("doctor/*/doctor.json")]
    return sorted(found, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)


def _names(document: Mapping[str, Any], key: str) -> set[str]:
    """Of its hosts; doctor tells two of one name apart by their number, as n1#0 and n1#1."""
    hosts = document.get("hosts")
    entries = [host for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []
    return {str(host[key]).partition("#")[0] for host in entries if host.get(key)}


def _checked(path: Path) -> dict[str, Any]:
    found = _read(path)
    check_document(str(path), found)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="topout doctor --json > doctor.json") from error
    if not isinstance(found, dict) or not isinstance(found.get("links"), list):
        raise TopoutError(f"{path} is no diagnosis.", why="It has no links.", do="topout doctor --json > doctor.json")
    return found
