"""Paths as a person types them."""

import os


def near(path: str) -> str:
    """As short as it can be typed from here; whole where it lies elsewhere, or where the current folder is gone."""
    try:
        short = os.path.relpath(path)
    except OSError:
        return path
    return path if short.startswith("..") else short
