"""Random targets: against forward passes written by hand, and against theory."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from weightloom.data import TARGET_INITS, TARGETS, Target, evaluate, make_target, sample_pairs
from weightloom.errors import ShapeError

FAMILIES = list(TARGETS)


def layers(target: Target) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of the target's network, in double precision."""
    linear = [layer for layer in target.network if isinstance(layer, nn.Linear)]
    return [(a.weight.double().numpy(), a.bias.double().numpy()) for a in linear]


def elu(u: np.ndarray) -> np.ndarray:
    return np.where(u > 0, u, np.exp(np.minimum(u, 0.0)) - 1.0)


def forward(target: Target, inputs: np.ndarray, activation) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Row by row, as the paper's words have it."""
    outputs = []
    for row in inputs:
        value = row
        for i, (weight, bias) in enumerate(layers(target)):
            value = weight @ (activation(value) if i else value) + bias
        outputs.append(value)
    return np.stack(outputs)


@pytest.mark.parametrize("init", TARGET_INITS)
def test_the_three_families_by_hand(init: str) -> None:
    x, c = torch.randn(5, 7), torch.randn(5, 7)
    a, b = x.double().numpy(), c.double().numpy()

    def sigmoid(u: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-u))

    target = make_target("network", 7, seed=3, init=init)
    expected = forward(target, np.concatenate([a, b], axis=1), elu)
    np.testing.assert_allclose(target(x, c).numpy(), expected, rtol=1e-4, atol=1e-5)
    target = make_target("product", 7, seed=3, init=init)
    expected = forward(target, a * b, elu)
    np.testing.assert_allclose(target(x, c).numpy(), expected, rtol=1e-4, atol=1e-5)
    target = make_target("inner_product", 7, seed=3, init=init)
    scores = np.exp(forward(target, b, sigmoid))
    expected = (a * scores / scores.sum(axis=1, keepdims=True)).sum(axis=1)[:, None]
    np.testing.assert_allclose(target(x, c).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("network", [2000, 100, 50, 50, 1]),
        ("product", [1000, 100, 100, 50, 1]),
        ("inner_product", [1000, 300, 300, 1000]),
    ],
)
def test_sizes_are_the_papers(family: str, sizes: list[int]) -> None:
    shapes = [weight.shape for weight, _ in layers(make_target(family, 1000))]
    assert shapes == [(b, a) for a, b in pairwise(sizes)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("init", "gain"), [("he_uniform", 2.0), ("pytorch", 1.0 / 3.0)])
def test_weights_are_uniform_with_the_right_variance(family: str, init: str, gain: float) -> None:
    for weight, bias in layers(make_target(family, 400, seed=1, init=init)):
        fan_in, count = weight.shape[1], weight.size
        bound = math.sqrt(3.0 * gain / fan_in)  # a uniform variable has variance bound^2 / 3
        assert np.abs(weight).max() <= bound * (1 + 1e-6)
        # The fourth moment of a uniform variable is 9/5 of its variance squared.
        error = math.sqrt(0.8 / count)
        assert (weight**2).mean() / (gain / fan_in) == pytest.approx(1.0, abs=4.5 * error)
        if init == "he_uniform":
            assert not bias.any()
        else:
            assert 0.0 < np.abs(bias).max() <= bound * (1 + 1e-6)


def test_pytorch_init_is_that_of_linear() -> None:
    """nn.Linear itself, many times, and the target's first layer: the same distribution."""
    torch.manual_seed(0)
    weights, biases = layers(make_target("network", 50, seed=5, init="pytorch"))[0]
    fresh = [nn.Linear(100, 100) for _ in range(4)]
    theirs = torch.cat([layer.weight.flatten() for layer in fresh]).detach().double().numpy()
    # Kolmogorov's statistic: 1.95 / sqrt(n) is exceeded once in a thousand times.
    both = np.sort(np.concatenate([weights.ravel(), theirs]))
    ours = np.searchsorted(np.sort(weights.ravel()), both, side="right") / weights.size
    other = np.searchsorted(np.sort(theirs), both, side="right") / theirs.size
    scale = math.sqrt(1 / weights.size + 1 / theirs.size)
    assert np.abs(ours - other).max() < 1.95 * scale
    assert fresh[0].bias.detach().abs().max() <= 0.1
    assert np.abs(biases).max() <= 0.1


