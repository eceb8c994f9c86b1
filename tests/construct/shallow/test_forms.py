"""Infinite-width forms: equal to their functions by quadrature, unbiased by sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import nn

from weightloom.construct import Box
from weightloom.construct.shallow import (
    BarronForm,
    Cosine,
    CosineForm,
    GaussianSpectrum,
    NumericSpectrum,
    Threshold,
    ThresholdForm,
    gaussian_form,
    sampling_law,
)
from weightloom.construct.shallow.cells import Cells
from weightloom.construct.shallow.spectrum import swept
from weightloom.errors import ConfigError

TURN = 2 * math.pi


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sine(offset=0.0):
    return ThresholdForm(lambda b: TURN * (TURN * b[:, 0]).cos(), offset)


def odd(w):
    """Transform of x exp(-pi x^2)."""
    return -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp()


def odd_function(x):
    return x[:, 0] * (-math.pi * x[:, 0] ** 2).exp()


def bumps(w):
    """Transform of two Gaussians in the plane, at (0.3, -0.2) and (-0.5, 0.1): with a phase."""
    shape = (-2 * math.pi**2 * 0.25 * w.square().sum(-1)).exp() * (TURN * 0.25)
    turns = [(w * torch.tensor(c, dtype=w.dtype)).sum(-1) for c in ((0.3, -0.2), (-0.5, 0.1))]
    waves = [torch.polar(torch.ones_like(t), -TURN * t) for t in turns]
    return shape * (waves[0] - 0.5 * waves[1])


def bumps_function(x):
    near = [
        (x - torch.tensor(c, dtype=x.dtype)).square().sum(-1) for c in ((0.3, -0.2), (-0.5, 0.1))
    ]
    return (-near[0] / 0.5).exp() - 0.5 * (-near[1] / 0.5).exp()


def disc(count, dims, seed=0, radius=1.0):
    g = generator(seed)
    x = torch.randn(count, dims, dtype=torch.float64, generator=g)
    size = torch.rand(count, 1, dtype=torch.float64, generator=g) ** (1 / dims)
    return radius * size * x / x.norm(dim=-1, keepdim=True)


FORMS = {
    "threshold": (sine, lambda x: (TURN * x[:, 0]).sin(), 1),
    "cosine, odd": (lambda: CosineForm(NumericSpectrum(odd, 1, 5.0)), odd_function, 1),
    "cosine, gaussian": (
        lambda: CosineForm(GaussianSpectrum(4, 0.5, 2.0)),
        lambda x: 2 * (-2 * x.square().sum(-1)).exp(),
        4,
    ),
    "barron, odd": (lambda: BarronForm(NumericSpectrum(odd, 1, 5.0)), odd_function, 1),
    "barron, bumps": (
        lambda: BarronForm(NumericSpectrum(bumps, 2, 2.0, cells=48)), bumps_function, 2,
    ),
    "barron, gaussian": (
        lambda: gaussian_form(3, 0.6),
        lambda x: (-x.square().sum(-1) / 0.72).exp(),
        3,
    ),
    "barron, negative gaussian in 8 dimensions": (
        lambda: gaussian_form(8, 0.7, -1.5),
        lambda x: -1.5 * (-x.square().sum(-1) / 0.98).exp(),
        8,
    ),
}  # fmt: skip


def places(name, dims, count=7):
    x = disc(count, dims)
    return x.abs() if name == "threshold" else x


@pytest.mark.parametrize("name", FORMS)
def test_sampled_networks_are_unbiased(name):
    """The mean of many small networks is the function, within standard errors of the mean."""
    make, function, dims = FORMS[name]
    form, x, g = make(), places(name, dims), generator(1)
    # One network of m neurons is the mean of m independent ones of one neuron.
    m = 20_000
    with torch.no_grad():
        first, activation, last = form.sample(m, g)
        each = activation(first(x)) * last.weight * m + form.offset  # [points, m]
    off = (each.mean(-1) - function(x)).abs()
    sure = each.std(-1) / math.sqrt(m)
    assert (off <= 4.5 * sure + 1e-9).all()
    assert (sure > 0).all()
    assert each.sub(form.offset).abs().max() <= form.mass * (1 + 1e-9)  # neurons of size 1


@pytest.mark.parametrize("name", [n for n in FORMS if "4" not in n and "8" not in n])
def test_forms_equal_their_functions(name):
    make, function, dims = FORMS[name]
    if "gaussian" in name:  # the same in the plane, where quadrature over w is quick
        dims = 2
        form = (
            gaussian_form(dims, 0.6)
            if "barron" in name
            else CosineForm(GaussianSpectrum(2, 0.6, 1.0))
        )
        function = lambda x: (-x.square().sum(-1) / 0.72).exp()  # noqa: E731
    else:
        form = make()
    x = places(name, dims, 20)
    assert torch.allclose(form.evaluate(x), function(x), atol=2e-7)


def test_proposition_2_8_against_quadrature():
    """The integral of g'(b) 1[x >= b], written as printed."""
    form = sine()
    for x in (0.0, 0.13, 0.5, 0.77, 1.0):
        brute, _ = integrate.quad(
            lambda b, x=x: TURN * math.cos(TURN * b) * (x >= b), 0, 1, points=[x], epsabs=1e-12
        )
        point = torch.tensor([[x]], dtype=torch.float64)
        assert form.evaluate(point).item() == pytest.approx(brute, abs=1e-10)
        assert brute == pytest.approx(math.sin(TURN * x), abs=1e-10)
    assert form.mass == pytest.approx(4.0, abs=1e-9)


