"""Every number in the table of activations against a probe; one row is known everywhere."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl
from weightloom.errors import ConfigError, KernelError, UnsupportedModuleError
from weightloom.hyper.start import layer_gains
from weightloom.kernels import Tower
from weightloom.kernels.activations import activation as gaussian
from weightloom.kernels.activations.quadrature import Quadrature
from weightloom.kernels.covariance import Covariance
from weightloom.networks.activations import (
    ELEMENTWISE,
    TABLE,
    Activation,
    Cosine,
    Exponential,
    Kind,
    Pieces,
    Sine,
    Threshold,
    classify,
    is_elementwise,
    lookup,
    measure,
    module_of,
    named_modules,
    probe_kind,
    probe_lipschitz,
    register,
    registered,
)

GRID = torch.linspace(-40, 40, 800_001, dtype=torch.float64)


def evaluate(function, points=GRID):
    with torch.no_grad():
        return function(points.clone())


def on_pieces(pieces, t):
    """Piece by piece, with plain comparisons."""
    out = torch.full_like(t, math.nan)
    ends = [-math.inf, *pieces.kinks, math.inf]
    for slope, offset, low, high in zip(
        pieces.slopes, pieces.offsets, ends[:-1], ends[1:], strict=True
    ):
        inside = (t > low) & (t < high)
        out[inside] = slope * t[inside] + offset
    return out


# -- the contract of a row: each is checked the day it is added ---------------------------------


@pytest.mark.parametrize("name", TABLE)
class TestRow:
    def test_name_and_function(self, name):
        row = TABLE[name]
        assert row.name == name
        assert lookup(name) is row
        assert is_elementwise(row.function)

    def test_the_function_is_found(self, name):
        """As torch's function, as its in-place twin and as a method of tensors."""
        row = TABLE[name]
        homes = [getattr(home, name, None) for home in (torch, F)]
        for function in filter(callable, homes):
            assert lookup(function) is row
            assert lookup(function, plain=False) is None
        for alias in row.aliases:
            assert lookup(alias) is row
        method = getattr(torch.Tensor, name, None)
        if method is not None:
            assert lookup(method) is row

    def test_modules_compute_the_function(self, name):
        row = TABLE[name]
        for kind in row.modules:
            module = kind(0.0, 0.0) if kind is nn.Threshold else kind()
            record = lookup(module)
            assert record is not None
            assert (record.kind, record.constant) == (row.kind, row.constant)
            numbers = record.lipschitz, record.at_zero, record.bound, record.pieces
            assert numbers == (row.lipschitz, row.at_zero, row.bound, row.pieces)
            expected = evaluate(row.function)
            torch.testing.assert_close(evaluate(module.double()), expected, rtol=0, atol=0)

    def test_kind(self, name):
        assert probe_kind(TABLE[name].function) == (TABLE[name].kind, TABLE[name].constant)

    def test_value_at_zero(self, name):
        zero = evaluate(TABLE[name].function, torch.zeros(1, dtype=torch.float64))
        assert float(zero) == TABLE[name].at_zero

    def test_lipschitz(self, name):
        """By secants on a fine grid: never above the table, and they come within 0.1 percent."""
        row = TABLE[name]
        assert not row.probed
        assert probe_lipschitz(row.function) == pytest.approx(row.lipschitz, rel=1e-3)
        if math.isfinite(row.lipschitz):
            steepest = float((evaluate(row.function).diff() / GRID.diff()).abs().max())
            assert steepest <= row.lipschitz + 2e-10  # 40 * 2^-53 / 1e-4, twice

    def test_slopes_are_the_range_of_secants(self, name):
        """No secant leaves the range, and both ends are nearly reached (facts, not guesses)."""
        row = TABLE[name]
        if math.isinf(row.lipschitz):
            return
        low, high = row.slopes
        secants = evaluate(row.function).diff() / GRID.diff()
        assert low - 2e-10 <= float(secants.min()) <= low + 3e-2  # asinh is slow
        assert high - 1e-3 * row.lipschitz <= float(secants.max()) <= high + 2e-10

    def test_order_and_range(self, name):
        row = TABLE[name]
        values = evaluate(row.function)
        falls = bool((values.diff() < -1e-14).any())
        assert falls != row.monotone
        finite = float(values.abs().max())
        assert finite <= row.bound
        if math.isfinite(row.bound):
            assert finite == pytest.approx(row.bound, rel=0.03)  # softsign, 40/41
        if row.rectifier:
            right = GRID >= 0
            assert torch.equal(values[right], GRID[right])

    def test_slope(self, name):
        """s' against central differences, away from kinks."""
        row = TABLE[name]
        t = torch.linspace(-7.013, 7.011, 2_001, dtype=torch.float64)
        kinks = row.pieces.kinks if row.pieces else (0.0, -3.0, 3.0)
        t = t[torch.stack([(t - kink).abs() > 1e-4 for kink in kinks]).all(0)]
        step = 1e-5
        secant = (evaluate(row.function, t + step) - evaluate(row.function, t - step)) / (2 * step)
        torch.testing.assert_close(row.slope(t), secant, rtol=1e-6, atol=1e-8)

    def test_smoothness(self, name):
        """sup |s''| from differences of s'; kinks have none."""
        row = TABLE[name]
        t = torch.linspace(-9, 9, 180_001, dtype=torch.float64)
        bend = float((row.slope(t).diff() / t.diff()).abs().max())
        if math.isinf(row.smoothness):
            assert bend > 1e3
        elif not math.isnan(row.smoothness):
            assert bend == pytest.approx(row.smoothness, rel=1e-5)

    def test_pieces(self, name):
        row = TABLE[name]
        if row.pieces is None:
            return
        t = GRID + 1e-5  # no kink is on the grid
        expected = evaluate(row.function, t)
        torch.testing.assert_close(on_pieces(row.pieces, t), expected, rtol=1e-15, atol=1e-15)

    def test_gaussian_moments(self, name):
        """The closed form that the row names against Hermite coefficients of its function."""
        row = TABLE[name]
        if row.gaussian is None:
            return
        closed, series = gaussian(name), Quadrature(row.function, row.derivative)
        unit = torch.ones(1, dtype=torch.float64)
        cov = Covariance(0.7 * unit, 1.3 * unit, torch.tensor([0.6], dtype=torch.float64))
        for record, expected in (
            (closed.moments(cov).value.left, series.moments(cov).value.left),
            (closed.moments(cov).value.gap, series.moments(cov).value.gap),
            (closed.moments(cov).slope, series.moments(cov).slope),
        ):
            torch.testing.assert_close(record, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(closed(GRID), evaluate(row.function), rtol=1e-15, atol=0)


SETTINGS = [
    nn.LeakyReLU(0.2), nn.LeakyReLU(1.5), nn.LeakyReLU(-0.5), nn.LeakyReLU(1.0), nn.ELU(0.5),
    nn.ELU(3.0), nn.CELU(0.3), nn.Softplus(3.0), nn.Hardtanh(-0.3, 2.0), nn.Hardtanh(0.5, 2.0),
    nn.Softshrink(0.2), nn.Softshrink(0.0), nn.Hardshrink(0.2), nn.Hardshrink(-1.0), nn.ELU(0.0),
    nn.LeakyReLU(-1.0), nn.Hardtanh(-2.0, 2.0), nn.Threshold(0.0, 0.0), nn.Threshold(0.0, 1.0),
    nn.Threshold(0.5, -1.0), nn.Threshold(-0.5, -0.5),
    nn.GELU("tanh"), nn.PReLU(init=-1.5).double(), Sine(30.0), Sine(0.25),
]  # fmt: skip


@pytest.mark.parametrize("module", SETTINGS, ids=str)
def test_settings_change_the_record(module):
    record = lookup(module)
    assert record is not None
    assert (record.kind, record.constant) == probe_kind(module)
    assert probe_lipschitz(module) == pytest.approx(record.lipschitz, rel=1e-3)
    values = evaluate(module)
    assert float(evaluate(module, torch.zeros(1, dtype=torch.float64))) == record.at_zero
    assert bool((values.diff() < -1e-14).any()) != record.monotone
    assert float(values.abs().max()) <= record.bound
    slopes = evaluate(record.slope, GRID[::100] + 1e-5)
    assert float(slopes.abs().max()) <= record.lipschitz * (1 + 1e-9)
    if math.isfinite(record.lipschitz):
        low, high = record.slopes
        assert low - 1e-9 <= float(slopes.min())
        assert float(slopes.max()) <= high + 1e-9
        assert max(-low, high) == pytest.approx(record.lipschitz, rel=1e-9)
    if record.pieces is not None:
        t = GRID + 1e-5
        expected = evaluate(module, t)
        torch.testing.assert_close(on_pieces(record.pieces, t), expected, rtol=1e-15, atol=1e-15)
    if record.gaussian is not None:
        torch.testing.assert_close(gaussian(module)(GRID), values, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.pieces])
