"""What stands in place of a gradient that is travelling: whoever looks at it, or changes it, is told at once.

NaN inside, for code that does not ask Python, such as autograd adding to it. Takes the memory of one number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from topout.schema.errors import TopoutError


class GoneGradient(torch.Tensor):  # type: ignore[misc]
    """Made by `in_place_of`; every function of torch's refuses it."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # of an attribute, its name
        named = getattr(func, "__self__", None) if func.__name__ == "__get__" else func
        raise TopoutError(
            f"With overlap_forward a gradient was used after backward ({getattr(named, '__name__', func)}).",
            why="It travels to the other ranks and is applied where it arrives; clipping, a loss scaler, a look at "
            "its norm, zero_grad(set_to_none=False) would find nothing.",
            do="leave out overlap_forward=True, or what uses the gradient",
        )


def in_place_of(parameter: Any) -> torch.Tensor:
    """Something to be the parameter's `grad` for a while."""
    nothing = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device)
    return nothing.expand(parameter.shape).as_subclass(GoneGradient)


def is_left(gradient: Any) -> bool:
    """Whether it is, or was made from, what `in_place_of` gave."""
    with torch._C.DisableTorchFunctionSubclass():
        return gradient is not None and bool(gradient.isnan().all())
