"""Whether what stands under forward can all be one.

Forward is derived: it holds whatever ran between the last batch or step and a backward. A pass takes about half as long
as its backward, which computes two gradients for each product, and seldom longer than it. What is far beyond that is
something else: rollouts of an environment, generated samples, batches made by hand, or a part that is not trained. The
recording does not tell these apart. Nor does it in a loop that calls no backward, where all that nothing else explains
stands under forward.
"""

from collections.abc import Mapping

LONGEST_PASS = 2.0
"""Over its backward. Beyond this, more than half of forward is no pass that is trained on."""
MIN_FORWARD_SHARE = 0.3
"""Below this it decides nothing."""


def is_forward_mixed(shares: Mapping[str, float]) -> bool:
    forward, backward = shares.get("forward", 0.0), shares.get("backward", 0.0)
    return forward >= MIN_FORWARD_SHARE and LONGEST_PASS * backward < forward
