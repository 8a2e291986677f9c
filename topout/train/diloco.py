"""DiLoCo: ranks train on their own for many steps, then take one outer step together along their mean progress.

    local = DiLoCo(model, inner_optimizer, place, every=50)
    for batch in loader:
        ...
        inner_optimizer.step()
        local.step()
    local.finish()

The outer step is SGD with Nesterov momentum on (where the ranks last met - the mean of where they are now); it keeps a
copy of the parameters and, with momentum, another. The inner optimizer's own state stays on its rank. Parameters that
the inner optimizer does not hold are left alone, and so are frozen ones, from the meeting on after which nothing has
changed them. All ranks must make the same number of steps. Not for a few hundred
steps in all: the outer momentum needs meetings to work with. Reference: Douillard et al. 2023, DiLoCo.
"""

from typing import Any

import torch
from torch import nn

from topout.epoch.whole_number import whole
from topout.schema.errors import TopoutError
from topout.train import left_out
from topout.train.exchange import gather
from topout.train.local_sgd import average, average_buffers, broadcast, check_not_wrapped, model_tensors
from topout.train.place import Place


class DiLoCo:
    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        place: Place,
        *,
        every: int = 50,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        """Begins with rank 0's parameters and buffers on all ranks."""
        check_not_wrapped(model)
        self.place, self.model = place, model
        self.every = whole("every", every)
        self.num_steps = 0
        self.bytes_averaged = 0
        self._has_news = False
        broadcast(model_tensors(model), place)
        self._inner = inner_optimizer
        self._parameters = trained_parameters(model, inner_optimizer)
        self._meeting_point = [parameter.detach().clone() for parameter in self._parameters]
        self._outer = torch.optim.SGD(
            self._meeting_point, lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0
        )
        left_out.leave_to(self)

    def step(self) -> bool:
        """After each step of the inner optimizer; whether the ranks met."""
        self.num_steps += 1
        self._has_news = True
        is_due = self.num_steps % self.every == 0
        if is_due:
            self.meet()
        return is_due

    def finish(self) -> None:
        """Takes the outer step for what was learnt since the last; all ranks together, before the end."""
        if self._has_news:
            self.meet()

    def meet(self) -> None:
        if [id(p) for p in trained_parameters(self.model, self._inner)] != [id(p) for p in self._parameters]:
            raise TopoutError(
                "The inner optimizer holds other parameters than when DiLoCo was made.",
                why="Those that were added (add_param_group) have no point at which ranks met, and would part ways.",
                do="give the inner optimizer all of them, and make those that shall rest requires_grad_(False)",
            )
        with torch.no_grad():
            pairs = list(zip(self._meeting_point, self._parameters, strict=True))
            resting = self._resting()
            moving = [pair for number, pair in enumerate(pairs) if number not in resting]
            self.bytes_averaged += average([parameter for _, parameter in moving], self.place)
            self.bytes_averaged += average_buffers(self.model, self.place)
            for point, parameter in moving:
                point.grad = point - parameter
            self._outer.step()
            self._outer.zero_grad(set_to_none=True)
            torch._foreach_copy_([parameter.detach() for parameter in self._parameters], self._meeting_point)
        self._has_news = False

    def averaged(self) -> list[nn.Parameter]:
        return list(self._parameters)

    def _resting(self) -> set[int]:
        """Frozen now, and on all ranks what it was when they last met: the outer momentum must not move it on."""
        frozen = [number for number, parameter in enumerate(self._parameters) if not parameter.requires_grad]
        # requires_grad is the script's and the same on all ranks; what has changed need not be
        if not frozen:
            return set()
        has_moved = [not torch.equal(self._parameters[number], self._meeting_point[number]) for number in frozen]
        told = gather([int(one) for one in has_moved], self.place)
        return {number for number, moved in zip(frozen, zip(*told, strict=True), strict=True) if not any(moved)}

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks. Between meetings the model's parameters are not: see `finish`."""
        return {
            "num_steps": self.num_steps,
            "has_news": self._has_news,
            "meeting_point": [point.clone() for point in self._meeting_point],
            "outer": self._outer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if [point.shape for point in state["meeting_point"]] != [point.shape for point in self._meeting_point]:
            raise TopoutError(
                "This state of DiLoCo belongs to another model.",
                why="Its parameters have other shapes, or there are more or fewer of them.",
                do="make the model and the inner optimizer as they were when it was saved",
            )
        self.num_steps = int(state["num_steps"])
        # older states do not say
        self._has_news = bool(state.get("has_news", self.num_steps % self.every != 0))
        for point, saved in zip(self._meeting_point, state["meeting_point"], strict=True):
            point.copy_(saved)
        self._outer.load_state_dict(state["outer"])


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The model's parameters that the optimizer holds, in the model's order, which is the same on all ranks."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = [parameter for parameter in model.parameters() if id(parameter) in held]
    if not found:
        raise TopoutError(
            "The inner optimizer holds no parameter of this model.",
            why="It was made for another one, or for a copy: training would change nothing that the ranks exchange.",
            do="make it from this model's parameters()",
        )
    return found
