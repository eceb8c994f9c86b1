"""Theorem 5 and around it: permuted copies of a solution, how many there are, starts near them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from weightloom.symmetry import distinct_permutations, theorem5
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import linears, network, twin
from weightloom.verify.equivalence.representatives import every_copy, vector

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Chance:
    """Starts near one of the copies, against copies times starts near one of them."""

    name: str
    any_copy: float
    one_copy: float
    copies: int
    orders: int
    """d_1! ... d_L!, equal copies counted again"""
    error: float
    """standard error of any_copy - copies * one_copy; 0: computed exactly"""
    usual: bool
    """independent entries whose law has no atoms"""


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
    found = theorem5(net, _uniform, samples)
    copies = len({vector(one) for one in every_copy(net)})
    name = f"tanh 1-{len(weights)}-1 with first weights {tuple(weights)}, uniform starts"
    orders = math.factorial(len(weights))
    error = math.hypot(found.error_any, copies * found.error_one)
    return Chance(name, found.probability_any, found.probability_one, copies, orders, error, True)


def _weighed(
    name: str, net: nn.Sequential, starts: list[tuple[float, Tensor]], orders: int
) -> Chance:
    """Probabilities of starts in closed balls, summed exactly over ``starts`` (weight, vector)."""
    copies = [torch.tensor(one, dtype=torch.float64) for one in
              sorted({vector(copy) for copy in every_copy(net)})]  # fmt: skip
    here = torch.tensor(vector(net), dtype=torch.float64)
    delta = min(float((a - b).abs().max()) for a in copies for b in copies if a is not b)
    near_any = near_one = 0.0
    for weight, start in starts:
        off = [float((start - one).abs().max()) for one in copies]
        near_any += weight * (min(off) <= delta / 2)
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
    """First weights u, u + 1/3, u + 2/3 (mod 1), u uniform: one law for all, not independent."""
    net, starts = _line([0.1, 0.1 + 1 / 3, 0.1 + 2 / 3]), []
    for step in range(steps):
        first = [((step + 0.5) / steps + k / 3) % 1 for k in range(3)]
        starts.append((1 / steps, torch.tensor([*first, *[0.0] * 7], dtype=torch.float64)))
    return _weighed("tanh 1-3-1, first weights u, u + 1/3, u + 2/3 mod 1", net, starts, 6)


def _chances(size: Size) -> list[Chance]:
    samples = 200_000 if size == "quick" else 4_000_000
    made = [_sampled([-0.5, 0.5], samples), _sampled([-0.5, -0.5, 0.5], samples)]
    return [*made, _atoms(), _turning(300 if size == "quick" else 3000)]


def _at_least(text: str, usual: bool, orders: bool = False) -> Statement:
    def judge(measured: list[Chance]) -> Evidence:
        def said(one: Chance) -> float:
            return (one.orders if orders else one.copies) * one.one_copy

        kept = [one for one in measured if one.usual or not usual]
        one = max(kept, key=lambda c: (said(c) - c.any_copy) / (4 * c.error + 1e-12))
        told = f"{one.name}: near some copy with chance {one.any_copy:.5g}, near one of them "
        told += f"{one.one_copy:.5g}, {one.copies} different copies; {said(one):.5g} is said"
        return Evidence(said(one), one.any_copy + 4 * one.error + 1e-12, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Counted:
    """Different parameter vectors among all permuted copies of one network, by listing them."""

    name: str
    listed: int
    library: int
    by_layers: int
    """prod_l d_l! / prod(clones!): clones counted layer by layer"""
    orders: int


@torch.no_grad()
def _counts(size: Size) -> list[Counted]:
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
    nets["neurons of two layers exchanged together change nothing"] = both
    return [_count(name, net) for name, net in nets.items()]


def _count(name: str, net: nn.Sequential) -> Counted:
    copies = [vector(one) for one in every_copy(net)]
    layers = linears(net)
    count = len(copies)
    for here, after in pairwise(layers):
        rows = torch.cat([here.weight, here.bias[:, None], after.weight.T], 1)
        many = torch.unique(rows, dim=0, return_counts=True)[1].tolist()
        count //= math.prod(math.factorial(one) for one in many)
    shape = "-".join(str(layer.in_features) for layer in layers) + "-1"
    found = distinct_permutations(net).count
    return Counted(f"tanh {shape}, {name}", len(set(copies)), found, count, len(copies))


def _said(text: str, attribute: str) -> Statement:
    def judge(measured: list[Counted]) -> Evidence:
        one = max(measured, key=lambda c: abs(getattr(c, attribute) - c.listed))
        said = getattr(one, attribute)
        told = f"{one.name}: {one.listed} different vectors among {one.orders} copies, "
        return Evidence(abs(said - one.listed), 0, f"{told}{said} are said")

    return Statement(text, judge)


@dataclass(frozen=True)
class Solutions:
    """Losses of a trained network's copies, and of networks made wider from it."""

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


def _train(net: nn.Sequential, x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    net.requires_grad_(True)
    for _ in range(steps):
        slopes = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes, strict=True):
                p.sub_(0.1 * slope)
    return net.requires_grad_(False)


def _slope(net: nn.Sequential, x: Tensor, y: Tensor) -> float:
    net.requires_grad_(True)
    slopes = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
    net.requires_grad_(False)
    return max(float(slope.abs().max()) for slope in slopes)


