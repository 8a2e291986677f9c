"""Tells JAX its place in the job, so that a plain `jax.distributed.initialize()` works under every launcher.

JAX reads the coordinator's address from the environment, but the number of processes and its own only from schedulers
that it knows: under none of them it gives up, and where one task a host starts several ranks, Slurm's numbers would be
the tasks'. So topout is one more such scheduler, asked first. Arguments that the script passes win as ever; a script
without JAX never loads any of this.
"""

from __future__ import annotations

import os

from topout.record.imports import call_after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_ADDRESS, _SIZE, _RANK = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def install() -> None:
    call_after_import({"jax._src.clusters": [register]})


def register(clusters: ModuleType) -> None:
    """Whatever JAX has become, failing here must not cost the script its import."""
    try:
        found: list[Any] = clusters.ClusterEnv._cluster_types
        found.insert(0, _make_cluster(clusters.ClusterEnv))
    except Exception:
        return


def _make_cluster(parent: Any) -> Any:
    """Deriving from JAX's class appends to its list; the place at the front is the one that counts."""
    return type(
        "TopoutCluster",
        (parent,),
        {
            "name": "topout",
            "is_env_present": classmethod(lambda _: all(name in os.environ for name in (_ADDRESS, _SIZE, _RANK))),
            "get_coordinator_address": classmethod(lambda _, *_args, **_kwargs: os.environ[_ADDRESS]),
            "get_process_count": classmethod(lambda _: int(os.environ[_SIZE])),
            "get_process_id": classmethod(lambda _: int(os.environ[_RANK])),
        },
    )
