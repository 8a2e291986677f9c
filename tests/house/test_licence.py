"""What a user may do with topout is said, and said the same everywhere."""

import hashlib
import re
import tomllib
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_licence_is_the_whole_apache_text() -> None:
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_package_declares_the_same_licence() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])


def test_the_digits_are_credited_and_are_what_the_card_says() -> None:
    card = (REPOSITORY / "topout/recipes/digits.md").read_text()
    assert "CC BY 4.0" in card
    assert "E. Alpaydin, C. Kaynak" in card
    with np.load(REPOSITORY / "topout/recipes/digits.npz") as digits:
        images, labels = digits["images"], digits["labels"]
    assert (images.shape, images.dtype, images.max()) == ((1797, 8, 8), np.uint8, 16)
    assert (np.bincount(labels).min(), np.bincount(labels).max()) == (174, 183)
    assert hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest().startswith("87ff0c9e40dc7e2c")


def test_the_version_is_one() -> None:
    import topout

    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"] == topout.__version__


def test_constraints_pin_every_requirement_exactly() -> None:
    lines = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[>=]", requirement)[0].replace("-", "_").lower() for requirement in required}
    assert names - {name.replace("-", "_").lower() for name in pins} == set()
