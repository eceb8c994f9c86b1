"""Weights that can be worked with: finite, since every comparison with NaN is false, and real."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from weightloom.errors import NonFiniteWeightsError, UnsupportedModuleError
from weightloom.networks.layers import BATCH_NORMS

__all__ = ["require_finite", "require_real"]


def require_finite(*networks: nn.Module) -> None:
    """Refuse networks with NaN or infinite weights; the error names the first such tensor.

    Weights are the parameters and the running statistics of BatchNorm. Other buffers may hold
    infinity on purpose: a mask of attention has -inf where nothing is read.

    >>> net = nn.Linear(2, 1)
    >>> _ = net.weight.data[0, 1].fill_(torch.nan)
    >>> require_finite(net)
    Traceback (most recent call last):
    ...
    weightloom.errors.NonFiniteWeightsError: weight 'weight' holds NaN or infinity (1 of 2 ...
    """
    for network in networks:
        for name, tensor in _weights(network):
            if not _is_finite(tensor):
                raise _refused(name, tensor)


def require_real(network: nn.Module) -> None:
    """Refuse complex weights, whose imaginary parts a cast to double precision would drop.

    >>> require_real(nn.Linear(2, 1, dtype=torch.complex64))
    Traceback (most recent call last):
    ...
    weightloom.errors.UnsupportedModuleError: weight 'weight' is torch.complex64; wanted real ...
    """
    for name, tensor in _weights(network):
        if tensor.is_complex():
            raise UnsupportedModuleError(
                f"weight {name!r} is {tensor.dtype}; wanted real weights: bounds and reduction are "
                f"not known for complex ones"
            )


def _weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in network.named_parameters():
        if not isinstance(tensor, UninitializedParameter):  # the readers name those
            yield name, tensor.detach()
    for prefix, module in network.named_modules():
        if isinstance(module, BATCH_NORMS):
            for key, buffer in module.named_buffers(recurse=False):
                yield (f"{prefix}.{key}" if prefix else key), buffer


def _is_finite(tensor: Tensor) -> bool:
    if tensor.is_meta or not tensor.numel():
        return True
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    wide = tensor.float() if tensor.dtype.itemsize < 2 else tensor
    # One pass without a copy: the largest absolute value is NaN if any number is.
    return bool(torch.linalg.vector_norm(wide, torch.inf).isfinite())


def _refused(name: str, tensor: Tensor) -> NonFiniteWeightsError:
    wrong = ~torch.isfinite(tensor.float() if tensor.dtype.itemsize < 2 else tensor)
    first = tuple(torch.nonzero(wrong)[0].tolist())
    return NonFiniteWeightsError(
        f"weight {name!r} holds NaN or infinity ({int(wrong.sum())} of {tensor.numel()} numbers, "
        f"the first at {first}); such a network computes nothing that could be compared, reduced "
        f"or bounded. Go back to a checkpoint from before training diverged"
    )
