"""The compiled code of what loads before a script's first line, in one file beside Python's own compiled files.

Finding 90 files one by one takes a launcher longer than running what is in them. The file lies in `__pycache__` and is
worth what a `.pyc` is worth there: of another Python, another topout or another owner than the package's it is not
read, and a module whose source has another time or size than noted comes from its own file. Without it all works, only
later. Written after a run by the launcher that led it, where Python writes compiled files.

Not for what loads later: a module is in `GROUPS` because a script's first line waits for it (a test holds the list).
"""

# paths are texts here: `pathlib` takes longer than all this saves
# ruff: noqa: PTH112, PTH116, PTH120

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec, module_from_spec
from _frozen_importlib_external import (
    MAGIC_NUMBER,
    ExtensionFileLoader,
    PathFinder,
    SourceFileLoader,
    cache_from_source,
)
from _imp import _fix_co_filename  # type: ignore[attr-defined]

import topout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import TypeAlias

    Kept: TypeAlias = tuple[str, str, int, int, CodeType]
    """Source and compiled file below the package's folder, the source's time and size, and what it compiles to."""
    Place: TypeAlias = tuple[str, tuple[int, int]]
    """A file, its time and its size."""
    Group: TypeAlias = tuple[Sequence[str], int, int]
    """The names in it, and where in the file it begins and how long it is."""

GROUPS = (
    "schema schema.light_signal launch.becoming cli.run_options schema.light_enum schema.errors "
    "schema.light_dataclass schema.spec launch.bounds launch.allocation schema.ignoring host host.kernel_files "
    "launch.variables launch.detect schema.launcher_process schema.light_json schema.run_folder launch.job_result "
    "launch.signals launch.target launch.scribe launch.log_pipe launch.terminal launch.job cli.training",
    "launch.schedulers launch.schedulers.hydra",
    "launch.schedulers.openmpi",
    "launch.node_list launch.schedulers.slurm",
    "host.light_socket schema.light_array schema.world host.nics host.topology launch.member schema.remembered "
    "host.open_files launch.oom_kills launch.outcome launch.ports",
    "launch.token_proof launch.status_pipe launch.wire launch.rendezvous",
    "launch.started_command launch.starters",
    "launch.leading launch.tasks",
    "host.light_selector launch.meeting_point launch.plain_values",
    "launch.following launch.agent",
    "launch.framework_env launch.rank_env",
    "host.c_library host.memory_policy launch.rank_process",
    "record record.preemption record.clock record.status_page launch.local_ranks",
    "record.files record.whereabouts record.lookout record.settings record.held_file record.status",
    "schema.block schema.event record.writer record.recorder",
    "record.horovod_path record.imports record.jax_cluster record.keras_taps record.torch_taps host.openmp_traps "
    "record.worker_cores record.script_code record.rank",
    "launch.link launch.gathering",
    "host.binding launch.roster launch.company",
    "launch.head",
    "launch.run_record launch.rounds",
)
"""What is loaded together: each name after those it needs. Which groups those are depends on what a launcher is for."""

EXTENSIONS = ("_ctypes", "_json", "_sha2", "_sha256", "_socket", "_struct", "array", "fcntl", "mmap", "select", "zlib")
"""Of Python's own, and where they are: a quarter of what it takes to load them is looking for them."""

_ROOT = os.path.dirname(topout.__file__)
_HEADING = MAGIC_NUMBER + f"topout {topout.__version__}\n".encode()
_LENGTH_BYTES = 8
_PYTHON = f"{sys.version} {sys.base_exec_prefix}"
"""Whose extensions they are: several Pythons may share a package's folder."""


class StartCode:
    """Finds each module once: who loads it again gets what is in its file by then. For one thread."""

    def __init__(self, fd: int | None, groups: Sequence[Group], extensions: dict[str, Place]) -> None:
        self._fd = fd
        # where somebody has other ideas of where Python finds things, Python looks
        self._extensions = {} if "PYTHONPATH" in os.environ else extensions
        self._group_of = {name: number for number, (names, _, _) in enumerate(groups) for name in names}
        self._sealed = [(start, length) for _, start, length in groups]
        self._open: dict[int, dict[str, Kept]] = {}
        self.is_current = fd is not None
        """Nothing was missing or old."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Loads what the module needs of its group first: asked for one by one, each would take half as long again."""
        number = self._group_of.get(name)
        if number is None:
            return self._extension(name)
        if number not in self._open:
            self._open[number] = self._content(number)
        kept = self._open[number]
        while name in kept:
            other = next(iter(kept))
            spec = self._spec(other, kept.pop(other))
            if other == name:
                return spec
            if spec is not None and other not in sys.modules:
                _load(spec)
        return None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _content(self, number: int) -> dict[str, Kept]:
        if self._fd is None:
            return {}
        start, length = self._sealed[number]
        try:
            found: dict[str, Kept] = marshal.loads(os.pread(self._fd, length, start))
            return found
        except (OSError, EOFError, ValueError, TypeError):
            self.is_current = False
            return {}

    def _extension(self, name: str) -> ModuleSpec | None:
        path, time_and_size = self._extensions.pop(name, ("", None))
        if time_and_size is None or _time_and_size(path) != time_and_size:
            return None
        spec = ModuleSpec(name, ExtensionFileLoader(name, path), origin=path)
        spec.has_location = True
        return spec

    def _spec(self, name: str, kept: Kept) -> ModuleSpec | None:
        below, compiled, time_ns, size, code = kept
        source = f"{_ROOT}/{below}"
        if _time_and_size(source) != (time_ns, size):
            self.is_current = False
            return None
        _fix_co_filename(code, source)
        spec = ModuleSpec(name, _KeptLoader(name, source, code), origin=source)
        # so that the module says `__file__`, and where Python's own compiled file is
        spec.has_location = True
        if sys.pycache_prefix is None:
            spec.cached = f"{_ROOT}/{compiled}"
        if below.endswith("/__init__.py"):
            spec.submodule_search_locations = [source.removesuffix("/__init__.py")]
        return spec


