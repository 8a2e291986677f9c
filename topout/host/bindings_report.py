"""Who is bound where: one row a rank, and what of it costs speed.

Hosts that look alike are shown once. Not what happened in the run: ranks may move their own threads afterwards.
"""

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topout.host.nics import comparable_nics
from topout.host.openmp_traps import traps_set
from topout.schema.counted import counted
from topout.schema.world import Host, Nic, Rank, World

if TYPE_CHECKING:
    from topout.host.wiring import Wiring

WIDTH = 100
_TITLES = ("rank", "host", "cores", "socket", "NUMA", "threads", "GPU (NUMA)", "NIC (NUMA)")
_CORES = _TITLES.index("cores")
_NARROWEST_CORES = 12


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """Hosts whose ranks are bound alike; the first one stands for them."""

    host: Host
    ranks: tuple[Rank, ...]
    names: tuple[str, ...]
    all_ranks: tuple[int, ...]


def bindings_report(
    world: World, environ: Mapping[str, str] = os.environ, wiring: "Wiring | None" = None
) -> str:  # fmt: skip
    """`wiring` is that of the host which prints this; of others nobody was asked."""
    groups = _alike(world)
    num_ranks, num_hosts = len(world.ranks), len(world.hosts)
    lines = [f"Bindings of {counted(num_ranks, 'rank')} on {counted(num_hosts, 'host')}", ""]
    rows = [_TITLES, *(_row(rank, group.host) for group in groups for rank in group.ranks)]
    shown = [column for column in range(len(_TITLES)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in shown}
    left_over = WIDTH - sum(width + 2 for column, width in widths.items() if column != _CORES)
    widths[_CORES] = min(widths[_CORES], max(_NARROWEST_CORES, left_over))
    lines += ["  ".join(_fitted(row[column], widths[column]) for column in shown).rstrip() for row in rows]
    lines += [
        f"{host_ranges(group.names[1:])} as {group.host.name}; these hosts have ranks {ranges(group.all_ranks)}"
        for group in groups
        if len(group.names) > 1
    ]
    warnings = bindings_warnings(world, environ)
    if wiring is not None:
        lines += [""] * bool(wiring.lines)
        for text in wiring.lines:
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
        warnings = (*warnings, *wiring.warnings)
    for text in warnings:
        lines += ["", *textwrap.wrap(text, WIDTH, initial_indent="! ", subsequent_indent="  ")]
    return "\n".join([*lines, "", *([] if warnings else ["Nothing to warn of."])]).rstrip() + "\n"


def bindings_warnings(world: World, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """One sentence each, the costliest kind first; ranks are those of the first of several equal hosts."""
    found = [_variables(environ)]
    groups = _alike(world)
    for check in (_one_core, _overlap, _remote_gpu, _remote_nic, _unused, _not_granted):
        for group in groups:
            where = "" if len(world.hosts) == 1 else f"{host_ranges(group.names)}: "
            found += [where + text for text in check(group.host, group.ranks)]
    return tuple(filter(None, found))


# rows


def _alike(world: World) -> list[_Alike]:
    groups: dict[object, _Alike] = {}
    on_host: dict[int, list[Rank]] = {}
    for rank in world.ranks:
        on_host.setdefault(rank.node_rank, []).append(rank)
    for number, host in enumerate(world.hosts):
        ranks = tuple(on_host.get(number, ()))
        # what may differ between hosts that are bound alike
        plain_ranks = tuple(replace(r, rank=0, node_rank=0, host="", port=0, nic=_without_address(r)) for r in ranks)
        nics = tuple((nic.name, nic.numa, nic.speed_bits_per_s, nic.hca) for nic in host.nics)
        key = (replace(host, name="", memory_bytes=0, address="", nics=()), nics, plain_ranks)
        of_host = tuple(rank.rank for rank in ranks)
        first = groups.setdefault(key, _Alike(host=host, ranks=ranks, names=(), all_ranks=()))
        groups[key] = replace(first, names=(*first.names, host.name), all_ranks=(*first.all_ranks, *of_host))
    return list(groups.values())


def _without_address(rank: Rank) -> Nic | None:
    return replace(rank.nic, addresses=()) if rank.nic is not None else None


def _row(rank: Rank, host: Host) -> tuple[str, ...]:
    own = set(rank.cores)
    of_rank = [core for core in host.cores if core.index in own]
    gpu = _gpu_domain(rank, host)
    nic = rank.nic
    return (
        str(rank.rank),
        host.name,
        ranges(rank.cores) if rank.cores else "not bound",
        ranges({core.socket for core in of_rank}),
        ranges(rank.numa),
        str(rank.num_threads),
        "" if rank.gpu is None else f"{_gpu(rank)}{_in_brackets(gpu)}",
        "" if nic is None else f"{nic.hca or nic.name}{_in_brackets(nic.numa)}",
    )


def _in_brackets(domain: int | None) -> str:
    return "" if domain is None else f" ({domain})"


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else (text[: width - 1].rpartition(",")[0] + ",…").ljust(width)


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 3, 8 is `0-3,8`, as the kernel writes it."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def host_ranges(names: Sequence[str]) -> str:
    """n1, n2, n3, login is `n[1-3],login`, as schedulers write it."""
    numbered: dict[tuple[str, int, str], list[int]] = {}
    written: list[tuple[str, int, str] | str] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        # numbers with leading zeros keep their width
        key = (match[1], len(match[2]) if match[2].startswith("0") else 0, match[3]) if match else None
        if match is None or key is None:
            written.append(name)
            continue
        if key not in numbered:
            written.append(key)
        numbered.setdefault(key, []).append(int(match[2]))
    return ",".join(item if isinstance(item, str) else _bracketed(item, numbered[item]) for item in written)


def _bracketed(key: tuple[str, int, str], numbers: list[int]) -> str:
    before, width, after = key
    inside = re.sub(r"\d+", lambda match: match[0].zfill(width), ranges(numbers))
    return f"{before}{inside}{after}" if len(numbers) == 1 else f"{before}[{inside}]{after}"


# warnings


def _variables(environ: Mapping[str, str]) -> str:
    is_set = [f"{name}={value}" for name, value in traps_set(environ).items()]
    if not is_set:
        return ""
    return (
        f"{' '.join(is_set)} narrows each rank's main thread to one core, and the processes it starts inherit that. "
        "Loader workers get their cores back from topout, other processes do not. Unset it: ranks are bound already."
    )


def _one_core(host: Host, ranks: Sequence[Rank]) -> list[str]:
    machine = host.num_logical_cores or len(host.cores)
    if machine > 1 and (len(host.cores) == 1 or (host.cpu_limit is not None and host.cpu_limit <= 1)):
        what = "one core" if len(host.cores) == 1 else f"{host.cpu_limit:g} cores' worth of time"
        return [
            f"the job is granted {what} of {machine}: ranks, their threads and loader workers all share it. "
            "Ask the scheduler for more (Slurm --cpus-per-task, Kubernetes resources.limits.cpu)."
        ]
    physical = {core.index: (core.socket, core.numa, core.physical) for core in host.cores}
    narrow = [rank.rank for rank in ranks if rank.cores and len({physical.get(core) for core in rank.cores}) == 1]
    num_idle = len(_unused_cores(host, ranks))
    if not narrow or (not num_idle and machine == len(host.cores)):
        return []
    others = f"{num_idle} granted ones lie idle" if num_idle else f"the host has {machine}"
    have = "has one core" if len(narrow) == 1 else "have one core each"
    return [
        f"{_ranks(narrow)} {have} while {others}: no second thread, and loader workers on that same core. "
        "Give tasks more (srun --cpus-per-task, mpirun --map-by slot:PE=n), or let topout share out what there is "
        "(--bind numa)."
    ]


def _overlap(host: Host, ranks: Sequence[Rank]) -> list[str]:
    found = []
    physical = {core.index: (core.socket, core.numa, core.physical) for core in host.cores}
    shared, sharing = _shared(ranks, lambda core: core)
    if shared:
        found.append(f"{_ranks(sharing)} share cores {ranges(shared)} and slow each other down.")
    else:
        shared, sharing = _shared(ranks, lambda core: physical.get(core, core))
        if shared:
            found.append(f"{_ranks(sharing)} sit on hyper-threads of the same cores ({ranges(shared)}).")
    return found


def _shared(ranks: Sequence[Rank], thing: Callable[[int], object]) -> tuple[set[int], list[int]]:
    """Cores on whose thing more than one rank runs, and those ranks."""
    holders: dict[object, set[int]] = {}
    for rank in ranks:
        for core in rank.cores:
            holders.setdefault(thing(core), set()).add(rank.rank)
    shared = {core for rank in ranks for core in rank.cores if len(holders[thing(core)]) > 1}
    return shared, [rank.rank for rank in ranks if shared & set(rank.cores)]


def _remote_gpu(host: Host, ranks: Sequence[Rank]) -> list[str]:
    far = [r for r in ranks if r.numa and (domain := _gpu_domain(r, host)) is not None and domain not in r.numa]
    if not far:
        return []
    first = far[0]
    return [
        f"{_ranks([rank.rank for rank in far])}: the GPU sits in another NUMA domain than the cores "
        f"(rank {first.rank}: GPU {_gpu(first)} in {_gpu_domain(first, host)}, cores in {ranges(first.numa)}), "
        "so copies take the long way; see --bind gpu."
    ]


def _gpu_domain(rank: Rank, host: Host) -> int | None:
    gpu = _gpu(rank)
    return host.gpu_numa[gpu] if gpu is not None and gpu < len(host.gpu_numa) else None


def _gpu(rank: Rank) -> int | None:
    """As the host counts."""
    return rank.gpu if rank.gpu_on_host is None else rank.gpu_on_host


def _remote_nic(host: Host, ranks: Sequence[Rank]) -> list[str]:
    """Only where another one is nearer; that a host has no NIC on a socket is nobody's mistake."""
    domains = {nic.numa for nic in comparable_nics(host.nics)}
    far = [r for r in ranks if r.nic and r.nic.numa is not None and r.numa and r.nic.numa not in r.numa]
    far = [rank for rank in far if domains & set(rank.numa)]
    if not far:
        return []
    first = far[0]
    assert first.nic is not None
    return [
        f"{_ranks([rank.rank for rank in far])}: the NIC sits in another NUMA domain than the cores "
        f"(rank {first.rank}: {first.nic.hca or first.nic.name} in {first.nic.numa}, cores in {ranges(first.numa)})."
    ]


def _unused_cores(host: Host, ranks: Sequence[Rank]) -> list[int]:
    if not ranks or not all(rank.cores for rank in ranks):
        return []
    taken = {core for rank in ranks for core in rank.cores}
    return [core.index for core in host.cores if core.index not in taken]


def _unused(host: Host, ranks: Sequence[Rank]) -> list[str]:
    unused = _unused_cores(host, ranks)
    if not unused:
        return []
    return [f"no rank has cores {ranges(unused)} ({len(unused)} of {len(host.cores)} granted): they stay idle."]


def _not_granted(host: Host, ranks: Sequence[Rank]) -> list[str]:
    if host.num_logical_cores is None or len(host.cores) >= host.num_logical_cores:
        return []
    return [f"{len(host.cores)} of {host.num_logical_cores} logical cores are granted to this job, the rest is not."]


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {ranges(numbers)}"
