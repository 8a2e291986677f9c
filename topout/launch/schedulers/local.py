"""This machine, without a scheduler.

Not inside an allocation of several hosts: their scheduler knows which, this file sees only the one it runs on.
"""

from collections.abc import Mapping

from topout.launch.allocation import Allocation
from topout.schema.world import Rank, World

TITLE = "this machine"


def detect(environ: Mapping[str, str]) -> Allocation | None:
    """Nobody granted anything."""
    return None


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    return {}
