"""The largest distance: against linear programs, samples, ascent, and along segments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from tests.construct.pieces.oracle import whole_network
from tests.symmetry.piecewise.rewriting import REWRITINGS, mlp
from weightloom.construct.pieces import affine_pieces
from weightloom.errors import ConfigError, MemoryLimitError, ShapeError, UnsupportedModuleError
from weightloom.symmetry import largest_distance


def linear_programs(a, b, low, high, dims):
    """max |a - b| over a box by all activation patterns: the slow, plain version.

    For each pattern the networks are affine and the pattern's points are a polytope; one linear
    program for each output and sign.
    """
    best = -math.inf
    units = [layer.out_features for net in (a, b) for layer in list(net)[:-1:2]]
    for pattern in itertools.product([0.0, 1.0], repeat=sum(units)):
        masks = iter(np.split(np.array(pattern), np.cumsum(units)[:-1]))
        rows, limits, ends = [], [], []
        for net in (a, b):
            slope, constant = np.eye(dims), np.zeros(dims)
            for layer in net:
                if not isinstance(layer, nn.Linear):
                    mask = next(masks)
                    sign = 1 - 2 * mask[:, None]  # on: -z <= 0
                    rows.append(sign * slope)
                    limits.append(-sign[:, 0] * constant)
                    slope, constant = mask[:, None] * slope, mask * constant
                    continue
                weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
                slope, constant = weight @ slope, weight @ constant + bias
            ends.append((slope, constant))
        (slope_a, constant_a), (slope_b, constant_b) = ends
        for output, sign in itertools.product(range(len(constant_a)), (1, -1)):
            objective = sign * (slope_b - slope_a)[output]
            found_best = linprog(
                objective, np.concatenate(rows), np.concatenate(limits), bounds=(low, high)
            )
            if found_best.status == 0:
                shift = sign * (constant_a - constant_b)[output]
                best = max(best, shift - found_best.fun)
    return best


def require_attained(a, b, result, norm=math.inf):
    with torch.no_grad():
        outputs = a.double()(result.point[None]) - b.double()(result.point[None])
    distance = float(torch.linalg.vector_norm(outputs.flatten(), norm))
    assert result.distance == pytest.approx(distance, rel=1e-12, abs=1e-13)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from([(1, [3]), (2, [3]), (2, [2, 1]), (3, [2])]))
def test_equal_to_linear_programs(seed, sizes):
    dims, widths = sizes
    torch.manual_seed(seed)
    a, b = (mlp(dims, *widths, 2) for _ in range(2))
    for parameter in (*a.parameters(), *b.parameters()):
        parameter.data.normal_()
    result = largest_distance(a, b, -1.5, 2)
    wanted = linear_programs(a, b, -1.5, 2, dims)
    assert result.distance == pytest.approx(wanted, rel=1e-6)  # HiGHS stops at 1e-7
    require_attained(a, b, result)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000), st.integers(1, 4), st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3, math.inf]),
)  # fmt: skip
def test_never_exceeded_and_attained(seed, dims, widths, norm):
    torch.manual_seed(seed)
    a, b = (mlp(dims, *widths, 2) for _ in range(2))
    low, high = -torch.rand(dims).double() * 4, torch.rand(dims).double() * 4
    result = largest_distance(a, b, low, high, norm=norm)
    require_attained(a, b, result, norm)
    assert (result.point >= low).all()
    assert (result.point <= high).all()

    def distances(x):
        return torch.linalg.vector_norm(a(x) - b(x), norm, dim=1)

    x = torch.lerp(low, high, torch.rand(5000, dims, dtype=torch.float64))
    limit = result.distance * (1 + 1e-12) + 1e-13
    assert float(distances(x).detach().max()) <= limit
    x = x[distances(x).argsort(descending=True)[:20]].detach()
    for step in torch.logspace(0, -4, 30):  # ascent, clipped to the box
        x.requires_grad_()
        (slope,) = torch.autograd.grad(distances(x).sum(), x)
        x = torch.minimum(torch.maximum(x + float(step) * slope, low), high).detach()
        assert float(distances(x).detach().max()) <= limit


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_whole_weights_in_one_dimension(seed, widths):
    """Kinks that coincide and cancel, against the enumeration along a line."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (whole_network(widths, generator, denominator=3) for _ in range(2))
    result = largest_distance(a, b, -3, 4)
    ends = torch.cat([affine_pieces(net, -3, 4).breakpoints for net in (a, b)])
    with torch.no_grad():
        wanted = float((a(ends[:, None]) - b(ends[:, None])).abs().max())
    assert result.distance == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 3))
