"""oneDNN switched off and given back: for gradients, which torch's own kernels compute faster on some CPUs."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def onednn(is_enabled: bool) -> Iterator[None]:
    """For this process. Never turns on what the script has turned off; `torch.backends.mkldnn.flags` would warn."""
    import torch

    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(is_enabled and was_enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)
