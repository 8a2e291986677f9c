"""What stands in place of a gradient that is travelling: whoever looks at it, or changes it, is told at once.

NaN inside, for code that does not ask Python, such as autograd adding to it. Takes the memory of one number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from topout.schema.errors import TopoutError

_ALLOWED = frozenset(
    {"to", "cpu", "is_floating_point", "is_complex", "dim", "requires_grad_", "_has_compatible_shallow_copy_type"}
    | {"data", "device", "dtype", "grad_fn", "is_leaf", "is_sparse", "layout", "requires_grad", "shape"}
)
"""What a tensor is, whatever is in it; and what `model.to(device)` asks of a gradient where all stays in place."""


class GoneGradient(torch.Tensor):  # type: ignore[misc]
    """Made by `in_place_of`; what would read or change it is refused."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_of_an_attribute = func.__name__ in ("__get__", "__set__")
        name = getattr(getattr(func, "__self__", None) if is_of_an_attribute else func, "__name__", str(func))
        if name in _ALLOWED:
            result = super().__torch_function__(func, types, args, kwargs or {})
            if not isinstance(result, torch.Tensor) or result is args[0] or name not in ("to", "cpu"):
                return result
        raise TopoutError(
            f"With overlap_forward a gradient was used after backward ({name}).",
            why="It travels to the other ranks and is applied where it arrives; clipping, a loss scaler, a look at "
            "its norm, zero_grad(set_to_none=False) would find nothing, and model.half() old parameters.",
            do="leave out overlap_forward=True, or what uses the gradient; to convert a model, "
            "optimizer.zero_grad() and ctx.wait() before",
        )


def in_place_of(parameter: Any) -> torch.Tensor:
    """Something to be the parameter's `grad` for a while."""
    nothing = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device)
    return nothing.expand(parameter.shape).as_subclass(GoneGradient)


def is_left(gradient: Any) -> bool:
    """Whether it is, or was made from, what `in_place_of` gave."""
    with torch._C.DisableTorchFunctionSubclass():
        return gradient is not None and bool(gradient.isnan().all())
