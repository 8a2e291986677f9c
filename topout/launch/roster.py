"""Who takes part, and as which rank: from the launchers that have arrived to a world.

Pure functions. A launcher that a scheduler started once for every rank brings exactly one rank, its task's; one that
stands for a whole host brings as many as were asked for. Not for placing ranks on cores; `binding` does.
"""

from __future__ import annotations

from topout.host.binding import bind, check_gpus, ranks_per_host
from topout.host.topology import join_hosts
from topout.launch.allocation import Allocation
from topout.launch.member import Member
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import dataclass, replace
from topout.schema.spec import RunSpec
from topout.schema.world import Host, Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_RANKS_PER_CORE = 16


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The world, and which member starts which of its ranks."""

    world: World
    ranks_of: dict[int, tuple[Rank, ...]]
    """Member's number -> its ranks."""
    notes: tuple[str, ...] = ()


def make_roster(
    spec: RunSpec,
    members: Sequence[Member],
    allocation: Allocation | None = None,
    settled: Mapping[int, int] | None = None,
) -> Roster:
    """Ranks are numbered host by host. Ports and the master's address are settled later, on the hosts.

    `settled` is how many ranks each member had when the job began: who is left keeps them, and the world shrinks.
    """
    members = sorted(members, key=lambda member: member.number)
    are_tasks = members[0].is_task
    crews = _crews(members)
    # a task may see its own cores alone; together they see what the job has of the host
    hosts = [join_hosts([member.host for member in crew]) for crew in crews]
    if are_tasks:
        counts = [len(crew) for crew in crews]
        if not settled:
            _check_tasks(spec, hosts, counts)
    elif settled:
        counts = [settled[crew[0].number] for crew in crews]
    else:
        counts = ranks_on(spec, hosts, _told(allocation, members))
    notes: list[str] = _single_tasks(spec, hosts, counts) if are_tasks else []
    ranks: list[Rank] = []
    ranks_of: dict[int, tuple[Rank, ...]] = {}
    first = 0
    for node_rank, (host, crew, count) in enumerate(zip(hosts, crews, counts, strict=True)):
        seen = _gpus_seen(host, crew) if are_tasks else None
        if seen is None or not _are_disjoint(crew, host):
            _check_gpus(host, count, is_meant=_is_meant(spec))
        granted = [member.granted for member in crew] if are_tasks else None
        binding = bind(_with_gpus(host, seen), count, policy=spec.bind, granted=granted)
        # tasks keep the rank that their scheduler gave them, unless some are gone
        numbers = _numbers(members, crew) if are_tasks else range(first, first + count)
        own = [
            replace(rank, rank=number, node_rank=node_rank, rail=_rail(rank, host, hosts))
            for rank, number in zip(binding.ranks, numbers, strict=True)
        ]
        if seen is not None:
            # CUDA numbers what a process sees, so each has a device 0
            own = [replace(rank, gpu=0, gpu_on_host=gpu) for rank, gpu in zip(own, seen, strict=True)]
            notes.append(
                f"{host.name}: each task sees {len(crew[0].host.gpus)} of {len(host.gpus)} GPUs, so a script that "
                "takes cuda:LOCAL_RANK fails; ask for them by host (srun --gpus-per-node --gpu-bind=none)"
            )
        first += count
        ranks += own
        ranks_of.update(
            {member.number: (rank,) for member, rank in zip(crew, own, strict=True)}
            if are_tasks
            else {crew[0].number: tuple(own)}
        )
        notes += [note if len(hosts) == 1 else f"{host.name}: {note}" for note in binding.notes]
    ranks.sort(key=lambda rank: rank.rank)
    world = World(hosts=tuple(hosts), ranks=tuple(ranks), master_address="", master_port=0)
    return Roster(world=world, ranks_of=ranks_of, notes=tuple(notes))


