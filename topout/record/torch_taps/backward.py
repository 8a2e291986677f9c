"""Taps backward: `Tensor.backward` and scripts alike go through `torch.autograd.backward`."""

import functools
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from topout.record.clock import now_ns, processors_ns
from topout.record.onednn import onednn
from topout.record.recorder import OFF_MAIN, Recorder
from topout.record.torch_taps import flops
from topout.record.torch_taps.backward_steps import BackwardSteps
from topout.schema.event import NOT_GIVEN, Kind


def install(module: ModuleType, recorder: Recorder) -> None:
    original = module.backward
    ran = recorder.code(Kind.BACKWARD)
    main_thread = recorder.main_thread
    graph = flops.GraphFlops(recorder)
    recorder.backwards = BackwardSteps(recorder)
    graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = now_ns()
        if recorder.mark is not None:
            recorder.mark("forward")
        if recorder.num_steps <= recorder.count_flops_at:
            recorder.begin_training(start_ns)
            if recorder.num_steps == recorder.count_flops_at:
                tensors = _kept(tensors)
                recorder.guard(graph.add, tensors)
                start_ns = now_ns()
        used_ns = processors_ns()
        try:
            result = original(tensors, *args, **kwargs)
        finally:
            end_ns = now_ns()
            code = ran if get_ident() == main_thread else ran + OFF_MAIN
            recorder.emit((code, start_ns, end_ns - start_ns, processors_ns() - used_ns, NOT_GIVEN))
            if recorder.mark is not None:
                recorder.mark("backward")
        # checkpointed activations run one backward inside another
        if recorder.backwards is not None and code == ran and graph_task() == -1:
            recorder.backwards.ended(end_ns)
        return result

    setattr(
        module,
        original.__name__,
        backward if recorder.settings.onednn_backward else _without_onednn(backward, recorder),
    )


def _without_onednn(backward: Any, recorder: Recorder) -> Any:
    """`--no-onednn-backward`: gradients by torch's own kernels, forward as it was."""

    @functools.wraps(backward)
    def computed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.num_steps == 0:
            tensors = _kept(tensors)
            recorder.guard(_check_on_cpu, tensors, recorder)
        with onednn(False):
            return backward(tensors, *args, **kwargs)

    return computed


def _kept(tensors: Any) -> Any:
    """What an iterator hands out would be gone before torch asks for it; torch makes the same of it."""
    return tensors if isinstance(tensors, (torch.Tensor, list, tuple)) else tuple(tensors)


def _check_on_cpu(tensors: Any, recorder: Recorder) -> None:
    first = tensors if hasattr(tensors, "device") else next(iter(tensors))
    if first.device.type != "cpu":
        recorder.note(f"--no-onednn-backward changes nothing: gradients are computed on {first.device.type}")
