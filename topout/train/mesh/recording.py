"""A model built without memory, and its initial values computed later, tensor by tensor.

`build` runs on tensors that have no values (torch's FakeTensor), and every operation on them is written down. Replayed
in the same order from the same random state, they give the bits that building in one process gives; each tensor is
handed over as soon as nothing will change it and is then freed. So a rank needs memory for its own share and for one
tensor more, even where `apply` initialises everything a second time.

Not for builders that look at random values (`if weight.max() > 1`): those raise, and the caller builds for real. Values
that no random number went into, as of `torch.linspace(0, 0.1, depth).tolist()`, are computed when they are looked at.
FakeTensorMode and TorchDispatchMode are not public; where they are missing, importing this module raises ImportError.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

_TRUNCATED = "trunc_normal_"
_OVERWRITES = frozenset(
    f"aten::{name}"
    for name in ("normal_", "uniform_", "fill_", "zero_", "copy_", "exponential_", "random_", "log_normal_", "cauchy_")
) | {_TRUNCATED}
_MOST_LOOKED_AT = 65536
"""Elements of a tensor that is computed while building, because the builder looks at it."""


class Ref(NamedTuple):
    """A tensor as a view of a storage; views and the tensor they look at share its key."""

    key: int
    num_bytes: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def is_whole(self) -> bool:
        return bool(torch.Size(self.size).numel() * self.dtype.itemsize == self.num_bytes)


class _Operation(NamedTuple):
    function: Any
    args: Any
    kwargs: Any
    results: list[Any]
    random_state: torch.Tensor | None
    """Set before it runs, where the builder had seeded since the operation before."""

    @property
    def name(self) -> str:
        schema = getattr(self.function, "_schema", None)
        return _TRUNCATED if schema is None else str(schema.name)

    @property
    def is_random(self) -> bool:
        return self.name == _TRUNCATED or torch.Tag.nondeterministic_seeded in self.function.tags

    def refs(self) -> list[Ref]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs), is_leaf=_is_ref) if isinstance(leaf, Ref)]

    def overwrites(self) -> int | None:
        """The key of a storage whose content before does not matter."""
        refs = self.refs()
        if self.name not in _OVERWRITES or not refs or not refs[0].is_whole:
            return None
        return refs[0].key if all(other.key != refs[0].key for other in refs[1:]) else None


class Recording(TorchDispatchMode):  # type: ignore[misc]
    """A context to build a model in; `replay` computes what was built."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._operations: list[_Operation] = []
        # a storage that is gone would leave its address, the key, to another
        self._storages: dict[int, Any] = {}
        self._constants: dict[int, torch.Tensor] = {}
        self._state = torch.get_rng_state()
        self._begun = self._state

    def __enter__(self) -> Any:
        # torch draws again until all values fit, which cannot be written down operation by operation
        self._truncated = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
        if self._truncated is not None:
            torch.nn.init._no_grad_trunc_normal_ = self._note_truncated
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._truncated is not None:
            torch.nn.init._no_grad_trunc_normal_ = self._truncated
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        noted = tree_map(self._noted, (args, kwargs))
        if function is torch.ops.aten._local_scalar_dense.default and isinstance(noted[0][0], Ref):
            return self._looked_at(noted[0][0])
        with self._fake:
            result = function(*args, **kwargs)
        results = [self.ref(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in tree_leaves(result)]
        self._operations.append(_Operation(function, noted[0], noted[1], results, self._seeded()))
        return result

    def _note_truncated(self, tensor: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        with _disable_current_modes():
            noted = (self._noted(tensor), *rest)
            self._operations.append(_Operation(self._truncated, noted, options, [None], self._seeded()))
        return tensor

    def _seeded(self) -> torch.Tensor | None:
        """The random state, where it is not what the operation before left: the builder has seeded."""
        before, self._state = self._state, torch.random.default_generator.get_state()
        return None if torch.equal(before, self._state) else self._state

    def _looked_at(self, wanted: Ref) -> Any:
        """The value of a tensor of one element, computed from all that went into it."""
        keys, needed = {wanted.key}, []
        for operation in reversed(self._operations):
            touched = _keys(operation)
            if touched & keys:
                if operation.is_random or any(torch.Size(r.size).numel() > _MOST_LOOKED_AT for r in operation.refs()):
                    raise RuntimeError(f"building looks at a value that {operation.name} drew")
                keys |= touched
                needed.append(operation)
        live = {key: value.clone().untyped_storage() for key, value in self._constants.items() if key in keys}

        def tensor_of(ref: Ref) -> torch.Tensor:
            return torch.empty(0, dtype=ref.dtype).set_(live[ref.key], ref.offset, ref.size, ref.stride)

        for operation in reversed(needed):
            self._run(operation, live, tensor_of)
        return tensor_of(wanted).item()

    def ref(self, tensor: torch.Tensor) -> Ref:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return Ref(
            storage._cdata, storage.nbytes(), tensor.dtype, tuple(tensor.shape), tensor.stride(),
            tensor.storage_offset(),
        )  # fmt: skip

    def _noted(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        ref = self.ref(value)
        if not hasattr(value, "fake_mode") and ref.key not in self._constants:
            # made by no operation that we saw, as torch.tensor([1, 2]) is: its values are there
            whole = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage().clone())
            self._constants[ref.key] = whole
        return ref

    def replay(self, done: Callable[[int, Callable[[Ref], torch.Tensor]], None]) -> None:
        """Calls `done(key, tensor_of)` once for every storage, when it has its final values."""
        torch.set_rng_state(self._begun)
        uses: dict[int, list[tuple[int, bool]]] = {}
        for number, operation in enumerate(self._operations):
            for key in _keys(operation):
                uses.setdefault(key, []).append((number, operation.overwrites() == key))
        live = {key: tensor.untyped_storage() for key, tensor in self._constants.items()}

        def tensor_of(ref: Ref) -> torch.Tensor:
            if ref.key not in live:
                live[ref.key] = torch.empty(ref.num_bytes, dtype=torch.uint8).untyped_storage()
            return torch.empty(0, dtype=ref.dtype).set_(live[ref.key], ref.offset, ref.size, ref.stride)

        with torch.no_grad():
            for number, operation in enumerate(self._operations):
                self._run(operation, live, tensor_of)
                for key in _keys(operation):
                    later = [is_overwritten for at, is_overwritten in uses[key] if at > number]
                    uses[key] = [use for use in uses[key] if use[0] > number]
                    if not later:
                        done(key, tensor_of)
                    if not later or later[0]:
                        live.pop(key, None)

    def _run(self, operation: _Operation, live: dict[int, Any], tensor_of: Callable[[Ref], torch.Tensor]) -> None:
        if operation.random_state is not None:
            torch.set_rng_state(operation.random_state)
        args, kwargs = tree_map(
            lambda leaf: tensor_of(leaf) if isinstance(leaf, Ref) else leaf,
            (operation.args, operation.kwargs),
            is_leaf=_is_ref,
        )
        result = operation.function(*args, **kwargs)
        for ref, leaf in zip(operation.results, tree_leaves(result), strict=True):
            if ref is not None and ref.key not in live:
                live[ref.key] = leaf.untyped_storage()


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def _keys(operation: _Operation) -> set[int]:
    return {ref.key for ref in (*operation.refs(), *operation.results) if ref is not None}
