"""LAMB: AdamW whose step is scaled, tensor by tensor, to the norm of the weights.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay w
    w = w - lr |w| / |r| r

Not for batches at which AdamW still learns: like LARS it spares tuning, and does not beat a tuned optimizer.
Reference: You et al. 2020, Large Batch Optimization for Deep Learning (arXiv 1904.00962), Algorithm 2, phi = identity.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from topout.train.optim.layerwise import LayerwiseOptimizer
from topout.train.optim.refusals import check_choice, check_number
from topout.train.optim.slot import Rule


class LAMB(LayerwiseOptimizer):
    """Takes the place of torch.optim.AdamW, whose state it can load.

    Tensors of one dimension or none get AdamW's step without decay; `adapts` changes that as in LARS. A norm of zero
    gives the ratio 1. `bias_correction=False` takes means as they are, as the paper's first version did.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        adapts: bool | None = None,
        implementation: str = "auto",
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction,
            "adapts": adapts,
        }  # fmt: skip
        super().__init__(params, defaults, implementation)

    def check_group(self, group: Mapping[str, Any]) -> None:
        check_number(self.label, "lr", group["lr"], least=0)
        check_choice(self.label, "number of betas", len(group["betas"]), (2,))
        for beta in group["betas"]:
            check_number(self.label, "beta", beta, least=0, below=1)
        check_number(self.label, "eps", group["eps"], least=0, above=True)
        check_number(self.label, "weight_decay", group["weight_decay"], least=0)

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        beta1, beta2 = group["betas"]
        return Rule(
            method="lamb",
            rate=float(group["lr"]),
            eps=group["eps"],
            beta1=beta1,
            beta2=beta2,
            corrects=bool(group["bias_correction"]),
        )

    def _begin(self, parameter: Any, state: dict[str, Any]) -> None:
        super()._begin(parameter, state)
        # on the host and float32, as torch's own: a bf16 count would stop at 256
        state["step"] = torch.tensor(0.0, dtype=torch.float32, device="cpu")
