"""How large a model is, and two models of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from weightloom.errors import ShapeError
from weightloom.models.embedding import EmbeddingNetwork
from weightloom.models.hyper import HyperNetwork
from weightloom.models.mlp import mlp

__all__ = ["count_parameters", "matched_pair"]


def count_parameters(model: nn.Module) -> dict[str, int]:
    """``trainable``: learned numbers; ``primary``: N_g or N_q; ``generated``: written by a head.

    The primary of a hypernetwork counts what is generated and what is learned directly in it.

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
    - ``match="trainable"``: both learn as many numbers in all.

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
        goal -= _mlp_size([condition, *encoder, embedding])
    widths = _nearest_widths(x + embedding, primary, out, goal)
    predictor = mlp([x + embedding, *widths, out], activation)
    return hyper, EmbeddingNetwork(predictor, mlp([condition, *encoder, embedding], activation))


def _nearest_widths(inner: int, widths: Sequence[int], out: int, goal: int) -> list[int]:
    """``widths`` times the factor that brings an MLP's size nearest to ``goal``."""

    def scaled(first: int) -> list[int]:
        return [max(1, round(width * first / widths[0])) for width in widths]

    def size(first: int) -> int:
        return _mlp_size([inner, *scaled(first), out])

    low, high = 1, 2
    while size(high) < goal:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < goal else (low, middle)
    return scaled(min((low, high), key=lambda first: abs(size(first) - goal)))


def _mlp_size(sizes: Sequence[int]) -> int:
    return sum((inner + 1) * out for inner, out in pairwise(sizes))


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
