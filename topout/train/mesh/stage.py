"""What one rank holds of a model: the whole of it, or the parts of one stage, under the names of the whole.

Not a pipeline's schedule, which only sees a module that takes activations and returns them.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from topout.train.mesh.parts import Part, applied

_PREFIX = "model."


class Stage(nn.Module):  # type: ignore[misc]
    """`parts` is None where the model is whole: then its own forward runs."""

    def __init__(self, model: Any, parts: Sequence[Part] | None = None, *, precision: str | None = None) -> None:
        super().__init__()
        self.model = model
        self.parts = None if parts is None else tuple(parts)
        self.precision = precision
        self.sends: tuple[torch.dtype, ...] | None = None
        """What the next stage has made room for; nobody compares it with what arrives."""

    def forward(self, *inputs: Any) -> Any:
        with self.computing():
            if self.parts is None:
                return self.model(*inputs)
            result = applied([part.run(self.model) for part in self.parts], *inputs)
        results = result if isinstance(result, tuple) else (result,)
        if self.sends is not None:
            # weights that are gathered in bf16 return it where autocast alone would return fp32
            results = tuple(t.to(dtype) for t, dtype in zip(results, self.sends, strict=True))
        # what is sent to the next stage has to be in one piece
        results = tuple(t.contiguous() for t in results)
        return results if isinstance(result, tuple) else results[0]

    def computing(self) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        device = next((p.device.type for p in self.parameters()), "cpu")
        context: AbstractContextManager[Any] = torch.autocast(device, torch.bfloat16)
        return context

    def named(self) -> Iterator[tuple[str, Any]]:
        """Parameters under their names in the whole model, tied ones once."""
        return ((name.removeprefix(_PREFIX), parameter) for name, parameter in self.named_parameters())

    def named_own_buffers(self) -> Iterator[tuple[str, Any]]:
        return ((name.removeprefix(_PREFIX), buffer) for name, buffer in self.named_buffers())

    def persistent_buffers(self) -> dict[str, Any]:
        names = {name.removeprefix(_PREFIX) for name in self.state_dict(keep_vars=True)}
        return {name: buffer for name, buffer in self.named_own_buffers() if name in names}


def cut_out(model: Any, parts: Sequence[Part]) -> Any:
    """A copy with nothing but what the parts use. The model is on no device yet, so it costs no memory."""
    own = copy.deepcopy(model)

    def is_needed(name: str) -> bool:
        return any(part.has(name) for part in parts)

    def prune(module: Any, prefix: str) -> bool:
        """Whether anything of it is needed."""
        stays = is_needed(prefix[:-1]) if prefix else True
        for tensors in (module._parameters, module._buffers):
            for name in [name for name in tensors if not is_needed(prefix + name)]:
                tensors[name] = None
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            if prune(child, f"{prefix}{name}."):
                stays = True
            elif isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                del module._modules[name]
            else:
                module._modules[name] = None
        return stays

    prune(own, "")
    return own
