"""LARS: momentum SGD whose rate is scaled, tensor by tensor, by the norm of the weights over that of the gradient.

    lam = trust |w| / (|g| + decay |w|);  v = momentum v + lr lam (g + decay w);  w = w - v

That is the paper's form: the rate enters the momentum. `momentum_form="torch"` keeps it outside, as torch's SGD and
other libraries' LARS do; the two differ while the rate changes, that is in a warm-up, where LARS is needed most.
Not for batches that SGD still learns at: it spares tuning the rate anew, and brings nothing else.
Reference: You, Gitman, Ginsburg 2017, Large Batch Training of Convolutional Networks (arXiv 1708.03888), Algorithm 1.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from topout.train.optim.layerwise import LayerwiseOptimizer
from topout.train.optim.refusals import check_choice, check_number
from topout.train.optim.slot import Rule

FORMS = ("paper", "torch")


class LARS(LayerwiseOptimizer):
    """Takes the place of torch.optim.SGD, whose state it can load: motion goes on at the rate that is loaded.

    Tensors of one dimension or none (biases, batch norm) get plain momentum without ratio and decay, as in the papers.
    `adapts=True` in a group treats them like the others; `adapts=False` takes the ratio from all tensors of a group.
    A norm of zero gives the ratio 1.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        eps: float = 0.0,
        momentum_form: str = "paper",
        adapts: bool | None = None,
        implementation: str = "auto",
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "eps": eps,
            "momentum_form": momentum_form, "adapts": adapts,
        }  # fmt: skip
        super().__init__(params, defaults, implementation)

    def check_group(self, group: Mapping[str, Any]) -> None:
        check_number(self.label, "lr", group["lr"], least=0)
        check_number(self.label, "momentum", group["momentum"], least=0, below=1)
        check_number(self.label, "weight_decay", group["weight_decay"], least=0)
        check_number(self.label, "trust", group["trust"], least=0, above=True)
        check_number(self.label, "eps", group["eps"], least=0)
        check_choice(self.label, "momentum_form", group["momentum_form"], FORMS)

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            if "momentum_form" in saved or group["momentum_form"] != "paper":
                continue
            # of torch's SGD: a sum of gradients, where the paper's form has each of them times its rate
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"] = state["momentum_buffer"] * float(group["lr"])

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        return Rule(
            method="lars",
            rate=float(group["lr"]),
            eps=group["eps"],
            beta1=group["momentum"],
            trust=group["trust"],
            rate_is_outside=group["momentum_form"] == "torch",
        )
