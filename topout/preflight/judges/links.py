"""Latency and bandwidth of each class of link, as alpha + bytes / beta; and hosts that cannot reach each other.

Not the speed of a training's communication, which overlaps with computing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from topout.preflight.alpha_beta import Fit, fit_line, fit_link
from topout.preflight.amounts import percent, rate, seconds, size
from topout.preflight.check import UNEVEN_SHARE, Check, Verdict, named, unmeasured
from topout.preflight.facts import Facts, Link
from topout.schema.hardware import find_row

GROUP = "Links"
_ENOUGH_BYTES_PER_S = {"within a host": 1e9, "between hosts": 1e9}
_LONGEST_ALPHA_S = {"within a host": 200e-6, "between hosts": 500e-6}
_STAGES = ("links within a host", "links between hosts", "all-reduce within a host", "all-reduce between hosts")
_ENOUGH_OF_INTERFACE = 0.5
_BENT = 1 / 3
_ENOUGH_OF_RING = {"within a host": 0.05, "between hosts": 0.25}
"""Within a host gloo is bound by the cores that add, not by the loopback."""
_JOINED_BY_NVLINK = ("A100-SXM4-40GB", "A100", "H100", "H200", "GB200", "B200", "B300")
"""Rows of the hardware table whose boards always have it; others may have a bridge, which nobody can tell."""
_ENOUGH_OF_NVLINK = 0.3
"""PCIe carries a seventh of these links at most."""
_RANKS_OF_A_BOARD = 4


@dataclass(frozen=True, kw_only=True)
class FittedLink:
    """One class of link; the typical figures of all that were measured."""

    link_class: str
    operation: str
    transport: str
    num_ranks: int
    num_links: int
    alpha_s: float
    alpha_interval_s: tuple[float, float]
    beta_bytes_per_s: float | None
    beta_interval_bytes_per_s: tuple[float, float] | None
    largest_bytes_per_s: float
    """What the largest message reached, without a model."""
    largest_num_bytes: int
    worst_error_share: float
    """How far the fitted line is off at worst; from a third on, believe `largest_bytes_per_s` for large messages."""
    slowest: str | None = None
    """The pair of hosts far behind the others."""
    cpu_alpha_s: float | None = None
    """Of a message on the processors of one rank, without its bytes."""
    cpu_s_per_byte: float | None = None


def fit_classes(hosts: Sequence[Facts]) -> tuple[FittedLink, ...]:
    by_class: dict[tuple[str, str, str], list[Link]] = {}
    for facts in hosts:
        for link in facts.links:
            if link.samples:
                by_class.setdefault((link.link_class, link.operation, link.transport), []).append(link)
    found = [_fit_class(links) for links in by_class.values()]
    return tuple(fitted for fitted in found if fitted is not None)


def judge_links(hosts: Sequence[Facts]) -> list[Check]:
    fitted = fit_classes(hosts)
    checks = [_judge_class(one, fitted, hosts) for one in fitted]
    broken = [link for facts in hosts for link in facts.links if link.problem]
    if broken:
        checks.append(
            Check(
                group=GROUP,
                name="reachability",
                verdict=Verdict.UNFIT,
                value="; ".join(str(link.problem) for link in broken[:3]),
                expectation="every host reaches its neighbours",
                fix="a firewall between compute hosts, or the wrong interface: try --interface, ask the site",
                hosts=tuple(dict.fromkeys(host for link in broken for host in link.hosts)),
            )
        )
    lost = [stage for stage in _STAGES if any(stage in facts.not_measured for facts in hosts)]
    return checks + [unmeasured(hosts, GROUP, stage, "measured", stage) for stage in lost]


def _fit_class(links: Sequence[Link]) -> FittedLink | None:
    fits = [(link, fit) for link in links if (fit := fit_link(link.samples)) is not None]
    if not fits:
        return None
    # the link whose bandwidth is in the middle stands for its class, with its own interval
    ordered = sorted(fits, key=lambda pair: pair[1].beta_bytes_per_s or 0.0)
    link, fit = ordered[len(ordered) // 2]
    largest = max(link.samples, key=lambda sample: sample.num_bytes)
    costs = [(sample.num_bytes, sample.cpu_s) for sample in link.samples if sample.cpu_s]
    cpu_alpha_s, cpu_s_per_byte = fit_line(costs) if len(costs) > 1 else (None, None)
    return FittedLink(
        link_class=link.link_class,
        operation=link.operation,
        transport=link.transport,
        num_ranks=link.num_ranks,
        num_links=len(fits),
        alpha_s=fit.alpha_s,
        alpha_interval_s=fit.alpha_interval_s,
        beta_bytes_per_s=fit.beta_bytes_per_s,
        beta_interval_bytes_per_s=fit.beta_interval_bytes_per_s,
        largest_bytes_per_s=largest.num_bytes / median(largest.times_s),
        largest_num_bytes=largest.num_bytes,
        worst_error_share=fit.worst_error_share,
        slowest=_laggard(ordered),
        cpu_alpha_s=cpu_alpha_s,
        cpu_s_per_byte=cpu_s_per_byte,
    )


def _laggard(ordered: Sequence[tuple[Link, Fit]]) -> str | None:
    if len(ordered) < 2:
        return None
    slow, fast = ordered[0][1].beta_bytes_per_s, ordered[len(ordered) // 2][1].beta_bytes_per_s
    if slow is None or fast is None or slow >= UNEVEN_SHARE * fast:
        return None
    return f"{' – '.join(dict.fromkeys(ordered[0][0].hosts))}: {rate(slow)}"


def _judge_class(one: FittedLink, fitted: Sequence[FittedLink], hosts: Sequence[Facts]) -> Check:
    expectation, is_slow, fix = _expect(one, fitted, hosts)
    if one.slowest is not None:
        fix, is_slow = f"one link is far behind the others ({one.slowest}): leave that host out, or tell the site", True
    ranks = f", {one.num_ranks} ranks" if one.operation == "all-reduce" else ""
    return Check(
        group=GROUP,
        name=f"{one.operation} {one.link_class}, {one.transport}{ranks}",
        verdict=Verdict.WARNING if is_slow else Verdict.FINE,
        value=_text(one),
        expectation=expectation,
        fix=fix if is_slow else None,
        number=one.beta_bytes_per_s,
        unit="B/s",
    )


def _expect(one: FittedLink, fitted: Sequence[FittedLink], hosts: Sequence[Facts]) -> tuple[str, bool, str]:
    beta = _of_large_messages(one)
    if one.operation == "all-reduce" and one.transport == "gloo":
        link = next((o for o in fitted if o.link_class == one.link_class and o.operation == "point-to-point"), None)
        if link is None:
            return "no plain link to compare with", False, ""
        ring = ring_bytes_per_s(_of_large_messages(link), one.num_ranks)
        enough = _ENOUGH_OF_RING[one.link_class]
        words = f"at least {percent(enough)} of a ring over the plain link, {rate(ring)}"
        return words, beta < enough * ring, "gloo is bound by one core a rank: check binding and other load"
    enough, longest = _ENOUGH_BYTES_PER_S[one.link_class], _LONGEST_ALPHA_S[one.link_class]
    nvlink = _nvlink_bytes_per_s(one, hosts)
    if nvlink is not None:
        ring = ring_bytes_per_s(nvlink, one.num_ranks)
        words = (
            f"α at most {seconds(longest)}, β at least {percent(_ENOUGH_OF_NVLINK)} of a ring over NVLink, {rate(ring)}"
        )
        fix = "NCCL may have fallen back to PCIe or sockets: nvidia-smi topo -m, NCCL_DEBUG=INFO"
        return words, beta < _ENOUGH_OF_NVLINK * ring or one.alpha_s > longest, fix
    speeds = [facts.interface_bits_per_s for facts in hosts if facts.interface_bits_per_s]
    if one.link_class == "between hosts" and one.transport == "tcp" and speeds:
        speed = min(speeds) / 8
        words = f"at least {percent(_ENOUGH_OF_INTERFACE)} of the interface's {rate(speed)}"
        return (
            words,
            beta < _ENOUGH_OF_INTERFACE * speed,
            "a busy or badly negotiated link: ethtool, or another interface",
        )
    words = f"α at most {seconds(longest)}, β at least {rate(enough)}"
    interfaces = named(list(dict.fromkeys(facts.interface for facts in hosts if facts.interface)))
    fix = (
        f"is {interfaces or 'this'} the fast network? try --interface ib0; else fewer, larger messages and compression"
    )
    return words, beta < enough or one.alpha_s > longest, fix


def _nvlink_bytes_per_s(one: FittedLink, hosts: Sequence[Facts]) -> float | None:
    """What a GPU sends at most to the others of its host; None where it may have no NVLink.

    Boards of four join each pair by a third of the links, so two or three GPUs of one may have no more between them.
    """
    names = [facts.framework.device_name for facts in hosts if facts.framework]
    rows = [find_row(name or "", kinds=("gpu",)) for name in names]
    found = [row.figures["link"].value for row in rows if row is not None and row.name in _JOINED_BY_NVLINK]
    if (one.transport, one.link_class) != ("nccl", "within a host") or not found or len(found) < len(rows):
        return None
    one_way = min(found) / 2
    return one_way if one.num_ranks >= _RANKS_OF_A_BOARD else one_way / 3


def always_has_nvlink(name: str | None) -> bool:
    row = find_row(name or "", kinds=("gpu",))
    return row is not None and row.name in _JOINED_BY_NVLINK


def _of_large_messages(link: FittedLink) -> float:
    """A line that bursts or buffers have bent promises more than large messages get."""
    return min(link.beta_bytes_per_s or link.largest_bytes_per_s, link.largest_bytes_per_s)


def ring_bytes_per_s(link_bytes_per_s: float, num_ranks: int) -> float:
    """What an all-reduce of large messages reaches at most when each rank sends and receives at the link's rate."""
    return link_bytes_per_s * num_ranks / (2 * (num_ranks - 1)) if num_ranks > 1 else link_bytes_per_s


def _text(one: FittedLink) -> str:
    low, high = one.alpha_interval_s
    text = f"α {seconds(one.alpha_s)} ({seconds(low)} to {seconds(high)})"
    if one.beta_bytes_per_s is None or one.beta_interval_bytes_per_s is None:
        return f"{text}, {rate(one.largest_bytes_per_s)} at most"
    slow, fast = one.beta_interval_bytes_per_s
    text = f"{text}, β {rate(one.beta_bytes_per_s)} ({rate(slow)} to {rate(fast)})"
    if one.worst_error_share < _BENT:
        return text
    return f"{text}; no straight line: {size(one.largest_num_bytes)} reach {rate(one.largest_bytes_per_s)}"
