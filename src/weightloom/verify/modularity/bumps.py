"""The bump functions of Lemma 15: how many there are, how steep, how far apart."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.data import BumpTarget
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.modularity.targets import sobolev_norm
from weightloom.verify.sampling import slope

__all__ = ["CLAIMS"]


# -- the cubes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cubes:
    """Share of [-1, 1]^m that d^m cubes of a side cover, standard error beside it, by (m, d)."""

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


def _covered(seen: Cubes, shares: dict[tuple[int, int], float]) -> Evidence:
    off = {key: abs(share - 1) for key, share in shares.items()}
    (m, d), worst = max(off.items(), key=lambda pair: pair[1])
    at = f"m = {m}, d = {d}, {seen.points:,} random points: {d**m} cubes cover {shares[m, d]:.4g}"
    # four standard errors of a share, at most 1/2 / sqrt(points) each
    return Evidence(worst, 2 / math.sqrt(seen.points), f"{at} of [-1, 1]^m")


CUBES = Claim(
    name="000/bump-cubes",
    place="Lemma 15, proof",
    items=(21,),
    measure=_measure_cubes,
    printed=Statement(
        "N = d^m closed cubes of side 1/d are a partition of [-1, 1]^m",
        lambda seen: _covered(seen, seen.printed),
    ),
    corrected=Statement(
        "N = d^m cubes of side 2/d are",
        lambda seen: _covered(seen, seen.doubled),
    ),
    wrong=Statement(
        "d^m cubes of side 1/d cover half of [-1, 1]^m, whatever m",
        lambda seen: _covered(seen, {(m, d): s * 2 for (m, d), s in seen.printed.items()}),
    ),
)


# -- their norms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """||y|| of W_{r,m} over ||y||_inf for sums of bumps, by (m, r): a number for each d."""

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


def _measure_growth(size: Size) -> Growth:
    pieces = (2, 4, 8, 16) if size == "quick" else (2, 4, 8, 16, 32)
    ratios = {}
    for m, r in itertools.product((1, 2), (1, 2)):
        found = []
        for d in pieces:
            heights = 2 * torch.rand(d**m, dtype=torch.float64) - 1
            heights[0] = 1.0
            points = d * (40 if m == 1 else 16) + 1

            def y(x: Tensor, d: int = d, heights: Tensor = heights) -> Tensor:
                return _bumps(x, d, heights)

            found.append(sobolev_norm(y, m, r, points))  # the largest value is 1
        ratios[m, r] = tuple(found)
    return Growth(pieces, ratios)


def _exponents(seen: Growth, per_order: float) -> Evidence:
    """Against N^(r/m) = d^r: the last doubling, where the highest derivatives rule."""
    exponents = {key: slope(seen.pieces[-2:], values[-2:]) for key, values in seen.ratios.items()}
    off = {(m, r): abs(p - per_order * r) for (m, r), p in exponents.items()}
    worst = max(off.values())
    at = ", ".join(f"m = {a}, r = {b}: {p:.3f}" for (a, b), p in exponents.items())
    # lower derivatives bend the line: a share of about 1 / d of the whole
    allowed = 2 / math.log(2) / seen.pieces[-2]
    return Evidence(worst, allowed, f"exponent of d in ||y||_r / ||y||_inf for random bumps: {at}")


NORMS = Claim(
    name="000/bump-norms",
    place="Lemma 15, Eqs. 80 to 86",
    items=(21,),
    measure=_measure_growth,
    printed=Statement(
        "sums of N = d^m bumps have ||y||_r of order N^(r/m) ||y||_inf, from above and from below",
        lambda seen: _exponents(seen, 1.0),
    ),
    wrong=Statement(
        "of order N^(r/(2m)) ||y||_inf",
        lambda seen: _exponents(seen, 0.5),
    ),
)


# -- their distances -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distances:
    """All sums of bumps of one height with signs: how many, how far apart, over the height."""

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


def _separated(seen: Distances, heights: float) -> Evidence:
    at = (
        f"{seen.count} functions with {seen.cubes} bumps of height {seen.height:.3g} and slope "
        f"{seen.steepest:.3g}: any two are at least {seen.least:.4g} apart"
    )
    return Evidence(heights * seen.height, seen.least * (1 + 1e-12), at)


DISTANCES = Claim(
    name="000/bump-distances",
    place="Lemma 15",
    items=(21, 22),
    measure=_measure_distances,
    printed=Statement(
        "there are 2^(d^m) functions of Lipschitz constant 1 with bumps of height 1/d, any two of "
        "them 2/d apart: an error below 1/d knows all d^m signs",
        lambda seen: _separated(seen, 2.0),
    ),
    wrong=Statement("any two are 3/d apart", lambda seen: _separated(seen, 3.0)),
)

CLAIMS = (CUBES, NORMS, DISTANCES)
