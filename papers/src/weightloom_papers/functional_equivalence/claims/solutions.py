"""Theorem 5 and its consequences: copies of a solution, and starts near one of them.

How many distinct permuted copies a solution has, how likely a random start is near one, and that
copies of a trained network, and wider networks built from it, are solutions too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from weightloom.symmetry import distinct_permutations
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.claims.representatives import every_copy, vector
from weightloom_papers.functional_equivalence.landscape import theorem5
from weightloom_papers.functional_equivalence.networks import linears, network, trained, twin

__all__ = ["SOLUTIONS", "STARTS"]


@dataclass(frozen=True)
class Chance:
    """Chance of a start near any copy, and near one of them."""

    name: str
    any_copy: float
    one_copy: float
    copies: int
    orders: int
    """d_1! ... d_L!, equal copies included"""
    error: float
    """standard error of any_copy - copies * one_copy; 0: computed exactly"""
    usual: bool
    """independent entries with a distribution without atoms"""


@torch.no_grad()
def _line(weights: list[float]) -> nn.Sequential:
    """tanh 1-d-1 with these first weights, all else zero."""
    net = network((1, len(weights), 1), nn.Tanh)
    for p in net.parameters():
        p.zero_()
    linears(net)[0].weight.copy_(torch.tensor(weights, dtype=torch.float64)[:, None])
    return net


def _uniform(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1


def _sampled(weights: list[float], samples: int) -> Chance:
    """Independent uniform entries, by sampling; balls as the library defines them."""
    net = _line(weights)
    sampled = theorem5(net, _uniform, samples)
    copies = len({vector(copy) for copy in every_copy(net)})
    name = f"tanh 1-{len(weights)}-1 with first weights {tuple(weights)}, uniform starts"
    orders = math.factorial(len(weights))
    error = math.hypot(sampled.error_any, copies * sampled.error_one)
    any_copy, one_copy = sampled.probability_any, sampled.probability_one
    return Chance(name, any_copy, one_copy, copies, orders, error, True)


def _weighed(
    name: str, net: nn.Sequential, starts: list[tuple[float, Tensor]], orders: int
) -> Chance:
    """Probabilities of starts in closed balls, summed exactly over ``starts`` (weight, vector)."""
    vectors = sorted({vector(copy) for copy in every_copy(net)})
    copies = [torch.tensor(entries, dtype=torch.float64) for entries in vectors]
    here = torch.tensor(vector(net), dtype=torch.float64)
    delta = min(float((a - b).abs().max()) for a in copies for b in copies if a is not b)
    near_any = near_one = 0.0
    for weight, start in starts:
        distances = [float((start - copy).abs().max()) for copy in copies]
        near_any += weight * (min(distances) <= delta / 2)
        near_one += weight * (float((start - here).abs().max()) <= delta / 2)
    return Chance(name, near_any, near_one, len(copies), orders, 0.0, False)


def _atoms() -> Chance:
    """First layer 1/2 (chance 0.9) or -4, last layer 0: all starts that can happen."""
    net, starts = _line([0.0, 1.0]), []
    for values in product((0.5, -4.0), repeat=4):
        weight = math.prod(0.9 if value == 0.5 else 0.1 for value in values)
        starts.append((weight, torch.tensor((*values, 0.0, 0.0, 0.0), dtype=torch.float64)))
    return _weighed("tanh 1-2-1, first layer 1/2 with chance 0.9, else -4", net, starts, 2)


def _turning(steps: int) -> Chance:
    """First weights u, u + 1/3, u + 2/3 (mod 1), u uniform: equal laws, not independent."""
    net, starts = _line([0.1, 0.1 + 1 / 3, 0.1 + 2 / 3]), []
    for step in range(steps):
        first = [((step + 0.5) / steps + k / 3) % 1 for k in range(3)]
        starts.append((1 / steps, torch.tensor([*first, *[0.0] * 7], dtype=torch.float64)))
    return _weighed("tanh 1-3-1, first weights u, u + 1/3, u + 2/3 mod 1", net, starts, 6)


def _chances(size: Size) -> list[Chance]:
    samples = 200_000 if size == "quick" else 4_000_000
    uniform = [_sampled([-0.5, 0.5], samples), _sampled([-0.5, -0.5, 0.5], samples)]
    return [*uniform, _atoms(), _turning(300 if size == "quick" else 3000)]


def _at_least(text: str, usual: bool, orders: bool = False) -> Statement:
    def judge(measured: list[Chance]) -> Evidence:
        def claimed(chance: Chance) -> float:
            return (chance.orders if orders else chance.copies) * chance.one_copy

        kept = [chance for chance in measured if chance.usual or not usual]
        worst = max(kept, key=lambda c: (claimed(c) - c.any_copy) / (4 * c.error + 1e-12))
        at = f"{worst.name}: near some copy with chance {worst.any_copy:.5g}, near one of them "
        at += f"{worst.one_copy:.5g}, {worst.copies} different copies; {claimed(worst):.5g} is said"
        return Evidence(claimed(worst), worst.any_copy + 4 * worst.error + 1e-12, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class PermutedCopies:
    """Distinct parameter vectors among all permuted copies of one network."""

    name: str
    listed: int
    library: int
    by_layers: int
    """prod_l d_l! / prod(clones!): clones counted layer by layer"""
    orders: int


@torch.no_grad()
def _counts(size: Size) -> list[PermutedCopies]:
    nets = {"no clones": network((2, 3, 3, 1), nn.Tanh)}
    clones = network((2, 3, 3, 1), nn.Tanh)
    first, second, last = linears(clones)
    first.weight[1], first.bias[1] = first.weight[0], first.bias[0]
    second.weight[:, 1] = second.weight[:, 0]
    nets["two clones in the first layer"] = clones
    both = network((2, 2, 2, 1), nn.Tanh)
    first, second, last = linears(both)
    first.weight[1], first.bias[1] = first.weight[0], first.bias[0]
    second.weight.copy_(torch.tensor([[0.7, -0.3], [-0.3, 0.7]]))
    second.bias.fill_(0.2)
    last.weight.fill_(1.5)
    nets["neurons of two layers permuted together change nothing"] = both
    return [_count(name, net) for name, net in nets.items()]


def _count(name: str, net: nn.Sequential) -> PermutedCopies:
    copies = [vector(copy) for copy in every_copy(net)]
    layers = linears(net)
    count = len(copies)
    for here, after in pairwise(layers):
        rows = torch.cat([here.weight, here.bias[:, None], after.weight.T], 1)
        multiplicities = torch.unique(rows, dim=0, return_counts=True)[1].tolist()
        count //= math.prod(math.factorial(multiplicity) for multiplicity in multiplicities)
    shape = "-".join(str(layer.in_features) for layer in layers) + "-1"
    library = distinct_permutations(net).count
    return PermutedCopies(f"tanh {shape}, {name}", len(set(copies)), library, count, len(copies))


def _distinct(text: str, attribute: str) -> Statement:
    """The number of distinct copies is this attribute."""

    def judge(measured: list[PermutedCopies]) -> Evidence:
        worst = max(measured, key=lambda c: abs(getattr(c, attribute) - c.listed))
        claimed = getattr(worst, attribute)
        at = f"{worst.name}: {worst.listed} different vectors among {worst.orders} copies, "
        return Evidence(abs(claimed - worst.listed), 0, f"{at}{claimed} are said")

    return Statement(text, judge)


STARTS = (
    PaperClaim("functional-equivalence/theorem5", "Theorem 5", (14, 15), _chances,
          printed=_at_least("Starts with one law for all entries of a layer are within Delta_min / "
                            "2 (<=, largest entry) of some permuted copy with chance at least d*_1 "
                            "... d*_L times the chance for one copy", False),
          corrected=_at_least("... for independent entries and a law without atoms (or open "
                              "balls): balls touch, and dependent entries prefer some orders. "
                              "Delta_max: largest entry, Delta_min: least Delta_max between copies",
                              True),
          wrong=_at_least("... d_1! ... d_L! times, clones or not", True, orders=True)),
    PaperClaim("functional-equivalence/distinct-copies",
          "Theorem 5: distinct permutations", (15,), _counts,
          printed=_distinct("d*_1 ... d*_L copies are different: a product over layers, d_l! over "
                            "the orders of clones", "by_layers"),
          corrected=_distinct("All orders divided by those that change nothing (permutations "
                              "in two layers at once included)", "library"),
          wrong=_distinct("d_1! ... d_L! copies are different", "orders")),
)  # fmt: skip


@dataclass(frozen=True)
class Solutions:
    """Losses of a trained network's copies, and of wider networks built from it."""

    loss: float
    permuted: float
    """largest difference of the loss over all permuted copies"""
    trajectory: float
    """largest difference of weights: train, then permute, or the other way round"""
    mirrored: float
    """smallest difference of the loss over flips of single signs (ReLU is not odd)"""
    split: float
    """largest difference of the loss when a neuron is split in two, shares t and 1 - t"""
    split_unequal: float
    """the same with shares t and t"""
    slope: float
    """largest entry of the gradient of the trained network"""
    split_slope: float
    """... and of the split ones"""


