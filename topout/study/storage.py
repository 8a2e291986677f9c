"""How many samples a second a node gets, from shared storage that all nodes ask, from its own, or from both.

Shared storage is a closed queue: nodes alone reach what a client can, all together what the servers can, and between
the two the throughput bends:

    X(N) = N x / (1 + (N x / m)^p)^(1/p),   x a node alone, m the servers, p how sharply it bends

m is the smaller of bandwidth over bytes a sample and metadata operations over those of a sample. A cache that holds a
share h of the data serves that share at its own speed; it grows with the nodes, which is why training can be faster
than linear. Steady state: the first epoch, which fills a cache, is slower. A bandwidth or a rate of 0 is not known and
counts as no limit; `unknown_storage` names those that a job asks for.
"""

from math import inf

from topout.study.job import Input
from topout.study.system import System


def samples_per_s(given: Input, nodes: int, system: System) -> float:
    """Of one node; infinite where input costs nothing."""
    if given.source == "none":
        return inf
    reading = _reading(given, nodes, system)
    return min(reading, given.loader_samples_per_s * system.ranks_per_node) if given.loader_samples_per_s else reading


def _reading(given: Input, nodes: int, system: System) -> float:
    if given.sample_bytes == 0:
        return inf
    own = (system.local_storage.bytes_per_s or inf) / given.sample_bytes
    if given.source == "local":
        return own
    shared = _shared(given, nodes, system)
    if given.source == "shared":
        return shared
    held = cached_share(given, nodes, system)
    taken_s = (1 - held) / shared + held / own
    return 1 / taken_s if taken_s else inf


def unknown_storage(given: Input, system: System) -> list[str]:
    """The tables of the system without which reading costs nothing here."""
    if given.source == "none" or not given.sample_bytes:
        return []
    shared = system.shared_storage
    has_shared = bool(
        shared.bytes_per_s or shared.client_bytes_per_s or (given.opens_per_sample and shared.opens_per_s)
    )
    # a cache without a size holds nothing, and its speed does not matter
    needs_own = given.source == "local" or (given.source == "cached" and cached_share(given, 1, system) > 0)
    needs_shared = given.source == "shared" or (given.source == "cached" and cached_share(given, 1, system) < 1)
    missing = [
        ("shared_storage", needs_shared and not has_shared),
        ("local_storage", needs_own and not system.local_storage.bytes_per_s),
    ]
    return [name for name, is_missing in missing if is_missing]


def cached_share(given: Input, nodes: int, system: System) -> float:
    if given.dataset_bytes == 0:
        return 1.0
    return min(1.0, nodes * system.local_storage.bytes / given.dataset_bytes)


def _shared(given: Input, nodes: int, system: System) -> float:
    storage = system.shared_storage
    limits = [(storage.bytes_per_s or inf) / given.sample_bytes]
    if given.opens_per_sample and storage.opens_per_s:
        limits.append(storage.opens_per_s / given.opens_per_sample)
    servers = min(limits)
    alone = storage.client_bytes_per_s / given.sample_bytes if storage.client_bytes_per_s else servers
    if servers == inf:
        return alone
    asked = nodes * alone
    return float(alone / (1 + (asked / servers) ** storage.sharpness) ** (1 / storage.sharpness))
