"""Transport, the infinite-width limit and tangent kernels, each by two methods or more."""

from __future__ import annotations

import importlib
import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct import linearize
from weightloom.errors import ConfigError, ShapeError
from weightloom.kernels import FiniteTower, HyperKernel, Tower, empirical
from weightloom_papers.deep_learning_theory.near_init.limits import (
    KernelPredictor,
    ball_kernel,
    fit_kernel,
    infinite_width,
    layer_grams,
    least_squares,
    lift,
    limit_kernel,
    sampled_kernel,
    tangent_gram,
    temperature,
    transport,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow, nonlinearities

NONLINEARITIES = nonlinearities()


def points(count, dims, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dims, generator=generator, dtype=torch.float64)


def unit(count, dims, seed=0):
    x = points(count, dims, seed)
    return x / x.norm(dim=1, keepdim=True)


# -- the limit kernel -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_limit_kernel_against_sampling(name):
    x, x2 = 0.7 * points(3, 3), 0.7 * points(2, 3, seed=1)
    exact = limit_kernel(x, x2, name, rho=1.5)
    kernel = sampled_kernel(x, x2, name, rho=1.5, draws=100_000)
    assert bool(((kernel.mean - exact).abs() < 4.5 * kernel.error).all())
    assert float((kernel.error / exact.abs()).min()) < 0.03


@pytest.mark.parametrize("name", ["erf", "sin", "square"])
def test_closed_forms_against_quadrature(name):
    """The same nonlinearity as a callable goes through its Hermite coefficients."""
    x = points(4, 3)
    known = NONLINEARITIES[name]
    by_quadrature = limit_kernel(x, None, known.function, smoothness=known.smoothness)
    assert torch.allclose(limit_kernel(x, None, name), by_quadrature, atol=1e-12)


def trapezoidal(name, x, nodes):
    """k_inf by the plain rule in two dimensions, a row at a time: the oracle.

    Its error falls like exp(-2 pi a / h), a the distance of the nearest pole of sigma'
    (pi / (2 |x|) for tanh), h the spacing. With 168 nodes tanh, the worst of those here, is good to
    1e-15 at |x| = 2 and to 2e-10 at |x| = 3, where 100 Gauss-Hermite nodes are off by 0.02.
    """
    sigma, cross, squares = NONLINEARITIES[name], x @ x.T, x.square().sum(1)
    at = torch.linspace(-8.4, 8.4, nodes, dtype=torch.float64)
    weights = torch.softmax(-at.square() / 2, 0)
    rows = []
    for i, row in enumerate(cross):
        norm = squares[i].sqrt()
        tilt, rest = row / norm, (squares - (row / norm) ** 2).clamp(min=0).sqrt()
        inner = tilt[:, None, None] * at[:, None] + rest[:, None, None] * at
        left = weights * sigma.slope(norm * at)
        rows.append(torch.einsum("mij,i,j->m", sigma.slope(inner), left, weights))
    return cross * torch.stack(rows)


@pytest.mark.parametrize("name", sorted(NONLINEARITIES.keys() - {"relu"}))
def test_against_the_trapezoidal_rule(name):
    two, three = 2 * unit(3, 3), 3 * unit(3, 3)
    coarse, fine = trapezoidal(name, two, 168), trapezoidal(name, three, 335)
    assert torch.allclose(limit_kernel(two, None, name), coarse, rtol=0, atol=1e-12)
    assert torch.allclose(limit_kernel(three, None, name), fine, rtol=1e-13, atol=1e-12)


def test_proposition_3_23():
    """Printed for unit vectors; by its formula there, by an integral over the circle elsewhere."""
    x, x2 = unit(5, 4), unit(3, 4, seed=1)
    inner = x @ x2.T
    printed = inner * (math.pi - torch.arccos(inner)) / (2 * math.pi)
    assert torch.allclose(limit_kernel(x, x2), printed, atol=1e-14)
    turn = (torch.arange(100_000, dtype=torch.float64) + 0.5) * (2 * math.pi / 100_000)
    circle = torch.stack([turn.cos(), turn.sin()], 1)
    a, b = 3 * points(4, 2), points(4, 2, seed=1)
    both = ((circle @ a.T > 0).double().T @ (circle @ b.T > 0).double()) / 100_000
    assert torch.allclose(limit_kernel(a, b), a @ b.T * both, atol=1e-3)


def test_angles_keep_their_digits():
    """Points 1e-9 apart: arccos of the inner product cannot see them."""
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 1e-9]], dtype=torch.float64)
    slope = float(limit_kernel(x, y)) / float(x @ y.T)
    assert 0.5 - slope == pytest.approx(1e-9 / (2 * math.pi), rel=1e-6)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert float(limit_kernel(x, zero)) == 0.0