def test_affine_pieces_of_every_row_with_pieces(name):
    row = TABLE[name]
    module = row.function if isinstance(row.function, nn.Module) else Called(row.function)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), module, nn.Linear(8, 1)).double()
    with torch.no_grad():
        net[0].weight.mul_(5)
        line = wl.construct.affine_pieces(net, -3, 3)
        x = torch.rand(500, dtype=torch.float64) * 6 - 3
        assert line.count > 4
        torch.testing.assert_close(line(x).flatten(), net(x[:, None]).flatten())


class Called(nn.Module):
    """A function, called inside a module that has a child and is therefore traced."""

    def __init__(self, function):
        super().__init__()
        self.function, self.before = function, nn.Identity()

    def forward(self, x):
        return self.function(self.before(x))


# -- lookup ---------------------------------------------------------------------------------------


class Loud(nn.ReLU):
    """A subclass that keeps the function."""


class Quiet(nn.ReLU):
    def forward(self, input):
        return input / 2


def relu(t):
    """Not torch's."""
    return 3 * t


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_elementwise_modules_have_no_parameters(kind):
    module = kind(0.0, 0.0) if kind is nn.Threshold else kind()
    assert is_elementwise(module)
    assert not [*module.parameters(), *module.buffers()]


def test_registered_modules_are_not_assumed_to_have_no_parameters():
    class Scaled(nn.PReLU):
        pass

    with registered(Activation("scaled", torch.relu, (Scaled,))):
        assert Scaled not in ELEMENTWISE
    assert nn.PReLU not in ELEMENTWISE


