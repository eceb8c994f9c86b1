"""The table of activations: formulas, and which symmetries each of them allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.claims.symmetries import (
    factors,
    flipped,
    permuted,
    scaled,
)
from weightloom_papers.functional_equivalence.networks import (
    EPS,
    AppliedFunction,
    OutputGap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst_of_each,
)

__all__ = ["ACTIVATIONS"]

COLUMNS = ("sign flipping", "scaling", "permutation")
TABLE = {
    "sigmoid": (False, False, True),
    "tanh": (True, False, True),
    "ReLU": (False, True, True),
    "leaky ReLU": (False, True, True),
}


def _leaky(slope: float) -> Callable[[], nn.Module]:
    """max(a x, x), as printed: for a > 1 the steep side is on the right."""
    return lambda: AppliedFunction(lambda t: torch.maximum(slope * t, t), f"max({slope:g} x, x)")


EXAMPLES: dict[str, tuple[Callable[[], nn.Module], ...]] = {
    "sigmoid": (nn.Sigmoid,),
    "tanh": (nn.Tanh,),
    "ReLU": (nn.ReLU,),
    "leaky ReLU": (_leaky(0.01), _leaky(0.2), _leaky(0.9), _leaky(3.0)),
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table, on one network: how much the outputs changed."""

    activation: str
    column: int
    gap: OutputGap

    @property
    def keeps(self) -> bool:
        return self.gap.seen <= self.gap.allowed


def _symmetries(activation: Callable[[], nn.Module]) -> list[OutputGap]:
    """How outputs change after a pure sign flip, a rescaling and a permutation."""
    net, x = network((3, 5, 4, 2), activation), points(100, 3)
    signs = -torch.ones(5, dtype=torch.float64)
    twins = flipped(net, 0, signs), scaled(net, 0, factors(5)), permuted(net, [[1, 2, 0, 4, 3]])
    return [compare(net, other, x, f"{net[1]} 3-5-4-2") for other in twins]


def _table(size: Size) -> list[Cell]:
    return [
        Cell(name, column, gap)
        for name, activations in EXAMPLES.items()
        for activation in activations
        for _ in range(5 if size == "quick" else 50)
        for column, gap in enumerate(_symmetries(activation))
    ]


def _entries(text: str, table: dict[str, tuple[bool, bool, bool]]) -> Statement:
    def judge(measured: list[Cell]) -> Evidence:
        wrong = [cell for cell in measured if cell.keeps != table[cell.activation][cell.column]]
        cell = wrong[0] if wrong else max(measured, key=lambda cell: cell.gap.seen)
        at = f"{cell.gap.where}, {COLUMNS[cell.column]}: outputs differ by {cell.gap.seen:.2g}"
        return Evidence(len(wrong), 0, f"{at}; {len(wrong)} of {len(measured)} cells disagree")

    return Statement(text, judge)


def _slopes(size: Size) -> dict[float, tuple[OutputGap, OutputGap]]:
    """Sign flip and scaling for max(a x, x), by slope."""
    slopes = (0.01, 0.5, 0.99, 1.0, 1.5, 4.0)
    return {a: (gaps[0], gaps[1]) for a in slopes for gaps in [_symmetries(_leaky(a))]}


def _leaky_statement(text: str, without: tuple[float, ...], flips: bool = False) -> Statement:
    """For every slope but those ``without``: scaling works, sign flips do not (or do)."""

    def judge(measured: dict[float, tuple[OutputGap, OutputGap]]) -> Evidence:
        wrong = []
        for slope, (sign, scale) in measured.items():
            if slope not in without and ((sign.seen <= sign.allowed) != flips or
                                         scale.seen > scale.allowed):  # fmt: skip
                wrong.append(slope)
        a = wrong[0] if wrong else next(iter(measured))
        at = f"a = {a:g}: outputs differ by {measured[a][0].seen:.2g} after a sign flip, by "
        at += f"{measured[a][1].seen:.2g} after rescaling; {len(wrong)} of {len(measured)} slopes"
        return Evidence(len(wrong), 0, at + " disagree")

    return Statement(text, judge)


def _formulas(size: Size) -> dict[str, tuple[float, float]]:
    """Printed formulas and a wrong one against torch: largest difference, and where."""
    x = torch.linspace(-20, 20, 4001 if size == "quick" else 400_001, dtype=torch.float64)
    e = torch.exp
    pairs = {
        "sigmoid": (1 / (1 + e(-x)), torch.sigmoid(x)),
        "tanh, first table": ((e(x) - e(-x)) / (e(x) + e(-x)), torch.tanh(x)),
        "tanh, second table": ((1 - e(-2 * x)) / (1 + e(-2 * x)), torch.tanh(x)),
        "ReLU": (torch.clamp(x, min=0), torch.relu(x)),
        "leaky ReLU": (torch.maximum(0.01 * x, x), nn.functional.leaky_relu(x, 0.01)),
        "tanh without the 2": ((1 - e(-x)) / (1 + e(-x)), torch.tanh(x)),
    }
    gaps = {name: (a - b).abs() for name, (a, b) in pairs.items()}
    return {name: (float(gap.max()), float(x[gap.argmax()])) for name, gap in gaps.items()}