@pytest.mark.parametrize("name", ["relu", "tanh", "erf"])
def test_gradients(name):
    x, x2 = points(2, 3).requires_grad_(), points(2, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: limit_kernel(a, b, name), (x, x2), atol=1e-6)
    gram = limit_kernel(x, x, name)  # coincident points: a number, not NaN
    (gradient,) = torch.autograd.grad(gram.sum(), x)
    assert bool(torch.isfinite(gradient).all())


def test_limit_kernel_is_part_of_the_tower():
    """A tower of depth 2 trains both layers: its kernel is NNGP (last layer) plus the first's part.

    There sigma has the factor sqrt 2 and inputs 1 / sqrt d: with x sqrt(d), 2 k_inf = NTK - NNGP.
    """
    x, x2 = points(4, 3), points(5, 3, seed=1)
    for name in ("relu", "erf", "tanh"):
        tower = Tower(depth=2, activation=name)
        scaled = x / math.sqrt(3), x2 / math.sqrt(3)
        first = tower(x, x2, kind="ntk") - tower(x, x2, kind="nngp")
        assert torch.allclose(2 * limit_kernel(*scaled, name), first, atol=1e-8)
    # The hyperkernel of a linear f (depth 1, one input) and this tower is the tower's, times x x'.
    ones = torch.ones(4, 1, dtype=torch.float64)
    hyper = HyperKernel(Tower(1), Tower(2), kind="ntk")
    assert torch.allclose(hyper(ones, x), Tower(2)(x), atol=1e-12)


# -- finite width -----------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(NONLINEARITIES)), st.integers(1, 30), st.integers(0, 1000))
def test_tangent_gram_by_four_methods(name, width, seed):
    net = Shallow.sample(width, 3, name, rho=1.3, seed=seed)
    x, x2 = points(4, 3, seed), points(3, 3, seed + 1)
    gram = tangent_gram(net, x, x2)
    assert torch.allclose(gram, net.features(x) @ net.features(x2).T, atol=1e-12)
    module = net.network()
    assert torch.allclose(gram, layer_grams(module, x, x2)["0.weight"], atol=1e-12)
    module[2].weight.requires_grad_(False)
    assert torch.allclose(gram, empirical.ntk(module, x, x2), atol=1e-12)


def test_tangent_gram_tends_to_the_limit():
    """Theorem 3.19, within standard errors: k_m is a mean of m independent terms."""
    x = unit(5, 3)
    for width in (300, 30_000):
        net = Shallow.sample(width, 3, rho=1.5, seed=width)
        kernel, limit = tangent_gram(net, x), limit_kernel(x, rho=1.5)
        terms = 1.5**2 * (x @ x.T).abs()
        assert bool(((kernel - limit).abs() <= 4 * terms * 0.5 / math.sqrt(width)).all())


