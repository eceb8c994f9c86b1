"""Section 6 in its own setting: SGD, learning rate 0.01, batches of 200 normal pairs (x, I)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom import EmbeddingNetwork, HyperNetwork, mlp
from weightloom.data import Target, make_target
from weightloom.errors import NonFiniteWeightsError
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement

__all__ = ["CLAIMS"]

BATCH = 200


def _hypernetwork(d: int, matrices: int, init: str = "default") -> nn.Module:
    """f with this many matrices, the head included; g is d-10-1."""
    encoder = mlp([d, *[100] * (matrices - 1)], last_activation=True)
    return HyperNetwork(mlp([d, 10, 1]), encoder, init=init)


def _embedding(d: int, matrices: int) -> nn.Module:
    return EmbeddingNetwork(mlp([d + 100, 10, 1]), mlp([d, *[100] * matrices]))


def _pairs(count: int, target: Target) -> tuple[Tensor, Tensor, Tensor]:
    x, condition = torch.randn(count, target.d), torch.randn(count, target.d)
    with torch.no_grad():
        return x, condition, target(x, condition)


def _mse(model: nn.Module, pairs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, condition, y = pairs
    error: Tensor = (model(x, condition) - y).square().mean()
    return error


def _train(model: nn.Module, target: Target, steps: int, rate: float) -> int:
    """Steps until the weights or the loss are not finite; ``steps`` if they stay finite."""
    parameters = list(model.parameters())
    for step in range(steps):
        try:
            with torch.enable_grad():
                loss = _mse(model, _pairs(BATCH, target))
                gradients = torch.autograd.grad(loss, parameters)
        except NonFiniteWeightsError:
            return step
        if not math.isfinite(loss.item()):
            return step
        with torch.no_grad():  # SGD; importing torch.optim takes seconds
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(rate * gradient)
    return steps


# -- two layers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divergence:
    """Steps until weights or loss are not finite, at most ``wanted``: the least over seeds."""

    d: int
    wanted: int
    seeds: int
    default: int
    slower: int
    hyperfan: int


def _measure_divergence(size: Size) -> Divergence:
    d, wanted, seeds = (400, 12, 1) if size == "quick" else (1000, 20, 2)
    least: dict[str, int] = {}
    for seed in range(seeds):
        target = make_target("network", d, seed=seed)
        for name, init, rate in (
            ("default", "default", 0.01),
            ("slower", "default", 0.005),
            ("hyperfan", "hyperfan_in", 0.01),
        ):
            steps = _train(_hypernetwork(d, 2, init), target, wanted, rate)
            least[name] = min(least.get(name, wanted), steps)
    return Divergence(d, wanted, seeds, **least)


def _trained_steps(measured: Divergence, steps: int, what: str) -> Evidence:
    at = f"y of type (a), He uniform; f {measured.d}-100-N_g, {what}: "
    ended = "finite" if steps == measured.wanted else f"not finite after {steps} steps"
    return Evidence(
        measured.wanted - steps, 0, f"{at}{ended} (of {measured.wanted}, {measured.seeds} seeds)"
    )


TWO_LAYERS = PaperClaim(
    name="modularity/section-6-two-layers",
    place="Section 6, Figure 3 (a)",
    items=(27,),
    measure=_measure_divergence,
    printed=Statement(
        "a hypernetwork whose f has 2 layers trains with learning rate 0.01 and batches of 200 "
        "(optimiser and initialisation are not named: SGD and PyTorch's default are tried)",
        lambda measured: _trained_steps(
            measured, measured.default, "default initialisation, SGD 0.01"
        ),
    ),
    corrected=Statement(
        "so started it is NaN within an epoch; with a head that keeps the scale of g's weights "
        "(hyperfan_in) it trains",
        lambda measured: _trained_steps(measured, measured.hyperfan, "hyperfan_in, SGD 0.01"),
    ),
    wrong=Statement(
        "half the learning rate is enough",
        lambda measured: _trained_steps(
            measured, measured.slower, "default initialisation, SGD 0.005"
        ),
    ),
)


# -- three layers and more -------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthComparison:
    """Test MSE over the variance of y after ``steps`` steps, by number of layers."""

    d: int
    steps: int
    variance: float
    hyper: dict[int, float]
    embedding: dict[int, float]


def _measure_depths(size: Size) -> DepthComparison:
    """Targets have PyTorch's default initialisation, which gives errors in the figure's range."""
    d, steps, depths = (300, 30, (3,)) if size == "quick" else (1000, 100, (3, 6))
    target = make_target("network", d, init="pytorch")
    test = _pairs(1000, target)
    variance = float(test[2].var())
    hyper: dict[int, float] = {}
    embedding: dict[int, float] = {}
    for depth in depths:
        for build, errors in ((_hypernetwork, hyper), (_embedding, embedding)):
            model = build(d, depth)
            _train(model, target, steps, 0.01)
            with torch.no_grad():
                errors[depth] = float(_mse(model, test)) / variance
    return DepthComparison(d, steps, variance, hyper, embedding)


def _scores(measured: DepthComparison) -> str:
    rows = ", ".join(
        f"{depth} layers {measured.hyper[depth]:.2f} and {measured.embedding[depth]:.2f}"
        for depth in measured.hyper
    )
    return (
        f"d = {measured.d}, {measured.steps} batches of 200, y of variance "
        f"{measured.variance:.2g}: test MSE "
        f"of hypernetwork and embedding method over that variance, {rows}"
    )


def _best(measured: DepthComparison) -> float:
    return min(*measured.hyper.values(), *measured.embedding.values())


DEPTH = PaperClaim(
    name="modularity/section-6-depth",
    place="Section 6, Figure 3 (a)",
    items=(27, 11),
    measure=_measure_depths,
    printed=Statement(
        "when f and e have 3 layers or more, the hypernetwork has the smaller approximation error "
        "(within the first epoch, in the range of errors of the figure)",
        lambda measured: Evidence(
            max(measured.hyper[depth] / measured.embedding[depth] for depth in measured.hyper),
            1.0,
            _scores(measured),
        ),
    ),
    corrected=Statement(
        "at these errors both are worse than the mean of y (MSE above its variance): the curves "
        "compare the scales at which the two models start",
        lambda measured: Evidence(1.0, _best(measured), _scores(measured)),
    ),
    wrong=Statement(
        "one of them explains half of the variance",
        lambda measured: Evidence(_best(measured), 0.5, _scores(measured)),
    ),
)

CLAIMS = (TWO_LAYERS, DEPTH)