@torch.no_grad()
def _split(net: nn.Sequential, share: float, other: float) -> nn.Sequential:
    """One neuron more: the first one twice, its outgoing weights shared."""
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
    """Quasi-Newton steps until the gradient is gone."""
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


def _end(net: nn.Module) -> Tensor:
    return torch.tensor(vector(net), dtype=torch.float64)


def _solutions(size: Size) -> Solutions:
    x = torch.randn(40, 2, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:] + torch.randn(40, 1, dtype=torch.float64) / 2
    start = twin(network((2, 3, 1), nn.Tanh))
    trained = _solve(twin(start), x, y)

    def loss(net: nn.Module) -> float:
        return float(nn.functional.mse_loss(net(x), y))

    ends = [_end(_train(one, x, y, 50)) for one in every_copy(start)]
    later = [_end(one) for one in every_copy(_train(twin(start), x, y, 50))]
    here = loss(trained)
    flips = []
    for unit in range(3):
        made = twin(trained)
        linears(made)[0].weight[unit].neg_()
        flips.append(abs(loss(made) - here))
    shares = [-1.0, 0.0, 0.3, 0.5, 2.0]
    wider = [_split(trained, t, 1 - t) for t in shares]
    return Solutions(
        loss=here,
        permuted=max(abs(loss(one) - here) for one in every_copy(trained)),
        trajectory=max(float((a - b).abs().max()) for a, b in zip(ends, later, strict=True)),
        mirrored=min(flips),
        split=max(abs(loss(twin(one)) - here) for one in wider),
        split_unequal=max(abs(loss(twin(_split(trained, t, t))) - here) for t in shares),
        slope=_slope(trained, x, y),
        split_slope=max(_slope(one, x, y) for one in wider),
    )


def _number(text: str, judge: Callable[[Solutions], Evidence]) -> Statement:
    return Statement(text, judge)


def _permuted(m: Solutions) -> Evidence:
    told = f"tanh 2-3-1 trained to a loss of {m.loss:.4g}: over all 6 copies the loss differs by "
    told += f"{m.permuted:.1g}, 50 steps from permuted starts end {m.trajectory:.1g} from permuted"
    told += " ends"
    # 50 steps with roundings of 1e-16, each made larger by (1 + 0.1 h)^50, h < 2 the curvature.
    return Evidence(max(m.permuted, m.trajectory), 1e-11, told)


def _mirrored(m: Solutions) -> Evidence:
    told = f"tanh 2-3-1 trained to a loss of {m.loss:.4g}: one neuron's incoming signs flipped "
    return Evidence(m.mirrored, 1e-11, told + f"changes it by at least {m.mirrored:.3g}")


def _wider(m: Solutions) -> Evidence:
    told = f"tanh 2-3-1, one neuron split in two, shares t and 1 - t, t = -1..2: loss {m.loss:.4g}"
    told += f" changes by {m.split:.1g}; gradient {m.split_slope:.3g}, before {m.slope:.3g}"
    # Outgoing shares of at most 2 multiply the gradient of incoming weights by at most 2.
    return Evidence(max(m.split, m.split_slope - 2 * m.slope), 1e-11, told)


def _unequal(m: Solutions) -> Evidence:
    told = f"tanh 2-3-1, one neuron split in two, shares t and t: loss {m.loss:.4g} changes by up"
    return Evidence(m.split_unequal, 1e-11, told + f" to {m.split_unequal:.3g}")


CLAIMS = (
    Claim("002/theorem5", "Theorem 5", (14, 15), _chances,
          printed=_at_least("Starts with one law for all entries of a layer are within Delta_min / "
                            "2 (<=, largest entry) of some permuted copy with chance at least d*_1 "
                            "... d*_L times the chance for one copy", False),
          corrected=_at_least("... for independent entries and a law without atoms (or open "
                              "balls): balls touch, and dependent entries prefer some orders. "
                              "Delta_max: largest entry, Delta_min: least Delta_max between two copies", True),
          wrong=_at_least("... d_1! ... d_L! times, clones or not", True, orders=True)),
    Claim("002/distinct-copies", "Theorem 5: distinct permutations", (15,), _counts,
          printed=_said("d*_1 ... d*_L copies are different: a product over layers, d_l! over the "
                        "orders of clones", "by_layers"),
          corrected=_said("All orders divided by those that change nothing (exchanges in two "
                          "layers at once included)", "library"),
          wrong=_said("d_1! ... d_L! copies are different", "orders")),
    Claim("002/copies-are-solutions", "Theorem 5, first point below", (23,), _solutions,
          printed=_number("A solution gives others by permutation: same loss, and training from a "
                          "permuted start ends in the permuted weights", _permuted),
          wrong=_number("Flipping the incoming signs of one neuron alone gives others", _mirrored)),
    Claim("002/wider-has-more-minima", "Benefits to Generalization, [34]", (23,), _solutions,
          printed=_number("Wider networks have more solutions: split a neuron of a solution, share "
                          "its outgoing weights as t and 1 - t: a line of critical points with the "
                          "same loss", _wider),
          wrong=_number("Shares t and t do as well", _unequal)),
)  # fmt: skip