def test_shallow_network_and_its_taylor_model_agree_with_the_general_one():
    net, x = Shallow.sample(40, 3, "softplus"), points(6, 3)
    hidden = net.hidden + 0.3 * points(40, 3, seed=3)
    model = linearize(net.network(), train="0.weight").move_to({"0.weight": hidden})
    assert torch.allclose(model(x)[:, 0], net.taylor(x, hidden), atol=1e-12)
    assert torch.allclose(model.network()(x)[:, 0], net(x, hidden), atol=1e-12)
    assert torch.allclose(model.jacobian(x), net.features(x), atol=1e-12)


def test_deep_kernels_sum_over_layers():
    """A finite tower: parts by layer add up to its tangent kernel, whose limit is known."""
    torch.manual_seed(0)
    net, x = FiniteTower(Tower(3), [4, 1500, 1500, 1]).double(), points(3, 4)
    grams = layer_grams(net, x)
    assert len(grams) == 3
    total = sum(grams.values())
    assert torch.allclose(total, empirical.ntk(net, x), rtol=1e-9)
    limit = Tower(3)(x)
    assert float(((total - limit) / limit).abs().max()) < 0.35


# -- transport --------------------------------------------------------------------------------


def bend(v):
    return torch.stack([torch.sin(v[:, 0]), v[:, 1].tanh() * v[:, 0].cos()], 1)


def test_infinite_width_by_quadrature():
    """F_infinity of a smooth map on a fine grid of v, against Monte Carlo."""
    axis = torch.linspace(-7, 7, 701, dtype=torch.float64)
    v = torch.cartesian_prod(axis, axis)
    mass = torch.exp(-v.square().sum(1) / 2) / (2 * math.pi) * (14 / 700) ** 2
    x = 0.8 * unit(3, 2)
    exact = ((bend(v) @ x.T) * torch.sigmoid(v @ x.T) * mass[:, None]).sum(0)
    limit_value = infinite_width(bend, x, "softplus", draws=100_000)
    assert bool(((limit_value.mean - exact).abs() < 4 * limit_value.error).all())
    assert float(limit_value.error.max()) < 0.003


def test_sampling_joins_batches(monkeypatch):
    """Mean and standard error of 1,000 draws in batches of 4, against those of one batch."""
    x = unit(2, 2)
    values = {}

    def keep(v):
        values.setdefault("v", []).append(v.clone())
        return bend(v)

    module = importlib.import_module("weightloom_papers.deep_learning_theory.near_init.limits")
    monkeypatch.setattr(module, "BATCH", 8)
    limit_value = infinite_width(keep, x, draws=1_000)
    v = torch.cat(values["v"])
    assert len(v) == 1_000
    assert len(values["v"]) == 250
    terms = (bend(v) @ x.T) * (v @ x.T > 0)
    assert torch.allclose(limit_value.mean, terms.mean(0), atol=1e-14)
    assert torch.allclose(limit_value.error, terms.std(0) / math.sqrt(1_000), rtol=1e-10)


def test_transported_networks_tend_to_the_limit():
    """Theorem 3.14: (rho / sqrt m) F_0(x; V) within its standard errors of F_infinity."""
    x = unit(2, 2)
    limit = infinite_width(bend, x, draws=400_000).mean
    for width in (1_000, 100_000):
        rho = temperature(width)
        net = Shallow.sample(width, 2, rho=rho, seed=1)
        values = net.taylor(x, transport(net, bend))
        # noise rho sqrt(E relu^2) = rho / sqrt 2, and a mean of m terms of size at most sqrt 2
        spread = math.sqrt(rho**2 / 2 + 2 / width + 2 / 400_000)
        assert bool(((values - limit).abs() < 4 * spread).all())
    assert float((values - limit).abs().max()) < 0.05 * float(limit.abs().max())


