"""Finite towers and hypernetworks: against the formulas written out, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.networks import ntk_oracle
from weightloom.errors import KernelError, ShapeError
from weightloom.kernels import FourierFeatures, Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower, NTKLinear

DOUBLE = {"dtype": torch.float64}


def rows(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


class TestTower:
    def test_formula(self):
        tower = Tower(3, "erf", gain=1.1, sigma_w=0.9, sigma_b=0.4)
        h, x = FiniteTower(tower, [4, 5, 6, 2], seed=3, **DOUBLE), rows(7, 4)
        weights = [(layer.weight, layer.bias) for layer in h.layers]
        for i in range(7):
            q = x[i]
            for layer, (weight, bias) in enumerate(weights):
                y = 0.9 * (weight @ q) / math.sqrt(len(q)) + 0.4 * bias
                q = y if layer == 2 else 1.1 * torch.erf(y)
            torch.testing.assert_close(h(x)[i], q)

    def test_no_bias_when_sigma_b_is_zero(self):
        h = FiniteTower(Tower(2), [3, 4, 1])
        assert [tuple(p.shape) for p in h.parameters()] == [(4, 3), (1, 4)]

    def test_weights_are_standard_normal(self):
        layer = NTKLinear(400, 500, 0.7, 0.2, generator=torch.Generator().manual_seed(0))
        weight = layer.weight.detach().double()
        assert abs(float(weight.mean())) < 4 / math.sqrt(weight.numel())
        assert abs(float(weight.var()) - 1) < 4 * math.sqrt(2 / weight.numel())
        assert abs(float(layer.bias.detach().mean())) < 4 / math.sqrt(500)

    def test_the_global_generator_is_not_touched(self):
        before = torch.get_rng_state()
        FiniteTower(Tower(2), [3, 4, 1])
        assert torch.equal(before, torch.get_rng_state())

    def test_seeds_and_generators(self):
        def weight(**options):
            return FiniteTower(Tower(2), [3, 4, 1], **options).layers[0].weight

        assert torch.equal(weight(seed=1), weight(seed=1))
        assert not torch.equal(weight(seed=1), weight(seed=2))
        generator = torch.Generator().manual_seed(1)
        assert torch.equal(weight(generator=generator), weight(seed=1))
        assert not torch.equal(weight(generator=generator), weight(seed=1))

    def test_numbers_may_be_tensors(self):
        tower = Tower(2, "relu", sigma_w=torch.tensor(0.5, requires_grad=True))
        h = FiniteTower(tower, [3, 4, 1])
        assert all(p.is_leaf for p in h.parameters())
        assert h.layers[0].weight_scale == pytest.approx(0.5 / math.sqrt(3))

    def test_sizes(self):
        with pytest.raises(ShapeError, match=r"sizes has 2 entries, \[3, 1\]; this depth needs 3"):
            FiniteTower(Tower(2), [3, 1])
        with pytest.raises(ShapeError, match=r"every width must be at least 1"):
            FiniteTower(Tower(2), [3, 0, 1])


class TestHypernetwork:
    def make(self, sigma_b=0.3, **options):
        f = Tower(2, "relu", sigma_b=0.2)
        g = Tower(3, "tanh", gain=1.2, sigma_w=0.8, sigma_b=sigma_b)
        return FiniteHypernetwork(f, g, [4, 5], [3, 6, 7, 2], seed=2, **DOUBLE, **options)

    def test_formula(self):
        """Row by row with the weights cut out of f's output by hand."""
        h, x, z = self.make(), rows(4, 4), rows(4, 3, seed=1)
        for i in range(4):
            v = h.f(x[i : i + 1])[0]
            sizes, start, matrices = [3, 6, 7, 2], 0, []
            for a, b in ((3, 6), (6, 7), (7, 2)):
                matrices.append(v[start : start + a * b].reshape(b, a))
                start += a * b
            a = z[i]
            for layer, matrix in enumerate(matrices):
                width = sizes[layer + 1]
                a = 0.8 * (matrix @ a) / math.sqrt(len(a)) + 0.3 * v[start : start + width]
                start += width
                if layer < 2:
                    a = 1.2 * torch.tanh(a)
            assert start == len(v)
            torch.testing.assert_close(h(x, z)[i], a)

    def test_only_f_is_trained(self):
        h = self.make(sigma_b=0.0)
        written = 3 * 6 + 6 * 7 + 7 * 2
        assert [tuple(p.shape) for p in h.parameters()] == [(5, 4), (5,), (written, 5), (written,)]

    @pytest.mark.parametrize("method", ["structured", "jacobian", "products"])
    def test_tangent_kernel(self, method):
        h, u = self.make(), (rows(4, 4), rows(4, 3, seed=1))
        kernel = empirical.ntk(h, u, method=method)
        assert kernel.shape == (4, 4, 2, 2)
        torch.testing.assert_close(kernel, ntk_oracle(h, u), rtol=1e-11, atol=1e-11)

    def test_structured_is_chosen(self):
        h, u = self.make(), (rows(4, 4), rows(4, 3, seed=1))
        assert empirical.plan(h, u).method == "structured"

    @given(depths=st.tuples(st.integers(1, 3), st.integers(1, 3)), seed=st.integers(0, 99))
    def test_homogeneous_in_the_condition(self, depths, seed):
        """Without biases h(c x, z) = c^H h(x, z) for ReLU and c > 0, whatever L is."""
        depth_f, depth_g = depths
        sizes_f, sizes_g = [4] + [5] * (depth_f - 1), [3] + [6] * (depth_g - 1) + [1]
        f, g = Tower(depth_f), Tower(depth_g)
        h = FiniteHypernetwork(f, g, sizes_f, sizes_g, seed=seed, **DOUBLE)
        x, z = rows(3, 4, seed), rows(3, 3, seed + 1)
        torch.testing.assert_close(h(1.7 * x, z), 1.7**depth_g * h(x, z))

    def test_features(self):
        features = FourierFeatures(scale=2.0, count=8)
        f, g = Tower(1), Tower(2)
        h = FiniteHypernetwork(f, g, [4], [8, 5, 1], features, **DOUBLE)
        bare = FiniteHypernetwork(f, g, [4], [8, 5, 1], **DOUBLE)
        x, z = rows(3, 4), rows(3, 2)
        torch.testing.assert_close(h(x, z), bare(x, features.transform(z)))

    def test_refusals(self):
        f, g = Tower(2), Tower(2)
        with pytest.raises(ShapeError, match=r"sizes_f has 3 entries.*without the head"):
            FiniteHypernetwork(f, g, [4, 5, 6], [3, 5, 1])
        with pytest.raises(
            ShapeError, match=r"sizes_g has 2 entries, \[3, 1\]; this depth needs 3"
        ):
            FiniteHypernetwork(f, g, [4, 5], [3, 1])
        with pytest.raises(KernelError, match=r"count=None, which is their infinite limit"):
            FiniteHypernetwork(f, g, [4, 5], [3, 5, 1], FourierFeatures())
        with pytest.raises(ShapeError, match=r"features give 8 numbers but sizes_g starts with 3"):
            FiniteHypernetwork(f, g, [4, 5], [3, 5, 1], FourierFeatures(count=8))
        h = FiniteHypernetwork(f, g, [4, 5], [3, 5, 1], **DOUBLE)
        with pytest.raises(ShapeError, match=r"x has 2 rows but z has 3; .*repeat the condition"):
            h(rows(2, 4), rows(3, 3))
