"""Ways to bring the units of one network into the order of another.

Plain weight matching (git re-basin, Algorithm 1) and plain activation matching are written by hand,
with the permutations of each architecture listed by hand, so that nothing is shared with
weightloom. rebasin is used as its README uses it. Each maps (a, b, images) to a copy of b.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

__all__ = ["Contender", "permutations", "peers"]

Contender = Callable[[nn.Module, nn.Module, Tensor], nn.Module]

SWEEPS = 50


@dataclass
class Units:
    """Hidden units: the tensors they index (name, dimension, positions of each unit), and where
    their values are seen (output of these modules, after ReLU)."""

    count: int
    tensors: list[tuple[str, int, int]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def write(self, name: str, layer: nn.Module) -> None:
        keys = [key for key in layer.state_dict() if key != "num_batches_tracked"]
        self.tensors += [(f"{name}.{key}", 0, 1) for key in keys]


def permutations(network: nn.Module) -> list[Units]:
    """The permutations of a chain of layers, or of the residual network of this benchmark."""
    groups: list[Units] = []
    for name, layer in network.named_children():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if groups:
                repeat = layer.weight.shape[1] // groups[-1].count
                groups[-1].tensors.append((f"{name}.weight", 1, repeat))
            groups.append(Units(len(layer.weight)))
            groups[-1].write(name, layer)
        elif isinstance(layer, nn.BatchNorm2d):
            groups[-1].write(name, layer)
        elif isinstance(layer, nn.ReLU):
            groups[-1].seen.append(name)
        elif hasattr(layer, "norm2"):  # x + two(relu(one(x)))
            groups[-1].tensors.append((f"{name}.one.weight", 1, 1))
            inner = Units(groups[-1].count, seen=[f"{name}.norm1"])
            for part in ("one", "norm1"):
                inner.write(f"{name}.{part}", getattr(layer, part))
            inner.tensors.append((f"{name}.two.weight", 1, 1))
            for part in ("two", "norm2"):
                groups[-1].write(f"{name}.{part}", getattr(layer, part))
            groups[-1].seen.append(name)
            groups.insert(len(groups) - 1, inner)
    return groups[:-1]  # the last layer writes the output


def slices(tensor: Tensor, dim: int, count: int) -> Tensor:
    return tensor.unflatten(dim, (count, -1)).movedim(dim, 0).reshape(count, -1)


def permuted(state: dict[str, Tensor], groups: list[Units], order: list[Tensor], skip: int = -1):
    """The tensors with every permutation applied but one."""
    result = dict(state)
    for number, group in enumerate(groups):
        for name, dim, repeat in group.tensors if number != skip else ():
            places = (order[number][:, None] * repeat + torch.arange(repeat)).flatten()
            result[name] = result[name].index_select(dim, places)
    return result


def with_order(b: nn.Module, groups: list[Units], order: list[Tensor]) -> nn.Module:
    result = copy.deepcopy(b)
    result.load_state_dict(permuted(b.state_dict(), groups, order))
    return result


def weight_matching(a: nn.Module, b: nn.Module, images: Tensor) -> nn.Module:
    """The permutation with the largest inner product of weights, group after group."""
    groups, first, second = permutations(a), a.state_dict(), b.state_dict()
    order = [torch.arange(group.count) for group in groups]
    generator = torch.Generator().manual_seed(0)
    for _ in range(SWEEPS):
        moved = False
        for number in torch.randperm(len(groups), generator=generator).tolist():
            now, group = permuted(second, groups, order, skip=number), groups[number]
            score = torch.zeros(group.count, group.count)
            for name, dim, _ in group.tensors:
                if "running" not in name:
                    score += (
                        slices(first[name], dim, group.count)
                        @ slices(now[name], dim, group.count).t()
                    )
            best = torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1])
            moved |= not torch.equal(best, order[number])
            order[number] = best
        if not moved:
            break
    return with_order(b, groups, order)


def activation_matching(a: nn.Module, b: nn.Module, images: Tensor) -> nn.Module:
    """The permutation with the largest correlation of values after ReLU."""
    groups = permutations(a)
    order = []
    for group in groups:
        score = torch.zeros(group.count, group.count)
        for name in group.seen:
            score += correlation(values(a, name, images), values(b, name, images))
        order.append(torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1]))
    return with_order(b, groups, order)


@torch.no_grad()
def values(network: nn.Module, name: str, images: Tensor) -> Tensor:
    """What a module writes, after ReLU [units, samples]."""
    seen: list[Tensor] = []
    hook = network.get_submodule(name).register_forward_hook(
        lambda module, inputs, output: seen.append(F.relu(output).movedim(1, 0).flatten(1).clone())
    )
    for batch in images.split(500):
        network(batch)
    hook.remove()
    return torch.cat(seen, 1)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    x, y = (v - v.mean(1, keepdim=True) for v in (x, y))
    return (x @ y.t()) / (x.norm(dim=1)[:, None] * y.norm(dim=1) + 1e-8)


def rebasin(a: nn.Module, b: nn.Module, images: Tensor) -> nn.Module:
    from rebasin import PermutationCoordinateDescent

    moved = copy.deepcopy(b)
    PermutationCoordinateDescent(copy.deepcopy(a), moved, images[:2]).rebasin()
    return moved.eval()


def peers() -> dict[str, Contender]:
    """The contenders that can be measured here; prints a line if rebasin is missing."""
    contenders: dict[str, Contender] = {
        "as given": lambda a, b, images: b,
        "weight matching": weight_matching,
        "activation matching": activation_matching,
    }
    if find_spec("rebasin") is None:
        print("rebasin is not installed and is left out; benchmarks/README.md says how to add it")
    else:
        contenders["rebasin"] = rebasin
    return contenders
