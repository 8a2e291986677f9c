"""What scripts of TensorFlow, Horovod and JAX read in their environment to find their place in the job.

Not torch's variables, which `rank_env` sets. A script of one framework passes over those of the others, and nobody
knows before its first import which it is, so every rank gets all of them. They need a port for each rank and are left
out without one.

`TF_CONFIG`: TensorFlow's cluster description, one worker a rank. `HOROVOD_*`: the rank as Horovod's Gloo controller
reads it; that controller also wants a rendezvous server (HOROVOD_GLOO_RENDEZVOUS_ADDR), which topout does not run, so
Horovod works where it was built with MPI and an MPI launcher started the ranks. `JAX_COORDINATOR_ADDRESS` is read by
`jax.distributed.initialize()` itself; it takes the number of processes and its own only from a scheduler that it knows,
so `record.jax_cluster` tells it `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` inside the rank.
"""

from topout.schema.light_json import dumps
from topout.schema.world import Rank, World

_LONGEST_CHARACTERS = 100_000
"""The kernel starts no program with a variable above 128 KiB; so large a job does without TensorFlow's."""


def framework_variables(rank: Rank, world: World) -> dict[str, str]:
    """Replace what the launcher inherited: a scheduler's own values describe its tasks, not these ranks."""
    variables = _horovod(rank, world)
    if all(other.port for other in world.ranks):
        variables |= _jax(rank, world)
        # with a cluster of one, TensorFlow would start a server that nobody calls
        if world.size > 1 and len(config := _tensorflow(rank, world)) <= _LONGEST_CHARACTERS:
            variables["TF_CONFIG"] = config
    return variables


def framework_defaults(rank: Rank, world: World) -> dict[str, str]:
    """To be set where the user did not: TensorFlow's threads, which follow OMP_NUM_THREADS only in a bound rank.

    And which GPUs JAX uses, where ranks share those of a host; a rank that shares none shall find all that it sees.
    """
    variables = {"TF_NUM_INTRAOP_THREADS": str(rank.num_threads), "TF_NUM_INTEROP_THREADS": str(rank.num_threads)}
    is_shared = sum(other.node_rank == rank.node_rank for other in world.ranks) > 1
    if rank.gpu is not None and rank.gpu_on_host is None and is_shared:
        variables["JAX_LOCAL_DEVICE_IDS"] = str(rank.gpu)
    return variables


def _tensorflow(rank: Rank, world: World) -> str:
    workers = [_address(other, world) for other in sorted(world.ranks, key=lambda other: other.rank)]
    return dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank.rank}})


def _jax(rank: Rank, world: World) -> dict[str, str]:
    first = min(world.ranks, key=lambda other: other.rank)
    return {
        "JAX_COORDINATOR_ADDRESS": _address(first, world),
        "JAX_NUM_PROCESSES": str(world.size),
        "JAX_PROCESS_ID": str(rank.rank),
    }


def _horovod(rank: Rank, world: World) -> dict[str, str]:
    # ranks of equal local number on all hosts are what Horovod calls cross
    cross = sorted(other.node_rank for other in world.ranks if other.local_rank == rank.local_rank)
    return {
        "HOROVOD_RANK": str(rank.rank),
        "HOROVOD_SIZE": str(world.size),
        "HOROVOD_LOCAL_RANK": str(rank.local_rank),
        "HOROVOD_LOCAL_SIZE": str(sum(other.node_rank == rank.node_rank for other in world.ranks)),
        "HOROVOD_CROSS_RANK": str(cross.index(rank.node_rank)),
        "HOROVOD_CROSS_SIZE": str(len(cross)),
        "HOROVOD_HOSTNAME": rank.host,
    }


def _address(rank: Rank, world: World) -> str:
    """By the number of the host, since two may bear the same name."""
    address = world.hosts[rank.node_rank].address
    return f"[{address}]:{rank.port}" if ":" in address else f"{address}:{rank.port}"