def ranks_on(spec: RunSpec, hosts: Sequence[Host], told: list[int] | None) -> list[int]:
    """How many ranks each host gets: as asked, as the scheduler `told`, else one a GPU or a NUMA domain."""
    asked = None if spec.per_node is None else [ranks_per_host(host, spec.per_node) for host in hosts]
    if spec.num_ranks is not None:
        if asked is not None and sum(asked) != spec.num_ranks:
            raise TopoutError(
                f"{_given(spec, 'num_ranks')} and {_given(spec, 'per_node')} contradict each other.",
                why=f"on {_hosts_in_words(hosts)} --per-node {spec.per_node} gives {sum(asked)} ranks",
                do="give one of the two",
            )
        if spec.num_ranks < len(hosts):
            raise TopoutError(
                f"{_given(spec, 'num_ranks')} is fewer than one rank on each of {len(hosts)} hosts.",
                why="a host of the allocation would stand idle",
                do=f"use fewer hosts with --nodes {spec.num_ranks}",
            )
        share, left_over = divmod(spec.num_ranks, len(hosts))
        asked = [share + (number < left_over) for number in range(len(hosts))]
    counts = asked or told or [ranks_per_host(host, None) for host in hosts]
    for host, count in zip(hosts, counts, strict=True):
        most = max(256, _MOST_RANKS_PER_CORE * len(host.cores))
        if count > most:
            raise TopoutError(
                f"{count} ranks do not fit on {host.name}.",
                why=f"it has {len(host.cores)} cores; topout starts at most {most} ranks here",
                do=f"try -n {len(hosts) * (len(host.gpus) or len(host.cores))}",
            )
    return counts


def _told(allocation: Allocation | None, members: Sequence[Member]) -> list[int] | None:
    """How many tasks the scheduler was asked for on the host of each member; some hosts may be gone by now."""
    counts = (allocation.tasks_per_host if allocation is not None else None) or ()
    # one task a host is what job scripts ask for whose launcher starts the ranks itself
    if not any(count > 1 for count in counts) or members[-1].number >= len(counts):
        return None
    return [counts[member.number] for member in members]


def _crews(members: Sequence[Member]) -> list[list[Member]]:
    """The members of each host, in the order of hosts."""
    crews: dict[str, list[Member]] = {}
    for member in members:
        crew = crews.setdefault(member.host.name, [])
        if crew and (crew[0].host.address != member.host.address or not member.is_task):
            raise TopoutError(
                f"Two hosts of this job call themselves {member.host.name}.",
                why=f"their addresses are {crew[0].host.address} and {member.host.address}; ranks could not be told "
                "apart",
                do="give every host a name of its own (hostnamectl set-hostname), or leave one out of the job",
                exit_code=ExitCode.ENVIRONMENT,
            )
        crew.append(member)
    return list(crews.values())


def _rail(rank: Rank, host: Host, hosts: Sequence[Host]) -> str | None:
    """The nearest interface, where every host has several: one beyond a gateway may reach but the first of them."""
    near = rank.nic.name if rank.nic is not None else None
    return near if near in host.rails and all(other.rails for other in hosts) else None


def _gpus_seen(host: Host, crew: Sequence[Member]) -> list[int] | None:
    """The first GPU of each task, as the host counts them; None where tasks see all of the host's, or none."""
    if len(crew) == 1 or not all(len(host.gpus) > len(member.host.gpus) > 0 for member in crew):
        return None
    return [host.gpu_ids.index(member.host.gpu_ids[0]) for member in crew]


def _are_disjoint(crew: Sequence[Member], host: Host) -> bool:
    """Whether each GPU belongs to one task alone: then none is shared and none idle, however many a task has."""
    return sum(len(member.host.gpus) for member in crew) == len(host.gpus)


def _with_gpus(host: Host, seen: Sequence[int] | None) -> Host:
    """The host as its tasks see it: rank by rank the first GPU that each has."""
    if seen is None:
        return host
    return replace(
        host,
        gpus=tuple(host.gpus[gpu] for gpu in seen),
        gpu_numa=tuple(host.gpu_numa[gpu] for gpu in seen) if host.gpu_numa else (),
    )


