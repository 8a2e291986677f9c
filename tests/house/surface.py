"""What others depend on: the flags of each verb, the public names, the top-level keys of analysis.json.

Run as a script it writes `surface.json` anew; do that only when the change is meant, and say it in CHANGELOG.md.
"""

import json
from dataclasses import fields
from pathlib import Path

FROZEN = Path(__file__).with_name("surface.json")
ASKING = {"--help", "-h", "--version"}


def flags_of_verbs() -> dict[str, list[str]]:
    from topout.cli.app import app

    return {
        verb: sorted(
            name
            for argument in app[verb].assemble_argument_collection()
            for name in argument.names
            if name.startswith("-") and name not in ASKING
        )
        for verb in sorted(app)
        if not verb.startswith("-")
    }


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
