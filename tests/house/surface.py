"""What others depend on: the flags of each verb, the public names, the top-level keys of analysis.json.

Run as a script it writes `surface.json` anew; do that only when the change is meant, and say it in CHANGELOG.md.
"""

import json
from dataclasses import fields
from pathlib import Path

from cyclopts import App

FROZEN = Path(__file__).with_name("surface.json")
ASKING = {"--help", "-h", "--version"}


def flags_of_verbs() -> dict[str, list[str]]:
    """By verb; a verb with verbs of its own, such as `data`, is there as `data info` and so on."""
    from topout.cli.app import app

    return _flags_below(app, "")


def _flags_below(app: App, before: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for verb in sorted(name for name in app if not name.startswith("-")):
        words = f"{before}{verb}"
        if app[verb].default_command is None:
            found |= _flags_below(app[verb], f"{words} ")
            continue
        arguments = app[verb].assemble_argument_collection()
        names = {name for argument in arguments for name in argument.names if name.startswith("-")}
        found[words] = sorted(names - ASKING)
    return found


def current_surface() -> dict[str, object]:
    import topout
    from topout.schema.analysis import Analysis
    from topout.schema.measures import PHASES, VERDICTS, Measures

    return {
        "flags": flags_of_verbs(),
        "public_names": sorted(topout.__all__),
        "analysis": [field.name for field in fields(Analysis)],
        "measures": [field.name for field in fields(Measures)],
        "phases": list(PHASES),
        "verdicts": list(VERDICTS),
    }


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(current_surface(), indent=2) + "\n")
