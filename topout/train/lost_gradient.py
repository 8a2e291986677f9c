"""Finds gradients that DDP has lost since other memory was put into them: `p.grad.data = …`, `p.grad.set_(…)`.

The gradients of a model that was wrapped are DDP's own views of what it sends. One whose memory was exchanged is
written by backward and sent by nobody, in every step to come, and replicas drift apart with nothing to show for it.
Its base is memory in which it does not lie. What a script assigns (`p.grad = …`) is another tensor, which DDP copies.
"""

from collections.abc import Iterable
from typing import Any

import torch

from topout.schema.errors import TopoutError


def refuse_lost(optimizer: Any, made: Iterable[Any]) -> None:
    """Before its step; `made` are the DDP modules of `wrap`."""
    lost = {id(one) for group in optimizer.param_groups for one in group["params"] if _is_lost(one.grad)}
    if not lost:
        return
    for name, parameter in (pair for ddp in made for pair in ddp.module.named_parameters()):
        if id(parameter) in lost:
            raise TopoutError(
                f"The gradient of {name} is not averaged over the ranks any more.",
                why="Other memory was put into it, as by p.grad.data = … or p.grad.set_(…): DDP sends what it had.",
                do="p.grad = …, or p.grad.copy_(…)",
            )


def _is_lost(gradient: Any) -> bool:
    """One of its own class is still under way, or prepared; sparse ones have no memory of their own."""
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or not gradient._is_view():
        return False
    return bool(gradient.untyped_storage().data_ptr() != gradient._base.untyped_storage().data_ptr())
