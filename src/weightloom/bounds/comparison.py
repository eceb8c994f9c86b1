"""The class of functional-equivalence that contains a network, and that text's comparison table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.network_norms import Bound, product
from weightloom.bounds.stages import Dense, Elementwise, Reshape
from weightloom.bounds.widths import log_group_order, log_or_minus_inf, require_positive
from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom.tables import aligned

__all__ = ["BoundsComparison", "ComparisonRow", "compare", "compare_chain", "network_class"]

_DENSE = (Dense, Elementwise, Reshape)

# As printed: orders of magnitude, without constants.
_FORMULAS = (
    "B_x^2 (r s)^2 U log(W) / eps^2",
    "B_x^2 (r s)^2 S L^2 log(W L) / eps^2",
    "B_x (r s) S^2 L / eps",
    "L S log(S) log(r s B_x / eps)",
    "L S log(r s B_x^(1/L) / ((d_1! ... d_L!)^(1/S) eps)^(1/L))",
)


@dataclass(frozen=True)
class ComparisonRow:
    """What one paper's formula gives for the network, up to its constant."""

    paper: str
    formula: str
    value: float
    """infinite where it does not fit into a float"""
    log10: float | None
    """None where the formula is not positive: no complexity is, so it says nothing there"""
    bias: bool
    general_activations: bool
    permutations: bool


@dataclass(frozen=True)
class BoundsComparison:
    """ln of a covering number, in order of magnitude, by five papers; smaller is better."""

    rows: tuple[ComparisonRow, ...]
    quantities: dict[str, float]

    def __str__(self) -> str:
        rows = [["paper", "log10", "bias", "activations", "permutations", "formula"]]
        for row in self.rows:
            log = "says nothing" if row.log10 is None else f"{row.log10:.3f}"
            flags = (row.bias, row.general_activations, row.permutations)
            rows.append([row.paper, log, *("yes" if flag else "no" for flag in flags), row.formula])
        return "\n".join(aligned(rows, "lrl", widths=[24, 8]))


def compare(net: nn.Module, radius: float = 1.0, epsilon: float = 0.1) -> BoundsComparison:
    """The comparison table of functional-equivalence for ``net``.

    Inputs have a 2-norm of at most ``radius`` (B_x); the covering radius is ``epsilon``.

    S parameters, U hidden neurons, L hidden layers, W the widest, r = prod of the activations'
    Lipschitz constants, s = prod of the spectral norms of the hidden layers' matrices (all but the
    last):

        Bartlett, Foster, Telgarsky 2017    B_x^2 (r s)^2 U log(W) / eps^2
        Neyshabur et al. 2017               B_x^2 (r s)^2 S L^2 log(W L) / eps^2
        Lin, Zhang 2019                     B_x (r s) S^2 L / eps
        Bartlett et al. 2019                L S log(S) log(r s B_x / eps)
        Shen 2024                           L S log(r s B_x^(1/L) / ((d_1! ... d_L!)^(1/S)
        eps)^(1/L))

    As printed there: orders of magnitude without constants, so the rows can be ranked only roughly.
    The first three depend on the network's norms, the last two on its number of parameters.
    """
    return compare_chain(read_chain(net), radius, epsilon)


def compare_chain(
    chain: Chain, radius: float, epsilon: float, spectral: Bound | None = None
) -> BoundsComparison:
    """`compare` for a network that has been read; ``spectral`` is its product of 2-norms."""
    require_positive(radius=radius, epsilon=epsilon)
    require_dense(chain)
    hidden = chain.widths[1:-1]
    if not hidden:
        raise ConfigError("the network has no hidden layer; the comparison needs at least one")
    spectral = product(chain, "2") if spectral is None else spectral
    S = float(chain.size)
    U, L, W = float(sum(hidden)), float(len(hidden)), float(max(hidden))
    log_rs = _log_hidden(chain, spectral)
    x, e, discount = math.log(radius), math.log(epsilon), log_group_order(chain.widths)
    capacity = S * (L * log_rs + x - e) - discount
    by_norms = x + log_rs - e
    rows = (
        _norm_row("Bartlett et al. 2017", _FORMULAS[0], 2 * by_norms, U * math.log(W)),
        _norm_row("Neyshabur et al. 2017", _FORMULAS[1], 2 * by_norms, S * L**2 * math.log(W * L)),
        _norm_row("Lin, Zhang 2019", _FORMULAS[2], by_norms, S**2 * L),
        _size_row("Bartlett et al. 2019", _FORMULAS[3], L * S * math.log(S) * by_norms, False),
        _size_row("Shen 2024", _FORMULAS[4], capacity, True),
    )
    names = {"S": S, "U": U, "L": L, "W": W, "log_rho_s": log_rs, "log_permutations": discount}
    return BoundsComparison(rows, {**names, "radius": radius, "epsilon": epsilon})


def network_class(chain: Chain) -> tuple[tuple[float, ...], float]:
    """rho of every hidden layer, and the largest |s(0)|, for a fully connected network.

    Activations in a row count as one.
    """
    slopes: list[float] = []
    zeros: list[float] = []
    for stage in chain.stages:
        if isinstance(stage, Dense):
            slopes.append(1.0)
            zeros.append(0.0)
        elif isinstance(stage, Elementwise):
            rho = stage.activation.lipschitz
            slopes[-1] *= rho
            # |t(s(0))| <= |t(0)| + rho_t |s(0)|
            zeros[-1] = abs(stage.activation.at_zero) + rho * zeros[-1]
    return tuple(slopes[:-1]), max(zeros[:-1], default=0.0)


def require_dense(chain: Chain) -> None:
    """Raise an error that names the layer where the network is not fully connected."""
    if not chain.dense:
        other = [s for s in chain.stages if type(s) not in _DENSE] or list(chain.stages)
        raise UnsupportedModuleError(
            f"layer '{other[0].name}' ({type(other[0].module).__name__}) is not part of a fully "
            f"connected network; the covering numbers and the table are about those only"
        )
    first = next(i for i, s in enumerate(chain.stages) if isinstance(s, Dense))
    if any(isinstance(s, Elementwise) for s in chain.stages[:first]):
        raise UnsupportedModuleError(
            f"layer '{chain.stages[0].name}' is an activation in front of the first Linear; the "
            f"networks begin with a Linear"
        )


def _log_hidden(chain: Chain, spectral: Bound) -> float:
    """ln(prod rho_j prod s_j) over the hidden layers: all stages before the last Linear."""
    last = max(i for i, s in enumerate(chain.stages) if isinstance(s, Dense))
    return sum(log_or_minus_inf(factor.value) for _, factor in spectral.layers[:last])


def _norm_row(paper: str, formula: str, log: float, count: float) -> ComparisonRow:
    """exp(log) * count: the papers without biases, general activations and permutations."""
    if count <= 0 or log == -math.inf:
        return ComparisonRow(paper, formula, 0.0, None, False, False, False)
    total = log + math.log(count)
    value = math.exp(total) if total < 709.78 else math.inf
    return ComparisonRow(paper, formula, value, total / math.log(10), False, False, False)


def _size_row(paper: str, formula: str, value: float, permutations: bool) -> ComparisonRow:
    log10 = math.log10(value) if value > 0 else None
    return ComparisonRow(paper, formula, value, log10, True, True, permutations)
