"""Names of rows that tell a reader what their kind alone does not."""

BY_BACKWARD = "backward"
"""Of a step: a backward ended it, for want of an optimizer; see `torch_taps/backward_steps.py`."""
LAUNCHED = ".launched"
"""Follows the operation in a collective's name: the call only launched it, and held nobody."""
AWAITED = ".awaited"
"""The same: the rank stood waiting for it later, from here on."""