def test_offset_and_interval():
    form = ThresholdForm(lambda b: 2 * b[:, 0], offset=9.0, domain=Box((-3.0,), (2.0,)))
    x = torch.linspace(-3, 2, 11, dtype=torch.float64)[:, None]
    assert torch.allclose(form.evaluate(x), x[:, 0] ** 2)
    assert form.mass == pytest.approx(13.0)
    net = form.sample(50, generator(), dtype=torch.float32)
    assert net[2].bias.item() == 9.0
    assert net[0].weight.dtype == torch.float32
    assert isinstance(net[1], Threshold)
    assert net(torch.tensor([[-3.1]])).item() == 9.0


def test_flat_parts_get_no_neuron():
    ramp = ThresholdForm(lambda b: 10.0 * ((b[:, 0] > 0.45) & (b[:, 0] < 0.55)))
    starts = -ramp.sample(1000, generator())[0].bias
    assert ((starts > 0.449) & (starts < 0.551)).all()
    assert ramp.mass == pytest.approx(1.0, abs=2e-3)  # the cells cut at the jumps


def test_the_sum_without_1_over_m_is_m_times_too_large():
    """Section 2.4's opening sketch: sum_j s_j mass V_j. Its mean is m g."""
    form, m = sine(), 8
    x = torch.tensor([[0.25]], dtype=torch.float64)
    with torch.no_grad():
        printed = torch.tensor(
            [m * form.sample(m, generator(seed))(x).item() for seed in range(400)]
        )
    sure = printed.std().item() / 20
    assert printed.mean().item() == pytest.approx(m, abs=4 * sure)
    assert abs(printed.mean().item() - 1) > 10 * sure


def test_density_of_theorem_2_12_against_double_quadrature():
    """g(x) = double integral of q(w, b) 1[w.x >= b], by brute force over b and w."""
    form = BarronForm(NumericSpectrum(odd, 1, 5.0))

    def q(b, w):
        pair = (torch.tensor([[w]], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))
        return form.density(*pair).item()

    for x in (0.4, -0.9):
        total = 0.0
        at, weights = np.polynomial.legendre.leggauss(40)
        for half in (-1, 1):  # the phase jumps at w = 0
            for w, share in zip(half * 1.5 * (at + 1), 1.5 * weights, strict=True):
                top = min(max(w * x, 0.0), abs(w))  # the b with w x >= b
                b = top * (at + 1) / 2
                values = [q(place, w) for place in b[weights > 0]]
                total += share * top / 2 * float(np.dot(values, weights))
        assert total == pytest.approx(x * math.exp(-math.pi * x * x), abs=1e-6)
    # q as printed, with both phases, is -4 pi |g~| sin(2 pi (b + theta)).
    w, b = torch.tensor([[0.7], [-1.3]], dtype=torch.float64), torch.tensor([0.2, 1.1]).double()
    spectrum = form.spectrum
    bracket = (TURN * (spectrum.phase(-w) - b)).sin() - (TURN * (b + spectrum.phase(w))).sin()
    assert torch.allclose(form.density(w, b), TURN * spectrum.magnitude(w) * bracket)
    assert form.density(w, w[:, 0].abs() + 0.01).tolist() == [0.0, 0.0]


def test_2_11_is_not_pointwise():
    """For one w the last line of (2.11) is not the first: only their integrals over w agree."""
    theta = 0.0
    for wx, left, right in ((-0.25, -1.0, 0.0), (0.25, -1.0, -2.0)):
        first = math.cos(TURN * (wx + theta)) - math.cos(TURN * theta)
        last, _ = integrate.quad(
            lambda b: TURN * (math.sin(TURN * (-b - theta)) - math.sin(TURN * (b + theta))),
            0,
            max(wx, 0.0),
        )
        assert first == pytest.approx(left)
        assert last == pytest.approx(right)
    # w and -w together: -1 - 1 = 0 - 2.


def test_mass_of_the_odd_example():
    """4/pi up to 2.3e-6, by the Fourier series of |cos 2 pi w|: its mean is 2/pi, the rest tiny."""
    spectrum = NumericSpectrum(odd, 1, 5.0)
    form = BarronForm(spectrum)
    series = 1 + 2 * sum(
        (-1) ** (k + 1) * math.exp(-4 * math.pi * k * k) / (4 * k * k - 1) for k in (1, 2, 3)
    )
    assert form.mass == pytest.approx(4 / math.pi * series, rel=1e-7)
    assert form.mass == pytest.approx(4 / math.pi, rel=3e-6)
    assert form.mass <= 2 * spectrum.barron_norm() == pytest.approx(2.0, rel=1e-6)


