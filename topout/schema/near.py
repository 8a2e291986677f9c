"""Paths as a person types them."""

import os


def near(path: str | os.PathLike[str]) -> str:
    """As short as it can be typed from here; whole where it lies elsewhere, or where the current folder is gone."""
    whole = os.fspath(path)
    try:
        short = os.path.relpath(whole)
    except OSError:
        return whole
    return whole if short.startswith("..") else short
