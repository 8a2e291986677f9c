"""How long an all-reduce takes between ranks that are joined by links of known latency and bandwidth.

    ring             a + 2 (n-1) max(a, S b / n)                    (in segments: one travels while another is handled)
    halving          2 ceil(log2 n) a + 2 (n-1)/n S b               (Rabenseifner)
    tree             2 d a + 2 S b + 2 (d-1) c b,  d = ceil(log2 n)   (double binary tree, pipelined by chunks of c)
    hierarchical     inside nodes by ring, between nodes by the best of the three, over all links of a node
    by processors    n/c (2 (n-1) p + 2 (n-1)/n S q) where c cores of a node carry what its ranks send (Gloo); n/c is
                     rounded up where ranks outnumber cores

S bytes, n ranks, a seconds a message, b seconds a byte, p and q those of a processor. Libraries switch between
algorithms by size; so does `quickest`. Not for messages so small that the protocol changes, nor for a network whose
middle is narrower than its edges.
"""

from math import ceil, log2

from topout.study.system import Link, System

CHUNK_BYTES = 512 * 1024


def ring_s(size: float, num: int, latency_s: float, bytes_per_s: float) -> float:
    return 0.0 if num < 2 else latency_s + 2 * (num - 1) * max(latency_s, size / num / bytes_per_s)


def halving_s(size: float, num: int, latency_s: float, bytes_per_s: float) -> float:
    return 0.0 if num < 2 else 2 * ceil(log2(num)) * latency_s + 2 * (num - 1) / num * size / bytes_per_s


def tree_s(size: float, num: int, latency_s: float, bytes_per_s: float) -> float:
    if num < 2:
        return 0.0
    depth = ceil(log2(num))
    return 2 * depth * latency_s + 2 * (size + (depth - 1) * min(CHUNK_BYTES, size / 2)) / bytes_per_s


def quickest_s(size: float, num: int, latency_s: float, bytes_per_s: float) -> float:
    return min(algorithm(size, num, latency_s, bytes_per_s) for algorithm in (ring_s, halving_s, tree_s))


def allreduce_s(size: float, nodes: int, system: System) -> float:
    """Hierarchical: each byte crosses between nodes once for a node."""
    between = quickest_s(size, nodes, system.between.latency_s, _together(system.between))
    return inside_s(size, system) + between


def inside_s(size: float, system: System) -> float:
    """By ring; not quicker than the cores of the node can carry the messages of all its ranks.

    Where ranks outnumber cores, a ring goes on at the pace of those on the fullest core: three on two cores as four.
    """
    ranks, link = system.ranks_per_node, system.inside
    if ranks < 2:
        return 0.0
    on_links = ring_s(size, ranks, link.latency_s, link.bytes_per_s)
    if system.cores == 0:
        return on_links
    sharing = ranks / system.cores
    return max(on_links, (ceil(sharing) if sharing > 1 else sharing) * inside_cpu_s(size, system))


def inside_cpu_s(size: float, system: System) -> float:
    """Of the processors of one rank."""
    ranks, link = system.ranks_per_node, system.inside
    return 2 * (ranks - 1) * link.message_cpu_s + 2 * (ranks - 1) / ranks * size * link.byte_cpu_s


def carrying_cpu_s(size: float, nodes: int, system: System) -> float:
    """Of the processors of one rank, inside its node and for its part of what crosses between nodes."""
    link, share = system.between, size / system.ranks_per_node
    between = 2 * (nodes - 1) * link.message_cpu_s + 2 * (nodes - 1) / nodes * share * link.byte_cpu_s
    return inside_cpu_s(size, system) + between


def _together(link: Link) -> float:
    return link.bytes_per_s * link.links