def _formula(text: str, wrong: bool) -> Statement:
    def judge(measured: dict[str, tuple[float, float]]) -> Evidence:
        kept = {name: at for name, at in measured.items() if ("without" in name) == wrong}
        name = max(kept, key=lambda name: kept[name][0])
        off, x = kept[name]
        # Four rounded operations on numbers of at most 1 (relative to the result).
        return Evidence(off, 8 * EPS, f"{name} differs from torch by {off:.2g}, at x = {x:.4g}")

    return Statement(text, judge)


@torch.no_grad()
def _as_sigmoid(net: nn.Sequential, inner: float = 2.0) -> nn.Sequential:
    """A tanh network written with sigmoids: tanh(t) = 2 sigmoid(2 t) - 1."""
    other = nn.Sequential(*[nn.Sigmoid() if isinstance(p, nn.Tanh) else p for p in twin(net)])
    for here, after in pairwise(linears(other)):
        here.weight.mul_(inner)
        here.bias.mul_(inner)
        after.bias.sub_(after.weight.sum(1))
        after.weight.mul_(2)
    return other


def _other_activation(size: Size) -> dict[str, OutputGap]:
    gaps: dict[str, list[OutputGap]] = {"printed": [], "wrong": []}
    for _ in range(10 if size == "quick" else 100):
        net, x = network((3, 6, 5, 2), nn.Tanh), points(100, 3)
        where = "tanh 3-6-5-2 as a sigmoid network of the same size"
        gaps["printed"].append(compare(net, _as_sigmoid(net), x, where))
        gaps["wrong"].append(compare(net, _as_sigmoid(net, 1.0), x, where))
    return worst_of_each(gaps)


def _halves(size: Size) -> dict[str, Tensor]:
    """A ReLU network, and one with a neuron more that is off on [0, 1]: gaps on [-1, 1]."""
    net = network((1, 4, 1))
    more = network((1, 5, 1))
    with torch.no_grad():
        for mine, theirs in zip(linears(more), linears(net), strict=True):
            outputs, inputs = theirs.weight.shape
            mine.weight[:outputs, :inputs] = theirs.weight
            mine.bias[:outputs] = theirs.bias
        linears(more)[0].weight[4], linears(more)[0].bias[4] = -1.0, 0.0
        count = 1001 if size == "quick" else 100_001
        x = torch.linspace(-1, 1, count, dtype=torch.float64)[:, None]
        return {"x": x[:, 0], "off": (net(x) - more(x))[:, 0].abs()}


def _agree(text: str, low: float) -> Statement:
    def judge(measured: dict[str, Tensor]) -> Evidence:
        inside = measured["x"] >= low
        seen = float(measured["off"][inside].max())
        x = float(measured["x"][inside][measured["off"][inside].argmax()])
        at = f"two ReLU networks, 13 and 16 weights, on [{low:g}, 1]: largest difference"
        return Evidence(seen, 100 * EPS, f"{at} {seen:.2g} at x = {x:.3g}")

    return Statement(text, judge)


ACTIVATIONS = (
    PaperClaim("functional-equivalence/activation-table",
          "Activation function, second table", (5,), _table,
          printed=_entries("sign flipping / scaling / permutation: sigmoid no/no/yes, tanh "
                           "yes/no/yes, ReLU no/yes/yes, leaky ReLU no/yes/yes", TABLE),
          wrong=_entries("The same, but sigmoid allows pure sign flips",
                         {**TABLE, "sigmoid": (True, False, True)})),
    PaperClaim("functional-equivalence/activation-formulas",
          "Activation function, both tables", (5,), _formulas,
          printed=_formula("sigmoid = 1 / (1 + e^-x); tanh = (e^x - e^-x) / (e^x + e^-x) = (1 - "
                           "e^-2x) / (1 + e^-2x); ReLU = max(0, x); leaky ReLU = max(a x, x)",
                           False),
          wrong=_formula("tanh = (1 - e^-x) / (1 + e^-x)", True)),
    PaperClaim("functional-equivalence/leaky-slopes", "Activation function, second table",
          (5,), _slopes,
          printed=_leaky_statement("max(a x, x) for any a > 0 allows scaling and no sign flips",
                                   ()),
          corrected=_leaky_statement("... for any a > 0 but a = 1, where it is the identity, which "
                                     "is odd", (1.0,)),
          wrong=_leaky_statement("For any a > 0 but a = 1 it allows scaling and sign flips",
                                 (1.0,), flips=True)),
    PaperClaim("functional-equivalence/activations-not-identifiable",
          "Functional Equivalence, second point", (20,),
          _other_activation,
          printed=judged("Different activations can give the same function: tanh(t) = 2 sigmoid(2 "
                         "t) - 1 turns a tanh network into a sigmoid network of the same size",
                         "printed"),
          wrong=judged("tanh(t) = 2 sigmoid(t) - 1 does", "wrong")),
    PaperClaim("functional-equivalence/equivalence-on-a-set", "Definition 1", (19,), _halves,
          printed=_agree("Equivalence is about a set X: networks may agree on all of X = [0, 1] "
                         "with different weights", 0.0),
          wrong=_agree("Networks that agree on [0, 1] agree on [-1, 1]", -1.0)),
)  # fmt: skip
