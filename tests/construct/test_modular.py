"""The hypernetwork of Theorem 5, built by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from tests.construct.oracle import every_kuhn
from weightloom.construct import Box, Grid, factored_hypernetwork, hypernetwork, interpolate
from weightloom.data import BumpTarget, FactoredTarget, FourierTarget
from weightloom.errors import CertificateError, ConfigError

DIMS = [(1, 1), (1, 2), (2, 1), (2, 2)]


def points(dims, count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(count, dims, generator=generator, dtype=torch.float64) - 1


@pytest.mark.parametrize(("m1", "m2"), DIMS)
def test_writes_the_weights_it_says(m1, m2):
    """theta_v(I) is the interpolation of I -> y(v, I), by sorting; g is linear in it."""
    y = BumpTarget(m1, m2, 2)
    certified = hypernetwork(y, m1, m2, counts=4)
    over_x, over_i = Grid(Box.cube(m1), (4,) * m1), Grid(Box.cube(m2), (4,) * m2)
    conditions = points(m2, 5)
    with torch.no_grad():
        theta = certified.encoder(conditions)
    assert theta.shape == (5, certified.primary_size) == (5, 4**m1)
    for node in (0, 4**m1 - 1):
        values = y(over_x.nodes()[node], over_i.nodes())
        wanted = every_kuhn(values, over_i, conditions)
        assert torch.allclose(theta[:, node], wanted, atol=1e-13)
    # g(x; theta) through torch.func, against sorting in x.
    x = points(m1, 30, seed=1)
    with torch.no_grad():
        given = functional_call(certified.primary, {certified.generated: theta[:1]}, (x,))[:, 0]
        joint = certified.network(torch.cat([x, conditions[:1].expand(30, m2)], -1))
    assert torch.allclose(given, every_kuhn(theta[0], over_x, x), atol=1e-13)
    assert torch.allclose(given, joint, atol=1e-13)


@settings(max_examples=40)
@given(st.sampled_from(DIMS), st.integers(1, 4), st.integers(2, 6), st.integers(0, 1000))
def test_certificate_never_violated(dims, pieces, counts, seed):
    m1, m2 = dims
    y = BumpTarget(m1, m2, pieces, "smooth" if seed % 2 else "tent", seed)
    certified = hypernetwork(y, m1, m2, counts=counts)
    result = certified.verify(points=1500, rounds=3, extra=y.centres())
    assert result.error <= certified.error_bound
    assert certified.error_bound <= 2 / counts + 1e-9  # 5/6 of the spacing, or half per axis


@settings(max_examples=20)
@given(st.sampled_from(DIMS), st.integers(3, 8), st.integers(0, 1000))
def test_certificate_by_curvature(dims, counts, seed):
    y = FourierTarget(*dims, 1, seed)
    certified = hypernetwork(y, *dims, counts=counts, corners=True, curvature=y.curvature)
    assert certified.verify(points=1500, rounds=3).error <= certified.error_bound


@pytest.mark.parametrize("norm", ["1", "2"])
def test_bound_of_a_product_is_attained(norm):
    y = lambda x, i: torch.cat([x, i.expand(*x.shape[:-1], 1)], -1).norm(float(norm), -1)  # noqa: E731
    certified = hypernetwork(
        lambda x, i: y(*torch.broadcast_tensors(x, i)), 1, 1, counts=4, norm=norm
    )
    assert certified.verify().error == pytest.approx(certified.error_bound, rel=1e-9)


def test_five_sixths_for_a_product_in_the_max_norm():
    """Mean of the larger of two distances, each by its own coin, over all positions in a cell."""
    s, t = torch.meshgrid(*[torch.linspace(0, 1, 401, dtype=torch.float64)] * 2, indexing="ij")
    mean = sum(
        ps * pt * torch.maximum(ds, dt)
        for ps, ds in ((1 - s, s), (s, 1 - s))
        for pt, dt in ((1 - t, t), (t, 1 - t))
    )
    assert mean.max() <= 5 / 6
    certified = hypernetwork(lambda x, i: 0 * (x + i)[..., 0], 1, 1, counts=4)
    assert certified.error_bound == pytest.approx(5 / 6 * 0.5)


def test_a_broken_encoder_is_found():
    y = BumpTarget(1, 1, 3)
    certified = hypernetwork(y, 1, 1, counts=6)
    certified.verify()
    with torch.no_grad():
        certified.encoder[-1].weight[2] += 0.5
    with pytest.raises(CertificateError, match="was certified"):
        certified.verify()


@pytest.mark.parametrize(("m1", "m2"), DIMS)
def test_factored_is_the_same_function_and_smaller(m1, m2):
    y = FactoredTarget(m1, m2, width=2)
    options = {"counts": 6, "corners": True, "lipschitz": y.lipschitz, "curvature": y.curvature}
    whole = hypernetwork(y, m1, m2, **options)
    thin = factored_hypernetwork(y.basis, y.coefficients, m1, m2, **options)
    p = points(m1 + m2)
    with torch.no_grad():
        assert torch.allclose(whole.network(p), thin.network(p), atol=1e-14)
    numbers = 2 * (6**m1 + 6**m2)
    saved = 6 ** (m1 + m2) - numbers
    assert whole.nonzeros - thin.nonzeros == saved
    assert thin.verify(points=2000).error <= thin.error_bound


@pytest.mark.parametrize(("m1", "m2"), DIMS)
def test_sizes_by_an_independent_count(m1, m2):
    y = BumpTarget(m1, m2, 2, "smooth", seed=3)
    certified = hypernetwork(y, m1, m2, counts=5, sparse=False)
    fixed = [p for layer in certified.primary[:-1] for p in layer.parameters()]
    seen = sum(int(torch.count_nonzero(p)) for p in fixed)
    assert certified.primary_nonzeros == seen + 5**m1
    assert certified.primary_size == 5**m1
    wrote = sum(int(torch.count_nonzero(p)) for p in certified.encoder.parameters())
    assert certified.nonzeros == seen + wrote


def test_eps():
    y = BumpTarget(1, 1, 3)
    certified = hypernetwork(y, 1, 1, eps=0.05)
    assert 0.04 < certified.error_bound <= 0.05 + 1e-9
    assert certified.verify().error <= 0.05
    assert certified.primary_size == 34  # 5/6 * 2 / n <= 0.05


def test_smaller_than_the_plain_network_by_the_dimension_of_the_condition():
    y = BumpTarget(1, 2, 2)
    sizes = [
        (hypernetwork(y, 1, 2, counts=n).primary_size,
         interpolate(y.at, 3, counts=n).network[-1].weight.numel())
        for n in (4, 8)
    ]  # fmt: skip
    assert sizes == [(4, 64), (8, 512)]


def test_a_steep_condition_is_refused():
    with pytest.raises(ConfigError, match="along axis 0 it changes"):
        hypernetwork(lambda x, i: x[..., 0] * 0 + 4 * i[..., 0], 1, 1, counts=4)
