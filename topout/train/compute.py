"""The switches that make one step use the device: each a flag, each with a default that is safe to leave.

    compute = Compute(precision="bf16", accumulate=4)
    model, optimizer = compute.apply(model, optimizer)      # the same objects; before DDP wraps the model
    stepper = compute.stepper(model, optimizer)
    for images, labels in loader:
        with stepper.forward():
            loss = criterion(model(images), labels)
        stepper.backward(loss)

What each brings on a GPU is in `benchmarks/results`. Not for choosing by itself: what a model gains is measured, by
`topout run` before and after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train import precision
from topout.train.accumulation import Stepper
from topout.train.activations import checkpoint_activations
from topout.train.backward_kernels import CHOICES, BackwardKernels
from topout.train.fused import fuse, has_sparse_gradients
from topout.train.fused_fit import like_parameters
from topout.train.place import Place

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How steps are computed. Switches of GPUs (TF32, cuDNN) do nothing to a model on the CPU."""

    precision: str = "auto"
    channels_last: bool = True
    """Convolution weights in NHWC order, which tensor cores read; give images in the same order."""
    compile: bool | str = "auto"
    """torch.compile: True, False, a mode, or `auto`: on GPUs."""
    compile_backend: str = "inductor"
    compile_options: Mapping[str, Any] | None = None
    """Settings of the compiler beside its mode, as in `torch.compile(options=)`."""
    dynamic_shapes: bool | None = None
    """None: torch generalises once a second shape comes; False: a program for each shape, at most 8."""
    cudnn_benchmark: bool = True
    onednn_backward: bool | str = True
    """On CPUs: whether oneDNN computes backward, as torch has it, or `auto`: only where that is faster (timed)."""
    fused_optimizer: bool = True
    tf32: bool = True
    checkpoint_activations: Sequence[str] = ()
    accumulate: int = 1
    clip_norm: float | None = None
    check_loss_every: int = 16
    """Batches between looks at the loss, which must be finite; 0: never."""

    def __post_init__(self) -> None:
        precision.resolved(self.precision, torch.device("cpu"))
        modes = ("auto", True, False, *COMPILE_MODES)
        if self.compile not in modes:
            raise _refusal("compile", self.compile, f"one of {', '.join(map(str, modes))}")
        if self.onednn_backward not in CHOICES:
            raise _refusal("onednn_backward", self.onednn_backward, f"one of {', '.join(map(str, CHOICES))}")
        for name, least in (("accumulate", 1), ("check_loss_every", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _refusal(name, value, f"a whole number from {least} on")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise _refusal("clip_norm", self.clip_norm, "a number above 0, or None")
        if isinstance(self.checkpoint_activations, str):
            raise _refusal(
                "checkpoint_activations", self.checkpoint_activations, f"a tuple: ({self.checkpoint_activations!r},)"
            )

    def apply(self, model: Any, optimizer: Any = None) -> tuple[Any, Any]:
        """Sets the switches on both, in place, and for this process; the model is on its device already."""
        if hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync"):
            raise TopoutError(
                "Compute switches came after the model was wrapped for many ranks.",
                why="The wrapper has laid out its gradients after the parameters as they were.",
                do="call compute.apply(model, optimizer) before DistributedDataParallel(model)",
            )
        device = device_of(model)
        if self.channels_last:
            torch.nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
        if self.checkpoint_activations:
            checkpoint_activations(model, self.checkpoint_activations)
        if device.type == "cuda":
            precision.set_tf32(self.tf32)
            torch.backends.cudnn.benchmark = self.cudnn_benchmark
        if optimizer is not None:
            like_parameters(optimizer)
            if self.fused_optimizer and not has_sparse_gradients(model):
                fuse(optimizer)
        if self.compile is not False and (self.compile != "auto" or device.type == "cuda"):
            # in place: names in the state dict stay, and DDP around it still splits the graph at its buckets
            model.compile(backend=self.compile_backend, dynamic=self.dynamic_shapes, **self._how_to_compile())
        return model, optimizer

    def stepper(self, model: Any, optimizer: Any, place: Place | None = None) -> Stepper:
        """For the loop; `model` is the wrapped one where there are many ranks, and `place` says among which."""
        device = device_of(model)
        chosen = precision.resolved(self.precision, device)
        precision.warn_if_emulated(chosen, device)
        place = place or Place(device=device)
        return Stepper(
            model,
            optimizer,
            place,
            precision_name=chosen,
            backward_kernels=self._backward_kernels(chosen, place),
            accumulate=self.accumulate,
            clip_norm=self.clip_norm,
            check_loss_every=self.check_loss_every,
        )

    def _backward_kernels(self, chosen: str, place: Place) -> BackwardKernels | None:
        if self.onednn_backward is True or place.device.type != "cpu" or chosen != "fp32":
            return None
        return BackwardKernels(self.onednn_backward, says=place.rank == 0)

    def _how_to_compile(self) -> dict[str, Any]:
        mode = self.compile if self.compile in COMPILE_MODES else None
        if self.compile_options is None:
            return {"mode": mode}
        # torch takes one or the other
        of_mode = torch._inductor.list_mode_options(mode) if mode else {}
        return {"options": {**of_mode, **self.compile_options}}


def device_of(model: Any) -> torch.device:
    first = next(iter(model.parameters()), None)
    return torch.device("cpu") if first is None else first.device


def _refusal(name: str, value: object, allowed: str) -> TopoutError:
    return TopoutError(
        f"Compute has no {name}={value!r}.", why="Each switch takes only what it can do.", do=f"{name}: {allowed}"
    )