def test_transport_as_printed_has_no_such_limit():
    """a_j rho / sqrt(m) gives rho^2 F_infinity: with rho = 0.05, nothing is left of it."""
    x, rho, width = unit(2, 2), 0.05, 200_000
    net = Shallow.sample(width, 2, rho=rho, seed=1)
    limit = infinite_width(bend, x, draws=400_000).mean
    start = net(x)
    printed = net.taylor(x, transport(net, bend, printed=True)) - start
    right = net.taylor(x, transport(net, bend)) - start
    error = 4 * math.sqrt(2 / width + 2 / 400_000)
    assert bool(((right - limit).abs() < error).all())
    assert bool(((printed / rho**2 - limit).abs() < error).all())
    assert float(printed.abs().max()) < 0.01 * float(limit.abs().max())


def test_rescaling_moves_weight_from_noise_to_distance():
    """(3.13): rho down; noise down and |V - V0| up in proportion, the signal unchanged."""
    x = unit(3, 2)
    nets = [Shallow.sample(5_000, 2, rho=rho, seed=0) for rho in (1.0, 0.1)]
    moved = [transport(net, bend) for net in nets]
    assert torch.allclose(nets[1](x), 0.1 * nets[0](x), atol=1e-12)
    signals = [net.taylor(x, v) - net(x) for net, v in zip(nets, moved, strict=True)]
    assert torch.allclose(signals[0], signals[1], atol=1e-10)
    distances = [float((v - net.hidden).norm()) for net, v in zip(nets, moved, strict=True)]
    assert distances[1] == pytest.approx(10 * distances[0])


# -- predictors -------------------------------------------------------------------------------


def circle(count):
    turn = (torch.arange(count, dtype=torch.float64) + 0.3) * (2 * math.pi / count)
    return turn, lift(torch.stack([turn.cos(), turn.sin()], 1) / math.sqrt(2))


