"""Links as the doctor measured them: such that the model's own all-reduce takes what the doctor's took.

The largest message is met exactly, for gradients are large ones; latency is what brings `collectives` closest to the
others, and to the slope of the doctor's line beyond them, by least squares of relative errors. A message that latency
alone takes longer for says nothing of bandwidth: then the slope does. To invert the doctor's line would be to invert
another law, since a ring in segments hides latency behind large messages and a line adds it to all. Where times do lie
on a line, small and large messages come out right, and those that take twice the latency too quick: by 37 % between two
ranks of a host and by 46 % among eight, by 20 to 30 % between hosts. More than `_FAR` at a size that was measured is
said. Not for links that nobody measured: see `seen_link`.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from topout.study.collectives import quickest_s, ring_s
from topout.study.description import NARROWED

Law = Callable[[float, int, float, float], float]
"""Bytes, ranks, latency and bandwidth -> seconds."""
Times = dict[float, float]
"""Bytes of a message -> seconds."""

_BENT = 1 / 3
"""Further than this from its samples the doctor's line is not believed; it says the same of itself."""
_FAR = 1 / 3
_LAWS: dict[str, Law] = {"within a host": ring_s, "between hosts": quickest_s}
"""As `allreduce_s` uses them."""
_BEYOND = 1 << 40
"""Bytes so many that latency does not count."""
_LINE_BYTES = (*(4096 * 4**power for power in range(7)), _BEYOND)
"""Where a line is looked at whose messages are not at hand."""
_TRIED = 300
_MOST, _HALVINGS = 1e4, 40


def doctor_links(doctor: Mapping[str, Any], notes: list[str]) -> dict[str, dict[str, Any]]:
    """By class, of the all-reduces; a GPU's own library comes last, and counts."""
    usable = [one for one in doctor.get("links", ()) if one.get("operation") == "all-reduce"]
    by_class = {one["link_class"]: one for one in usable if one.get("beta_bytes_per_s")}
    return {name: _link(doctor, by_class[name], law, notes) for name, law in _LAWS.items() if name in by_class}


def _link(doctor: Mapping[str, Any], link: Mapping[str, Any], law: Law, notes: list[str]) -> dict[str, Any]:
    num = max(2, int(link["num_ranks"]))
    moved, messages = 2 * (num - 1) / num, 2 * (num - 1)
    line = _line(link)
    times = _measured(doctor, link) or _on_the_line(link["alpha_s"], line["value"])
    looked_at = times if _is_bent(link) else {**times, float(_BEYOND): _BEYOND / line["value"]}
    latency_s, bytes_per_s = _closest(times, looked_at, law, num)
    ratios = {size: law(size, num, latency_s, bytes_per_s) / taken_s for size, taken_s in times.items()}
    notes.extend(_said(link["link_class"], ratios))
    return {
        "latency_s": latency_s,
        # as doubtful as that of the line
        "bytes_per_s": {name: bytes_per_s * edge / line["value"] for name, edge in line.items()},
        "message_cpu_s": (link.get("cpu_alpha_s") or 0.0) / messages,
        "byte_cpu_s": (link.get("cpu_s_per_byte") or 0.0) / moved,
    }


def _line(link: Mapping[str, Any]) -> dict[str, float]:
    """Its bytes a second if it fits; a link that is shaped or buffered is no line, and gradients are large messages.

    With an 80 % range; the doctor's is one of 90 %.
    """
    value = low = high = float(link["beta_bytes_per_s"])
    if link.get("beta_interval_bytes_per_s"):
        low, high = (value + NARROWED * (edge - value) for edge in link["beta_interval_bytes_per_s"])
    if _is_bent(link):
        value = float(link["largest_bytes_per_s"])
    return {"value": value, "low": min(low, value), "high": max(high, value)}


def _is_bent(link: Mapping[str, Any]) -> bool:
    return bool(link.get("worst_error_share", 0.0) > _BENT)


def _measured(doctor: Mapping[str, Any], link: Mapping[str, Any]) -> Times:
    """The middle of what messages of each size took, on all hosts that measured such a link."""
    same = ("link_class", "operation", "transport", "num_ranks")
    by_size: dict[float, list[float]] = {}
    for host in doctor.get("hosts", ()):
        for other in host.get("links", ()):
            if all(other.get(name) == link.get(name) for name in same):
                for sample in other.get("samples", ()):
                    by_size.setdefault(float(sample["num_bytes"]), []).extend(sample["times_s"])
    return {size: median(taken_s) for size, taken_s in by_size.items() if taken_s}


def _on_the_line(alpha_s: float, bytes_per_s: float) -> Times:
    return {float(size): alpha_s + size / bytes_per_s for size in _LINE_BYTES}


def _closest(times: Times, looked_at: Times, law: Law, num: int) -> tuple[float, float]:
    """Latency and bandwidth."""
    # of two messages one after another at least and 2 n at most; of the shortest time bytes may have taken nine tenths
    shortest_s = min(times.values())
    tried = np.geomspace(shortest_s / (20 * num), shortest_s / 2, _TRIED).tolist()
    links = []
    for latency_s in tried:
        bytes_per_s = _bytes_per_s(times, law, num, latency_s) or _bytes_per_s(looked_at, law, num, latency_s)
        if bytes_per_s is not None:
            links.append((latency_s, bytes_per_s))

    def missed(link: tuple[float, float]) -> float:
        return sum((law(size, num, *link) / taken_s - 1) ** 2 for size, taken_s in looked_at.items())

    latency_s, bytes_per_s = min(links, key=missed)
    return max(latency_s, 1e-9), bytes_per_s


def _bytes_per_s(times: Times, law: Law, num: int, latency_s: float) -> float | None:
    """With which the largest message takes what it took; None where latency alone takes longer."""
    size, taken_s = max(times.items())
    # bytes alone, of the quickest law for large messages; more bandwidth than that, the more latency there is
    slow = 2 * (num - 1) / num * size / taken_s
    fast = _MOST * slow
    for _ in range(_HALVINGS):
        middle = (slow * fast) ** 0.5
        slow, fast = (middle, fast) if law(size, num, latency_s, middle) > taken_s else (slow, middle)
    return fast if law(size, num, latency_s, fast) <= taken_s else None


def _said(link_class: str, ratios: Mapping[float, float]) -> list[str]:
    size = max(ratios, key=lambda size: abs(ratios[size] - 1))
    if abs(ratios[size] - 1) <= _FAR:
        return []
    return [
        f"By the model an all-reduce of {size / 1e6:,.3g} MB {link_class} takes {ratios[size]:,.2f} times as long as "
        "the doctor measured: groups of gradients of about that size are as far off."
    ]
