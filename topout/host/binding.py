"""Which cores each rank of one host owns: disjoint, whole physical cores first, inside one NUMA domain where it can be.

Training goes at the pace of its slowest rank, so every rank gets the same number of threads, even where cores do not
divide evenly. Not for placing ranks on hosts; a scheduler decides that.
"""

from __future__ import annotations

from topout.host.nics import nearest_nic
from topout.schema.errors import TopoutError
from topout.schema.light_dataclass import dataclass, replace
from topout.schema.spec import PER_NODE
from topout.schema.world import Core, Host, Rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The ranks of one host, and what a person should know about how they share it."""

    ranks: tuple[Rank, ...]
    notes: tuple[str, ...] = ()


Cores = list[list[Core]]
"""Physical cores, each as the logical processors on it."""


def bind(
    host: Host, num_ranks: int, *, policy: str = "auto", granted: Sequence[Sequence[int]] | None = None
) -> Binding:
    """The ranks as one of `spec.BIND_POLICIES` places them; an impossible one is an error.

    `granted` are the cores that a scheduler gave each rank's task. Where no two tasks share one, `auto` leaves them so.
    """
    shares = _of_tasks(host, granted, num_ranks) if policy == "auto" else None
    if shares is None:
        shares = _POLICIES[policy](host, num_ranks)
    notes = _crowding(host, shares) if policy not in ("node", "none") else []
    num_threads = _num_threads(host, shares, num_ranks, notes)
    ranks = tuple(
        Rank(
            rank=number,
            local_rank=number,
            node_rank=0,
            host=host.name,
            cores=tuple(sorted(core.index for cores in share for core in cores)) if policy != "none" else (),
            num_threads=num_threads,
            gpu=number if number < len(host.gpus) else None,
            numa=tuple(sorted({core.numa for cores in share for core in cores})) if policy != "none" else (),
        )
        for number, share in enumerate(shares)
    )
    return Binding(ranks=_with_nics(host, ranks), notes=tuple(notes))


def ranks_per_host(host: Host, per_node: int | str | None) -> int:
    """A number, or one rank for each thing of a kind that the host has; None: a GPU, else a NUMA domain."""
    if isinstance(per_node, int):
        return per_node
    counts = {
        "gpu": len(host.gpus),
        "socket": len({core.socket for core in host.cores}),
        "numa": len(host.numa_domains),
        "core": len(physical_cores(host)),
        "node": 1,
    }
    if per_node is None:
        return counts["gpu"] or counts["numa"] or 1
    if per_node not in counts:
        raise TopoutError(
            f"--per-node {per_node} is neither a number nor something a host has.",
            why=f"it may be {', '.join(PER_NODE)}",
            do="try --per-node numa",
        )
    if counts[per_node] == 0:
        raise TopoutError(
            f"--per-node {per_node} leaves no rank for {host.name}.",
            why=f"{host.name} shows no GPU",
            do="try --per-node numa, or see topout doctor why the GPUs do not show",
        )
    return counts[per_node]


def check_gpus(host: Host, num_ranks: int) -> str | None:
    """One sentence where ranks and GPUs do not match; None where they do, or where there is no GPU."""
    num_gpus = len(host.gpus)
    if num_gpus in (0, num_ranks):
        return None
    if num_ranks > num_gpus:
        return f"{num_ranks} ranks on {host.name}, which shows {num_gpus} GPUs: two would share one, which NCCL refuses"
    idle = f"{num_gpus - num_ranks} of the {num_gpus} GPUs of {host.name} stand idle with {num_ranks} ranks"
    return idle if num_ranks > 1 else f"{host.name} shows {num_gpus} GPUs: one rank must drive them all itself"


# policies


def _evenly(host: Host, num_ranks: int) -> list[Cores]:
    """Whole cores while they last, then hyper-threads, then cores in turn."""
    physical = physical_cores(host)
    return share_out(physical, num_ranks) if num_ranks <= len(physical) else _crowd(physical, num_ranks)


def _auto(host: Host, num_ranks: int) -> list[Cores]:
    """Near the GPUs where every domain with a GPU gets a rank; else evenly.

    A single rank keeps all cores: its loader workers need them more than its copies need the short way.
    """
    own = host.gpu_numa[:num_ranks]
    if 1 < num_ranks <= len(host.gpu_numa) and set(own) == set(host.gpu_numa) and _are_granted(host, own):
        return _near(host, own)
    return _evenly(host, num_ranks)


def _gpu(host: Host, num_ranks: int) -> list[Cores]:
    if not host.gpus:
        raise TopoutError(
            f"--bind gpu is not possible on {host.name}.",
            why="it shows no GPU",
            do="try --bind numa, or see topout doctor why the GPUs do not show",
        )
    if num_ranks > len(host.gpus):
        raise TopoutError(
            f"--bind gpu is not possible with {num_ranks} ranks on {host.name}.",
            why=f"it shows {len(host.gpus)} GPUs, so some ranks have none to be near to",
            do=f"try --per-node gpu ({len(host.gpus)} ranks)",
        )
    if len(host.numa_domains) == 1:
        return _evenly(host, num_ranks)
    own = host.gpu_numa[:num_ranks]
    if len(own) < num_ranks or None in own:
        raise TopoutError(
            f"--bind gpu is not possible on {host.name}.",
            why="its kernel does not say in which NUMA domain the GPUs sit, as in many virtual machines",
            do="try --bind numa, or tell hwloc where they sit (HWLOC_XMLFILE, HWLOC_PCI_LOCALITY)",
        )
    if not _are_granted(host, own):
        raise TopoutError(
            f"--bind gpu is not possible on {host.name}.",
            why=f"the GPUs sit in NUMA domains {_listed(own)}, the granted cores in {_listed(host.numa_domains)}",
            do="ask the scheduler for cores near the GPUs, or try --bind numa",
        )
    return _near(host, own)


def _are_granted(host: Host, domains: Iterable[int | None]) -> bool:
    return set(domains) <= set(host.numa_domains)


def _near(host: Host, own: Sequence[int | None]) -> list[Cores]:
    """Each rank in the domain of its GPU; a domain without one goes to the GPUs of its socket, else to nobody."""
    domains = _grouped(physical_cores(host), lambda core: core.numa)
    territory: dict[int, list[Cores]] = {domain: [cores] for domain, cores in domains.items() if domain in own}
    for domain, cores in domains.items():
        on_socket = [other for other in territory if domains[other][0][0].socket == cores[0][0].socket]
        if domain not in territory and on_socket:
            # to those whose ranks have the fewest cores so far, the neighbour first
            share_of = {other: sum(map(len, territory[other])) / own.count(other) for other in on_socket}
            territory[min(on_socket, key=lambda other: (share_of[other], abs(other - domain)))].append(cores)
    shares = {domain: iter(_slices(parts, own.count(domain))) for domain, parts in territory.items()}
    return [next(shares[domain]) for domain in own if domain is not None]


def _slices(parts: list[Cores], num_ranks: int) -> list[Cores]:
    """Every rank gets as much of each domain as the others, so that none is slower for where it sits."""
    if any(len(part) < num_ranks for part in parts):
        return _divide([core for part in parts for core in part], num_ranks)
    split = [_split(part, num_ranks) for part in parts]
    return [[core for piece in pieces for core in piece] for pieces in zip(*split, strict=True)]


def _socket(host: Host, num_ranks: int) -> list[Cores]:
    return _in_groups(_grouped(physical_cores(host), lambda core: core.socket), num_ranks)


def _numa(host: Host, num_ranks: int) -> list[Cores]:
    return _in_groups(_grouped(physical_cores(host), lambda core: core.numa), num_ranks)


def _in_groups(groups: dict[int, Cores], num_ranks: int) -> list[Cores]:
    """Neighbouring ranks in one group; fewer ranks than groups are spread over them, and leave the others empty."""
    places = [number * len(groups) // num_ranks for number in range(num_ranks)]
    return [
        share
        for place, cores in enumerate(groups.values())
        if place in places
        for share in _divide(cores, places.count(place))
    ]


def _core(host: Host, num_ranks: int) -> list[Cores]:
    """One physical core each, spread over the host so that ranks share memory channels as little as they can."""
    physical = physical_cores(host)
    if num_ranks > len(physical):
        raise TopoutError(
            f"--bind core is not possible with {num_ranks} ranks on {host.name}.",
            why=f"{len(physical)} physical cores are granted there",
            do=f"try --per-node core ({len(physical)} ranks), or --bind auto, which shares cores",
        )
    return [share[:1] for share in share_out(physical, num_ranks)]


def _node(host: Host, num_ranks: int) -> list[Cores]:
    return [physical_cores(host)] * num_ranks


_POLICIES: dict[str, Callable[[Host, int], list[Cores]]] = {
    "auto": _auto,
    "gpu": _gpu,
    "socket": _socket,
    "numa": _numa,
    "core": _core,
    "node": _node,
    "none": _node,
}


def _of_tasks(host: Host, granted: Sequence[Sequence[int]] | None, num_ranks: int) -> list[Cores] | None:
    """As the scheduler bound the tasks; None where it did not, or where two of them share a core."""
    if granted is None or len(granted) != num_ranks or num_ranks < 2:
        return None
    taken = [index for cores in granted for index in cores]
    known = {core.index for core in host.cores}
    if len(taken) != len(set(taken)) or not all(granted) or not set(taken) <= known:
        return None
    return [physical_cores(replace(host, cores=tuple(c for c in host.cores if c.index in own))) for own in granted]


# shares


def physical_cores(host: Host) -> Cores:
    """In the order in which neighbours are near each other."""
    found: dict[tuple[int, int, int], list[Core]] = {}
    for core in host.cores:
        found.setdefault((core.numa, core.socket, core.physical), []).append(core)
    return [found[key] for key in sorted(found)]


def share_out(cores: Cores, num_ranks: int) -> list[Cores]:
    """Contiguous shares that differ by at most one core; inside NUMA domains when ranks divide evenly over them."""
    domains = _grouped(cores, lambda core: core.numa)
    ranks_per_domain, left_over = divmod(num_ranks, len(domains))
    if left_over == 0 and all(len(domain) >= ranks_per_domain for domain in domains.values()):
        return [share for domain in domains.values() for share in _split(domain, ranks_per_domain)]
    return _split(cores, num_ranks)


def _grouped(cores: Cores, place: Callable[[Core], int]) -> dict[int, Cores]:
    groups: dict[int, Cores] = {}
    for core in cores:
        groups.setdefault(place(core[0]), []).append(core)
    return dict(sorted(groups.items()))


def _divide(cores: Cores, num_ranks: int) -> list[Cores]:
    return _split(cores, num_ranks) if num_ranks <= len(cores) else _crowd(cores, num_ranks)


def _crowd(physical: Cores, num_ranks: int) -> list[Cores]:
    logical = [[core] for cores in physical for core in cores]
    if num_ranks <= len(logical):
        return share_out(logical, num_ranks)
    return [[logical[number % len(logical)]] for number in range(num_ranks)]


def _split(cores: Cores, num_shares: int) -> list[Cores]:
    size, num_larger = divmod(len(cores), num_shares)
    shares, start = [], 0
    for number in range(num_shares):
        end = start + size + (number < num_larger)
        shares.append(cores[start:end])
        start = end
    return shares


# threads, notes, networks


def _num_threads(host: Host, shares: list[Cores], num_ranks: int, notes: list[str]) -> int:
    """Physical cores of the smallest share; those that several ranks may use are counted once."""
    holders: dict[tuple[int, int, int], int] = {}
    for share in shares:
        for key in _keys(share):
            holders[key] = holders.get(key, 0) + 1
    num_threads = max(1, int(min(sum(1 / holders[key] for key in _keys(share)) for share in shares) + 1e-9))
    if host.cpu_limit is not None and host.cpu_limit < num_threads * num_ranks:
        num_threads = max(1, int(host.cpu_limit / num_ranks))
        notes.append(f"the control group grants {host.cpu_limit:g} cores, so each rank gets {num_threads} threads")
    return num_threads


def _keys(share: Cores) -> set[tuple[int, int, int]]:
    return {(core.numa, core.socket, core.physical) for cores in share for core in cores}


def _crowding(host: Host, shares: list[Cores]) -> list[str]:
    taken = [core.index for share in shares for cores in share for core in cores]
    if len(taken) > len(set(taken)):
        num_cores = "one core" if len(host.cores) == 1 else f"{len(host.cores)} cores"
        return [f"{len(shares)} ranks on {num_cores}: cores are shared, so ranks slow each other down"]
    keys = [key for share in shares for key in _keys(share)]
    if len(keys) > len(set(keys)):
        num_physical = len(physical_cores(host))
        return [f"{len(shares)} ranks on {num_physical} physical cores: some share one with another rank"]
    return []


def _with_nics(host: Host, ranks: tuple[Rank, ...]) -> tuple[Rank, ...]:
    """Each rank with the NIC nearest to its GPU, else to its cores; neighbours take turns."""
    turns: dict[tuple[int, ...], int] = {}
    found = []
    for rank in ranks:
        of_gpu = host.gpu_numa[rank.gpu] if rank.gpu is not None and rank.gpu < len(host.gpu_numa) else None
        near = rank.numa if of_gpu is None else (of_gpu,)
        turn = turns[near] = turns.get(near, -1) + 1
        found.append(replace(rank, nic=nearest_nic(host, near, turn)))
    return tuple(found)


def _listed(domains: Iterable[int | None]) -> str:
    return ", ".join(str(domain) for domain in sorted({domain for domain in domains if domain is not None}))
