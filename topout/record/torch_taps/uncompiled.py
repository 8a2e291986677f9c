"""Keeps torch.compile from compiling a tap.

Where a graph breaks at a tapped call, torch runs it as Python and tries to compile what it is made of: a graph break
more than without topout, and time. Not for calls that stay inside a graph: those are traced as ever.
"""

import sys
from contextlib import suppress
from typing import Any, TypeVar

import torch

Tap = TypeVar("Tap")


def leave_uncompiled(tap: Tap) -> Tap:
    """The same function. Goes without `torch._dynamo`, which takes seconds to import; other torches may lack it."""
    function: Any = tap
    with suppress(Exception):
        frames: Any = torch._C._dynamo.eval_frame
        if hasattr(frames, "skip_code"):
            frames.skip_code(function.__code__)
        else:
            action = frames._FrameAction
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return tap


def has_compiled() -> bool:
    """Whether torch has compiled anything in this process so far."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters.get("frames"))


def may_compile() -> bool:
    """Whether the script has had something compiled, or asked for it and not called it yet."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    backends: dict[int, Any] = getattr(frames, "cached_backends", {})
    # what is only kept from being compiled has none
    return has_compiled() or any(backend is not None for backend in backends.values())
