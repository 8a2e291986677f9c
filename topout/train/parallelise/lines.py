"""Where in the script something happens, for errors that name the line."""

import sys
from pathlib import Path

import torch

import topout

_OUTSIDE = (str(Path(torch.__file__).parent), str(Path(topout.__file__).parent), "<frozen")


def script_line() -> str:
    """`train.py:41`: the innermost line that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OUTSIDE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
