"""What takes the time, cause by cause: shares of the window that a verdict chooses from.

Waiting is not a cause of its own: it goes to what the late rank was doing. If that was an evaluation or a save, the
phase is serial; if all ranks starve now and then, input is the cause; if few ranks do, or compute longer, the load is
uneven. So the shares here are not the phases' shares, but they add up to the same whole; except that a rank that is
late in most steps costs what the most patient rank waits for it, not the mean: it does not wait for itself.
"""

from dataclasses import dataclass

from topout.analyze.stragglers import WaitCauses
from topout.schema.measures import SERIAL_PHASES, Measures
from topout.schema.shares import exposed_transfer_share

SMALL_MESSAGE_BYTES = 256 * 1024
"""Below this mean size a collective's time is latency rather than bandwidth."""
UNEVEN_FACTOR = 2.0
"""Input is one rank's trouble when it waits this much longer than the (lower) median rank."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One possible verdict."""

    name: str
    share: float
    phase: str


def find_causes(measures: Measures, waiting: WaitCauses) -> list[Cause]:
    """Largest first, `compute` not among them."""
    shares = measures.shares
    uneven_input = _uneven_input_share(measures, waiting)
    is_uneven = uneven_input > 0
    bubble = waiting.bubble_by_phase
    input_share = shares["input"] - uneven_input + (0.0 if is_uneven else waiting.by_phase["input"])
    input_share += bubble.get("input", 0.0)
    serial = {name: shares[name] + waiting.by_phase[name] + bubble.get(name, 0.0) for name in SERIAL_PHASES}
    imbalance = {name: share for name, share in waiting.by_phase.items() if name not in (*SERIAL_PHASES, "input")}
    held_up = (sum(imbalance.values()) + waiting.unexplained) * _patience(measures)
    if is_uneven:
        imbalance["input"] = waiting.by_phase["input"] + uneven_input
    transfer, hidden_serial = _transfer_share(measures)
    found = [
        Cause(name=f"input-{measures.input.limit or 'decode'}", share=input_share, phase="input"),
        Cause(
            name="serial-phase", share=sum(serial.values()) + hidden_serial, phase=max(serial, key=serial.__getitem__)
        ),
        Cause(
            name="load-imbalance",
            share=max(sum(imbalance.values()) + waiting.unexplained, held_up),
            phase=max(imbalance, key=imbalance.__getitem__),
        ),
        Cause(
            name="pipeline-bubble",
            # stages stand still when the first one waits for its batch, or any of them evaluates or saves
            share=shares.get("bubble", 0.0) - sum(bubble.get(name, 0.0) for name in (*SERIAL_PHASES, "input")),
            phase="bubble",
        ),
        Cause(name="tensor-parallel", share=shares.get("tensor", 0.0), phase="tensor"),
        Cause(name=_transfer_verdict(measures), share=transfer, phase="transfer"),
        Cause(
            name="host", share=shares["other"] + shares["copy"], phase=max(("other", "copy"), key=shares.__getitem__)
        ),
    ]
    return sorted(found, key=lambda cause: -cause.share)


def _patience(measures: Measures) -> float:
    """The longest wait of a rank over the mean, where one rank is late in most steps; else 1."""
    mean = measures.shares["wait"]
    if mean == 0 or not any(late.is_persistent for late in measures.stragglers):
        return 1.0
    return max(rank.shares["wait"] for rank in measures.ranks) / mean


def _uneven_input_share(measures: Measures, waiting: WaitCauses) -> float:
    """The part of the input share that few ranks have beyond the others, when it makes those wait; else 0."""
    per_rank = sorted(rank.shares["input"] for rank in measures.ranks)
    if len(per_rank) < 2 or waiting.by_phase["input"] == 0:
        return 0.0
    usual = per_rank[(len(per_rank) - 1) // 2]
    if per_rank[-1] < UNEVEN_FACTOR * usual:
        return 0.0
    return sum(max(0.0, share - usual) for share in per_rank) / len(per_rank)


def _transfer_share(measures: Measures) -> tuple[float, float]:
    """Transfer, and what in it is waiting for a serial phase where clocks do not allow to tell the two apart."""
    transfer = measures.shares["transfer"]
    if measures.communication.is_split_withheld and measures.serial.single_rank_share:
        num_ranks = len(measures.ranks)
        hidden = min(transfer, measures.serial.single_rank_share * (num_ranks - 1) / num_ranks)
        return transfer - hidden, hidden
    return max(transfer, exposed_transfer_share(measures) or 0.0), 0.0


def _transfer_verdict(measures: Measures) -> str:
    size = measures.communication.mean_message_bytes
    is_small = size is not None and size < SMALL_MESSAGE_BYTES
    return "communication-latency" if is_small else "communication-bandwidth"
