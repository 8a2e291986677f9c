"""Carries packs into processes that a rank starts by `spawn` and `forkserver`; forked ones have them already.

Such a process begins with a line of Python that multiprocessing writes; ours goes before it. Not for a script's own
`subprocess` calls: what runs there is not the training script.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import topout
from topout.record.imports import call_after_import

_START = "from multiprocessing.spawn import spawn_main"
_PRELOADED = "topout.feed.serve.spawned"
_has_carried = False


def install() -> None:
    call_after_import({"multiprocessing.spawn": [_tap_spawn], "multiprocessing.forkserver": [_tap_forkserver]})


def has_carried() -> bool:
    """Whether this process has started others that do not share its memory."""
    return _has_carried


def _tap_spawn(module: ModuleType) -> None:
    spawn: Any = module
    real = spawn.get_command_line

    def get_command_line(**kwargs: Any) -> list[Any]:
        global _has_carried
        _has_carried = True
        # the interpreter's own path is in bytes
        return [_first_line() + word if str(word).startswith(_START) else word for word in real(**kwargs)]

    spawn.get_command_line = get_command_line


def _tap_forkserver(module: ModuleType) -> None:
    """The server imports what is to be preloaded, and all it forks later have it."""
    forkserver: Any = module
    server: Any = forkserver._forkserver
    real = server.set_forkserver_preload

    def set_forkserver_preload(modules_names: list[str]) -> None:
        real([_PRELOADED, *modules_names])

    server.set_forkserver_preload = set_forkserver_preload
    forkserver.set_forkserver_preload = set_forkserver_preload
    server._preload_modules = [_PRELOADED, *server._preload_modules]
    connect = server.connect_to_new_process

    def connect_to_new_process(fds: Any) -> Any:
        global _has_carried
        _has_carried = True
        return connect(fds)

    server.connect_to_new_process = connect_to_new_process
    forkserver.connect_to_new_process = connect_to_new_process


def _first_line() -> str:
    """The path is for a topout that is not installed; multiprocessing sets it to the rank's own soon after."""
    folder = str(Path(topout.__file__).parent.parent)
    return f"import sys; sys.path.append({folder!r}); import {_PRELOADED}; "
