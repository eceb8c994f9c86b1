"""The limits against wide sampled hypernetworks: all depths from 1 to 4, and what the paper prints.

Every number here is a mean over draws with its standard error. The bias of finite width goes like
1/width, so means at two widths are extrapolated; what is left is the square of the bias.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.sampling.oracle import Plain, hyper_kernels
from tests.kernels.sampling.samplers import Sampler, mean_and_error
from weightloom.kernels import HyperKernel, Tower

# Neither x = x', nor z = z', nor norms of 1; correlations 0.72 and 0.76.
X = torch.tensor([[1.3, -0.4, 0.8, 0.2], [0.9, 0.5, 0.7, -0.3]], dtype=torch.float64)
Z = torch.tensor([[0.7, -1.1, 0.4], [1.2, -0.9, -0.5]], dtype=torch.float64)

NARROW, WIDE = 400, 1600
DRAWS = 150
# 16 networks, 2 kernels, 3 entries: a false alarm beyond 4.5 standard errors has odds of 1 to 1500.
ERRORS = 4.5

SMOOTH = {"sigma_w": 1.3, "sigma_b": 0.4}
# (L, H): f and g beside their depths; every pair of depths from 1 to 4 once.
NETWORKS = {
    (1, 1): ({}, {}),
    (1, 2): ({}, {}),
    (1, 3): ({"sigma_b": 0.5}, {"activation": "tanh", **SMOOTH}),
    (1, 4): ({}, {"activation": "leaky_relu"}),
    (2, 1): ({"activation": "erf", **SMOOTH}, {"sigma_b": 0.7}),
    (2, 2): ({}, {}),
    (2, 3): ({"activation": "gelu"}, {"activation": "sin", **SMOOTH}),
    (2, 4): ({"activation": "sin", **SMOOTH}, {}),
    (3, 1): ({"activation": "leaky_relu", "gain": 1.2}, {}),
    (3, 2): ({}, {}),
    (3, 3): ({}, {"sigma_b": 0.3, "sigma_w": 0.9}),
    (3, 4): ({"activation": "erf", **SMOOTH}, {"activation": "erf", **SMOOTH}),
    (4, 1): ({"activation": "tanh", **SMOOTH}, {}),
    (4, 2): ({"sigma_b": 0.3, "sigma_w": 0.9}, {"activation": "gelu", "sigma_b": 0.5}),
    (4, 3): ({"activation": "sin", **SMOOTH}, {"activation": "tanh", **SMOOTH}),
    (4, 4): ({}, {}),
}


def plain(depth, options):
    return Plain(depth, **options)


def tower(depth, options):
    options = dict(options)
    if options.get("activation") == "leaky_relu":
        options["activation"] = {"name": "leaky_relu", "slope": 0.2}
    return Tower(depth, **options)


def towers(depths, make):
    return [make(*pair) for pair in zip(depths, NETWORKS[depths], strict=True)]


def limit(depths, kind):
    """What the library says, [2, 2]."""
    return HyperKernel(*towers(depths, tower), kind=kind)(X, Z)


def sampled(depths, kind, width, draws=DRAWS, seed=0):
    sampler = Sampler(*towers(depths, plain), X, Z, (width, width), draws, seed)
    return mean_and_error(sampler.ntk() if kind == "ntk" else sampler.nngp(width))


def extrapolated(depths, kind):
    """(mean, standard error, what is left of the bias), from two widths with a ratio of 4."""
    narrow, error = sampled(depths, kind, NARROW)
    wide, error2 = sampled(depths, kind, WIDE, seed=1)
    mean = (4 * wide - narrow) / 3
    bias = (wide - narrow).abs() * 4 / 3
    return mean, ((4 * error2) ** 2 + error**2).sqrt() / 3, bias**2 / mean.abs()


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("depths", NETWORKS, ids=lambda d: f"L{d[0]}H{d[1]}")
def test_limit(depths, kind):
    truth = limit(depths, kind)
    mean, error, bias = extrapolated(depths, kind)
    assert error.max() < 0.1 * truth.abs().max()  # or the test would see nothing
    # 1e-12: with L = H = 1 the tangent kernel is not random, and only rounding is left.
    assert ((mean - truth).abs() <= ERRORS * error + bias + 1e-12 * truth.abs()).all()


@pytest.mark.parametrize("depths", NETWORKS, ids=lambda d: f"L{d[0]}H{d[1]}")
def test_limit_against_quadrature(depths):
    """The same limits by slow quadrature, to nearly all digits: no sampling."""
    f, g = towers(depths, plain)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        points = (X[i].numpy(), X[j].numpy(), Z[i].numpy(), Z[j].numpy())
        for kind, truth in zip(("nngp", "ntk"), hyper_kernels(f, g, *points), strict=True):
            assert float(limit(depths, kind)[i, j]) == pytest.approx(
                truth, rel=2e-7 if i == j else 1e-9
            )


def test_the_bias_shrinks_like_one_over_the_width():
    """For L = H = 4 it is large enough to be followed: 3 widths, a slope within its own error."""
    truth = limit((4, 4), "ntk")[0, 0]
    widths, biases, errors = (100, 400, 1600), [], []
    for width in widths:
        mean, error = sampled((4, 4), "ntk", width, draws=200_000 // width)
        biases.append(float(mean[0, 0] / truth - 1))
        errors.append(float(error[0, 0] / truth))
    assert biases[0] > biases[1] > biases[2]
    assert biases[0] > 5 * errors[0]
    slope = math.log(biases[1] / biases[0]) / math.log(4)
    spread = math.hypot(errors[0] / biases[0], errors[1] / biases[1]) / math.log(4)
    # At width 100 the next order counts too: a relative bias of b adds about b / log 4.
    assert slope == pytest.approx(-1, abs=3 * spread + biases[1] / math.log(4))


class TestWhatThePaperPrints:
    """Samples must be able to tell the corrected recursion from the printed one."""

    WIDTH, DRAWS = 2000, 400
    # Conditions that point apart: one layer more brings them much closer (S = 0.03, then 0.18).
    APART = torch.tensor([[1.3, -0.4, 0.8, 0.2], [-0.9, 0.8, -0.1, 0.5]], dtype=torch.float64)
    PAIR = (APART[0].numpy(), APART[1].numpy(), Z[0].numpy(), Z[1].numpy())

    @pytest.mark.parametrize(
        ("kind", "printed"),
        [
            ("nngp", ("one layer more",)),
            ("ntk", ("one layer more",)),
            ("ntk", ("no factor",)),
            ("ntk", ("one layer more", "no factor")),
        ],
    )
    def test_is_many_standard_errors_off(self, kind, printed):
        f, g = Plain(2), Plain(2)
        sampler = Sampler(f, g, self.APART, Z, (self.WIDTH, self.WIDTH), self.DRAWS, seed=5)
        samples = sampler.ntk() if kind == "ntk" else sampler.nngp(self.WIDTH)
        mean, error = (float(value[0, 1]) for value in mean_and_error(samples))
        library = HyperKernel(Tower(2), Tower(2), kind=kind)(self.APART, Z)
        which = ("nngp", "ntk").index(kind)
        wrong = hyper_kernels(f, g, *self.PAIR, printed=printed)[which]
        assert abs(mean - float(library[0, 1])) < 4 * error
        assert abs(mean - wrong) > 12 * error

    def test_the_corrected_form_agrees_at_the_same_time(self):
        """The oracle without its slips is the library, here too."""
        library = HyperKernel(Tower(2), Tower(2))(self.APART, Z)
        _, truth = hyper_kernels(Plain(2), Plain(2), *self.PAIR)
        assert float(library[0, 1]) == pytest.approx(truth, rel=1e-9)
