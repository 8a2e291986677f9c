"""Which cores each rank of one host owns: disjoint, whole physical cores first, inside one NUMA domain where it can be.

Training goes at the pace of its slowest rank, so every rank gets the same number of threads, even where cores do not
divide evenly. Not for placing ranks on hosts; a scheduler decides that.
"""

from dataclasses import dataclass

from topout.schema.world import Core, Host, Rank


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The ranks of one host, and what a person should know about how they share it."""

    ranks: tuple[Rank, ...]
    notes: tuple[str, ...] = ()


Cores = list[list[Core]]
"""Physical cores, each as the logical processors on it."""


def bind(host: Host, num_ranks: int, *, is_bound: bool = True, cpu_limit: float | None = None) -> Binding:
    physical = physical_cores(host)
    notes = []
    if num_ranks <= len(physical):
        shares = share_out(physical, num_ranks)
    else:
        logical = [[core] for cores in physical for core in cores]
        if num_ranks <= len(logical):
            shares = share_out(logical, num_ranks)
            notes.append(f"{num_ranks} ranks on {len(physical)} physical cores: some share one with another rank")
        else:
            shares = [[logical[rank % len(logical)]] for rank in range(num_ranks)]
            notes.append(f"{num_ranks} ranks on {len(logical)} cores: cores are shared, so ranks slow each other down")
    num_threads = min(len(share) for share in shares)
    if cpu_limit is not None and cpu_limit < num_threads * num_ranks:
        num_threads = max(1, int(cpu_limit / num_ranks))
        notes.append(f"the control group grants {cpu_limit:g} cores, so each rank gets {num_threads} threads")
    ranks = tuple(
        Rank(
            rank=number,
            local_rank=number,
            node_rank=0,
            host=host.name,
            cores=tuple(sorted(core.index for cores in share for core in cores)) if is_bound else (),
            num_threads=num_threads,
            gpu=number if number < len(host.gpus) else None,
        )
        for number, share in enumerate(shares)
    )
    return Binding(ranks=ranks, notes=tuple(notes))


def physical_cores(host: Host) -> Cores:
    """In the order in which neighbours are near each other."""
    found: dict[tuple[int, int, int], list[Core]] = {}
    for core in host.cores:
        found.setdefault((core.numa, core.socket, core.physical), []).append(core)
    return [found[key] for key in sorted(found)]


def share_out(cores: Cores, num_ranks: int) -> list[Cores]:
    """Contiguous shares that differ by at most one core; inside NUMA domains when ranks divide evenly over them."""
    domains: dict[int, Cores] = {}
    for core in cores:
        domains.setdefault(core[0].numa, []).append(core)
    ranks_per_domain, left_over = divmod(num_ranks, len(domains))
    if left_over == 0 and all(len(domain) >= ranks_per_domain for domain in domains.values()):
        return [share for domain in domains.values() for share in _split(domain, ranks_per_domain)]
    return _split(cores, num_ranks)


def _split(cores: Cores, num_shares: int) -> list[Cores]:
    size, num_larger = divmod(len(cores), num_shares)
    shares, start = [], 0
    for number in range(num_shares):
        end = start + size + (number < num_larger)
        shares.append(cores[start:end])
        start = end
    return shares