def theoretical_variance(depth: int) -> float:
    """Expected variance of a very wide He-initialised ELU network on normal inputs.

    q is the second moment of a pre-activation, c its covariance between two inputs, which are
    orthogonal: q - c at the output is what varies from input to input in one network.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    u, v = np.meshgrid(nodes, nodes, indexing="ij")
    both = np.outer(weights, weights)
    q, c = 2.0, 0.0
    for _ in range(depth - 1):
        r = c / q
        first, second = math.sqrt(q) * u, math.sqrt(q) * (r * u + math.sqrt(1 - r * r) * v)
        q, c = 2 * (both * elu(first) ** 2).sum(), 2 * (both * elu(first) * elu(second)).sum()
    return float(q - c)


@pytest.mark.parametrize("family", ["network", "product"])
def test_variance_of_he_targets_is_the_theoretical_one(family: str) -> None:
    variances = []
    for seed in range(30):
        target = make_target(family, 300, seed=seed, hidden=(300, 300, 300))
        y = sample_pairs(target, 500, 1000 + seed, 300)[2]
        variances.append(y.double().var().item())
    error = float(np.std(variances, ddof=1)) / math.sqrt(len(variances))
    expected = theoretical_variance(4)
    assert error < 0.04 * expected  # the test can tell a gain of 2 from one of 1.9
    assert np.mean(variances) == pytest.approx(expected, abs=4 * error)


def test_inner_products_are_bounded_and_have_the_variance_of_the_mixture() -> None:
    target = make_target("inner_product", 60, seed=2)
    x, c, y = sample_pairs(target, 20_000, 7, 60)
    assert (y.abs() <= x.abs().amax(dim=1, keepdim=True)).all()
    mixture = target.network(c)
    torch.testing.assert_close(mixture.sum(dim=1), torch.ones(len(c)))
    # Given I, y is normal with variance |h(I)|^2.
    expected = mixture.double().square().sum(dim=1).mean().item()
    measured = y.double().square()
    error = (measured.std() / math.sqrt(len(y))).item()
    assert measured.mean().item() == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_follows_from_the_seeds(family: str) -> None:
    before = torch.random.get_rng_state()
    first, again = make_target(family, 9, seed=4), make_target(family, 9, seed=4)
    x, c, y = sample_pairs(first, 50, 1, 9)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    repeated = zip((x, c, y), sample_pairs(again, 50, 1, 9), strict=True)
    assert all(torch.equal(a, b) for a, b in repeated)
    assert not torch.equal(x, c)
    assert not torch.equal(x, sample_pairs(first, 50, 2, 9)[0])
    assert not torch.equal(y, make_target(family, 9, seed=5)(x, c))
    assert y.shape == (50, 1)
    assert {x.dtype, c.dtype, y.dtype} == {torch.float32}
    assert not any(p.requires_grad for p in first.parameters())


def test_pairs_are_standard_normal() -> None:
    x, c, _ = sample_pairs(lambda x, c: x[:, :1], 4000, 3, 50)
    count = x.numel()
    for part in (x.double(), c.double()):
        assert abs(part.mean().item()) < 4.5 / math.sqrt(count)
        assert part.square().mean().item() == pytest.approx(1.0, abs=4.5 * math.sqrt(2 / count))
        assert part.pow(4).mean().item() == pytest.approx(3.0, abs=4.5 * math.sqrt(96 / count))
    assert abs((x * c).double().mean().item()) < 4.5 / math.sqrt(count)


def test_many_rows_are_cut_and_joined() -> None:
    seen = []

    def target(x: Tensor, c: Tensor) -> Tensor:
        seen.append(len(x))
        return (x - c).sum(dim=1, keepdim=True)

    x, c, y = sample_pairs(target, 9000, 0, 3)
    assert len(seen) > 1
    assert sum(seen) == 9000
    assert torch.equal(y, (x - c).sum(dim=1, keepdim=True))
    assert torch.equal(evaluate(target, x, c), y)


def test_messages() -> None:
    with pytest.raises(ShapeError, match=r"family='cubic' is unknown; choose one of network, prod"):
        make_target("cubic", 3)
    with pytest.raises(ShapeError, match=r"init='xavier' is unknown; choose one of he_uniform, py"):
        make_target("network", 3, init="xavier")
    with pytest.raises(ShapeError, match=r"d=0 with hidden layers \[100, 50, 50\]"):
        make_target("network", 0)
    with pytest.raises(ShapeError, match=r"0 pairs of 3 numbers were asked for"):
        sample_pairs(make_target("network", 3), 0, 0, 3)
