"""Lower bounds on size: the bump functions of Lemma 15, and networks that refute Theorem 2.

Theorem 2 says that a class of networks that comes within eps of all of W_{1,1} has at least c / eps
parameters. `write` gives networks with order eps^(-1/2) of them (the idea is Yarotsky's, 2018):

- The line is cut into K groups of K cells. One wide layer looks up, for the group of x, a starting
  value and a number whose digits to base 4 are the K steps (down, level, up) of y along its cells.
- K pairs of narrow layers read one digit after another and add them up. That is O(K) parameters for
  K^2 cells of width 1 / K^2.
- Near the border of two groups the look-up is wrong. So three such networks are built, with shifted
  borders, and their median is taken.

The activation is the clipped ReLU, one of those the paper names for its theorem.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.data import BumpTarget, FourierTarget
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.lab.statistics import power_law
from weightloom_papers.modularity.claims.targets import sobolev_norm

__all__ = ["CLAIMS", "Clipped", "MedianOfThree", "write"]


# -- Lemma 15: cubes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cubes:
    """Share of [-1, 1]^m that d^m cubes of side 1 / d (as printed) or 2 / d cover, by (m, d)."""

    printed: dict[tuple[int, int], float]
    doubled: dict[tuple[int, int], float]
    points: int


def _measure_cubes(size: Size) -> Cubes:
    points = 20_000 if size == "quick" else 1_000_000
    printed, doubled = {}, {}
    for m, d in itertools.product((1, 2, 3), (2, 4)):
        x = 2 * torch.rand(points, m, dtype=torch.float64) - 1
        # d cubes along each axis, side by side from the corner (-1, ..., -1)
        printed[m, d] = float(((x + 1) * d <= d).all(1).double().mean())
        doubled[m, d] = float(((x + 1) * d / 2 <= d).all(1).double().mean())
    return Cubes(printed, doubled, points)


def _covered(measured: Cubes, shares: dict[tuple[int, int], float]) -> Evidence:
    off = {key: abs(share - 1) for key, share in shares.items()}
    (m, d), worst = max(off.items(), key=lambda pair: pair[1])
    at = (
        f"m = {m}, d = {d}, {measured.points:,} random points: {d**m} cubes cover "
        f"{shares[m, d]:.4g}"
    )
    # four standard errors of a share, at most 1/2 / sqrt(points) each
    return Evidence(worst, 2 / math.sqrt(measured.points), f"{at} of [-1, 1]^m")


CUBES = PaperClaim(
    name="modularity/bump-cubes",
    place="Lemma 15, proof",
    items=(21,),
    measure=_measure_cubes,
    printed=Statement(
        "N = d^m closed cubes of side 1/d are a partition of [-1, 1]^m",
        lambda measured: _covered(measured, measured.printed),
    ),
    corrected=Statement(
        "N = d^m cubes of side 2/d are",
        lambda measured: _covered(measured, measured.doubled),
    ),
    wrong=Statement(
        "d^m cubes of side 1/d cover half of [-1, 1]^m, whatever m",
        lambda measured: _covered(
            measured, {(m, d): s * 2 for (m, d), s in measured.printed.items()}
        ),
    ),
)


# -- Lemma 15: norms -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BumpNorms:
    """||y||_r / ||y||_inf for sums of bumps, by (m, r): one number for each d in ``pieces``."""

    pieces: tuple[int, ...]
    ratios: dict[tuple[int, int], tuple[float, ...]]


def _bumps(x: Tensor, d: int, heights: Tensor) -> Tensor:
    """sum_j c_j phi(position in cube j), phi(z) = prod_i cos^4(pi z_i / 2), which is in C^2."""
    scaled = (x + 1) * (d / 2)
    cube = scaled.detach().floor().clamp(0, d - 1)
    z = 2 * (scaled - cube) - 1
    phi = (z[..., 0] * (math.pi / 2)).cos() ** 4
    index = cube[..., 0].long()
    for i in range(1, x.shape[-1]):
        phi = phi * (z[..., i] * (math.pi / 2)).cos() ** 4
        index = index * d + cube[..., i].long()
    return heights[index] * phi


def _measure_growth(size: Size) -> BumpNorms:
    pieces = (2, 4, 8, 16) if size == "quick" else (2, 4, 8, 16, 32)
    ratios = {}
    for m, r in itertools.product((1, 2), (1, 2)):
        norms = []
        for d in pieces:
            heights = 2 * torch.rand(d**m, dtype=torch.float64) - 1
            heights[0] = 1.0
            points = d * (40 if m == 1 else 16) + 1

            def y(x: Tensor, d: int = d, heights: Tensor = heights) -> Tensor:
                return _bumps(x, d, heights)

            norms.append(sobolev_norm(y, m, r, points))  # the largest value is 1
        ratios[m, r] = tuple(norms)
    return BumpNorms(pieces, ratios)


def _exponents(measured: BumpNorms, per_order: float) -> Evidence:
    """Growth against N^(r/m) = d^r at the last doubling, where the highest derivatives dominate."""
    pieces = measured.pieces[-2:]
    exponents = {key: power_law(pieces, values[-2:]) for key, values in measured.ratios.items()}
    off = {(m, r): abs(p - per_order * r) for (m, r), p in exponents.items()}
    worst = max(off.values())
    at = ", ".join(f"m = {a}, r = {b}: {p:.3f}" for (a, b), p in exponents.items())
    # lower derivatives bend the line: a share of about 1 / d of the whole
    allowed = 2 / math.log(2) / measured.pieces[-2]
    return Evidence(worst, allowed, f"exponent of d in ||y||_r / ||y||_inf for random bumps: {at}")


NORMS = PaperClaim(
    name="modularity/bump-norms",
    place="Lemma 15, Eqs. 80 to 86",
    items=(21,),
    measure=_measure_growth,
    printed=Statement(
        "sums of N = d^m bumps have ||y||_r of order N^(r/m) ||y||_inf, from above and from below",
        lambda measured: _exponents(measured, 1.0),
    ),
    wrong=Statement(
        "of order N^(r/(2m)) ||y||_inf",
        lambda measured: _exponents(measured, 0.5),
    ),
)


# -- Lemma 15: distances ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Distances:
    """All signed sums of bumps of one height: how many there are, and their least distance."""

    count: int
    cubes: int
    least: float
    height: float
    steepest: float


def _measure_distances(size: Size) -> Distances:
    y = BumpTarget(1, 1, pieces=2 if size == "quick" else 3)
    axis = torch.linspace(-1, 1, 25, dtype=torch.float64)
    points = torch.cat([torch.cartesian_prod(axis, axis), y.centres()])
    cubes = y.pieces**2
    functions = []
    for signs in itertools.product((-1, 1), repeat=cubes):
        y.signs = torch.tensor(signs, dtype=torch.int8)
        functions.append(y.at(points))
    values = torch.stack(functions)
    apart = torch.cdist(values, values, p=math.inf)
    apart.fill_diagonal_(math.inf)
    pairs = torch.cdist(points, points, p=math.inf)
    moved = (values[-2][:, None] - values[-2][None]).abs()
    steepest = float((moved[pairs > 0] / pairs[pairs > 0]).max())
    return Distances(len(values), cubes, float(apart.min()), y.height, steepest)


def _separated(measured: Distances, heights: float) -> Evidence:
    at = (
        f"{measured.count} functions with {measured.cubes} bumps of height "
        f"{measured.height:.3g} and slope "
        f"{measured.steepest:.3g}: any two are at least {measured.least:.4g} apart"
    )
    return Evidence(heights * measured.height, measured.least * (1 + 1e-12), at)


DISTANCES = PaperClaim(
    name="modularity/bump-distances",
    place="Lemma 15",
    items=(21, 22),
    measure=_measure_distances,
    printed=Statement(
        "there are 2^(d^m) functions of Lipschitz constant 1 with bumps of height 1/d, any two of "
        "them 2/d apart: an error below 1/d knows all d^m signs",
        lambda measured: _separated(measured, 2.0),
    ),
    wrong=Statement("any two are 3/d apart", lambda measured: _separated(measured, 3.0)),
)


# -- Theorem 2 -------------------------------------------------------------------------------------

Function = Callable[[Tensor], Tensor]


class Clipped(nn.Module):
    """min(max(x, 0), top)."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0.0, self.top)


