"""What stands in place of a gradient from which the update was computed already: it is the gradient, and it tells.

The same memory and the same count of changes, so that autograd and everything in C++ find what they expect; whoever
asks through Python for more than a look tells `touched` first. A change that torch does not count, such as one through
`grad.data` or NumPy, begins with asking for these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_LOOKS = frozenset(
    {"abs", "all", "any", "clone", "cosine_similarity", "count_nonzero", "dim", "dot", "element_size", "equal"}
    | {"allclose", "histc", "is_complex", "is_contiguous", "is_floating_point", "isfinite", "isinf", "isnan", "item"}
    | {"max", "mean", "min", "nelement", "norm", "numel", "pow", "size", "sqrt", "square", "std", "stride", "sum"}
    | {"linalg_norm", "linalg_vector_norm", "tolist", "var", "vdot", "vector_norm", "_foreach_norm", "__len__"}
    | {"__repr__", "__hash__", "__format__", "__bool__", "__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__"}
    | {"device", "dtype", "grad_fn", "is_cuda", "is_leaf", "is_sparse", "itemsize", "layout", "nbytes", "ndim"}
    | {"_version", "data_ptr", "get_device", "is_mkldnn", "is_quantized", "names", "requires_grad", "shape"}
    | {"_has_compatible_shallow_copy_type"}
)
"""What reads a tensor into memory of its own, or says what it is. Pointers are asked for to compare them."""


class WatchedGradient(torch.Tensor):  # type: ignore[misc]
    """Made by `watched`; its copies and pickles are plain."""

    plain: torch.Tensor
    touched: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_attribute = func.__name__ in ("__get__", "__set__", "__delete__")
        name = getattr(getattr(func, "__self__", None) if is_attribute else func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name not in _LOOKS or func.__name__ == "__set__" or "out" in (kwargs or {}):
                _tell(args)
                _tell((kwargs or {}).values())
            if name in ("__deepcopy__", "__reduce_ex__", "__copy__"):
                # else they would be of this class, and refer to what it belongs to
                args = (args[0].plain, *args[1:])
            return func(*args, **(kwargs or {}))

    def is_in_place(self) -> bool:
        """Not after other memory was put in (`grad.data = …`, `grad.set_(…)`): the gradient itself keeps its own."""
        with torch._C.DisableTorchFunctionSubclass():
            now, before = ((one.data_ptr(), one.shape, one.stride(), one.dtype) for one in (self, self.plain))
            return now == before

    def moved(self) -> torch.Tensor:
        """What is in it now, plain."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.detach().as_subclass(torch.Tensor)


def watched(gradient: torch.Tensor, touched: Callable[[], None]) -> WatchedGradient:
    """`touched` is called before anything else is done with it than looking."""
    with torch.no_grad():
        made: WatchedGradient = gradient.as_subclass(WatchedGradient)
    made.plain, made.touched = gradient, touched
    return made


def _tell(values: Any) -> None:
    """Of all among them, however deep in lists: torch takes lists of tensors and of indices."""
    for value in values:
        if isinstance(value, WatchedGradient):
            value.touched()
        elif isinstance(value, list | tuple):
            _tell(value)