def test_lookup_is_not_fooled():
    assert lookup(Loud()) is TABLE["relu"]
    assert lookup(Quiet()) is None
    assert lookup(relu) is None
    assert lookup(lambda t: t) is None
    assert lookup("rely") is None
    assert lookup(nn.Softmax(-1)) is None
    assert lookup(nn.ReLU6()) is TABLE["relu6"]  # a subclass of Hardtanh
    assert lookup(Threshold()) is TABLE["step"]
    assert lookup(nn.Threshold(0.0, 0.0)).lipschitz == 1.0
    assert (lookup(Cosine()), lookup(Exponential())) == (TABLE["cos"], TABLE["exp"])


def test_a_sine_of_frequency_one_is_the_plain_sine():
    """One name, so that symmetry takes `torch.sin` and `Sine()` for the same activation."""
    plain = lookup(Sine())
    assert (plain.name, plain.function) == ("sin", torch.sin)
    assert lookup(Sine(30.0)).name == "sine(omega=30)"


def test_symmetry_flips_the_signs_of_sines():
    torch.manual_seed(0)
    net = wl.mlp([2, 6, 6, 1], activation="sin").double()
    other = nn.Sequential(nn.Linear(2, 6), Sine(30.0), nn.Linear(6, 1)).double()
    for network in (net, other):
        assert wl.symmetry.read(network).spaces["0"].kind is Kind.SIGN
        twin = wl.symmetry.random_equivalent(network, torch.Generator().manual_seed(1))
        before, after = (n[0].weight.detach()[:, 0].sort().values for n in (network, twin))
        assert not torch.allclose(before, after)  # not only permuted: some signs are flipped
        torch.testing.assert_close(before.abs().sort().values, after.abs().sort().values)
        assert wl.symmetry.equivalent(network, twin)


