"""Compare tensors without keeping them: a few thousand of the values of each."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.hyper.bound.calls import SHARED

__all__ = ["alike", "grown", "sample_of"]

_MOST = 4096
_HALF = (torch.float16, torch.bfloat16)


def grown(shape: tuple[int, ...], alone: tuple[int, ...], rows: int) -> int | None:
    """The dimension that grew with the rows; SHARED if none grew; None if it cannot be told."""
    if shape == alone:
        return SHARED
    if len(shape) != len(alone):
        return None
    sizes = enumerate(zip(shape, alone, strict=True))
    longer = [d for d, (size, size_alone) in sizes if size != size_alone]
    if len(longer) == 1 and shape[longer[0]] == alone[longer[0]] * rows:
        return longer[0]
    return None


def sample_of(tensor: Tensor, dim: int) -> Tensor:
    """Some of the values, in an order in which dimension ``dim`` comes first."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if dim > 0:
        tensor = tensor.movedim(dim, 0)
    flat = tensor.detach().reshape(-1)
    if len(flat) > _MOST:
        # Not evenly: a stride that divides a dimension would see few of its entries.
        places = torch.arange(_MOST, device=flat.device) * (len(flat) - 1)
        flat = flat[(places / (_MOST - 1)).long()]
    # Non-finite values (masks of -inf) would hide all others.
    return torch.nan_to_num(flat.double(), nan=1.0, posinf=2.0, neginf=-2.0).clamp(-1e30, 1e30)


def alike(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Whether two samples are of the same tensor, up to rounding.

    Another row differs by about as much as the row is large; rounding by far less.
    """
    if first.shape != second.shape:
        return False
    scale = max(first.norm().item(), second.norm().item())
    distance = (first - second).norm().item()
    return distance <= (0.3 if dtype in _HALF else 0.05) * scale
