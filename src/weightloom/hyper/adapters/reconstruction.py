"""Train a hypernetwork to write given adapters: text-to-LoRA's first mode, reconstruction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import HeadError, ShapeError
from weightloom.hyper.adapters.adapter import Adapter
from weightloom.hyper.adapters.factors import as_in
from weightloom.hyper.adapters.written import check_writes_changes, layer_of
from weightloom.hyper.rows import Factored, Generated

if TYPE_CHECKING:
    from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["AdapterFit", "fit_adapters"]


@dataclass(frozen=True)
class AdapterFit:
    """How well a hypernetwork reproduces given adapters, and how it got there."""

    losses: tuple[float, ...]
    """of every step: mean over layers of |change - wanted|^2 / |wanted|^2; 1 is no change at all"""
    errors: Mapping[str, float]
    """at the end, by layer: Frobenius norm of what is missing over that of what is wanted"""

    def __repr__(self) -> str:
        return (
            f"AdapterFit({len(self.losses)} steps, loss {self.losses[0]:.3g} -> "
            f"{self.losses[-1]:.3g}, error of a layer up to {max(self.errors.values()):.3g})"
        )


class _Wanted(NamedTuple):
    """The wanted changes of one parameter, for all conditions, in its own layout."""

    left: Tensor  # [n, out, r]
    right: Tensor  # [n, r, in]
    square: Tensor  # mean squared Frobenius norm


def fit_adapters(
    hyper: HyperNetwork,
    conditions: Any,
    adapters: Sequence[Adapter],
    steps: int = 1000,
    learning_rate: float = 1e-3,
    *,
    batch_size: int = 32,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> AdapterFit:
    """Train encoder and head so that ``hyper.adapter(conditions[i])`` is ``adapters[i]``.

    The loss compares the changes B A and not the factors, which are not unique; it is computed from
    products of the factors and never forms a change. Adam, with a learning rate that falls to zero
    along a cosine; ``batch_size`` conditions in every step. The primary is not trained. Adapters
    may have any rank; a layer that one of them lacks counts as zero there. ``conditions`` may be
    ``hyper.encode(...)``, which runs a slow frozen encoder once.
    """
    adapters = list(adapters)
    _check(hyper, conditions, adapters, steps, batch_size)
    wanted = _targets(hyper, adapters)
    parts = [*hyper.encoder.parameters(), *hyper.head.parameters()]
    optimiser = torch.optim.Adam([p for p in parts if p.requires_grad], learning_rate)
    losses = []
    for step in _steps(steps, progress):
        rows = _rows(len(adapters), batch_size, generator)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        loss = torch.stack(_losses(hyper, conditions, wanted, rows)).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return AdapterFit(tuple(losses), _errors(hyper, conditions, wanted, batch_size))


def _losses(
    hyper: HyperNetwork, conditions: Any, wanted: Mapping[str, _Wanted], rows: Tensor
) -> list[Tensor]:
    """For every parameter, the mean square of what is missing over that of what is wanted."""
    generated = _generate(hyper, conditions, rows)
    losses = []
    for name, goal in wanted.items():
        value = generated[name]
        left, right = goal.left[rows], goal.right[rows]
        square = (
            _inner(value.left, value.right, value.left, value.right)
            - 2.0 * _inner(value.left, value.right, left, right)
            + _inner(left, right, left, right)
        )
        losses.append(square.mean() / goal.square)
    return losses


def _inner(left: Tensor, right: Tensor, left2: Tensor, right2: Tensor) -> Tensor:
    """<left right, left2 right2>_F of each row, from r x r products: [b]."""
    return ((left.mT @ left2) * (right @ right2.mT)).sum((1, 2))


def _generate(hyper: HyperNetwork, conditions: Any, rows: Tensor) -> dict[str, Factored]:
    features, _ = hyper._encode(tree_map(lambda leaf: leaf[rows], conditions))
    return {n: _factored(n, v) for n, v in hyper.head.generate(hyper.scaled(features)).items()}


def _factored(name: str, value: Generated) -> Factored:
    if isinstance(value, Factored):
        return value
    raise HeadError(
        f"the head writes {name!r} {list(value.shape)} in full, not as two thin factors; leave it "
        f"out of generate="
    )


@torch.no_grad()
def _errors(
    hyper: HyperNetwork, conditions: Any, wanted: Mapping[str, _Wanted], batch_size: int
) -> dict[str, float]:
    """Relative errors by layer over all conditions, in float64: small ones would cancel."""
    count = len(next(iter(wanted.values())).left)
    squares = dict.fromkeys(wanted, 0.0)
    for rows in torch.arange(count).split(batch_size):
        for name, value in _generate(hyper, conditions, rows).items():
            goal = wanted[name]
            left = torch.cat([value.left.double(), -goal.left[rows].double()], 2)
            right = torch.cat([value.right.double(), goal.right[rows].double()], 1)
            squares[name] += _inner(left, right, left, right).sum().item()
    return {
        name.rpartition(".")[0]: math.sqrt(max(square, 0.0) / (count * goal.square.item()))
        for (name, square), goal in zip(squares.items(), wanted.values(), strict=True)
    }


# -- targets -------------------------------------------------------------------------------------


def _targets(hyper: HyperNetwork, adapters: Sequence[Adapter]) -> dict[str, _Wanted]:
    layers = {name: layer_of(hyper.primary, hyper.spec, name)[0] for name in hyper.spec}
    strange = [n for a in adapters for n in a if n not in {*layers.values(), *_tied(hyper)}]
    if strange:
        raise ShapeError(
            f"the adapters change layer {strange[0]!r}, whose weight this hypernetwork does not "
            f"write; it writes {', '.join(list(layers.values())[:4])} ... Add it to generate="
        )
    return {name: _wanted(hyper, name, layer, adapters) for name, layer in layers.items()}


def _tied(hyper: HyperNetwork) -> set[str]:
    return {name.rpartition(".")[0] for name in hyper.spec.aliases}


def _wanted(hyper: HyperNetwork, name: str, layer: str, adapters: Sequence[Adapter]) -> _Wanted:
    shape, module = hyper.spec.shapes[name], hyper.primary.get_submodule(layer)
    like = next(hyper.head.parameters())
    rank = max((a[layer].rank for a in adapters if layer in a), default=0)
    if rank == 0:
        raise ShapeError(
            f"no adapter changes layer {layer!r}, but the hypernetwork writes {name!r}; leave it "
            f"out of generate="
        )
    left = like.new_zeros(len(adapters), shape[0], rank)
    right = like.new_zeros(len(adapters), rank, math.prod(shape[1:]))
    for row, adapter in enumerate(adapters):
        if layer not in adapter:
            continue
        change = as_in(adapter[layer], module)
        if change.shape != shape:
            raise ShapeError(
                f"adapter {row} changes layer {layer!r} by {change.shape}, but its weight has "
                f"shape {shape}; pass adapters of this primary"
            )
        left[row, :, : change.rank], right[row, : change.rank] = change.matrices()
    square = _inner(left, right, left, right).mean()
    return _Wanted(left, right, square.clamp_min(torch.finfo(square.dtype).tiny))


# -- steps ---------------------------------------------------------------------------------------


def _check(
    hyper: HyperNetwork, conditions: Any, adapters: list[Adapter], steps: int, batch_size: int
) -> None:
    check_writes_changes(hyper.head, hyper.spec)
    if steps < 1 or batch_size < 1:
        raise ShapeError(f"steps={steps}, batch_size={batch_size} were given; both are at least 1")
    counts = {_length(leaf) for leaf in tree_flatten(conditions)[0]}
    if counts != {len(adapters)} or not adapters:
        raise ShapeError(
            f"{len(adapters)} adapters were given with {sorted(counts)} conditions; each adapter "
            f"needs one condition"
        )


def _length(leaf: Any) -> int:
    return 0 if isinstance(leaf, Tensor) and leaf.dim() == 0 else len(leaf)


def _rows(count: int, batch_size: int, generator: torch.Generator | None) -> Tensor:
    if count <= batch_size:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:batch_size]


def _steps(steps: int, progress: bool) -> Any:
    if not progress:
        return range(steps)
    from tqdm import tqdm

    return tqdm(range(steps), desc="adapters", unit="step")
