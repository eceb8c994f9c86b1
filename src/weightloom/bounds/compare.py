"""The comparison table of 002, evaluated on a network in hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.norms import Bound, product
from weightloom.bounds.stages import Dense, Elementwise, Reshape
from weightloom.bounds.widths import log_group_order, require_positive
from weightloom.errors import ConfigError, UnsupportedModuleError

__all__ = ["Comparison", "Row", "compare"]

_DENSE = (Dense, Elementwise, Reshape)


@dataclass(frozen=True)
class Row:
    """One line of the table: what a paper's formula gives here, up to its constant."""

    paper: str
    formula: str
    value: float
    """infinite where it does not fit into a float"""
    log10: float | None
    """None where the formula is not positive, which no complexity is: it says nothing there"""
    bias: bool
    general_activations: bool
    permutations: bool


@dataclass(frozen=True)
class Comparison:
    """ln of a covering number, in order of magnitude, by five papers; smaller is better."""

    rows: tuple[Row, ...]
    quantities: dict[str, float]

    def __str__(self) -> str:
        lines = [f"{'paper':<24} {'log10':>9}  bias  activations  permutations  formula"]
        for row in self.rows:
            log = "says nothing" if row.log10 is None else f"{row.log10:9.3f}"
            yes = ["yes" if f else "no" for f in _flags(row)]
            lines.append(
                f"{row.paper:<24} {log:>9}  {yes[0]:<4}  {yes[1]:<11}  {yes[2]:<12}  {row.formula}"
            )
        return "\n".join(lines)


def compare(net: nn.Module, radius: float = 1.0, epsilon: float = 0.1) -> Comparison:
    """002's table for ``net``: inputs of 2-norm at most ``radius`` (B_x), covering radius
    ``epsilon``.

    S parameters, U hidden neurons, L hidden layers, W the widest, r = prod of the activations'
    Lipschitz constants, s = prod of the spectral norms of the hidden layers' matrices (all but the
    last):

        Bartlett, Foster, Telgarsky 2017    B_x^2 (r s)^2 U log(W) / eps^2
        Neyshabur et al. 2017               B_x^2 (r s)^2 S L^2 log(W L) / eps^2
        Lin, Zhang 2019                     B_x (r s) S^2 L / eps
        Bartlett et al. 2019                L S log(S) log(r s B_x / eps)
        002                                 L S log(r s B_x^(1/L) / ((d_1! ... d_L!)^(1/S)
        eps)^(1/L))

    As printed there: orders of magnitude without constants, so the lines can be ranked only
    roughly. The first three are about the network's own norms, the last two about its number of
    parameters.
    """
    return compare_chain(read_chain(net), radius, epsilon)


def compare_chain(
    chain: Chain, radius: float, epsilon: float, spectral: Bound | None = None
) -> Comparison:
    """`compare` of a network that has been read; ``spectral``: its product of 2-norms."""
    require_positive(radius=radius, epsilon=epsilon)
    require_dense(chain)
    hidden = chain.widths[1:-1]
    if not hidden:
        raise ConfigError("the network has no hidden layer; 002's table needs at least one")
    spectral = product(chain, "2") if spectral is None else spectral
    S = float(size(chain))
    U, L, W = float(sum(hidden)), float(len(hidden)), float(max(hidden))
    log_rs = _log_hidden(chain, spectral)
    x, e, discount = math.log(radius), math.log(epsilon), log_group_order(chain.widths)
    capacity = S * (L * log_rs + x - e) - discount
    rows = (
        _power("Bartlett et al. 2017", _F[0], 2 * (x + log_rs - e), U * math.log(W)),
        _power("Neyshabur et al. 2017", _F[1], 2 * (x + log_rs - e), S * L**2 * math.log(W * L)),
        _power("Lin, Zhang 2019", _F[2], x + log_rs - e, S**2 * L),
        _plain("Bartlett et al. 2019", _F[3], L * S * math.log(S) * (log_rs + x - e), False),
        _plain("Shen 2024 (002)", _F[4], capacity, True),
    )
    names = {"S": S, "U": U, "L": L, "W": W, "log_rho_s": log_rs, "log_permutations": discount}
    return Comparison(rows, {**names, "radius": radius, "epsilon": epsilon})


_F = (
    "B_x^2 (r s)^2 U log(W) / eps^2",
    "B_x^2 (r s)^2 S L^2 log(W L) / eps^2",
    "B_x (r s) S^2 L / eps",
    "L S log(S) log(r s B_x / eps)",
    "L S log(r s B_x^(1/L) / ((d_1! ... d_L!)^(1/S) eps)^(1/L))",
)


def size(chain: Chain) -> int:
    """Weights and biases of the affine layers."""
    return sum(p.numel() for layer in chain.affine for p in layer.module.parameters())


def require_dense(chain: Chain) -> None:
    """002 is about fully connected networks; anything else gets an error that names the layer."""
    if not chain.dense:
        other = [s for s in chain.stages if type(s) not in _DENSE] or list(chain.stages)
        raise UnsupportedModuleError(
            f"layer '{other[0].name}' ({type(other[0].module).__name__}) is not part of a fully "
            f"connected network; 002's covering numbers and table are about those only"
        )
    first = next(i for i, s in enumerate(chain.stages) if isinstance(s, Dense))
    if any(isinstance(s, Elementwise) for s in chain.stages[:first]):
        raise UnsupportedModuleError(
            f"layer '{chain.stages[0].name}' is an activation in front of the first Linear; 002's "
            f"networks begin with a Linear"
        )


def _log_hidden(chain: Chain, spectral: Bound) -> float:
    """ln(prod rho_j prod s_j) over the hidden layers: all steps in front of the last Linear."""
    last = max(i for i, s in enumerate(chain.stages) if isinstance(s, Dense))
    values = [factor.value for _, factor in spectral.layers[:last]]
    return sum(math.log(v) if v > 0 else -math.inf for v in values)


def _power(paper: str, formula: str, log: float, count: float) -> Row:
    """exp(log) * count, as its logarithm; these papers have none of the three extras."""
    if count <= 0 or log == -math.inf:
        return Row(paper, formula, 0.0, None, False, False, False)
    total = log + math.log(count)
    value = math.exp(total) if total < 709.78 else math.inf
    return Row(paper, formula, value, total / math.log(10), False, False, False)


def _plain(paper: str, formula: str, value: float, permutations: bool) -> Row:
    log10 = math.log10(value) if value > 0 else None
    return Row(paper, formula, value, log10, True, True, permutations)


def _flags(row: Row) -> Sequence[bool]:
    return row.bias, row.general_activations, row.permutations
