"""When the limits hold: both widths, Gaussian outputs, means, the setting of Section 5.1."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.kernels import X, Z
from weightloom_papers.infinite_width.claims.reference import (
    Form,
    SampledHypernetworks,
    hyperkernel,
)
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS"]

Widths = tuple[int, int]


# -- Figure 1: spread ------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelSpread:
    """Variance of K^h(u, u) over its squared mean, by widths (n, m)."""

    relative: dict[Widths, float]
    draws: int


def _measure_spread(size: Size) -> KernelSpread:
    small, large = 16, 400 if size == "quick" else 1000
    draws = 400 if size == "quick" else 800
    relative = {}
    for widths in ((small, small), (large, small), (small, large), (large, large)):
        kernel = SampledHypernetworks(X, Z, (2, 2), widths, draws).tangent()[:, 0, 0]
        relative[widths] = float(kernel.var() / kernel.mean().square())
    return KernelSpread(relative, draws)


def _spread(measured: KernelSpread, wide: tuple[bool, bool]) -> Evidence:
    """Variance with f, g or both wide, over the variance of narrow networks."""
    narrow, large = min(measured.relative)[0], max(measured.relative)[0]
    widths = (large if wide[0] else narrow, large if wide[1] else narrow)
    ratio = measured.relative[widths] / measured.relative[narrow, narrow]
    values = ", ".join(f"({n}, {m}): {v:.3g}" for (n, m), v in measured.relative.items())
    at = f"L = H = 2, {measured.draws} draws: relative variance of K^h(u, u) at widths {values}"
    return Evidence(ratio, 0.1, at)


def _only_both(measured: KernelSpread) -> Evidence:
    both = _spread(measured, (True, True))
    single = min(_spread(measured, wide).seen for wide in ((True, False), (False, True)))
    return Evidence(both.seen + (single < 0.1), both.allowed, both.at)


BOTH_WIDE = PaperClaim(
    name="infinite-width/both-widths",
    place="Figure 1 (a), A.1",
    items=(16, 13),
    measure=_measure_spread,
    printed=Statement(
        "the variance of the kernel goes to zero only when the widths of f and g both grow "
        "(checked: below a tenth with both, not with either alone)",
        _only_both,
    ),
    wrong=Statement("a wide f is enough", lambda measured: _spread(measured, (True, False))),
)


# -- Theorem 2: Gaussian outputs -------------------------------------------------------------------


@dataclass(frozen=True)
class OutputTails:
    """Kurtosis of h(u) and its standard error, by widths."""

    kurtosis: dict[Widths, float]
    error: dict[Widths, float]


@functools.cache
def _measure_tails(size: Size) -> OutputTails:
    """Given all but the last layer h is Gaussian of variance v: kurtosis 3 E v^2 / (E v)^2."""
    draws, wide = (2000, 200) if size == "quick" else (8000, 500)
    kurtosis, error = {}, {}
    for widths in ((wide, wide), (wide, 4)):
        parts = [
            SampledHypernetworks(X, Z, (2, 2), widths, 500).prior()[:, 0, 0]
            for _ in range(draws // 500)
        ]
        v = torch.cat(parts)
        v = v / v.mean()
        kurtosis[widths] = 3 * float(v.square().mean())
        # the mean is estimated too: the ratio's error, to first order
        _, noise = mean_and_error(3 * (v.square() - 2 * v.square().mean() * v))
        error[widths] = float(noise)
    return OutputTails(kurtosis, error)


def _tails(measured: OutputTails, narrow: bool, wanted: float, extra: float) -> Evidence:
    widths = min(measured.kurtosis) if narrow else max(measured.kurtosis)
    value, noise = measured.kurtosis[widths], measured.error[widths]
    at = f"L = H = 2, widths {widths}: kurtosis {value:.2f} +- {noise:.2f} against {wanted:.4g}"
    return Evidence(abs(value - wanted), 4 * noise + extra, at)


def _finite(measured: OutputTails, both: bool) -> float:
    """Relative effect of finite widths: v ~ S^2, and S has relative variance 5 / n.

    A fifth is added for terms of higher order.
    """
    n, m = max(measured.kurtosis)
    return 1.2 * (20 / n + (5 / m if both else 0))


GAUSSIAN = PaperClaim(
    name="infinite-width/gaussian-outputs",
    place="Theorem 2, Eq. 7",
    items=(7,),
    measure=_measure_tails,
    printed=Statement(
        "outputs tend to Gaussians as n, then m grow (checked: kurtosis 3, up to what finite "
        "widths add)",
        lambda measured: _tails(measured, False, 3.0, 3 * _finite(measured, True)),
    ),
    wrong=Statement(
        "a wide f is enough (m = 4)",
        lambda measured: _tails(measured, True, 3.0, 3 * _finite(measured, False)),
    ),
)

NARROW = PaperClaim(
    name="infinite-width/narrow-g",
    place="Section 4.1",
    items=(7, 16),
    measure=_measure_tails,
    printed=Statement(
        "with f wide and g of width m, h is a mixture and not Gaussian: for H = 2 its kurtosis is "
        "3 (1 + 5/m)",
        lambda measured: _tails(measured, True, 6.75, 6.75 * _finite(measured, False)),
    ),
    wrong=Statement(
        "its kurtosis is 3 (1 + 2/m)",
        lambda measured: _tails(measured, True, 4.5, 4.5 * _finite(measured, False)),
    ),
)


# -- A.1: the mean ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanOfKernel:
    """Mean of K^h(u, u') at L = H = 4, x = x' = (1, 0), and its standard error, by widths."""

    mean: dict[Widths, float]
    error: dict[Widths, float]
    limit: float


CONDITION = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)


def _at(angle: float) -> Tensor:
    rows = [[1.0, 0.0], [math.cos(angle), math.sin(angle)]]
    return torch.tensor(rows, dtype=torch.float64)


def _measure_mean(size: Size) -> MeanOfKernel:
    z, mean, error = _at(0.5), {}, {}
    rounds_by_width = {(100, 10): 3} if size == "quick" else {(100, 10): 10, (500, 10): 10}
    for widths, rounds in rounds_by_width.items():
        parts = [
            SampledHypernetworks(CONDITION, z, (4, 4), widths, 500).tangent()[:, 0, 1]
            for _ in range(rounds)
        ]
        value, noise = mean_and_error(torch.cat(parts))
        mean[widths], error[widths] = float(value), float(noise)
    return MeanOfKernel(mean, error, float(hyperkernel(CONDITION, z, (4, 4))[0, 1]))


def _means_text(measured: MeanOfKernel) -> str:
    rows = ", ".join(
        f"{w}: {measured.mean[w]:.3f} +- {measured.error[w]:.3f}" for w in measured.mean
    )
    return (
        f"L = H = 4, x = (1, 0), angle 0.5, mean kernel at widths {rows}; limit "
        f"{measured.limit:.3f}"
    )


def _mean(measured: MeanOfKernel, factor: float) -> Evidence:
    wanted = factor * measured.limit
    off = max(abs(measured.mean[w] - wanted) / measured.error[w] for w in measured.mean)
    return Evidence(off, 4, _means_text(measured))


MEAN = PaperClaim(
    name="infinite-width/mean-of-the-kernel",
    place="A.1",
    items=(17,),
    measure=_measure_mean,
    printed=Statement(
        "the mean of the empirical kernel equals the limit at finite widths of g too (checked: g "
        "of width 10, f of width 100, and 500 in the full run)",
        lambda measured: _mean(measured, 1.0),
    ),
    corrected=Statement(
        "it is larger, by a factor that tends to 1 as f grows wide (checked: more than 1.3 times "
        "the limit at width 100, less at 500)",
        lambda measured: Evidence(
            max(1.3 * measured.limit, measured.mean.get((500, 10), 0.0)),
            measured.mean[100, 10] - 4 * measured.error[100, 10],
            _means_text(measured),
        ),
    ),
    wrong=Statement("it is larger by 5 percent", lambda measured: _mean(measured, 1.05)),
)


# -- Section 5.1 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FormulaDistance:
    """The mean kernel with its error, and the values of two formulas, by condition x."""

    mean: dict[str, float]
    error: dict[str, float]
    with_s: dict[str, float]
    without: dict[str, float]


def _measure_visible(size: Size) -> FormulaDistance:
    values = FormulaDistance({}, {}, {}, {})
    widths, draws = (500, 500), 100 if size == "quick" else 400
    z = _at(0.5)
    for name, row in (("(1, -1)", [1.0, -1.0]), ("(1, 0)", [1.0, 0.0]), ("(1, 1)", [1.0, 1.0])):
        x = torch.tensor([row, row], dtype=torch.float64)
        mean, error = mean_and_error(
            SampledHypernetworks(x, z, (4, 4), widths, draws).tangent()[:, 0, 1]
        )
        values.mean[name], values.error[name] = float(mean), float(error)
        values.with_s[name] = float(hyperkernel(x, z, (4, 4))[0, 1])
        values.without[name] = float(hyperkernel(x, z, (4, 4), Form(backward=0))[0, 1])
    return values


def _visible(measured: FormulaDistance, name: str) -> Evidence:
    """Seen: four standard errors; allowed: the distance of the two formulas."""
    apart = abs(measured.with_s[name] - measured.without[name])
    at = (
        f"x = {name}, L = H = 4, angle 0.5: {measured.mean[name]:.3f} +- "
        f"{measured.error[name]:.3f}; the "
        f"formula with factors S says {measured.with_s[name]:.3f}, the printed one without "
        f"{measured.without[name]:.3f}"
    )
    return Evidence(4 * measured.error[name], apart, at)


SECTION_5_1 = PaperClaim(
    name="infinite-width/section-5-1-input",
    place="Section 5.1, Figure 1",
    items=(15,),
    measure=_measure_visible,
    printed=Statement(
        "the experiment with x = (1, -1) verifies Theorem 3 (checked: it can tell its formula with "
        "the factors S from the one without)",
        lambda measured: _visible(measured, "(1, -1)"),
    ),
    corrected=Statement(
        "with x = (1, -1) S = 1 and it cannot; with x = (1, 0), as in the figure, it can",
        lambda measured: _visible(measured, "(1, 0)"),
    ),
    wrong=Statement("with x = (1, 1) it can", lambda measured: _visible(measured, "(1, 1)")),
)


@dataclass(frozen=True)
class AngleKernels:
    """Mean normalised kernel between z(t) and z(t), and between z(0) and z(t); a standard error."""

    both: tuple[float, ...]
    single: tuple[float, ...]
    error: float
    angles: tuple[float, ...]


def _measure_angles(size: Size) -> AngleKernels:
    """Kernels are divided by sqrt(K(0, 0) K(t, t)) draw by draw, which removes most noise."""
    angles = (0.0, 0.5, 1.0, 1.5)
    draws, both, single, errors = 60 if size == "quick" else 300, [], [], []
    for angle in angles:
        kernel = SampledHypernetworks(CONDITION, _at(angle), (4, 4), (500, 500), draws).tangent()
        scale = (kernel[:, 0, 0] * kernel[:, 1, 1]).sqrt()
        mean, error = mean_and_error(kernel[:, 0, 1] / scale)
        single.append(float(mean))
        both.append(float((kernel[:, 1, 1] / kernel[:, 0, 0]).mean()))
        errors.append(float(error))
    return AngleKernels(tuple(both), tuple(single), max(errors), angles)


def _follows(measured: AngleKernels, values: tuple[float, ...]) -> Evidence:
    """Against the limit between z(0) and z(angle), which is the figure's curve."""
    limits = [hyperkernel(CONDITION, _at(a), (4, 4)) for a in measured.angles]
    wanted = [float(k[0, 1] / (k[0, 0] * k[1, 1]).sqrt()) for k in limits]
    off = max(abs(v - w) for v, w in zip(values, wanted, strict=True))
    at = "L = H = 4, widths 500, K / sqrt(K K) at angles 0, 0.5, 1, 1.5: "
    at += ", ".join(f"{v:.3f}" for v in values)
    limit = ", ".join(f"{w:.3f}" for w in wanted)
    # widths of 500 change a ratio by a few times 1 / 500
    return Evidence(
        off, 5 * measured.error + 0.02, f"{at}; limit {limit} (+- {measured.error:.3f})"
    )


EQ_17 = PaperClaim(
    name="infinite-width/eq-17",
    place="Eq. 17, Figure 1 (b)",
    items=(15,),
    measure=_measure_angles,
    printed=Statement(
        "the curve of Figure 1 (b) is grad h(x, z(t)) . grad h(x, z(t)), with one angle twice",
        lambda measured: _follows(measured, measured.both),
    ),
    corrected=Statement(
        "it is grad h(x, z(0)) . grad h(x, z(t)); with one angle twice the kernel does not depend "
        "on it",
        lambda measured: _follows(measured, measured.single),
    ),
    wrong=Statement(
        "it is proportional to 1 + cos(t)",
        lambda measured: _follows(measured, tuple((1 + math.cos(a)) / 2 for a in measured.angles)),
    ),
)


# -- scale, and the derivative of ReLU -------------------------------------------------------------


@torch.no_grad()
def _measure_scale(size: Size) -> dict[float, tuple[float, float]]:
    """Mean square of outputs over |x|^2 / n_0 after 4 matrices, by leak, with standard errors."""
    draws, width, means = 100 if size == "quick" else 2000, 200, {}
    for leak in (0.0, 0.2, 0.5):
        q = X[0].expand(draws, 1, 3)
        for out in (width, width, width, 1):
            size_ = q.square().mean(-1, keepdim=True)  # rows of W are independent given q
            y = torch.randn(draws, 1, out, dtype=torch.float64) * size_.sqrt()
            if out > 1:
                q = math.sqrt(2) * nn.functional.leaky_relu(y, leak)
        conditional = q.square().mean(-1)[:, 0] / X[0].square().mean()
        mean, error = mean_and_error(conditional)
        means[leak] = (float(mean), float(error))
    return means


def _scale(measured: dict[float, tuple[float, float]], power: int) -> Evidence:
    off = {a: abs(mean - (1 + a * a) ** power) / error for a, (mean, error) in measured.items()}
    leak, worst = max(off.items(), key=lambda pair: pair[1])
    values = ", ".join(f"slope {a:g}: {m:.3f} +- {e:.3f}" for a, (m, e) in measured.items())
    at = f"mean square after three layers of width 200 over that of the input: {values}"
    return Evidence(worst, 5, f"{at}; worst at slope {leak:g}")


SCALE = PaperClaim(
    name="infinite-width/ntk-scale",
    place="Eq. 2",
    items=(1,),
    measure=_measure_scale,
    printed=Statement(
        "the factors 1/sqrt(n) and sqrt(2) keep the scale of activations, for ReLU and for leaky "
        "ReLU of slope a",
        lambda measured: _scale(measured, 0),
    ),
    corrected=Statement(
        "they do for ReLU; leaky ReLU multiplies the mean square by 1 + a^2 in each layer",
        lambda measured: _scale(measured, 3),
    ),
    wrong=Statement("by (1 + a^2) once, however many layers", lambda measured: _scale(measured, 1)),
)


@functools.cache
def _measure_slope(size: Size) -> tuple[tuple[float, float], ...]:
    """Pairs (x, difference quotient of ReLU at x), x further from 0 than the step."""
    x = torch.randn(100 if size == "quick" else 10_000, dtype=torch.float64)
    x = x[x.abs() > 1e-3]
    quotient = (torch.relu(x + 1e-4) - torch.relu(x - 1e-4)) / 2e-4
    return tuple(zip(x.tolist(), quotient.tolist(), strict=True))


def _slope_is(measured: tuple[tuple[float, float], ...], below: float, above: float) -> Evidence:
    off = [(abs(d - (above if x > 0 else below)), x, d) for x, d in measured]
    worst, x, d = max(off)
    return Evidence(worst, 1e-9, f"{len(measured)} points: at {x:.3f} the slope of ReLU is {d:.6f}")


RELU_SLOPE = PaperClaim(
    name="infinite-width/derivative-of-relu",
    place="Lemma 1, Eqs. 65 and 68",
    items=(18,),
    measure=_measure_slope,
    printed=Statement(
        "the derivative of ReLU is sgn(x) = x / |x|",
        lambda measured: _slope_is(measured, -1.0, 1.0),
    ),
    corrected=Statement(
        "it is the step, 0 below and 1 above zero", lambda measured: _slope_is(measured, 0.0, 1.0)
    ),
    wrong=Statement("it is (1 + sgn(x)) / 4", lambda measured: _slope_is(measured, 0.0, 0.5)),
)

CLAIMS = (
    BOTH_WIDE, GAUSSIAN, NARROW, MEAN, SECTION_5_1, EQ_17, SCALE, RELU_SLOPE,
)  # fmt: skip