class _KeptLoader(SourceFileLoader):
    """Python's own, except that it need not open anything for the code."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        return self._code


def _load(spec: ModuleSpec) -> None:
    """As the import statement, without asking all who could know where it is."""
    package, _, own_name = spec.name.rpartition(".")
    parent = sys.modules.get(package) or __import__(package, fromlist=["*"])
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[spec.name]
        raise
    setattr(parent, own_name, module)


_finder: StartCode | None = None


def use() -> None:
    """From now on until `forget`. Before anything of topout is imported that is in `GROUPS`."""
    global _finder
    if _finder is None:
        _finder = StartCode(*_opened())
        # in front: each that is asked before takes a twentieth of the time to load a module
        sys.meta_path.insert(0, _finder)


def forget() -> None:
    """Before a script runs, which finds Python as Python is, and before there are threads."""
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _finder.close()


def keep() -> None:
    """For the next start, where this one missed something; nowhere else, and only by the package's owner."""
    if _finder is None or _finder.is_current or sys.dont_write_bytecode or os.geteuid() != os.stat(_ROOT).st_uid:
        return
    contents = []
    for group in GROUPS:
        found = {name: _kept(name) for name in _names(group)}
        if None in found.values():
            return
        contents.append(marshal.dumps(found))
    groups = [(_names(group), len(content)) for group, content in zip(GROUPS, contents, strict=True)]
    index = marshal.dumps((groups, _PYTHON, {name: place for name in EXTENSIONS if (place := _place(name))}))
    data = b"".join([_HEADING, len(index).to_bytes(_LENGTH_BYTES, "little"), index, *contents])
    # as Python writes compiled files: whole or not at all, and where it cannot, not
    SourceFileLoader("topout", topout.__file__).set_data(_path(), data)


def _kept(name: str) -> Kept | None:
    below = name.removeprefix("topout.").replace(".", "/")
    below += "/__init__.py" if os.path.isdir(f"{_ROOT}/{below}") else ".py"
    source = f"{_ROOT}/{below}"
    before = _time_and_size(source)
    code = SourceFileLoader(name, source).get_code(name)
    if before is None or code is None or before != _time_and_size(source):
        return None
    return below, cache_from_source(source).removeprefix(f"{_ROOT}/"), *before, code


def _place(name: str) -> Place | None:
    """None for what is built into this Python, or not there."""
    spec = PathFinder.find_spec(name)
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader) or spec.origin is None:
        return None
    found = _time_and_size(spec.origin)
    return (spec.origin, found) if found and spec.origin.startswith(f"{sys.base_exec_prefix}/") else None


def _opened() -> tuple[int | None, Sequence[Group], dict[str, Place]]:
    """None and nothing where there is none yet, or it is not what it says."""
    try:
        fd = os.open(_path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, (), {}
    try:
        return fd, *_index(fd)
    except (OSError, EOFError, ValueError, TypeError):
        os.close(fd)
        return None, (), {}


def _index(fd: int) -> tuple[Sequence[Group], dict[str, Place]]:
    start = len(_HEADING) + _LENGTH_BYTES
    heading = os.pread(fd, start, 0)
    status = os.fstat(fd)
    if not heading.startswith(_HEADING) or status.st_uid != os.stat(_ROOT).st_uid:
        raise ValueError("it is somebody else's")
    length = int.from_bytes(heading[-_LENGTH_BYTES:], "little")
    index, python, extensions = marshal.loads(os.pread(fd, length, start))
    if [names for names, _ in index] != [_names(group) for group in GROUPS]:
        raise ValueError("it is of another order, in which modules may not load")
    groups = []
    start += length
    for names, length in index:
        groups.append((names, start, length))
        start += length
    if start != status.st_size:
        raise ValueError("it is torn")
    return groups, extensions if python == _PYTHON else {}


def _path() -> str:
    return cache_from_source(__file__).removesuffix(".pyc") + ".code"


def _names(group: str) -> list[str]:
    return [f"topout.{name}" for name in group.split()]


def _time_and_size(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
