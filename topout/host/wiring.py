"""What a host can tell of itself alone, for the bindings report: how its GPUs are joined, and whether hwloc agrees.

A line each, and a warning each where something is amiss. Not for every host of a job; `topout doctor` asks all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from topout.host.gpu_links import read_gpu_links
from topout.host.gpu_links_report import links_in_words, links_warnings
from topout.host.hwloc import ask_hwloc, compare
from topout.schema.world import Host, Rank


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Of one host."""

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_wiring(host: Host, ranks: Sequence[Rank], *, is_only_host: bool) -> Wiring:
    """`ranks` are those of this host; `host` is this one."""
    where = "" if is_only_host else f"{host.name}: "
    lines, warnings = [], []
    links = read_gpu_links(host)
    if links is not None:
        lines.append(f"{where}{links_in_words(links)}.")
        gpus = {rank.gpu if rank.gpu_on_host is None else rank.gpu_on_host for rank in ranks}
        used = {gpu for gpu in gpus if gpu is not None}
        warnings += [f"{where}{found.what}. {found.do}." for found in links_warnings(links, used)]
    view = ask_hwloc()
    opinion = None if view is None else compare(host, view)
    if opinion is not None and not opinion.differences:
        lines.append(f"{where}hwloc sees the same: {opinion.words}.")
    elif opinion is not None:
        warnings.append(
            f"{where}hwloc and the kernel differ: {'; '.join(opinion.differences)}. "
            "MPI libraries bind by hwloc's view, topout by the kernel's."
        )
    return Wiring(lines=tuple(lines), warnings=tuple(warnings))