class MedianOfThree(nn.Module):
    """The median of three networks' outputs, computed by 12 more neurons."""

    def __init__(self, copies: list[nn.Sequential]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(copies)

    def forward(self, t: Tensor) -> Tensor:
        a, b, c = (copy(t).squeeze(-1) for copy in self.copies)
        low, high = _smaller(a, b), -_smaller(-a, -b)
        return -_smaller(-low, -_smaller(high, c))

    def total_parameters(self) -> int:
        """Every entry of every matrix and bias, zeros included, and 36 for the median."""
        return sum(p.numel() for p in self.copies.parameters()) + 36


def _smaller(a: Tensor, b: Tensor) -> Tensor:
    """min(a, b) = a - relu(a - b)."""
    return a - torch.relu(a - b)


def write(y: Function, groups: int, slope: float) -> MedianOfThree:
    """The network of K = ``groups`` for y on [0, 1], |y(s) - y(t)| <= slope |s - t|, |y| <= slope.

    K up to 16 or so: K digits to base 4 have to fit into a float.
    """
    return MedianOfThree([_copy(y, groups, slope, shift) for shift in (0.0, 0.25, 0.5)])


@torch.no_grad()
def _copy(y: Function, k: int, slope: float, shift: float) -> nn.Sequential:
    """One network; group i is [(i + shift - 1) / K, (i + shift) / K], i = 0 .. K + 1."""
    height, offset = slope / k**2, 2.0 * k**2  # negative sums would not pass a ReLU
    starts = (torch.arange(k + 2, dtype=torch.float64) + shift - 1) / k
    cells = starts[:, None] + torch.arange(k + 1, dtype=torch.float64) / k**2
    levels = (y(cells.clamp(0, 1)) / height + 0.5).floor()
    digits = levels.diff(dim=1) + 1  # 0, 1 or 2: down, level, up
    codes = (digits * 4.0 ** -(1 + torch.arange(k, dtype=torch.float64))).sum(1)
    parts = _look_up(starts, codes, levels[:, 0] + offset, k)
    for digit in range(k):
        parts += _read_digit(digit, k)
    layers: list[nn.Module] = []
    for part in parts:
        layers += [part, Clipped(8.0 * k**2)]
    last = height * torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, -1.0]], dtype=torch.float64)
    return nn.Sequential(*layers, _linear(last, [-offset * height]))


