"""Text as bytes, cut into windows: a file, or the sources of Python's standard library, which every machine has.

Bytes need no tokeniser and no download, and bits per byte compare between models of any vocabulary. Not how to reach a
good model of language: four bytes are about one token, so a window holds a quarter of the text.
"""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from topout.schema.errors import TopoutError

VALIDATION_SHARE = 0.1


def read_text(path=None, most_bytes=None):
    """All bytes as one array; without a path the standard library's top-level modules, by name."""
    if path is not None:
        return np.memmap(path, dtype=np.uint8, mode="r")[:most_bytes]
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(source.read_bytes() for source in sorted(folder.glob("*.py")))
    if not text:
        raise TopoutError(
            "There is no text to learn from.",
            why=f"Python's own sources are not at {folder}: they may lie in a zip file.",
            do="--text FILE",
        )
    return np.frombuffer(text, dtype=np.uint8)[:most_bytes]


def split_text(text, context):
    """What is trained on, and the last tenth, which is not."""
    cut = len(text) - round(VALIDATION_SHARE * len(text))
    parts = text[:cut], text[cut:]
    if min(map(len, parts)) <= context:
        raise TopoutError(
            f"The text has {len(text):,} bytes, too few for windows of {context}.",
            why=f"A tenth of it is for validation, and both parts need {context + 1} bytes at least.",
            do="give a longer text, or a shorter --context",
        )
    return tuple(Windows(part, context) for part in parts)


def entropy_of_bytes(text):
    """Bits per byte for who knows how common each byte is, and nothing of what stands before it."""
    shares = np.bincount(text, minlength=256) / len(text)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


class Windows(Dataset):
    """One window after the other, each with the same text one byte further on: what is to be told."""

    def __init__(self, text, context):
        self.text, self.context = text, context

    def __len__(self):
        return (len(self.text) - 1) // self.context

    def __getitem__(self, number):
        start = number * self.context
        window = torch.from_numpy(self.text[start : start + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]