@pytest.mark.parametrize("omega", [0.5, 1.0, 3.0])
def test_gaussian_moments_of_sines(omega):
    """E[sin^2(omega u)] = (1 - e^(-2 omega^2)) / 2, by hand, by the table and by initialisation."""
    square = (1 - math.exp(-2 * omega**2)) / 2
    unit = torch.ones(1, dtype=torch.float64)
    moments = gaussian(Sine(omega)).moments(Covariance(unit, unit, 0 * unit))
    assert float(moments.value.left) == pytest.approx(square, rel=1e-12)
    mlp = wl.mlp([2, 5, 1], activation=lambda: Sine(omega))
    assert layer_gains(mlp)["0"].gain == pytest.approx(1 / square, rel=5e-3)


@pytest.mark.parametrize("omega", [0.0, -1.0, math.inf, math.nan])
def test_a_sine_needs_a_positive_frequency(omega):
    with pytest.raises(ConfigError, match=rf"omega={omega} was given; .* positive, finite"):
        Sine(omega)


def test_unknown_functions_are_probed():
    record = classify(lambda t: 1 + torch.tanh(2 * t))
    assert (record.kind, record.constant, record.probed) == (Kind.FLIP, 2.0, True)
    assert record.name == "tests.networks.test_activations.<lambda>"
    assert math.isnan(record.lipschitz)
    record = measure("3", lambda t: 1 + torch.tanh(2 * t))
    assert record.lipschitz == pytest.approx(2.0, rel=1e-4)
    assert (record.at_zero, record.signs, record.probed) == (1.0, True, True)
    with pytest.raises(UnsupportedModuleError, match=r"layer '3' \(exp\) .* no Lipschitz constant"):
        measure("3", torch.exp)
    with pytest.raises(UnsupportedModuleError, match=r"layer '3' \(Softmax\) .* every entry alone"):
        measure("3", nn.Softmax(-1))
    with pytest.raises(UnsupportedModuleError, match=r"layer '3' \(sum\) .* changes the shape"):
        measure("3", torch.sum)


def test_functions_with_options_as_modules():
    assert repr(module_of(F.leaky_relu, 0.2)) == "LeakyReLU(negative_slope=0.2)"
    assert repr(module_of("relu_")) == "ReLU()"
    assert repr(module_of(F.threshold, 0.5, -1.0)) == "Threshold(threshold=0.5, value=-1.0)"
    assert repr(module_of(F.gelu, approximate="tanh")) == "GELU(approximate='tanh')"
    assert repr(module_of(torch.sin)) == "Sine(omega=1)"
    assert module_of(torch.erf) is None  # there is no module for it
    assert module_of(F.relu, 3, 4, 5) is None
    assert module_of(F.max_pool1d, 2) is None


# -- one row is known everywhere ------------------------------------------------------------------


class Shelf(nn.Module):
    """t on [-2, 2], flat beyond: odd, and affine between two kinks."""

    def forward(self, t):
        return t.clamp(-2, 2)


class Ramp(nn.Module):
    """Slope 3 to the right of zero, 1/2 to the left."""

    def forward(self, t):
        return torch.where(t > 0, 3 * t, t / 2)


SHELF = Activation(
    "shelf", Shelf(), (Shelf,), kind=Kind.SIGN, lipschitz=1.0, monotone=True, bound=2.0,
    pieces=Pieces((-2, 2), (0, 1, 0), (-2, 0, 2)),
)  # fmt: skip
RAMP = Activation(
    "ramp", Ramp(), (Ramp,), kind=Kind.SCALE, lipschitz=3.0, monotone=True, smoothness=math.inf,
    pieces=Pieces((0,), (0.5, 3), (0, 0)), gaussian={"name": "piecewise_linear", "positive": 3.0,
    "negative": 0.5},
)  # fmt: skip


