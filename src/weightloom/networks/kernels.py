"""Which of PyTorch's kernels a network runs with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["plain_attention"]


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as plain products: PyTorch's fused kernels have no forward-mode derivative.

    >>> with plain_attention():
    ...     torch.backends.mha.get_fastpath_enabled()
    False
    """
    before = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, before)
        yield