def _look_up(starts: Tensor, codes: Tensor, levels: Tensor, k: int) -> list[nn.Linear]:
    """t -> (code, position, level, 0, 0, 0) of its group; borders are ramps of width 1 / (16 K)."""
    ramp, borders = 1 / (16 * k), starts[1:]
    first = _linear(
        torch.ones(1 + 2 * len(borders), 1, dtype=torch.float64),
        [0.0, *(ramp - borders).tolist(), *(-borders).tolist()],
    )
    jumps = torch.stack([codes.diff(), torch.full_like(borders, -1.0), levels.diff()]) / ramp
    through = torch.tensor([[0.0], [k], [0.0]], dtype=torch.float64)
    rows = torch.cat([through, jumps, -jumps], 1)
    rows = torch.cat([rows, torch.zeros_like(rows)])
    bias = [float(codes[0]), float(-k * starts[0]), float(levels[0]), 0.0, 0.0, 0.0]
    return [first, _linear(rows, bias)]


def _read_digit(digit: int, k: int) -> list[nn.Linear]:
    """(r, u, sum, p, q, ramp) -> the same one digit later; the next sum is sum + p + q - ramp."""
    a = torch.zeros(9, 6, dtype=torch.float64)
    a[:4, 0], a[4:6, 1] = 4.0, k  # digit >= 1, digit >= 2; position in the cell
    a[6, 0], a[7, 1] = 1.0, 1.0
    a[8, 2:] = torch.tensor([1.0, 1.0, 1.0, -1.0])
    low = _linear(a, [-2 / 3, -1.0, -5 / 3, -2.0, -digit, -digit - 1.0, 0.0, 0.0, 0.0])
    first = torch.tensor([3.0, -3.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    second, inside = (
        first.roll(2),
        torch.tensor([0, 0, 0, 0, 1.0, -1.0, 0, 0, 0], dtype=torch.float64),
    )
    units = torch.eye(9, dtype=torch.float64)
    rows = [4 * units[6] - first - second, units[7], units[8]]
    rows += [inside + first, inside + second, inside]
    return [low, _linear(torch.stack(rows), [0.0, 0.0, 0.0, -1.0, -1.0, 0.0])]


def _linear(weight: Tensor, bias: list[float]) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    layer.weight.copy_(weight)
    layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer


@dataclass(frozen=True)
class WrittenSizes:
    """For each K: parameters (the same for every y), and the largest error over all targets."""

    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    targets: int


def _targets(k: int, count: int) -> list[Function]:
    """Functions on [0, 1] of slope 1: smooth, with a kink, and bumps as narrow as two cells."""
    targets: list[Function] = [lambda t: (t - 0.37).abs() - 0.3, lambda t: torch.sin(5 * t) / 5]
    for seed in range(count):
        wave = FourierTarget(1, 0, frequencies=6, seed=seed)
        targets.append(functools.partial(_wave, wave=wave))
        signs = 2.0 * torch.randint(0, 2, (k * k // 2,)) - 1
        targets.append(functools.partial(_tents, signs=signs))
    return targets


def _wave(t: Tensor, wave: FourierTarget) -> Tensor:
    return wave.at((2 * t - 1)[..., None]) / 2


def _tents(t: Tensor, signs: Tensor) -> Tensor:
    scaled = t * len(signs)
    cell = scaled.floor().clamp(0, len(signs) - 1)
    height = 1 - (2 * (scaled - cell) - 1).abs()
    return signs[cell.long()].to(t) * height / (2 * len(signs))


def _measure_written(size: Size) -> WrittenSizes:
    groups = (4, 8, 16)
    count, points = (1, 2**8) if size == "quick" else (3, 2**11)
    t = torch.cat([torch.linspace(0, 1, points + 1), torch.rand(points)]).double()
    sizes, errors = [], []
    for k in groups:
        worst, counts = 0.0, set()
        for y in _targets(k, count):
            net = write(y, k, 1.0)
            counts.add(net.total_parameters())
            with torch.no_grad():
                worst = max(worst, float((net(t[:, None]) - y(t)).abs().max()))
        sizes.append(max(counts))
        errors.append(worst)
    return WrittenSizes(groups, tuple(sizes), tuple(errors), 2 + 2 * count)


def _exponent(measured: WrittenSizes) -> float:
    return power_law([1 / e for e in measured.errors], measured.sizes)


def _sizes_text(measured: WrittenSizes) -> str:
    rows = ", ".join(
        f"{n} for {e:.2g}" for n, e in zip(measured.sizes, measured.errors, strict=True)
    )
    return (
        f"{measured.targets} functions of slope 1 on a line (smooth, kinks, bumps), clipped ReLU "
        f"networks of one architecture for each error: parameters {rows}, that is eps^-"
        f"{_exponent(measured):.3f}"
    )


THEOREM_2 = PaperClaim(
    name="modularity/theorem-2",
    place="Theorem 2",
    items=(22,),
    measure=_measure_written,
    printed=Statement(
        "a class of networks that comes within eps of all of W_{r,m} has at least c eps^(-m/r) "
        "parameters, also if they depend on y in a way that is not continuous (r = m = 1: eps^-1)",
        lambda measured: Evidence(1.0, _exponent(measured) + 0.15, _sizes_text(measured)),
    ),
    corrected=Statement(
        "deep networks do with order eps^(-m/(2r)), by reading digits of their weights; the bound "
        "eps^(-m/r) is for parameters that depend on y continuously (Lemma 14)",
        lambda measured: Evidence(abs(_exponent(measured) - 0.5), 0.1, _sizes_text(measured)),
    ),
    wrong=Statement(
        "they do with order eps^(-m/(3r)), by the same construction",
        lambda measured: Evidence(abs(_exponent(measured) - 1 / 3), 0.1, _sizes_text(measured)),
    ),
)


CLAIMS = (CUBES, NORMS, DISTANCES, THEOREM_2)