@pytest.fixture(params=[SHELF, RAMP], ids=lambda row: row.name)
def row(request):
    with registered(request.param) as row:
        yield row
    assert row.name not in TABLE


def network(row):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), row.module(), nn.Linear(5, 1)).double()


def test_symmetry_knows_it(row):
    assert classify(row.module()) is row
    spec = wl.symmetry.read(network(row))
    assert spec.layers[0].activation == row.name
    assert spec.spaces["0"].kind is row.kind


def test_bounds_know_it(row):
    """Proven, where the same module without a row is measured."""
    net = network(row)
    chain = wl.bounds.read_chain(net)
    assert [activation.probed for activation in chain.activations] == [False]
    weights = [net[0].weight.detach(), net[2].weight.detach()]
    product = math.prod(float(torch.linalg.matrix_norm(w, 2)) for w in weights)
    assert wl.bounds.norms(net)["product 2"] == pytest.approx(row.lipschitz * product, rel=1e-9)


def test_pieces_know_it(row):
    net = network(row)
    low = torch.full((2,), -3.0, dtype=torch.float64)
    line = wl.construct.affine_pieces(net, low, -low)
    assert line.count > 1


def test_kernels_know_it(row):
    x = torch.randn(4, 3, dtype=torch.float64)
    by_name, by_module = Tower(2, row.name), Tower(2, row.module())
    if row.gaussian is None:
        with pytest.warns(RuntimeWarning, match="a kink"):
            torch.testing.assert_close(by_name(x), by_module(x), rtol=1e-12, atol=1e-12)
    else:
        torch.testing.assert_close(by_name(x), by_module(x), rtol=0, atol=0)
        assert by_name.homogeneous
    again = Tower.from_config(by_name.config())
    assert again.nonlinearity == by_name.nonlinearity


def test_initialisation_knows_it(row):
    mlp = wl.mlp([2, 5, 5, 1], activation=row.name)
    assert type(mlp[1]) is type(row.module())
    u = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0))
    square = float(evaluate(row.function, u).square().mean())
    assert layer_gains(mlp)["0"].gain == pytest.approx(1 / square, rel=5e-3)


def test_near_init_knows_it(row):
    from weightloom_papers.deep_learning_theory.near_init import Shallow, limit_kernel

    if math.isnan(row.smoothness):
        with pytest.raises(ConfigError, match=f"activation='{row.name}' is unknown"):
            Shallow.sample(8, 3, row.name)
        return
    net = Shallow.sample(20, 3, row.name)
    x = torch.randn(3, 3, dtype=torch.float64)
    torch.testing.assert_close(net.network()(x)[:, 0], net(x))
    both = limit_kernel(x, activation=row.name).diag() / x.square().sum(1)
    torch.testing.assert_close(both, torch.full_like(both, (3.0**2 + 0.5**2) / 2))


def test_before_it_is_registered_names_are_unknown():
    with pytest.raises(KernelError, match="unknown activation 'shelf'"):
        Tower(2, "shelf")
    assert lookup(Shelf()) is None
    assert "shelf" not in named_modules()


def test_register_refuses_what_is_taken():
    with pytest.raises(ConfigError, match="activation called 'relu' is already known"):
        register(Activation("relu", torch.relu))
    with pytest.raises(ConfigError, match="activation called 'swish' is already known"):
        register(Activation("own", torch.relu, aliases=("swish",)))
    with pytest.raises(ConfigError, match="activation called 'Tanh' is already known"):
        register(Activation("own", torch.tanh, (nn.Tanh,)))
    assert "own" not in TABLE


def replaced_forward():
    module = nn.ReLU()
    module.forward = lambda t: 5 * torch.relu(t)
    return module


def hooked():
    module = nn.ReLU()
    module.register_forward_hook(lambda module, given, output: 5 * output)
    return module


@pytest.mark.parametrize("make", [replaced_forward, hooked])
def test_a_changed_module_is_probed_not_looked_up(make):
    """It computes something else than its class, so the row of its class does not describe it."""
    assert lookup(make()) is None
    record = measure("1", make())
    assert record.probed
    assert record.lipschitz == pytest.approx(5)
