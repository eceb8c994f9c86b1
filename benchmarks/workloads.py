"""What is computed: three hypernetworks, their data, one common starting point, and the answer.

Every contender of a workload starts from the same numbers (`Start`), so that what it computes can
be compared with a plain loop over conditions in double precision (`reference`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["WORKLOADS", "Data", "Reference", "Start", "Workload", "plain_outputs", "reference"]


@dataclass(frozen=True)
class Workload:
    """h(x, I) = g(x; f(I)) of given sizes, and how many conditions and inputs one batch has."""

    key: str
    title: str
    encoder: tuple[int, ...]  # widths of f up to the features; ReLU after every layer
    make_primary: Callable[[], nn.Sequential]  # g
    conditions: int
    inputs: tuple[int, ...]  # shape of x for one condition
    learning_rate: float  # of the check and of the timed steps: small enough to stay finite

    def data(self) -> Data:
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        x = normal(self.conditions, *self.inputs)
        condition = normal(self.conditions, self.encoder[0])
        with torch.device("meta"):
            shape = self.make_primary()(torch.empty(self.inputs)).shape
        return Data(x, condition, normal(self.conditions, *shape))

    def start(self) -> Start:
        """Weights sampled so that the generated networks keep the scale of their activations."""
        generator = torch.Generator().manual_seed(2)

        def normal(deviation: float, *shape: int) -> Tensor:
            return deviation * torch.randn(*shape, generator=generator)

        layers = [
            (normal(math.sqrt(2 / before), after, before), normal(0.1, after))
            for before, after in zip(self.encoder, self.encoder[1:], strict=False)
        ]
        shapes = {n: tuple(p.shape) for n, p in self.make_primary().named_parameters()}
        features = self.encoder[-1]
        blocks = []
        for shape in shapes.values():
            gain = 2 / math.prod(shape[1:]) if len(shape) > 1 else 0.01
            blocks.append(normal(math.sqrt(gain / features), math.prod(shape), features))
        head = torch.cat(blocks)
        return Start(tuple(layers), head, normal(0.01, len(head)), shapes)


@dataclass(frozen=True)
class Data:
    x: Tensor  # [conditions, *inputs]
    condition: Tensor  # [conditions, c]
    target: Tensor  # [conditions, *outputs]

    def double(self) -> Data:
        return Data(self.x.double(), self.condition.double(), self.target.double())


@dataclass(frozen=True)
class Start:
    """The initial weights of every contender, in the layout of `nn.Linear`."""

    encoder: tuple[tuple[Tensor, Tensor], ...]  # (weight [out, in], bias [out]) of each layer
    head_weight: Tensor  # [N_g, k], rows in the order of the primary's named_parameters()
    head_bias: Tensor  # [N_g]
    shapes: dict[str, tuple[int, ...]]  # of the primary's parameters

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def features(self) -> int:
        return self.head_weight.shape[1]

    @property
    def parameters(self) -> int:
        """What every contender trains: encoder and head."""
        encoder = sum(weight.numel() + bias.numel() for weight, bias in self.encoder)
        return encoder + self.head_weight.numel() + self.head_bias.numel()

    def blocks(self) -> dict[str, tuple[Tensor, Tensor]]:
        """{name: (rows of the head's weight, rows of its bias)} of each generated tensor."""
        weights = self.head_weight.split(self.sizes)
        biases = self.head_bias.split(self.sizes)
        return dict(zip(self.shapes, zip(weights, biases, strict=True), strict=True))

    def make_encoder(self) -> nn.Sequential:
        """f without its last layer, for contenders that take an encoder."""
        modules: list[nn.Module] = []
        for weight, bias in self.encoder:
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            fill(layer, weight, bias)
            modules += [layer, nn.ReLU()]
        return nn.Sequential(*modules)


def fill(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copy weight and bias into any Linear layer."""
    with torch.no_grad():
        layer.weight.copy_(weight)  # type: ignore[operator]
        layer.bias.copy_(bias)  # type: ignore[operator]


@dataclass(frozen=True)
class Reference:
    """Outputs [conditions, *outputs] in double precision, before and after training steps."""

    before: Tensor
    after: Tensor
    steps: int


def reference(workload: Workload, start: Start, data: Data, steps: int = 2) -> Reference:
    """A plain loop over conditions, autograd and SGD by hand: slow, obvious, in double."""
    data = data.double()
    primary = workload.make_primary().double()
    parameters = [tensor.double() for layer in start.encoder for tensor in layer]
    parameters += [start.head_weight.double(), start.head_bias.double()]
    outputs = []
    for _ in range(steps + 1):
        parameters = [p.detach().requires_grad_() for p in parameters]
        output = plain_outputs(primary, start.shapes, parameters, data)
        outputs.append(output.detach())
        gradients = torch.autograd.grad(F.mse_loss(output, data.target), parameters)
        pairs = zip(parameters, gradients, strict=True)
        parameters = [p - workload.learning_rate * g for p, g in pairs]
    return Reference(outputs[0], outputs[-1], steps)


def plain_outputs(
    primary: nn.Module, shapes: dict[str, tuple[int, ...]], parameters: list[Tensor], data: Data
) -> Tensor:
    """functional_call for each condition in turn; parameters are encoder layers, then the head."""
    features = data.condition
    *layers, head_weight, head_bias = parameters
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        features = F.relu(F.linear(features, weight, bias))
    sizes = [math.prod(shape) for shape in shapes.values()]
    outputs = []
    for row, x in zip(F.linear(features, head_weight, head_bias).unbind(), data.x, strict=True):
        pieces = zip(shapes.items(), row.split(sizes), strict=True)
        weights = {name: piece.view(shape) for (name, shape), piece in pieces}
        outputs.append(functional_call(primary, weights, (x,)))
    return torch.stack(outputs)


def _pairs() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1000, 10), nn.ReLU(), nn.Linear(10, 1))


def _points() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
    )


def _images() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 28 * 28, 10)),
    )


_ALL = [
    Workload(
        "a",
        "pairs: f 1000-100-100-100-N_g, g 1000-10-1 with biases, 200 distinct (x, I)",
        *((1000, 100, 100, 100), _pairs, 200, (1000,), 1e-3),
    ),
    Workload(
        "b",
        "points: f 784-256-256-N_g, g 2-64-64-64-1, 16 conditions x 1024 points",
        *((784, 256, 256), _points, 16, (1024, 2), 1e-3),
    ),
    Workload(
        "c",
        "images: f 64-128-N_g, g conv 1-16-16 3x3 on 28x28, linear to 10, 32 conditions x 4",
        *((64, 128), _images, 32, (4, 1, 28, 28), 1e-5),
    ),
]
WORKLOADS = {workload.key: workload for workload in _ALL}