def test_swept_is_the_integral_of_abs_sin():
    for t in (-1.3, -0.2, 0.0, 0.4, 0.5, 2.77):
        brute, _ = integrate.quad(
            lambda s: abs(math.sin(TURN * s)), 0, t, points=[-1, -0.5, 0.5, 1, 1.5, 2], limit=200
        )
        assert swept(torch.tensor(t, dtype=torch.float64)).item() == pytest.approx(brute, abs=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_radial_mass_against_cells(dims):
    """The mass of a Gaussian's thresholds over |w| alone, and over all of w."""
    spectrum = GaussianSpectrum(dims, 0.4, 1.0)
    over_all = super(GaussianSpectrum, spectrum).threshold_mass(1.3)
    assert spectrum.threshold_mass(1.3) == pytest.approx(over_all, rel=1e-4)
    assert spectrum.threshold_mass(1.3) <= 2 * 1.3 * spectrum.barron_norm()


@pytest.mark.parametrize("name", ["threshold", "cosine, odd", "barron, odd"])
def test_expected_errors_are_exact(name):
    """(E |V|^2 - |EV|^2) / m against the mean over sampled networks."""
    make, _, dims = FORMS[name]
    form, x = make(), places(name, dims, 60)
    (row,) = sampling_law(form, [16], x, trials=300, generator=generator(3), tight=True)
    expected = form.expected_error(16, x)
    assert row.error == pytest.approx(expected, abs=4 * row.standard_error)
    assert expected < row.bound == form.bound(16, x) <= form.bound(16)


def test_radius():
    """Twice the radius: the same function further out."""
    form = BarronForm(NumericSpectrum(odd, 1, 5.0), radius=2.0)
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    assert torch.allclose(form.evaluate(x), odd_function(x), atol=2e-6)
    unit_ball = BarronForm(NumericSpectrum(odd, 1, 5.0))
    with pytest.raises(ConfigError, match=r"norm 2, but the form holds for norms up to radius=1"):
        unit_ball.evaluate(x)
    # Beyond the radius the sampled network has another mean: the condition |x| <= 1 is needed.
    with torch.no_grad():
        far = torch.tensor([[1.6]], dtype=torch.float64)
        first, step, last = unit_ball.sample(40_000, generator())
        each = step(first(far)) * last.weight * 40_000
    off = abs(each.mean().item() - odd_function(far).item())
    assert off > 7 * each.std().item() / 200


def test_networks_are_plain_modules():
    net = CosineForm(GaussianSpectrum(3, 1.0)).sample(10, generator(), torch.float32)
    assert [type(layer) for layer in net] == [nn.Linear, Cosine, nn.Linear]
    assert net(torch.zeros(2, 3)).shape == (2, 1)


def test_cells_draw_the_density():
    """Against the cumulative distribution of x^2 on [0, 1]: largest gap below the 1e-4 quantile."""
    samples = (
        Cells(Box((0.0,), (1.0,)), 7)
        .density(lambda x: x[:, 0] ** 2)
        .sample(20_000, generator())[:, 0]
    )
    empirical = torch.arange(1, 20_001, dtype=torch.float64) / 20_000
    gap = (samples.sort().values ** 3 - empirical).abs().max().item()
    assert gap < 2.23 / math.sqrt(20_000)


def test_bad_input():
    with pytest.raises(ConfigError, match="0 neurons were asked for"):
        sine().sample(0, generator())
    with pytest.raises(ConfigError, match="zero everywhere; there is nothing to sample"):
        ThresholdForm(lambda b: 0 * b[:, 0]).sample(3, generator())
    with pytest.raises(ConfigError, match=r"points have shape \[3\]; wanted \[n, 1\]"):
        sine().evaluate(torch.zeros(3))
    with pytest.raises(ConfigError, match=r"radius=0\.0 was given"):
        gaussian_form(2, 1.0, radius=0.0)
    with pytest.raises(ConfigError, match="quadrature in 5 dimensions is out of reach"):
        gaussian_form(5, 1.0).evaluate(torch.zeros(1, 5))
    with pytest.raises(ConfigError, match=r"returned shape \[\d+, 1\] for \d+ points"):
        ThresholdForm(lambda b: b)
    with pytest.raises(ConfigError, match=r"the function is inf at \["):
        ThresholdForm(lambda b: b[:, 0] / 0)
    with pytest.raises(ConfigError, match="a density is -1 somewhere"):
        Cells(Box.cube(1)).density(lambda x: x[:, 0])
    spike = lambda x: (-((x[:, 0] - 0.3) ** 2) / 0.001).exp()  # noqa: E731
    with pytest.raises(ConfigError, match="times what was seen in its cell; give more cells"):
        Cells(Box((0.0,), (1.0,)), 1).density(spike).sample(1000, generator())
    with pytest.raises(ConfigError, match="cells=0 was given"):
        Cells(Box.cube(1), 0)
    with pytest.raises(ConfigError, match="the domain has 2 dimensions; an interval"):
        ThresholdForm(lambda b: b[:, 0], domain=Box.cube(2))
