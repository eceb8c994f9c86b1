"""Sampled hypernetworks against explicit weights, and formulas against the library."""

import pytest
import torch

from weightloom.kernels import FiniteHypernetwork, HyperKernel, Tower
from weightloom_papers.infinite_width.claims.reference import (
    Form,
    SampledHypernetworks,
    hyperkernel,
    prior,
)
from weightloom_papers.lab.statistics import mean_and_error

X = torch.tensor([[1.6, 0.9], [-0.3, 1.9]], dtype=torch.float64)
Z = torch.tensor([[1.0, -0.6, 0.8], [0.9, 0.7, 0.4]], dtype=torch.float64)


def test_same_distribution_as_explicit_networks():
    """Means and spreads of kernels and outputs, at widths where both matter."""
    n, m, draws = 6, 5, 200
    f, g = Tower(depth=3), Tower(depth=3)
    generator = torch.Generator().manual_seed(0)
    kernels, outputs = [], []
    for _ in range(draws):
        h = FiniteHypernetwork(
            f, g, [2, n, n], [3, m, m, 1], generator=generator, dtype=torch.float64
        )
        y = h(X, Z).squeeze(1)
        rows = [
            torch.cat(
                [
                    d.flatten()
                    for d in torch.autograd.grad(output, list(h.parameters()), retain_graph=True)
                ]
            )
            for output in y
        ]
        kernels.append(torch.stack(rows) @ torch.stack(rows).T)
        outputs.append(y.detach())
    samples = SampledHypernetworks(X, Z, (3, 3), (n, m), 6_000)
    y = samples.outputs()
    # logarithms and absolute values: kernels of narrow networks have heavy tails
    pairs = [
        (torch.stack(kernels).diagonal(dim1=1, dim2=2), samples.tangent().diagonal(dim1=1, dim2=2)),
        (torch.stack(outputs).abs(), y.abs()),
        (torch.stack(outputs).prod(1).sign(), y.prod(1).sign()),
    ]
    for explicit, sampled in pairs:
        a, b = (t.sign() * t.abs().add(1).log() for t in (explicit, sampled))
        (mean, error), (mean2, error2) = mean_and_error(a), mean_and_error(b)
        assert bool(((mean - mean2).abs() < 4 * (error + error2)).all())
    off = torch.stack(kernels)[:, 0, 1], samples.tangent()[:, 0, 1]
    a, b = (torch.asinh(t) for t in off)
    (mean, error), (mean2, error2) = mean_and_error(a), mean_and_error(b)
    assert abs(mean - mean2) < 4 * (error + error2)


@pytest.mark.parametrize("depths", [(2, 2), (3, 2), (2, 4), (4, 3)])
def test_formulas_agree_with_the_library(depths):
    f, g = Tower(depth=depths[0]), Tower(depth=depths[1])
    tangent, nngp = (HyperKernel(f, g, kind=kind)(X, Z) for kind in ("ntk", "nngp"))
    torch.testing.assert_close(hyperkernel(X, Z, depths), tangent, rtol=1e-12, atol=0)
    torch.testing.assert_close(prior(X, Z, depths), nngp, rtol=1e-12, atol=0)
    printed = hyperkernel(X, Z, depths, Form(steps=0, backward=0))
    assert float((printed / tangent - 1).abs().max()) > 0.05
