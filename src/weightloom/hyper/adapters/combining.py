"""Several adapters as one: their weighted sum, exact or truncated to a rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weightloom.errors import ShapeError
from weightloom.hyper.adapters.adapter import Adapter
from weightloom.hyper.adapters.factors import AdapterLayer, widest

__all__ = ["combine"]


@torch.no_grad()
def combine(
    adapters: Sequence[Adapter], weights: Sequence[float] | None = None, rank: int | None = None
) -> Adapter:
    """One adapter whose change is the weighted sum of the adapters' changes (default: the sum).

    Without ``rank`` the sum is exact: factors are put side by side, so ranks add up. With ``rank``
    each layer gets the best approximation of that rank (by the singular values, computed from the
    factors; the full matrix is never formed). `Adapter.errors` says what it cost, by layer: the
    Frobenius norm of what was lost over that of the sum. A layer that an adapter does not have
    counts as zero. Scalings are folded into the factors, so alpha is the rank.

    >>> a = Adapter({"0": AdapterLayer(torch.eye(2), torch.eye(2), alpha=2.0)})
    >>> combine([a, a], weights=[0.5, 0.5])
    Adapter(1 layer, rank 4, alpha 4, 16 numbers)
    >>> round(combine([a, a], rank=1).errors["0"], 6)
    0.707107
    """
    adapters = list(adapters)
    shares = [1.0] * len(adapters) if weights is None else [float(w) for w in weights]
    if not adapters or len(shares) != len(adapters):
        raise ShapeError(
            f"{len(adapters)} adapters and {len(shares)} weights were given; pass one or more "
            f"adapters, with one weight for each"
        )
    if rank is not None and rank < 1:
        raise ShapeError(f"rank={rank} was given; it must be at least 1 (None: the exact sum)")
    layers: dict[str, AdapterLayer] = {}
    errors: dict[str, float] = {}
    for name in dict.fromkeys(name for adapter in adapters for name in adapter):
        pairs = [(a[name], w) for a, w in zip(adapters, shares, strict=True) if name in a]
        A, B = _side_by_side(name, pairs)
        errors[name] = 0.0
        if rank is not None and A.shape[0] > rank:
            A, B, errors[name] = _truncated(A, B, rank)
        layers[name] = pairs[0][0].with_factors(A, B)
    return Adapter(layers, errors)


def _side_by_side(name: str, pairs: list[tuple[AdapterLayer, float]]) -> tuple[Tensor, Tensor]:
    """A [R, in] and B [out, R] with B A the weighted sum, R the sum of the ranks."""
    seen = {(layer.kind, layer.shape) for layer, _ in pairs}
    if len(seen) > 1:
        listed = ", ".join(f"{kind} {shape}" for kind, shape in sorted(seen))
        raise ShapeError(
            f"layer {name!r} differs between the adapters: {listed}; combine adapters of one base"
        )
    dtype = widest(*(factor for layer, _ in pairs for factor in (layer.A, layer.B)))
    A = torch.cat([layer.A.flatten(1).to(dtype) for layer, _ in pairs])
    B = torch.cat([w * layer.scaling * layer.B.flatten(1).to(dtype) for layer, w in pairs], 1)
    return A, B


def _truncated(A: Tensor, B: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """The best factors of this rank for B A, and their relative Frobenius error.

    With B = Q_B R_B and A^T = Q_A R_A the singular values of B A are those of R_B R_A^T, which is
    at most [R, R].
    """
    left, core_left = torch.linalg.qr(B.double())
    right, core_right = torch.linalg.qr(A.double().t())
    U, S, Vh = torch.linalg.svd(core_left @ core_right.t(), full_matrices=False)
    total = float(S.norm())
    error = float(S[rank:].norm()) / total if total > 0 else 0.0
    root = S[:rank].sqrt()
    new_B = left @ (U[:, :rank] * root)
    new_A = (root[:, None] * Vh[:rank]) @ right.t()
    return new_A.to(A.dtype), new_B.to(B.dtype), error
