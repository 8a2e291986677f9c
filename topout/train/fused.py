"""The optimizer's own fused kernels: one pass over each parameter, its gradient and its state.

The optimizer stays the same object, with its groups and state, for learning-rate schedules hold on to it. Not for
optimizers of other libraries and subclasses: whether their `step` knows the flag cannot be seen.
"""

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from topout.train.fused_fit import is_dense, is_half_on_a_cpu, like_parameters
from topout.train.own_settings import keep_loaded, keep_own
from topout.train.quick_step import hasten

_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_DEVICES = ("cuda", "cpu")
_FEW = 8
"""Tensors without state, which torch's own loop on CPUs updates as quickly: 53 us for 4 small ones, fused 69 with what
`QuickStep` looks at; 100 and 89 for 16."""


def fuse(optimizer: Any) -> bool:
    """Switches to fused kernels where this optimizer and all its parameters have them; whether it did.

    Not for models with sparse gradients (`has_sparse_gradients`), which these kernels refuse.
    """
    if not _may_fuse(optimizer):
        return False
    keep_own(optimizer)
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, None
    optimizer.defaults["fused"], optimizer.defaults["foreach"] = True, None
    if type(optimizer) is torch.optim.SGD:
        optimizer._need_device_dtype_check_for_fused = True
    if not any(group.get("momentum") for group in optimizer.param_groups):
        # what the constructor sets with fused=True; the loss scaler then hands its findings over without waiting for
        # them. A first step that overflows would leave whatever was in memory as momentum
        optimizer._step_supports_amp_scaling = True
    for parameter, state in optimizer.state.items():
        # unfused optimizers count steps on the host, fused ones beside the parameter
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    like_parameters(optimizer)
    if hasten(optimizer):
        optimizer.register_load_state_dict_post_hook(_after_load)
    return True


def pays(optimizer: Any) -> bool:
    """Whether fused kernels save anything: passes over state, or the walk over many parameters."""
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    has_state = not isinstance(optimizer, torch.optim.SGD) or any(group.get("momentum") for group in groups)
    return has_state or len(parameters) > _FEW or any(parameter.device.type != "cpu" for parameter in parameters)


def _after_load(optimizer: Any) -> None:
    """A checkpoint brings the settings of the optimizer that wrote it, which may not have been fused."""
    keep_loaded(optimizer)
    if not fuse(optimizer):
        optimizer._step_supports_amp_scaling = False


def has_sparse_gradients(model: Any) -> bool:
    return any(getattr(module, "sparse", False) is True for module in model.modules())


def _may_fuse(optimizer: Any) -> bool:
    if type(optimizer) not in _KINDS:
        return False
    groups = optimizer.param_groups
    # what somebody asked for stays
    if any(group.get("foreach") or group.get("differentiable") or group.get("fused") is False for group in groups):
        return False
    parameters = [parameter for group in groups for parameter in group["params"]]
    if any(map(is_lazy, parameters)) or not all(map(is_dense, parameters)):
        return False
    if type(optimizer) is torch.optim.SGD and any(is_half_on_a_cpu(parameter) for parameter in parameters):
        return False
    return all(parameter.device.type in _DEVICES and parameter.is_floating_point() for parameter in parameters)
