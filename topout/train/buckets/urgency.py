"""In which order pieces of gradients travel when the next forward may begin before all of them have come.

Backward finishes the last layers first, and forward needs the first layers first: sent as they become ready, the piece
that forward waits for comes last. Whenever the link is free, the one that forward needs first should go. Pure; all
ranks must keep to one order, since collectives meet by number.
"""

from collections.abc import Sequence

from topout.train.link import Link


def urgent_first(ready_s: Sequence[float], num_bytes: Sequence[int], link: Link) -> tuple[int, ...]:
    """Pieces by number, counted in the order in which backward finishes them."""
    left = list(range(len(ready_s)))
    order: list[int] = []
    now_s = 0.0
    while left:
        ready = [piece for piece in left if ready_s[piece] <= now_s]
        if not ready:
            now_s = min(ready_s[piece] for piece in left)
            continue
        # the last to be ready is the first that forward needs
        order.append(ready[-1])
        left.remove(ready[-1])
        now_s += link.time_s(num_bytes[ready[-1]])
    return tuple(order)
