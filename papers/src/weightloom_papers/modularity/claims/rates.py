"""Sizes of networks built by hand: plain, embedding methods, hypernetworks; Theorems 2 to 6."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom import HyperNetwork, mlp
from weightloom.construct import factored_hypernetwork, hypernetwork, interpolate
from weightloom.construct.layers import measure as count_size
from weightloom.data import BumpTarget, FactoredTarget, FourierTarget
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.lab.statistics import power_law
from weightloom_papers.modularity.claims.targets import sobolev_norm

__all__ = ["CLAIMS"]


# -- Theorems 2, 3 and 5: built networks -----------------------------------------------------------


@dataclass(frozen=True)
class BuiltCounts:
    """Nonzero parameters of networks with error eps for bumps higher than eps, by (m1, m2)."""

    eps: dict[tuple[int, int], tuple[float, ...]]
    primary: dict[tuple[int, int], tuple[int, ...]]
    plain: dict[tuple[int, int], tuple[int, ...]]
    off: float
    """largest measured error over eps"""


@functools.cache  # three claims are about the same networks
def _measure_built(size: Size) -> BuiltCounts:
    eps, primary, plain, off = {}, {}, {}, 0.0
    steps = (0.1, 0.05) if size == "quick" else (0.05, 0.025)
    for m in ((1, 1), (2, 1), (1, 2)):
        targets = steps if sum(m) == 2 else [2 * e for e in steps[:2]]
        sizes, whole = [], []
        for e in targets:
            y = BumpTarget(*m, pieces=max(1, int(0.5 / e)))
            built = hypernetwork(y, *m, eps=e)
            rival = interpolate(y.at, sum(m), eps=e)
            sizes.append(built.primary_nonzeros)
            whole.append(rival.nonzeros)
            points_count = 200 if size == "quick" else 500
            points = 2 * torch.rand(points_count, sum(m), dtype=torch.float64) - 1
            points = torch.cat([points, y.centres()[:points_count]])
            with torch.no_grad():
                for network in (built.network, rival.network):
                    gap = (network(points).reshape(-1) - y.at(points)).abs()
                    off = max(off, float(gap.max()) / e)
        eps[m], primary[m], plain[m] = tuple(targets), tuple(sizes), tuple(whole)
    return BuiltCounts(eps, primary, plain, off)


def _rate(
    measured: BuiltCounts, sizes: dict[tuple[int, int], tuple[int, ...]], extra: float
) -> Evidence:
    """Exponents of 1 / eps above the claimed ones: m1 (g) or m1 + m2 (plain), plus ``extra``."""
    plain = sizes is measured.plain
    over, texts = [], []
    for (m1, m2), counts in sizes.items():
        exponent = power_law([1 / e for e in measured.eps[m1, m2]], counts)
        over.append(exponent - (m1 + m2 if plain else m1) - extra)
        texts.append(f"m1 = {m1}, m2 = {m2}: {exponent:.2f}")
    name = "a plain network" if plain else "g"
    at = (
        f"bump functions, errors measured below {measured.off:.2f} eps: parameters of {name} "
        "grow as "
    )
    # whole numbers of cells: at the coarsest grid 1 in about 10
    return Evidence(max(over) + (measured.off > 1), 0.15, at + f"eps^-p, {', '.join(texts)}")


THEOREM_5 = PaperClaim(
    name="modularity/theorem-5",
    place="Theorem 5, Eqs. 106 to 111",
    items=(24,),
    measure=_measure_built,
    printed=Statement(
        "for every y there is a hypernetwork of error eps whose primary g has O(eps^-m1) "
        "parameters (r = 1), whatever m2 (checked: one was built)",
        lambda measured: _rate(measured, measured.primary, 0.0),
    ),
    wrong=Statement(
        "O(eps^-(m1 - 1/2)), by the same construction",
        lambda measured: _rate(measured, measured.primary, -0.5),
    ),
)

UPPER = PaperClaim(
    name="modularity/universal-size",
    place="Definition 7",
    items=(22,),
    measure=_measure_built,
    printed=Statement(
        "ReLU is universal: a class of O(eps^-m) parameters has error eps on W_{1,m} (checked: "
        "networks of m = m1 + m2 inputs were built for bump functions)",
        lambda measured: _rate(measured, measured.plain, 0.0),
    ),
    wrong=Statement(
        "O(eps^-(m - 1/2)), by the same construction",
        lambda measured: _rate(measured, measured.plain, -0.5),
    ),
)


def _advantage(measured: BuiltCounts, wanted: float) -> Evidence:
    off, texts = [], []
    for (m1, m2), small in measured.primary.items():
        inverse = [1 / e for e in measured.eps[m1, m2]]
        ratio = [q / g for q, g in zip(measured.plain[m1, m2], small, strict=True)]
        exponent = power_law(inverse, ratio)
        off.append(abs(exponent - wanted * m2))
        texts.append(f"m1 = {m1}, m2 = {m2}: {ratio[-1]:.0f} times, eps^-{exponent:.2f}")
    at = "q of (x, I) over g, both built for bump functions, at the smallest eps: "
    # an axis has n + 2 nodes or so, n = 10 to 20 at the coarsest: 0.2 in each exponent of two axes
    return Evidence(max(off), 0.4, at + ", ".join(texts))


ADVANTAGE = PaperClaim(
    name="modularity/primaries-compared",
    place="Theorems 3 to 5, Section 5.1",
    items=(11, 23),
    measure=_measure_built,
    printed=Statement(
        "with a constant embedding dimension q needs eps^-m2 times as many parameters as g "
        "(checked for networks that were built, e the identity; that no smaller q does it is not "
        "computable)",
        lambda measured: _advantage(measured, 1.0),
    ),
    wrong=Statement("eps^-(m2/2) times as many", lambda measured: _advantage(measured, 0.5)),
)


# -- Theorem 6 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FactoredCounts:
    """All parameters of hypernetworks for y = <b(x), c(I)>, by (m1, m2) and eps.

    ``factored`` uses the factors, ``whole`` does not.
    """

    eps: tuple[float, ...]
    factored: dict[tuple[int, int], tuple[int, ...]]
    whole: dict[tuple[int, int], tuple[int, ...]]
    mixing: bool
    """the last matrix of f is N_g x w"""
    off: float


def _measure_factored(size: Size) -> FactoredCounts:
    eps = (0.2, 0.1) if size == "quick" else (0.1, 0.05, 0.025)
    factored, whole, mixing, off = {}, {}, True, 0.0
    for m in ((1, 1), (1, 2), (2, 1)):
        by_factors, without = [], []
        y = FactoredTarget(*m, width=2)
        for e in eps[:2] if sum(m) == 3 else eps:
            built = factored_hypernetwork(y.basis, y.coefficients, *m, eps=e, lipschitz=2.0)
            by_factors.append(count_size(built.encoder).nonzeros)
            last = list(built.encoder.parameters())[-1]
            mixing &= tuple(last.shape) == (built.primary_size, 2)
            if sum(m) == 2:
                without.append(
                    count_size(hypernetwork(y, *m, eps=e, lipschitz=2.0).encoder).nonzeros
                )
            points = 2 * torch.rand(200, sum(m), dtype=torch.float64) - 1
            with torch.no_grad():
                gap = (built.network(points) - y.at(points)).abs()
            off = max(off, float(gap.max()) / e)
        factored[m], whole[m] = tuple(by_factors), tuple(without)
    return FactoredCounts(eps, factored, whole, mixing, off)


def _total(measured: FactoredCounts, extra: float) -> Evidence:
    over, texts = [], []
    for m, counts in measured.factored.items():
        exponent = power_law([1 / e for e in measured.eps[: len(counts)]], counts)
        over.append(exponent - max(m) - extra)
        texts.append(f"m1 = {m[0]}, m2 = {m[1]}: {exponent:.2f}")
    plain = power_law([1 / e for e in measured.eps], measured.whole[1, 1])
    at = (
        f"y = <b(x), c(I)>, w = 2, errors measured below {measured.off:.2f} eps: "
        "parameters of f grow "
        f"as eps^-p, {', '.join(texts)} (not using the factors, m1 = m2 = 1: {plain:.2f})"
    )
    return Evidence(max(over) + (measured.off > 1) + (not measured.mixing), 0.25, at)


THEOREM_6 = PaperClaim(
    name="modularity/theorem-6",
    place="Theorem 6, Eq. 12",
    items=(25,),
    measure=_measure_factored,
    printed=Statement(
        "if the weights are S(I) = M P(I) with w functions P_j, all of f has O(w^(1+m2) eps^-m2 + "
        "w N_g) = O(eps^-m1 + eps^-m2) parameters (r = 1)",
        lambda measured: _total(measured, 0.0),
    ),
    wrong=Statement(
        "O(eps^-(max(m1, m2) - 1/2)), by the same construction",
        lambda measured: _total(measured, -0.5),
    ),
)


@dataclass(frozen=True)
class PropagatedErrors:
    """Largest ||M H - M P||_1 / (c eps) over random and aligned errors, by w."""

    ratios: dict[int, float]


def _measure_propagation(size: Size) -> PropagatedErrors:
    ratios = {}
    eps, trials = 1e-3, 50 if size == "quick" else 2000
    for w in (1, 4, 16):
        worst = 0.0
        for trial in range(trials):
            m = torch.randn(30, w, dtype=torch.float64)
            m = m.abs() if trial == 0 else m
            m = m / m.abs().sum(0)  # all columns reach the induced 1-norm c = 1
            error = eps * (torch.ones(w) if trial == 0 else 2 * torch.rand(w) - 1).double()
            worst = max(worst, float((m @ error).abs().sum()) / eps)
        ratios[w] = worst
    return PropagatedErrors(ratios)


def _propagates(measured: PropagatedErrors, power: float) -> Evidence:
    over = {w: ratio / w**power for w, ratio in measured.ratios.items()}
    at = ", ".join(f"w = {w}: {ratio:.4g}" for w, ratio in measured.ratios.items())
    return Evidence(max(over.values()), 1 + 1e-12, f"||M H - M P||_1 over c eps, at most: {at}")


PROPAGATED = PaperClaim(
    name="modularity/errors-through-the-head",
    place="Eqs. 114 and 115",
    items=(25, 5),
    measure=_measure_propagation,
    printed=Statement(
        "if |H_i - P_i| <= eps and ||M||_1 <= c, then ||M H - M P||_1 <= c w eps",
        lambda measured: _propagates(measured, 1.0),
    ),
    wrong=Statement("<= c sqrt(w) eps", lambda measured: _propagates(measured, 0.5)),
)


# -- the class P_{r,w,c} ---------------------------------------------------------------------------


@torch.no_grad()
def _measure_rank(size: Size) -> dict[int, tuple[int, int]]:
    """Dimension of the span of differences of generated weights, and their number, by w."""
    ranks = {}
    for w in (2, 5) if size == "quick" else (2, 5, 20):
        encoder = mlp([3, 30, w], "tanh")
        hyper = HyperNetwork(mlp([4, 6, 1]), encoder, init="hyperfan_in").double()
        written = hyper.weights(torch.randn(200, 3, dtype=torch.float64))
        matrix = torch.cat([t.flatten(1) for t in written.values()], 1)
        # differences: the head has an offset beside M
        sizes = torch.linalg.svdvals(matrix[1:] - matrix[0])
        ranks[w] = (int((sizes > 1e-10 * sizes[0]).sum()), matrix.shape[1])
    return ranks


def _rank(measured: dict[int, tuple[int, int]], less: int) -> Evidence:
    over = [rank - (w - less) for w, (rank, _) in measured.items()]
    at = ", ".join(f"w = {w}: {rank} of {n}" for w, (rank, n) in measured.items())
    return Evidence(max(over), 0, f"span of generated weights over 200 conditions, {at}")


EFFECTIVE_DIMENSION = PaperClaim(
    name="modularity/effective-dimension",
    place="Section 2.1, P_(r,w,c)",
    items=(5,),
    measure=_measure_rank,
    printed=Statement(
        "weights of the form M P(I), P with w outputs, move in w dimensions at most, however many "
        "they are",
        lambda measured: _rank(measured, 0),
    ),
    wrong=Statement("in w - 1 dimensions", lambda measured: _rank(measured, 1)),
)


# -- Lemma 18 and Eq. 104 --------------------------------------------------------------------------


def _measure_modulus(size: Size) -> dict[tuple[int, int], tuple[float, float]]:
    """sup_x |y(x, I) - y(x, I')| / max|I - I'|, y in W_{1,m}: largest and median, by (m1, m2)."""
    ratios = {}
    for m in ((1, 1), (1, 2)):
        y = FourierTarget(*m)
        scale = sobolev_norm(y.at, sum(m), 1, 101 if sum(m) == 2 else 21)
        points_count = 100 if size == "quick" else 2000
        x = 2 * torch.rand(100, 1, m[0], dtype=torch.float64) - 1
        a = 2 * torch.rand(points_count, m[1], dtype=torch.float64) - 1
        step = torch.randn(points_count, m[1], dtype=torch.float64).sign() * torch.logspace(
            -5, -1, points_count, dtype=torch.float64
        ).unsqueeze(1)
        b = (a + step).clamp(-1, 1)
        moved = (y(x, a) - y(x, b)).abs().amax(0) / scale
        ratio = moved / (a - b).abs().amax(1)
        ratios[m] = (float(ratio.max()), float(ratio.median()))
    return ratios


def _modulus(measured: dict[tuple[int, int], tuple[float, float]], allowed: float) -> Evidence:
    at = ", ".join(f"m1 = {m[0]}, m2 = {m[1]}: {worst:.3g}" for m, (worst, _) in measured.items())
    at = f"random y of norm 1 in W_(1,m), pairs of conditions 1e-5 to 0.1 apart, at most: {at}"
    return Evidence(max(worst for worst, _ in measured.values()), allowed, at)


LEMMA_18 = PaperClaim(
    name="modularity/condition-to-function",
    place="Lemma 18",
    items=(26,),
    measure=_measure_modulus,
    printed=Statement(
        "I -> y_I is continuous; for y in W_{1,m}, ||y_I - y_J||_inf <= max|I - J|",
        lambda measured: _modulus(measured, 1.0),
    ),
    wrong=Statement("<= max|I - J| / 3", lambda measured: _modulus(measured, 1 / 3)),
)


def _measure_embedding(size: Size) -> dict[int, tuple[float, float]]:
    """C(e) and the norm in W_{1,m2} of e(I) = I_1 + .. + I_m2, a network with one matrix, by m2."""
    norms = {}
    for m2 in (1, 2, 3):

        def e(x: Tensor) -> Tensor:
            return x.sum(-1)

        ones = torch.ones(1, m2)
        spectral = float(ones.abs().sum(0).max())
        norms[m2] = (spectral, sobolev_norm(e, m2, 1, 5 if size == "quick" else 21))
    return norms


def _embedded(measured: dict[int, tuple[float, float]], slope_: float, constant: float) -> Evidence:
    over = {m2: norm / (slope_ * m2 + constant) / c for m2, (c, norm) in measured.items()}
    worst = max(over.values())
    at = ", ".join(f"m2 = {m2}: C(e) = {c:g}, norm {norm:g}" for m2, (c, norm) in measured.items())
    return Evidence(worst, 1 + 1e-12, f"e(I) = sum of I_j: {at}; {worst:.3g} of the bound")


EQ_104 = PaperClaim(
    name="modularity/embedding-sobolev-norm",
    place="Eqs. 101 to 104",
    items=(23,),
    measure=_measure_embedding,
    printed=Statement(
        "C(e) <= l1 gives ||e||_1^s <= (m2 + 1) l1 (because the sum of all ||D^k e||_inf is at "
        "most the Lipschitz constant)",
        lambda measured: _embedded(measured, 1.0, 1.0),
    ),
    corrected=Statement(
        "each of the m2 derivatives can be l1: ||e||_1^s <= 2 m2 l1, attained by the sum",
        lambda measured: _embedded(measured, 2.0, 0.0),
    ),
    wrong=Statement(
        "||e||_1^s <= (2 m2 - 1/2) l1", lambda measured: _embedded(measured, 2.0, -0.5)
    ),
)

CLAIMS = (UPPER, ADVANTAGE, THEOREM_5, THEOREM_6, PROPAGATED, EFFECTIVE_DIMENSION, LEMMA_18, EQ_104)
