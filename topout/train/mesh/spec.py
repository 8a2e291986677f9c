"""The mesh that a job trains on, as a TOML file declares it.

    [mesh]
    dp = 2                # replicas
    fsdp = 1              # shards of parameters, gradients and optimizer state
    tp = 2                # shards of single layers
    pp = 2                # stages
    schedule = "1f1b"
    microbatches = 8
    [layout]
    "blocks.*.attention.query" = "columns"
    [stages]
    cut_before = ["blocks.2"]

Not the place for what a model is or how it learns: the same script runs with every mesh.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from topout.schema.config_file import line_of
from topout.schema.errors import TopoutError

DIMENSIONS = ("pp", "dp", "fsdp", "tp")
"""Outermost first: neighbours in the last one meet in every layer, so they are neighbours in the machine too."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "interleaved-zero-bubble")
LAYOUTS = ("columns", "columns+gather", "rows")
_TABLES = ("mesh", "layout", "stages")
_NUMBERS = ("dp", "fsdp", "tp", "pp", "microbatches", "chunks")


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    schedule: str = "1f1b"
    microbatches: int = 0
    """0: one, or two for each stage of a pipeline."""
    chunks: int = 2
    """Stages on each rank under the interleaved schedules."""
    layout: tuple[tuple[str, str], ...] = ()
    cut_before: tuple[str, ...] = ()
    name: str = "mesh"
    """Where it was declared, for messages."""

    @property
    def num_ranks(self) -> int:
        return self.dp * self.fsdp * self.tp * self.pp

    @property
    def num_rows(self) -> int:
        """So many different batches make a global one."""
        return self.dp * self.fsdp

    @property
    def stages_per_rank(self) -> int:
        if self.pp == 1 or self.schedule in ("gpipe", "1f1b"):
            return 1
        return 2 if self.schedule == "zero-bubble" else self.chunks

    @property
    def num_stages(self) -> int:
        return self.pp * self.stages_per_rank

    @property
    def num_microbatches(self) -> int:
        return self.microbatches or (1 if self.pp == 1 else 2 * self.num_stages)

    def stages_of(self, pp_rank: int) -> list[int]:
        """One after the other; zero-bubble's go down the ranks and come back up."""
        if self.schedule == "zero-bubble" and self.pp > 1:
            return [pp_rank, self.num_stages - 1 - pp_rank]
        return [pp_rank + self.pp * chunk for chunk in range(self.stages_per_rank)]

    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in DIMENSIONS}

    def facts(self) -> dict[str, Any]:
        """What must be the same on all ranks."""
        return {
            **{key: getattr(self, key) for key in (*_NUMBERS, "schedule")},
            "layout": [list(rule) for rule in self.layout],
            "cut_before": list(self.cut_before),
        }


def read_spec(mesh: "str | Path | Mapping[str, Any] | MeshSpec") -> MeshSpec:
    """From a file, a mapping (of tables, or of [mesh]'s keys alone), or as it is."""
    if isinstance(mesh, MeshSpec):
        return _checked(mesh)
    if isinstance(mesh, Mapping):
        tables = mesh if all(isinstance(value, Mapping) for value in mesh.values()) else {"mesh": mesh}
        return _made(tables, "mesh", "")
    path = Path(mesh)
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="name the mesh's TOML file") from error
    return _made(content, str(path), text)


def check_world(spec: MeshSpec, world_size: int) -> None:
    if spec.num_ranks == world_size:
        return
    sizes = {name: getattr(spec, name) for name in ("dp", "fsdp", "tp", "pp")}
    ways = []
    for name, size in sizes.items():
        others = spec.num_ranks // size
        if world_size % others == 0:
            ways.append(f"{name} = {world_size // others}")
    change = f"in {spec.name} set {' or '.join(ways)}; or " if ways else ""
    raise TopoutError(
        f"The mesh {' x '.join(f'{name} {size}' for name, size in sizes.items())} has {spec.num_ranks} places, and "
        f"this world has {world_size} ranks.",
        why="Every rank has one place in the mesh, and every place one rank.",
        do=f"{change}topout run -n {spec.num_ranks} script.py",
    )


def _made(content: Mapping[str, Any], name: str, text: str) -> MeshSpec:
    def at(key: str, table: str | None = None) -> str:
        return f"{name}:{line_of(text, key, table)}" if text else name

    for table, keys in content.items():
        _known(table, _TABLES, "table", at(table))
        if not isinstance(keys, Mapping):
            raise _wrong(at(table), table, keys, "is a table")
    settings = content.get("mesh", {})
    given: dict[str, Any] = {}
    for key, value in settings.items():
        _known(key, (*_NUMBERS, "schedule"), "key", at(key, "mesh"))
        if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise _wrong(at(key, "mesh"), key, value, "takes a whole number, 1 or more")
        if key == "schedule":
            _known(value, SCHEDULES, "schedule", at(key, "mesh"))
        given[key] = value
    layout = []
    for rule, style in content.get("layout", {}).items():
        _known(style, LAYOUTS, f"layout of {rule}:", at(rule, "layout"))
        layout.append((str(rule), str(style)))
    stages = content.get("stages", {})
    for key, value in stages.items():
        _known(key, ("cut_before",), "key", at(key, "stages"))
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise _wrong(at(key, "stages"), key, value, "takes a list of module names")
    cuts = tuple(stages.get("cut_before", ()))
    return _checked(MeshSpec(**given, layout=tuple(layout), cut_before=cuts, name=name))


def _checked(spec: MeshSpec) -> MeshSpec:
    stages, microbatches = spec.num_stages, spec.num_microbatches
    if spec.pp > 1 and spec.cut_before and len(spec.cut_before) != stages - 1:
        each = f", {spec.stages_per_rank} on each rank" if spec.stages_per_rank > 1 else ""
        raise TopoutError(
            f"{spec.name}: {len(spec.cut_before)} cuts make {len(spec.cut_before) + 1} stages, and pp = {spec.pp} with "
            f"{spec.schedule} needs {stages}{each}.",
            why="The model is cut once between every two stages.",
            do=f"name {stages - 1} modules in cut_before, or leave [stages] out to cut evenly",
        )
    if spec.pp > 1 and spec.schedule != "gpipe" and microbatches < stages:
        raise TopoutError(
            f"{spec.name}: {microbatches} microbatches are too few for {stages} stages with {spec.schedule}.",
            why=f"The pipeline would never be full; even gpipe would stand idle "
            f"{(spec.pp - 1) / (microbatches + spec.pp - 1):.0%} of the time.",
            do=f"microbatches = {2 * stages} or more; gpipe allows fewer",
        )
    if spec.pp > 1 and spec.schedule.startswith("interleaved") and microbatches % spec.pp:
        raise TopoutError(
            f"{spec.name}: {microbatches} microbatches do not divide by pp = {spec.pp}, as {spec.schedule} needs.",
            why="Interleaved schedules send microbatches round the ranks in groups of that size.",
            do=f"microbatches = {math.ceil(microbatches / spec.pp) * spec.pp}",
        )
    return spec


def _known(name: Any, valid: Collection[str], what: str, where: str) -> None:
    if name in valid:
        return
    near = get_close_matches(str(name), valid, n=1)
    raise TopoutError(
        f"{where}: unknown {what} {name!r}.",
        why=f"valid are {', '.join(valid)}",
        do=f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(valid)}",
    )


def _wrong(where: str, key: str, value: Any, takes: str) -> TopoutError:
    return TopoutError(f"{where}: {key} = {value!r} is not of the right kind.", why=f"{key} {takes}", do=f"mend {key}")