def _slope(net: nn.Sequential, x: Tensor, y: Tensor) -> float:
    net.requires_grad_(True)
    slopes = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
    net.requires_grad_(False)
    return max(float(slope.abs().max()) for slope in slopes)


@torch.no_grad()
def _split(net: nn.Sequential, share: float, other: float) -> nn.Sequential:
    """A network with the first neuron split in two, which share its outgoing weights."""
    first, last = linears(net)
    wide = network((first.in_features, first.out_features + 1, 1), nn.Tanh)
    w, v = linears(wide)
    w.weight.copy_(torch.cat([first.weight, first.weight[:1]]))
    w.bias.copy_(torch.cat([first.bias, first.bias[:1]]))
    v.weight.copy_(torch.cat([last.weight, other * last.weight[:, :1]], 1))
    v.weight[:, 0].mul_(share)
    v.bias.copy_(last.bias)
    return wide


def _solve(net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Sequential:
    """Quasi-Newton steps until the gradient vanishes."""
    net.requires_grad_(True)
    steps = torch.optim.LBFGS(
        net.parameters(), max_iter=2000, tolerance_grad=1e-10, tolerance_change=0,
        history_size=20, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        steps.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    steps.step(closure)
    return net.requires_grad_(False)


def _weights(net: nn.Module) -> Tensor:
    return torch.tensor(vector(net), dtype=torch.float64)


def _solutions(size: Size) -> Solutions:
    x = torch.randn(40, 2, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:] + torch.randn(40, 1, dtype=torch.float64) / 2
    start = twin(network((2, 3, 1), nn.Tanh))
    solution = _solve(twin(start), x, y)

    def loss(net: nn.Module) -> float:
        return float(nn.functional.mse_loss(net(x), y))

    ends = [_weights(trained(copy, x, y, 50)) for copy in every_copy(start)]
    later = [_weights(copy) for copy in every_copy(trained(twin(start), x, y, 50))]
    here = loss(solution)
    flips = []
    for unit in range(3):
        other = twin(solution)
        linears(other)[0].weight[unit].neg_()
        flips.append(abs(loss(other) - here))
    shares = [-1.0, 0.0, 0.3, 0.5, 2.0]
    wider = [_split(solution, t, 1 - t) for t in shares]
    return Solutions(
        loss=here,
        permuted=max(abs(loss(copy) - here) for copy in every_copy(solution)),
        trajectory=max(float((a - b).abs().max()) for a, b in zip(ends, later, strict=True)),
        mirrored=min(flips),
        split=max(abs(loss(twin(wide)) - here) for wide in wider),
        split_unequal=max(abs(loss(twin(_split(solution, t, t))) - here) for t in shares),
        slope=_slope(solution, x, y),
        split_slope=max(_slope(wide, x, y) for wide in wider),
    )


def _permuted(m: Solutions) -> Evidence:
    at = f"tanh 2-3-1 trained to a loss of {m.loss:.4g}: over all 6 copies the loss differs by "
    at += f"{m.permuted:.1g}, 50 steps from permuted starts end {m.trajectory:.1g} from permuted"
    at += " ends"
    # 50 steps of some 100 operations, eps each; from the Hessians along the way (curvatures from
    # -1.5 to 5.1) an error grows at most 8.4 times: 100 * 50 * 8.4 eps = 9e-12.
    return Evidence(max(m.permuted, m.trajectory), 1e-11, at)


def _mirrored(m: Solutions) -> Evidence:
    at = f"tanh 2-3-1 trained to a loss of {m.loss:.4g}: one neuron's incoming signs flipped "
    return Evidence(m.mirrored, 1e-11, at + f"changes it by at least {m.mirrored:.3g}")


def _wider(m: Solutions) -> Evidence:
    at = f"tanh 2-3-1, one neuron split in two, shares t and 1 - t, t = -1..2: loss {m.loss:.4g}"
    at += f" changes by {m.split:.1g}; gradient {m.split_slope:.3g}, before {m.slope:.3g}"
    # Outgoing shares of at most 2 multiply the gradient of incoming weights by at most 2.
    return Evidence(max(m.split, m.split_slope - 2 * m.slope), 1e-11, at)


def _unequal(m: Solutions) -> Evidence:
    at = f"tanh 2-3-1, one neuron split in two, shares t and t: loss {m.loss:.4g} changes by up"
    return Evidence(m.split_unequal, 1e-11, at + f" to {m.split_unequal:.3g}")


SOLUTIONS = (
    PaperClaim("functional-equivalence/copies-are-solutions",
          "Theorem 5, first point below", (23,), _solutions,
          printed=Statement("A solution gives others by permutation: same loss, and training from "
                          "a permuted start ends in the permuted weights", _permuted),
          wrong=Statement("Flipping the incoming signs of one neuron gives others", _mirrored)),
    PaperClaim("functional-equivalence/wider-has-more-minima",
          "Benefits to Generalization, [34]", (23,), _solutions,
          printed=Statement("Wider networks have more solutions: split a neuron of a solution, "
                          "share its outgoing weights as t and 1 - t: a line of critical points "
                          "with the same loss", _wider),
          wrong=Statement("Shares t and t do as well", _unequal)),
)  # fmt: skip
