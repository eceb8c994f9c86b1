"""Copies of a trained network, and wider networks made from it: other solutions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import linears, network, twin
from weightloom.verify.equivalence.representatives import every_copy, vector

__all__ = ["CLAIMS"]


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


def _permuted(m: Solutions) -> Evidence:
    told = f"tanh 2-3-1 trained to a loss of {m.loss:.4g}: over all 6 copies the loss differs by "
    told += f"{m.permuted:.1g}, 50 steps from permuted starts end {m.trajectory:.1g} from permuted"
    told += " ends"
    # 50 steps of some 100 operations, eps each; from the Hessians along the way (curvatures from
    # -1.5 to 5.1) an error grows at most 8.4 times: 100 * 50 * 8.4 eps = 9e-12.
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
    Claim("002/copies-are-solutions", "Theorem 5, first point below", (23,), _solutions,
          printed=Statement("A solution gives others by permutation: same loss, and training from "
                          "a permuted start ends in the permuted weights", _permuted),
          wrong=Statement("Flipping the incoming signs of one neuron gives others", _mirrored)),
    Claim("002/wider-has-more-minima", "Benefits to Generalization, [34]", (23,), _solutions,
          printed=Statement("Wider networks have more solutions: split a neuron of a solution, "
                          "share its outgoing weights as t and 1 - t: a line of critical points "
                          "with the same loss", _wider),
          wrong=Statement("Shares t and t do as well", _unequal)),
)  # fmt: skip
