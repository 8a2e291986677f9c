"""The GPUs of a host and the ways between them in words, and what of it will cost a job speed.

Pairs are written `0+1`. Not for a single pair's figures; `doctor.json` has them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from topout.host.gpu_links import GpuLinks, GpuPair, Way
from topout.schema.counted import counted

_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class LinkWarning:
    """What is wrong, and what to do."""

    what: str
    do: str


def links_in_words(links: GpuLinks) -> str:
    gpus = counted(len(links.gpus), "GPU")
    if not links.pairs:
        num_links = sum((links.links_of or {}).values())
        return f"{gpus}, {counted(num_links, 'NVLink')} up" if num_links else gpus
    by_words: dict[str, list[GpuPair]] = {}
    for pair in sorted(links.pairs, key=lambda pair: list(Way).index(pair.way)):
        by_words.setdefault(_way_in_words(pair), []).append(pair)
    if len(by_words) == 1:
        return f"{gpus}, {'every pair ' if len(links.pairs) > 1 else ''}by {next(iter(by_words))}"
    return f"{gpus}: " + "; ".join(f"{named_pairs(pairs)} by {words}" for words, pairs in by_words.items())


def links_warnings(links: GpuLinks, used: Collection[int] | None = None) -> list[LinkWarning]:
    """`used`: the GPUs that ranks will use; None: all of them."""
    pairs = [pair for pair in links.pairs if used is None or {pair.first, pair.second} <= set(used)]
    return [*_without_access(pairs), *_with_fewer_links(links, used)]


def named_pairs(pairs: Sequence[GpuPair]) -> str:
    if len(pairs) > _MOST_NAMED:
        return f"{len(pairs)} pairs"
    return ", ".join(f"{pair.first}+{pair.second}" for pair in pairs)


def _way_in_words(pair: GpuPair) -> str:
    if pair.way is Way.NVLINK:
        return f"NVLink x{pair.num_links}{' through a switch' if pair.has_switch else ''}"
    if pair.way is Way.XGMI and pair.bytes_per_s is not None:
        return f"XGMI, {pair.bytes_per_s / 1e9:.0f} GB/s"
    return str(pair.way)


def _without_access(pairs: Sequence[GpuPair]) -> list[LinkWarning]:
    apart = [pair for pair in pairs if pair.has_peer_access is False]
    if not apart:
        return []
    who = "no two GPUs can" if len(apart) == len(pairs) > 1 else f"GPUs {named_pairs(apart)} cannot"
    return [
        LinkWarning(
            what=f"{who} read each other's memory, so what they exchange goes through the host's",
            do="nvidia-smi topo -p2p r, or rocm-smi --showtopoaccess; some boards never can, others not in a "
            "virtual machine, or with access control (ACS) on in PCIe bridges, which the site can turn off",
        )
    ]


def _with_fewer_links(links: GpuLinks, used: Collection[int] | None) -> list[LinkWarning]:
    links_of = {gpu: number for gpu, number in (links.links_of or {}).items() if used is None or gpu in used}
    most = max(links_of.values(), default=0)
    fewer = {gpu: number for gpu, number in links_of.items() if number < most}
    if not fewer:
        return []
    has = ", ".join(f"GPU {gpu} has {number or 'none'}" for gpu, number in list(fewer.items())[:_MOST_NAMED])
    if any(pair.way is Way.XGMI for pair in links.pairs):
        links_there, look = f"{counted(most, 'GPU')} that others reach by XGMI", "rocm-smi --showtopo"
    else:
        links_there, look = f"{counted(most, 'NVLink')} that others have up", "nvidia-smi nvlink -s"
    return [
        LinkWarning(
            what=f"of {links_there} {has}, and all wait for it",
            do=f"{look} names the link; a reset of the host, a repair, or a job without that GPU",
        )
    ]
