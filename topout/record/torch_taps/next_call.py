"""Tells when a script calls its next module: there its forward begins, whatever the host waited for before it.

For single steps, with torch's hook for all modules. Not where something is compiled, or will be: its guards would find
the hook and have it compiled once more, and a whole graph (`fullgraph=True`) could not be made of it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from topout.record.torch_taps.uncompiled import may_compile


class NextCall:
    """Of a module, in whichever thread."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._handle: Any = None

    def await_with(self, then: Callable[[], bool]) -> bool:
        """Whether `then` is called at the next ones, until it says that it was one of them that was meant."""
        self.forget()
        register = getattr(self._torch.nn.modules.module, "register_module_forward_pre_hook", None)
        if register is None or may_compile():
            return False

        def called(module: Any, args: Any) -> None:
            if then():
                self.forget()

        self._handle = register(called)
        return True

    def forget(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
