"""From the ideal rate to the measured one: what each cause takes away.

Ideal is a job that does nothing but compute (forward, backward, optimizer). If computing takes the share c of the
time, the job runs at c of its ideal rate, and a cause that takes the share s of the time costs s of it: the bars are
the shares.
"""

from topout.schema.measures import WaterfallBar

BARS = ("input", "copy", "evaluation", "checkpoint", "bubble", "tensor", "wait", "transfer", "other")


def waterfall(shares: dict[str, float]) -> tuple[WaterfallBar, ...]:
    """`shares` has one entry a phase, adding up to 1; the last bar's remainder is the measured rate."""
    remaining = 1.0
    bars = []
    for name in BARS:
        remaining -= shares[name]
        bars.append(WaterfallBar(name=name, share=shares[name], remaining_share=max(0.0, remaining)))
    return tuple(bars)
