"""One optimizer of the script's under `topout run --ddp`, and how its gradients are averaged.

Ranks notice at different times that an optimizer is gone, since garbage is collected when it suits each. What it held
is kept here until all have noticed: to average what nobody steps is right, to wait for a rank that does not is not.
"""

import weakref
from typing import Any

from topout.train.fusion.bucket import averaging
from topout.train.fusion.gradients import FusedGradients
from topout.train.fusion.grouping import limits_from


class Averaged:
    """One optimizer's gradients, averaged by the end of every backward pass.

    So clipping, scaling and whatever else reads gradients before the step finds them averaged. Of several passes a step
    each is averaged, which is right, since an average of averages is the same, if more than needed.
    """

    def __init__(self, named: list[tuple[str, Any]], group: Any) -> None:
        self.gradients = FusedGradients(
            named, group=group, reduction=averaging(group), limits=limits_from(), passes=None, drops_unused=True
        )
        self.num_passes = 0
        """Since the last step."""

    def average(self) -> None:
        self.num_passes += 1
        self.gradients.synchronize()


class Followed:
    def __init__(self, optimizer: Any) -> None:
        self.averaged: Averaged | None = None
        self._optimizer = weakref.ref(optimizer)
        self._parameters: list[Any] = []
        self.parameters()

    @property
    def is_alive(self) -> bool:
        """Here; another rank may know otherwise."""
        return self._optimizer() is not None

    def is_of(self, optimizer: Any) -> bool:
        return self._optimizer() is optimizer

    def parameters(self) -> list[Any]:
        """What it holds, or held last."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return self._parameters

    def averaging_in(self, group: Any) -> Averaged:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        num_passes = 0
        if self.averaged is not None:
            if [id(p) for p in self.averaged.gradients.parameters] == [id(p) for p in trained]:
                return self.averaged
            # layers were frozen or freed, or parameters added: on all ranks alike
            self.averaged.gradients.remove()
            # what was averaged before they were frozen may be stepped after
            num_passes = self.averaged.num_passes
        named = [(f"parameter {number}", parameter) for number, parameter in enumerate(trained)]
        self.averaged = Averaged(named, group)
        self.averaged.num_passes = num_passes
        return self.averaged

    def leave(self) -> None:
        """Its hooks would go on sending what nobody waits for."""
        if self.averaged is not None:
            self.averaged.gradients.remove()