def test_whole_weights_in_more_dimensions(seed, dims):
    """Many hyperplanes through one point, and vertices on the box: against samples at corners."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (mlp(dims, 4, 3, 1) for _ in range(2))
    for parameter in (*a.parameters(), *b.parameters()):
        parameter.data = torch.randint(-2, 3, parameter.shape, generator=generator).double()
    result = largest_distance(a, b, -2, 2)
    require_attained(a, b, result)
    grid = torch.cartesian_prod(*[torch.linspace(-2, 2, 25, dtype=torch.float64)] * dims)
    with torch.no_grad():
        assert result.distance >= float((a(grid) - b(grid)).abs().max()) - 1e-12


@pytest.mark.parametrize("name", [*REWRITINGS])
def test_the_same_function_is_at_distance_zero(name):
    torch.manual_seed(0)
    net = mlp(2, 6, 2)
    other = REWRITINGS[name](net, torch.Generator().manual_seed(0), torch.float64)
    result = largest_distance(net, other, -3, 3)
    assert result.distance <= 1e3 * result.rounding < 1e-9
    with torch.no_grad():
        other[2].weight[0, 0] += 1e-3
    assert largest_distance(net, other, -3, 3).distance > 1e-5


def test_a_narrow_spike_is_not_missed():
    """A bump of width 2e-6 and height 1, which no sample of the square meets."""
    torch.manual_seed(0)
    smooth = mlp(2, 4, 1)
    spiked = mlp(2, 7, 1)
    with torch.no_grad():
        spiked[0].weight[:4], spiked[0].bias[:4] = smooth[0].weight, smooth[0].bias
        spiked[0].weight[4:] = 1e6 * torch.tensor([[0.6, 0.8]] * 3)
        spiked[0].bias[4:] = torch.tensor([1.0, 0.0, -1.0])
        spiked[2].weight[:, :4], spiked[2].bias[:] = smooth[2].weight, smooth[2].bias
        spiked[2].weight[0, 4:] = torch.tensor([1.0, -2.0, 1.0])
        x = 2 * torch.rand(20_000, 2, dtype=torch.float64) - 1
        assert float((smooth(x) - spiked(x)).abs().max()) < 0.9
    assert largest_distance(smooth, spiked, -1, 1).distance == pytest.approx(1.0, rel=1e-9)


def test_fixed_inputs_and_images():
    """Two pixels vary: sixteen inputs are a box of two dimensions."""
    torch.manual_seed(0)
    a, b = (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(2, 2)).double()
        for _ in range(2)
    )  # fmt: skip
    low = torch.randn(1, 4, 4, dtype=torch.float64)
    high = low.clone()
    high[0, 1, 1] += 2
    high[0, 2, 2] += 3
    result = largest_distance(a, b, low, high)
    assert result.point.shape == (1, 4, 4)
    assert result.regions > 4
    require_attained(a, b, result)
    share = torch.rand(5000, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        x = torch.lerp(low, high, share)
        assert float((a(x) - b(x)).abs().max()) <= result.distance + 1e-12
    at = largest_distance(a, b, low, low)
    assert at.regions == 1
    assert torch.equal(at.point, low)


def test_limits_are_named_before_the_work():
    torch.manual_seed(0)
    a, b = mlp(3, 30, 30, 1), mlp(3, 30, 30, 1)
    message = r"there are [\d,]+ activation patterns on random points \(120 units bend\), more than"
    with pytest.raises(MemoryLimitError, match=message):
        largest_distance(a, b, -5, 5, max_regions=500)
    with pytest.raises(ConfigError, match=r"13 sides of positive length, .*at most 12"):
        largest_distance(mlp(13, 2, 1), mlp(13, 2, 1), 0, 1)


def test_the_limit_also_stops_the_work():
    """Thin strips that random points miss."""
    net = mlp(2, 40, 1)
    with torch.no_grad():
        net[0].weight[:] = torch.tensor([1.0, 0.0])
        net[0].bias[:] = -0.5 - 1e-9 * torch.arange(40, dtype=torch.float64)
    assert largest_distance(net, net, 0, 1).regions == 41
    with pytest.raises(MemoryLimitError, match=r"4\d regions and more .* max_regions=40; take a"):
        largest_distance(net, net, 0, 1, max_regions=40)


@pytest.mark.parametrize(
    ("low", "high", "options", "error", "message"),
    [
        (0, math.inf, {}, ConfigError, "finite box is wanted"),
        (0, math.nan, {}, ConfigError, "finite box is wanted"),
        ([0, 1], [1, 0], {}, ConfigError, "low is 1.0 and high 0.0 at input 1"),
        ([0, 1], [1, 0, 1], {}, ShapeError, r"low has shape \[2\] and high \[3\]"),
        (0, 1, {"norm": 0.5}, ConfigError, "norm=0.5 was given"),
        (0, 1, {"max_regions": 0}, ConfigError, "max_regions=0 was given"),
    ],
)
def test_bad_boxes(low, high, options, error, message):
    with pytest.raises(error, match=message):
        largest_distance(mlp(2, 3, 1), mlp(2, 3, 1), low, high, **options)


def test_networks_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"one output of a has shape \[1\], one of b \[2\]"):
        largest_distance(mlp(2, 3, 1), mlp(2, 3, 2), 0, 1)
    with pytest.raises(UnsupportedModuleError, match=r"layer 1 \(Tanh\)"):
        largest_distance(mlp(2, 3, 1), mlp(2, 3, 1, activation=nn.Tanh), 0, 1)
    step = mlp(2, 3, 1, activation=lambda: nn.Threshold(0.5, 0.0))
    with pytest.raises(UnsupportedModuleError, match="jumps"):
        largest_distance(step, step, 0, 1)
