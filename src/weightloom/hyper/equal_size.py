"""How large models are, and hypernetworks and their rivals of equal size.

Three sizes can be made equal: the network that sees the points, everything that is learned, or the
work for each point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from weightloom.errors import ShapeError
from weightloom.hyper.film import FiLMNetwork
from weightloom.hyper.fully_connected import mlp, mlp_size
from weightloom.hyper.hypernetwork import HyperNetwork
from weightloom.hyper.rivals import EmbeddingNetwork

__all__ = ["MatchedModels", "count_parameters", "matched_models", "matched_pair"]

MATCHES = ("primary", "trainable", "multiply_adds")


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Counts: ``trainable`` parameters, ``primary`` (N_g or N_q), ``generated`` by a head.

    ``primary`` of a hypernetwork includes its generated and its directly learned parameters; of a
    FiLM network it is the primary with one scale and one shift for each modulated feature.

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
    - ``match="trainable"``: both have as many trainable parameters;
    - ``match="multiply_adds"``: both do as many multiply-adds for each point, once the condition is
      encoded and the weights are written.

    >>> hyper, emb = matched_pair(1000, 1000, primary=[10], encoder=[100, 100])
    >>> count_parameters(hyper)["primary"], count_parameters(emb)["primary"]
    (10021, 9919)
    """
    sizes = _Sizes(x, condition, out, tuple(primary), tuple(encoder), embedding)
    sizes.check(match)
    hyper = sizes.hypernetwork(activation, init)
    return hyper, sizes.embedding_network(match, sizes.of_hyper(match, hyper), activation)


class MatchedModels(NamedTuple):
    """Three models for one task, of equal size and called alike: ``model(x, condition)``."""

    hypernetwork: HyperNetwork
    film: FiLMNetwork
    embedding: EmbeddingNetwork


def matched_models(
    x: int,
    condition: int,
    out: int = 1,
    *,
    primary: Sequence[int] = (10,),
    encoder: Sequence[int] = (100, 100),
    embedding: int | None = None,
    match: str = "trainable",
    activation: str | Callable[[], nn.Module] = "relu",
    init: str | None = None,
) -> MatchedModels:
    """A hypernetwork, a FiLM network and an embedding network of equal size.

    As `matched_pair`, with a `FiLMNetwork` whose encoder is the hypernetwork's and whose primary is
    as many layers deep. A modulated feature costs it one multiply-add.

    >>> models = matched_models(2, 64, primary=[16, 16], encoder=[32], match="trainable")
    >>> [count_parameters(model)["trainable"] for model in models]
    [13201, 13139, 13301]
    """
    sizes = _Sizes(x, condition, out, tuple(primary), tuple(encoder), embedding)
    sizes.check(match)
    hyper = sizes.hypernetwork(activation, init)
    goal = sizes.of_hyper(match, hyper)
    return MatchedModels(
        hyper,
        sizes.film_network(match, goal, activation),
        sizes.embedding_network(match, goal, activation),
    )


class _Sizes(NamedTuple):
    """What all models of one comparison share; sizes of the rivals by their hidden widths."""

    x: int
    condition: int
    out: int
    primary: tuple[int, ...]
    encoder: tuple[int, ...]
    given_embedding: int | None

    def check(self, match: str) -> None:
        if match not in MATCHES:
            names = " or ".join([", ".join(map(repr, MATCHES[:-1])), repr(MATCHES[-1])])
            raise ShapeError(f"match={match!r} is unknown; choose {names}")
        if not self.primary or not self.encoder:
            raise ShapeError("primary and encoder each need at least one hidden width")

    @property
    def embedding(self) -> int:
        return self.encoder[-1] if self.given_embedding is None else self.given_embedding

    # -- sizes ------------------------------------------------------------------------------------

    def of_hyper(self, match: str, hyper: HyperNetwork) -> int:
        if match == "multiply_adds":
            return _products([self.x, *self.primary, self.out])
        return count_parameters(hyper)[match]

    def of_film(self, match: str, hidden: Sequence[int]) -> int:
        layers, modulated = [self.x, *hidden, self.out], sum(hidden)
        if match == "multiply_adds":
            return _products(layers) + modulated
        if match == "primary":
            return mlp_size(layers) + 2 * modulated
        head = (self.encoder[-1] + 1) * 2 * modulated
        return mlp_size([self.condition, *self.encoder]) + head + mlp_size(layers)

    def of_embedding(self, match: str, hidden: Sequence[int]) -> int:
        layers = [self.x + self.embedding, *hidden, self.out]
        if match == "multiply_adds":
            return _products(layers)
        encoder = [self.condition, *self.encoder, self.embedding]
        return mlp_size(layers) + (mlp_size(encoder) if match == "trainable" else 0)

    # -- the models -------------------------------------------------------------------------------

    def hypernetwork(
        self, activation: str | Callable[[], nn.Module], init: str | None
    ) -> HyperNetwork:
        return HyperNetwork(
            mlp([self.x, *self.primary, self.out], activation),
            mlp([self.condition, *self.encoder], activation, last_activation=True),
            init=init,
        )

    def film_network(
        self, match: str, goal: int, activation: str | Callable[[], nn.Module]
    ) -> FiLMNetwork:
        hidden = _nearest(self.primary, lambda hidden: self.of_film(match, hidden), goal)
        return FiLMNetwork(
            mlp([self.x, *hidden, self.out], activation),
            mlp([self.condition, *self.encoder], activation, last_activation=True),
        )

    def embedding_network(
        self, match: str, goal: int, activation: str | Callable[[], nn.Module]
    ) -> EmbeddingNetwork:
        hidden = _nearest(self.primary, lambda hidden: self.of_embedding(match, hidden), goal)
        return EmbeddingNetwork(
            mlp([self.x + self.embedding, *hidden, self.out], activation),
            mlp([self.condition, *self.encoder, self.embedding], activation),
        )


def _nearest(
    widths: Sequence[int], size_of: Callable[[Sequence[int]], int], goal: int
) -> list[int]:
    """``widths`` times the factor that brings a size, which grows with it, nearest to ``goal``."""

    def scaled(first: int) -> list[int]:
        return [max(1, round(width * first / widths[0])) for width in widths]

    def size(first: int) -> int:
        return size_of(scaled(first))

    low, high = 1, 2
    while size(high) < goal:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < goal else (low, middle)
    return scaled(min((low, high), key=lambda first: abs(size(first) - goal)))


def _products(sizes: Sequence[int]) -> int:
    """Multiply-adds of an MLP for one point; a bias needs none."""
    return sum(inner * out for inner, out in pairwise(sizes))


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
