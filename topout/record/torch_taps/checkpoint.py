"""Taps saves: `torch.save`, distributed checkpoints and safetensors, as long as they block the rank."""

import functools
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.schema.event import NOT_GIVEN, Kind

_SAVERS = ("save", "async_save", "save_file", "save_model")
_inside = threading.local()


def install(module: ModuleType, recorder: Recorder) -> None:
    for name in _SAVERS:
        if hasattr(module, name) and not recorder.settings.leaves_out(name):
            setattr(module, name, _tapped(getattr(module, name), name, recorder))


def _tapped(original: Any, name: str, recorder: Recorder) -> Any:
    saved = recorder.code(Kind.CHECKPOINT, name)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        start_ns = now_ns()
        # a distributed checkpoint saves its parts with torch.save
        is_part = getattr(_inside, "is_saving", False)
        _inside.is_saving = True
        try:
            return original(*args, **kwargs)
        finally:
            _inside.is_saving = is_part
            if not is_part:
                recorder.span(saved, start_ns, _size_of(args, kwargs))

    return save


def _size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    path = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    try:
        return Path(path).stat().st_size if isinstance(path, (str, os.PathLike)) else NOT_GIVEN
    except OSError:
        return NOT_GIVEN
