"""The rivals of a hypernetwork, and comparisons at equal size.

In the embedding method q(x, e(I)) the predictor sees the input joined with an embedding of the
condition. `matched_pair` builds a hypernetwork and an embedding network of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.hyper.encoders import SetEncoder, condition_dims, encode
from weightloom.hyper.fully_connected import mlp, mlp_size
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["ConditionalNeuralProcess", "EmbeddingNetwork", "count_parameters", "matched_pair"]


class EmbeddingNetwork(nn.Module):
    """q(x, e(I)), called as a `HyperNetwork` is.

    x [b, ..., d] and condition [b, *c]: the embedding of condition[i] is appended to every input
    vector of x[i]. A single condition, without the leading dimension, is used for all of x.

    >>> import weightloom as wl
    >>> emb = wl.EmbeddingNetwork(predictor=wl.mlp([2 + 8, 16, 1]), encoder=wl.mlp([5, 8]))
    >>> emb(torch.randn(3, 100, 2), torch.randn(3, 5)).shape
    torch.Size([3, 100, 1])
    """

    def __init__(
        self, predictor: nn.Module, encoder: nn.Module, *, condition_dims: int | None = None
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder = encoder
        self._dims = _dims_of(encoder, condition_dims)

    def forward(self, x: Tensor, condition: Tensor, *args: Any, **kwargs: Any) -> Any:
        embedding, single = encode(self.encoder, condition, self._dims)
        if single:
            embedding = embedding[0].expand(*x.shape[:-1], -1)
        else:
            if x.dim() < 2 or x.shape[0] != embedding.shape[0]:
                seen = x.shape[0] if x.dim() > 1 else "no"
                raise ShapeError(
                    f"condition has {embedding.shape[0]} rows but x has {seen} rows; each row of x "
                    f"needs one condition (or pass a single condition without a leading dimension)"
                )
            rows = embedding.reshape(x.shape[0], *(1,) * (x.dim() - 2), -1)
            embedding = rows.expand(*x.shape[:-1], -1)
        return self.predictor(torch.cat([x, embedding], dim=-1), *args, **kwargs)


class ConditionalNeuralProcess(EmbeddingNetwork):
    """The embedding method for sets: e(I) is the mean of the embeddings of its elements.

    condition [b, d, *c], d elements in any order ("On the Modularity of Hypernetworks", Section 2).
    """

    def __init__(
        self, predictor: nn.Module, encoder: nn.Module, *, condition_dims: int | None = None
    ) -> None:
        super().__init__(predictor, SetEncoder(encoder), condition_dims=condition_dims)


def _dims_of(encoder: nn.Module, given: int | None) -> int | None:
    return condition_dims(encoder) if given is None else given


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Counts: ``trainable`` parameters, ``primary`` (N_g or N_q), ``generated`` by a head.

    ``primary`` of a hypernetwork includes its generated and its directly learned parameters.

    >>> count_parameters(mlp([2, 3, 1]))
    {'trainable': 13, 'primary': 13, 'generated': 0}
    """
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if isinstance(model, HyperNetwork):
        primary = model.spec.size + _numel(model.primary)
        return {"trainable": trainable, "primary": primary, "generated": model.spec.size}
    rest = model.predictor if isinstance(model, EmbeddingNetwork) else model
    return {"trainable": trainable, "primary": _numel(rest), "generated": 0}


def matched_pair(
    x: int,
    condition: int,
    out: int = 1,
    *,
    primary: Sequence[int] = (10,),
    encoder: Sequence[int] = (100, 100),
    embedding: int | None = None,
    match: str = "primary",
    activation: str | Callable[[], nn.Module] = "relu",
    init: str | None = None,
) -> tuple[HyperNetwork, EmbeddingNetwork]:
    """A hypernetwork and an embedding network of equal size, for a fair comparison.

    Both read a condition of ``condition`` numbers through hidden layers ``encoder`` and an input of
    ``x`` numbers. The hypernetwork's primary has hidden layers ``primary``; the predictor has as
    many, with one common width factor chosen so that, as nearly as whole neurons allow,

    - ``match="primary"``: N_q = N_g (the question of "On the Modularity of Hypernetworks");
    - ``match="trainable"``: both have as many trainable parameters.

    >>> hyper, emb = matched_pair(1000, 1000, primary=[10], encoder=[100, 100])
    >>> count_parameters(hyper)["primary"], count_parameters(emb)["primary"]
    (10021, 9919)
    """
    if match not in ("primary", "trainable"):
        raise ShapeError(f"match={match!r} is unknown; choose 'primary' or 'trainable'")
    if not primary or not encoder:
        raise ShapeError("primary and encoder each need at least one hidden width")
    features = encoder[-1]
    hyper = HyperNetwork(
        mlp([x, *primary, out], activation),
        mlp([condition, *encoder], activation, last_activation=True),
        init=init,
    )
    embedding = features if embedding is None else embedding
    goal = count_parameters(hyper)[match]
    if match == "trainable":
        goal -= mlp_size([condition, *encoder, embedding])
    widths = _nearest_widths(x + embedding, primary, out, goal)
    predictor = mlp([x + embedding, *widths, out], activation)
    return hyper, EmbeddingNetwork(predictor, mlp([condition, *encoder, embedding], activation))


def _nearest_widths(inner: int, widths: Sequence[int], out: int, goal: int) -> list[int]:
    """``widths`` times the factor that brings an MLP's size nearest to ``goal``."""

    def scaled(first: int) -> list[int]:
        return [max(1, round(width * first / widths[0])) for width in widths]

    def size(first: int) -> int:
        return mlp_size([inner, *scaled(first), out])

    low, high = 1, 2
    while size(high) < goal:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < goal else (low, middle)
    return scaled(min((low, high), key=lambda first: abs(size(first) - goal)))


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
