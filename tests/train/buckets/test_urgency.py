"""The order in which pieces of gradients travel into the next forward."""

import itertools

from topout.train.buckets.urgency import urgent_first
from topout.train.link import Link


def finish_forward_s(order, ready_s, num_bytes, link, layer_s):
    """When the next forward, whose first layer needs the group that is ready last, has computed all its layers."""
    now_s, arrived_s = 0.0, {}
    for group in order:
        now_s = max(now_s, ready_s[group]) + link.time_s(num_bytes[group])
        arrived_s[group] = now_s
    done_s = ready_s[-1]
    for group in reversed(range(len(order))):
        done_s = max(done_s, arrived_s[group]) + layer_s
    return done_s


def test_large_last_layers_travel_while_the_first_layers_compute() -> None:
    """As of ResNet-18: most bytes are ready first and needed last."""
    ready_s, num_bytes, link = (0.05, 0.10, 0.20, 0.30), (9_000_000, 9_000_000, 3_000_000, 500_000), Link(
        alpha_s=1e-4, bytes_per_s=4e7
    )  # fmt: skip
    order = urgent_first(ready_s, num_bytes, link)
    assert order == (0, 2, 3, 1)
    as_ready = finish_forward_s(range(4), ready_s, num_bytes, link, 0.02)
    assert finish_forward_s(order, ready_s, num_bytes, link, 0.02) < as_ready - 0.03


def test_on_a_fast_link_groups_travel_as_they_are_ready() -> None:
    assert urgent_first((0.1, 0.2, 0.3), (1000, 1000, 1000), Link(alpha_s=1e-6, bytes_per_s=1e9)) == (0, 1, 2)


def test_no_order_is_much_better() -> None:
    ready_s, num_bytes, link = (0.1, 0.12, 0.15, 0.4, 0.5), (4_000, 9_000, 1_000, 2_000, 500), Link(
        alpha_s=1e-3, bytes_per_s=3e4
    )  # fmt: skip
    best = min(finish_forward_s(order, ready_s, num_bytes, link, 0.03) for order in itertools.permutations(range(5)))
    ours = finish_forward_s(urgent_first(ready_s, num_bytes, link), ready_s, num_bytes, link, 0.03)
    assert ours <= 1.1 * best