def _numbers(members: Sequence[Member], crew: Sequence[Member]) -> list[int]:
    place = {member.number: number for number, member in enumerate(members)}
    return [place[member.number] for member in crew]


def _check_tasks(spec: RunSpec, hosts: Sequence[Host], counts: Sequence[int]) -> None:
    num_tasks = sum(counts)
    why = "each task is one rank; a world of another size would train something else than you asked for"
    if spec.num_ranks is not None and spec.num_ranks != num_tasks:
        given = _given(spec, "num_ranks")
        raise TopoutError(
            f"{given} contradicts the {num_tasks} tasks that were started.",
            why=why,
            do=f"leave out {given.partition(' ')[0]}, or start {spec.num_ranks} tasks",
        )
    asked = counts if spec.per_node is None else [ranks_per_host(host, spec.per_node) for host in hosts]
    for host, count, wanted in zip(hosts, counts, asked, strict=True):
        if count != wanted:
            raise TopoutError(
                f"{_given(spec, 'per_node')} contradicts the tasks that were started: {host.name} has {count}.",
                why=why,
                do=f"start {wanted} tasks on each host (srun --ntasks-per-node={wanted}), or topout once in the "
                "allocation, which then starts the ranks",
            )
    # a file's is for whoever submits
    if spec.nodes not in (None, len(hosts)) and spec.origins.get("nodes") == "command line":
        raise TopoutError(
            f"--nodes {spec.nodes} contradicts the tasks that were started: they are on {len(hosts)}.",
            why="each task is one rank, and none can be left out by now",
            do=f"leave out --nodes, or start tasks on {spec.nodes} (srun -N {spec.nodes}, mpirun -hosts)",
        )


def _given(spec: RunSpec, name: str) -> str:
    """As whoever typed it knows it."""
    value, origin = getattr(spec, name), spec.origins.get(name, "command line")
    flag = {"num_ranks": "-n", "per_node": "--per-node"}[name]
    return f"{flag} {value}" if origin == "command line" else f"{name} = {value} ({origin})"


def _is_meant(spec: RunSpec) -> bool:
    return spec.num_ranks is not None or spec.per_node is not None


def _single_tasks(spec: RunSpec, hosts: Sequence[Host], counts: Sequence[int]) -> list[str]:
    """A note, not an error, where a host's only task has several GPUs: some scripts drive them all, most do not."""
    found = [host for host, count in zip(hosts, counts, strict=True) if count == 1 and check_gpus(host, count)]
    if not found or _is_meant(spec):
        return []
    num_gpus, num_alike = len(found[0].gpus), len(found) - 1
    alike = f", as on {num_alike} more of {len(hosts)} hosts" if num_alike else ""
    return [
        f"{check_gpus(found[0], 1)}, else {num_gpus - 1} stand idle{alike}; start {num_gpus} tasks on each host (srun "
        f"--ntasks-per-node={num_gpus}), or --per-node 1 says that it is meant"
    ]


def _check_gpus(host: Host, num_ranks: int, *, is_meant: bool) -> None:
    """Two ranks on one GPU fail in NCCL, late and unclearly; an idle GPU costs money without a word."""
    mismatch = check_gpus(host, num_ranks)
    if mismatch is not None and num_ranks != 1 and not is_meant:
        raise TopoutError(
            f"{num_ranks} tasks do not match the {len(host.gpus)} GPUs of {host.name}.",
            why=mismatch,
            do=f"ask for {len(host.gpus)} tasks on each host; --per-node {num_ranks} says that it is meant",
        )


def _hosts_in_words(hosts: Sequence[Host]) -> str:
    return hosts[0].name if len(hosts) == 1 else f"{len(hosts)} hosts"
