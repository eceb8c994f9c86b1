"""Random functions y(x, I) to learn, after "On the Modularity of Hypernetworks", Section 6.

The paper samples the targets' weights with "the He uniform initialization" and says no more. That
is read here as He et al. (2015): weights uniform in +-sqrt(6 / fan_in), variance 2 / fan_in, in
every layer, and biases zero. The choice matters: with PyTorch's default for `nn.Linear` the
variance of the first family is several hundred times smaller. So the initialisation is a parameter.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError

__all__ = [
    "TARGETS",
    "TARGET_INITS",
    "InnerProductTarget",
    "NetworkTarget",
    "ProductTarget",
    "Target",
    "evaluate",
    "make_target",
    "sample_inputs",
    "sample_pairs",
]

TARGET_INITS = ("he_uniform", "pytorch")

# Rows that a target computes at once, to avoid a copy of 30,000 rows of 2000 numbers.
_ROWS = 4096


class Target(nn.Module):
    """A fixed random function y(x, I) of two vectors of ``d`` numbers: [n, d], [n, d] to [n, 1].

    Its weights depend on ``seed`` and ``init`` alone and are not trained. ``hidden`` gives the
    widths of its hidden layers, the paper's by default.
    """

    #: The paper's hidden layers.
    HIDDEN: tuple[int, ...]

    def __init__(
        self,
        d: int,
        *,
        seed: int = 0,
        init: str = "he_uniform",
        hidden: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        hidden = self.HIDDEN if hidden is None else tuple(hidden)
        if d < 1 or any(width < 1 for width in hidden):
            raise ShapeError(
                f"a target of d={d} with hidden layers {list(hidden)} was asked for; every size "
                f"is at least 1"
            )
        self.d = d
        self.network = self._build(d, hidden)
        self.requires_grad_(False)
        sample_weights(self.network, init, torch.Generator().manual_seed(seed))

    @abstractmethod
    def _build(self, d: int, hidden: Sequence[int]) -> nn.Sequential: ...

    @abstractmethod
    def forward(self, x: Tensor, condition: Tensor) -> Tensor: ...


class NetworkTarget(Target):
    """y(x, I) = h([x, I]): an ELU network 2d-100-50-50-1 of both vectors joined.

    >>> NetworkTarget(1000)(torch.randn(3, 1000), torch.randn(3, 1000)).shape
    torch.Size([3, 1])
    """

    HIDDEN = (100, 50, 50)

    def _build(self, d: int, hidden: Sequence[int]) -> nn.Sequential:
        return _stack([2 * d, *hidden, 1], nn.ELU)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        value: Tensor = self.network(torch.cat([x, condition], dim=-1))
        return value


class ProductTarget(Target):
    """y(x, I) = h(x * I): an ELU network d-100-100-50-1 of the element-wise product."""

    HIDDEN = (100, 100, 50)

    def _build(self, d: int, hidden: Sequence[int]) -> nn.Sequential:
        return _stack([d, *hidden, 1], nn.ELU)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        value: Tensor = self.network(x * condition)
        return value


class InnerProductTarget(Target):
    """y(x, I) = <x, h(I)>: a network d-300-300-d, sigmoid in between and softmax on top.

    h(I) is a point of the simplex, so |y| is at most the largest |x_i|.
    """

    HIDDEN = (300, 300)

    def _build(self, d: int, hidden: Sequence[int]) -> nn.Sequential:
        return nn.Sequential(*_stack([d, *hidden, d], nn.Sigmoid), nn.Softmax(dim=-1))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        mixture: Tensor = self.network(condition)
        return (x * mixture).sum(dim=-1, keepdim=True)


#: The families by name, in the paper's order (a), (b), (c).
TARGETS: dict[str, type[Target]] = {
    "network": NetworkTarget,
    "product": ProductTarget,
    "inner_product": InnerProductTarget,
}


def make_target(
    family: str,
    d: int,
    *,
    seed: int = 0,
    init: str = "he_uniform",
    hidden: Sequence[int] | None = None,
) -> Target:
    """A target of the family "network", "product" or "inner_product"."""
    if family not in TARGETS:
        raise ShapeError(f"family={family!r} is unknown; choose one of {', '.join(TARGETS)}")
    return TARGETS[family](d, seed=seed, init=init, hidden=hidden)


@torch.no_grad()
def sample_weights(network: nn.Module, init: str, generator: torch.Generator) -> None:
    """Sample the weights of every Linear layer: "he_uniform", or "pytorch" as `nn.Linear` does.

    PyTorch samples weights and biases uniformly in +-1 / sqrt(fan_in): weights with a sixth of the
    variance of He et al., biases that are not zero.
    """
    if init not in TARGET_INITS:
        raise ShapeError(f"init={init!r} is unknown; choose one of {', '.join(TARGET_INITS)}")
    for layer in network.modules():
        if not isinstance(layer, nn.Linear):
            continue
        bound = math.sqrt((6.0 if init == "he_uniform" else 1.0) / layer.in_features)
        layer.weight.uniform_(-bound, bound, generator=generator)
        if init == "he_uniform":
            layer.bias.zero_()
        else:
            layer.bias.uniform_(-bound, bound, generator=generator)


def sample_inputs(n: int, seed: int, d: int) -> tuple[Tensor, Tensor]:
    """x [n, d] and I [n, d], standard normal, from ``seed`` alone.

    Torch's global generator is not used.
    """
    if n < 1 or d < 1:
        raise ShapeError(f"{n} pairs of {d} numbers were asked for; at least 1 of each is needed")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randn(n, d, generator=generator)


@torch.no_grad()
def evaluate(target: Callable[[Tensor, Tensor], Tensor], x: Tensor, condition: Tensor) -> Tensor:
    """target(x, condition), a few thousand rows at a time."""
    parts = zip(x.split(_ROWS), condition.split(_ROWS), strict=True)
    return torch.cat([target(*part) for part in parts])


def sample_pairs(
    target: Callable[[Tensor, Tensor], Tensor], n: int, seed: int, d: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``n`` pairs and their values: x [n, d], I [n, d] standard normal, y = target(x, I) [n, 1].

    All float32. The same ``seed`` gives the same pairs whatever the target.
    """
    x, condition = sample_inputs(n, seed, d)
    return x, condition, evaluate(target, x, condition)


def _stack(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        if i:
            layers.append(activation())
        # Weights are sampled later; the usual constructor would use torch's global generator.
        layers.append(nn.utils.skip_init(nn.Linear, sizes[i], sizes[i + 1]))
    return nn.Sequential(*layers)
