"""This rank's place in the mesh, and the groups it meets its peers in.

    pp     stages of the model                    outermost: they meet once a microbatch
    dp     replicas                               they meet once a step
    fsdp   shards of the same parameters          they meet once a layer
    tp     shards of the same layer               innermost: they meet several times a layer

Ranks that differ in dp or fsdp are rows: they get different samples. Those that differ in tp or pp only are peers and
get the same. Not for process groups of a script's own.
"""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from topout.train.mesh.spec import DIMENSIONS, MeshSpec
from topout.train.place import Place


@dataclass(frozen=True)
class Axes:
    mesh: Any
    """torch's DeviceMesh; None in a world of one."""
    rows: Place
    """This rank among those that hold the same part of the model."""
    pp_rank: int = 0
    tp_rank: int = 0

    def group(self, name: str) -> Any:
        return None if self.mesh is None else self.mesh.get_group(name)


def coordinates(spec: MeshSpec, rank: int) -> dict[str, int]:
    """(pp, dp, fsdp, tp) of a rank, the last one running fastest."""
    found = {}
    for name in reversed(DIMENSIONS):
        rank, found[name] = divmod(rank, spec.sizes()[name])
    return found


def row_of(spec: MeshSpec, rank: int) -> int:
    at = coordinates(spec, rank)
    return at["dp"] * spec.fsdp + at["fsdp"]


def make_axes(spec: MeshSpec, place: Place) -> Axes:
    """All ranks together."""
    if place.world_size == 1:
        return Axes(None, place)
    from torch.distributed.device_mesh import init_device_mesh

    sizes = spec.sizes()
    mesh = init_device_mesh(place.device.type, tuple(sizes.values()), mesh_dim_names=DIMENSIONS)
    at = coordinates(spec, place.rank)
    rows = Place(
        rank=row_of(spec, place.rank), world_size=spec.num_rows, local_rank=place.local_rank,
        local_world_size=place.local_world_size, device=place.device, group=_row_group(spec, mesh, place),
    )  # fmt: skip
    return Axes(mesh, rows, at["pp"], at["tp"])


def _row_group(spec: MeshSpec, mesh: Any, place: Place) -> Any:
    """Of the ranks that hold the same part of the model; None where this one is alone."""
    if spec.num_rows == 1:
        return None
    if 1 in (spec.dp, spec.fsdp):
        return mesh.get_group("dp" if spec.fsdp == 1 else "fsdp")
    parts = [(coordinates(spec, rank)["pp"], coordinates(spec, rank)["tp"]) for rank in range(place.world_size)]
    # every rank makes all groups, as torch wants
    groups = {
        part: dist.new_group([rank for rank, other in enumerate(parts) if other == part]) for part in sorted(set(parts))
    }
    return groups[parts[place.rank]]
