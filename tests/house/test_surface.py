"""Nobody's scripts break by accident: the surface is what is written down, and a change of it is written down too."""

import json
import re
from pathlib import Path

from tests.house.surface import FROZEN, current_surface, flags_of_verbs

REPOSITORY = Path(__file__).resolve().parents[2]
HOW_TO_UPDATE = "if the change is meant: python -m tests.house.surface, and a line in CHANGELOG.md"


def test_the_surface_is_the_frozen_one() -> None:
    assert current_surface() == json.loads(FROZEN.read_text()), HOW_TO_UPDATE


def test_public_names_are_there() -> None:
    import topout

    missing = [name for name in topout.__all__ if not callable(getattr(topout, name))]
    assert missing == []


def test_the_page_of_run_documents_every_flag_and_no_other() -> None:
    table = (REPOSITORY / "docs/run.md").read_text().partition("## Options")[2].partition("## ")[0]
    first_cells = re.findall(r"^\|(.*?)\|", table, flags=re.MULTILINE)
    documented = set(re.findall(r"`(--?[\w-]+)", " ".join(first_cells)))
    flags = set(flags_of_verbs()["run"])
    assert documented <= flags
    what_holds_anyway = {"--record", "--report"}
    assert flags - documented == what_holds_anyway


def test_every_verdict_is_explained() -> None:
    from topout.schema.measures import VERDICTS

    page = (REPOSITORY / "docs/reading.md").read_text()
    assert [verdict for verdict in VERDICTS if f"| `{verdict}` |" not in page] == []
