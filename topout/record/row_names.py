"""Names of rows and values of facts that tell a reader what their kind alone does not."""

BY_BACKWARD = "backward"
"""Of a step: a backward ended it, for want of an optimizer; see `torch_taps/backward_steps.py`."""
LAUNCHED = ".launched"
"""Follows the operation in a collective's name: the call only launched it, and held nobody."""
AWAITED = ".awaited"
"""The same: the rank stood waiting for it later, from here on."""
QUEUED = ".queued"
"""Follows the phase in a row of the device: all of its work had been launched when it began (`held_back.py`)."""
LATE = 2
"""Value of such a row: the device may have gone on before all was launched, and what it took may hold gaps."""
DRY = ".dry"
"""The same: before a copy that the device had nothing more to do at; the host may have been elsewhere all the while."""
CHANGED, UNCHANGED, REPLACED = "changed", "unchanged", "replaced"
"""Values of the fact `gradients_of`: what became of the tensors that gradients went to; see `torch_taps/leaves.py`."""
LIFE_BITS = 32
"""Of an arrival's sequence number; above them stands which default group it was, of those made one after another."""