def test_predictors_are_infinite_networks():
    """Eq. 3.20: sum_i alpha_i k_inf(x_i, x) is F_infinity of T(v) = sum_i alpha_i x_i sigma'."""
    h = KernelPredictor(unit(3, 3), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    x = unit(4, 3, seed=7)
    limit_value = infinite_width(h.map, x, draws=200_000)
    assert bool(((limit_value.mean - h(x)).abs() < 4 * limit_value.error).all())


def test_predictors_are_universal_on_the_circle():
    """Prop. 3.25: more centres, a smaller error for a continuous function with kinks."""
    target = lambda turn: (turn - math.pi).abs() - (3 * turn).cos()  # noqa: E731
    errors = []
    for count in (8, 32, 128):
        turn, x = circle(count)
        h = fit_kernel(x, target(turn))
        assert torch.allclose(h(x), target(turn), atol=1e-6)
        other, x2 = circle(1999)
        errors.append(float((h(x2) - target(other)).abs().max()))
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 2
    assert errors[2] < 0.03


def test_a_predictor_becomes_a_finite_network():
    """Fit in the limit, transport into 200,000 nodes: F_0 and F are both close to the target."""
    turn, x = circle(12)
    h = fit_kernel(x, turn.sin())
    net = Shallow.sample(200_000, 3, rho=0.02, seed=0)
    hidden = h.hidden(net)
    error = float((net.taylor(x, hidden) - turn.sin()).abs().max())
    spread = infinite_width(h.map, x, draws=200_000).error
    assert error < 4 * (0.02 / math.sqrt(2) + float(spread.max()))


def test_lift_and_the_kernel_on_the_ball():
    u = unit(5, 2) / math.sqrt(2)
    x = lift(u)
    assert x.shape == (5, 3)
    assert torch.allclose(x.norm(dim=1), torch.ones(5, dtype=torch.float64))
    off = ~torch.eye(5, dtype=torch.bool)  # arccos loses digits on the diagonal
    assert torch.allclose(ball_kernel(u)[off], limit_kernel(x)[off], atol=1e-12)
    assert torch.allclose(ball_kernel(u), limit_kernel(x), atol=1e-7)
    inner = x @ x.T
    printed = inner / math.pi - inner * torch.arccos(inner.clamp(-1, 1)) / (2 * math.pi)
    assert float((printed - limit_kernel(x)).diag().mean()) == pytest.approx(
        1 / math.pi - 0.5, abs=1e-7
    )
    inside = lift(torch.tensor([[0.1, 0.2], [0.5, 0.5]]))
    assert inside.shape == (2, 4)
    assert torch.allclose(inside.norm(dim=1), torch.ones(2))


def test_maclaurin_coefficients_are_positive():
    """Of f(z) = (z + 1/2)(1/2 - arccos(z + 1/2) / (2 pi)), to degree 40, in 60 digits."""
    with mpmath.workdps(60):
        f = lambda z: (z + 0.5) / 2 - (z + 0.5) * mpmath.acos(z + 0.5) / (2 * mpmath.pi)  # noqa: E731
        coefficients = mpmath.taylor(f, 0, 40)
        printed = lambda z: f(z) + (z + 0.5) * (1 / mpmath.pi - 0.5)  # noqa: E731
        # With x . x' / pi as printed, the constant term would be 1/12 smaller, and still not k_inf.
        assert abs(coefficients[0] - mpmath.mpf(1) / 6) < 1e-50
        assert printed(mpmath.mpf(0)) < coefficients[0]
    assert len(coefficients) == 41
    assert all(c > 0 for c in coefficients)


def test_least_squares_is_kernel_regression():
    """F_0 of the OLS weights predicts F + k_m(x, X) k_m(X, X)^-1 (y - F): only inner products."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 1)).double()
    x, y, x2 = points(5, 2), points(5, 1, seed=2), points(7, 2, seed=3)
    fitted = least_squares(module, x, y)
    gram, cross = empirical.ntk(module, x), empirical.ntk(module, x2, x)
    with torch.no_grad():
        expected = module(x2) + cross @ torch.linalg.solve(gram, y - module(x))
        assert torch.allclose(fitted(x2), expected, atol=1e-6)


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            lambda: limit_kernel(torch.ones(2, 3), torch.ones(2, 4)),
            ShapeError,
            r"\(2, 3\) and \(2, 4",
        ),
        (
            lambda: limit_kernel(torch.ones(2, 3), None, torch.abs, smoothness=math.inf),
            ConfigError,
            "abs has kinks and no closed form .* use sampled_kernel",
        ),
        (lambda: infinite_width(bend, torch.ones(2)), ShapeError, r"x has shape \(2,\)"),
        (lambda: infinite_width(bend, torch.eye(2), draws=1), ConfigError, "draws=1 was given"),
        (
            lambda: transport(Shallow.sample(5, 2), lambda v: v[:, :1]),
            ShapeError,
            r"made \(5, 1\) of rows \(5, 2\); it must keep",
        ),
        (lambda: transport(Shallow.sample(5, 2), lambda v: v / 0), ConfigError, "NaN or infinity"),
        (
            lambda: transport(
                Shallow(torch.ones(2, 2), torch.tensor([0.0, 1.0]), NONLINEARITIES["relu"]), bend
            ),
            ConfigError,
            "an output weight is zero",
        ),
        (lambda: temperature(0), ConfigError, "width=0, constant=1.0 were given"),
        (
            lambda: lift(torch.ones(1, 2)),
            ConfigError,
            r"norm 1.41421 was given; wanted \|u\|\^2 <= 1/2",
        ),
        (lambda: lift(torch.ones(2)), ShapeError, r"u has shape \(2,\)"),
        (
            lambda: fit_kernel(torch.eye(2), torch.ones(3)),
            ShapeError,
            r"y has shape \(3,\); wanted",
        ),
        (
            lambda: KernelPredictor(torch.eye(2), torch.ones(3)),
            ShapeError,
            r"centres \(2, 2\) and coefficients \(3,\) do not fit",
        ),
    ],
)
def test_messages(run, error, message):
    with pytest.raises(error, match=message):
        run()


def test_gradient_descent_tends_to_least_squares():
    """Linear regression from w0 converges to the solution nearest to w0 (the corrected OLS)."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    x, y = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    model, fitted = linearize(module), least_squares(module, x, y)
    assert torch.allclose(fitted(x), y, atol=1e-10)
    jacobian = model.jacobian(x)
    rate = 1 / torch.linalg.matrix_norm(jacobian, 2) ** 2
    optimise = torch.optim.SGD(model.parameters(), lr=float(rate))
    smallest = torch.linalg.svdvals(jacobian).min() ** 2 * rate
    for _ in range(400):
        optimise.zero_grad()
        (0.5 * (model(x) - y).square().sum()).backward()
        optimise.step()
    left = (1 - float(smallest)) ** 400 * float(fitted.distance().detach())
    assert (model.flat() - fitted.flat()).norm() <= left + 1e-9
    assert left < 0.05 * fitted.distance()


def test_least_squares_is_the_corrected_formula():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = torch.randn(40, 2, dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    model = linearize(module)
    j, f = model.jacobian(x), module(x).detach()[:, 0]
    expected = torch.linalg.pinv(j.T @ j) @ j.T @ (y - f)
    fitted = least_squares(model, x, y[:, None])
    assert torch.allclose(fitted.flat(), expected, atol=1e-8)
    for perturbation in torch.eye(len(expected), dtype=torch.float64):
        residual = (j @ (fitted.flat() + 1e-2 * perturbation) - (y - f)).norm()
        assert residual >= (j @ fitted.flat() - (y - f)).norm()
    with torch.no_grad():
        for part in model.displacement.values():
            part.normal_()
    again = least_squares(model, x, y)  # from w0, whatever the displacement of the given model
    assert torch.allclose(again.flat(), expected, atol=1e-8)
    assert model.distance() > 1  # and the given model is not changed
    # With more weights than equations it fits exactly; as printed, without "w0 +", it does not.
    x, y = x[:6], y[:6]
    fitted = least_squares(model, x, y)
    assert torch.allclose(fitted(x)[:, 0], y, atol=1e-9)
    printed = linearize(module).move_to(model.spec.split(fitted.flat().detach()))
    assert (printed(x)[:, 0] - y).square().mean() > 0.05


def test_ridge_shrinks_the_distance():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    x, y = torch.randn(9, 2, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)
    fits = [least_squares(module, x, y, ridge=r) for r in (0.0, 1e-3, 1.0)]
    distances = [float(fit.distance().detach()) for fit in fits]
    assert distances[0] > distances[1] > distances[2]
    wrong = fits[2](x) - y  # the gradient of the ridge problem vanishes
    gradient = fits[2].jacobian(x).T @ wrong[:, 0] + 1.0 * fits[2].flat()
    assert gradient.norm() < 1e-10


def test_layer_grams_sum_to_the_tangent_kernel():
    """The multi-layer sum, against `weightloom.kernels.empirical.ntk`."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 1))
    module = module.double()
    x, x2 = torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    grams = layer_grams(module, x, x2)
    assert set(grams) == {n for n, _ in module.named_parameters()}
    assert torch.allclose(sum(grams.values()), empirical.ntk(module, x, x2), atol=1e-12)
    # One layer by hand: the last weight's part is the product of its inputs, its bias' part is one.
    inner = module[:-1]
    assert torch.allclose(grams["4.weight"], inner(x) @ inner(x2).T, atol=1e-12)
    assert torch.equal(grams["4.bias"], torch.ones(5, 4, dtype=torch.float64))


def test_bad_arguments_of_least_squares():
    module = nn.Linear(3, 2)
    with pytest.raises(ShapeError, match=r"y has shape \(4, 3\), but the network's output is"):
        least_squares(module, torch.zeros(4, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="ridge=-1 was given"):
        least_squares(module, torch.zeros(4, 3), torch.zeros(4, 2), ridge=-1)
