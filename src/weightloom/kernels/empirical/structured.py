"""Tangent kernels from the input of each linear layer and the gradient at its output.

The gradient of a row's output with respect to a weight matrix is the outer product d a^T of the
layer's input a and the gradient d at the layer's output. So its inner product with another row's
gradient is (a . a') (d . d'), and Jacobians, which are as large as the network for each row, are
never formed. A layer that is applied at several positions (tokens, repeated calls) has a sum over
pairs of positions. For parameters outside linear layers (of norms, convolutions), usually few,
Jacobians are formed and their products added. The result is checked against autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import KernelError
from weightloom.kernels.empirical.jacobian import jacobian, sum_of_products
from weightloom.kernels.empirical.rows import InputRows, Network, Parameters
from weightloom.kernels.finite import NTKLinear

__all__ = ["Kept", "LayerFactors", "NotStructuredError", "Structured", "products"]

Key = tuple[int | None, int | None]
"""identities of the weight and the bias of a layer, None for one that is not trained"""


@dataclass(frozen=True)
class LayerFactors:
    """One layer seen from some rows; scales are 0 where the parameter is not trained."""

    weight_scale: float
    bias_scale: float
    inputs: Tensor  # [n, t, in], t positions that share the layer
    gradients: Tensor  # [n, c, t, out], of each output with respect to the layer's output

    @property
    def numbers(self) -> int:
        """Numbers stored for each row."""
        return (self.inputs.numel() + self.gradients.numel()) // len(self.inputs)

    @property
    def forward(self) -> int:
        """Operations of the layer's own call, for one row."""
        return 2 * self.inputs.shape[1] * self.inputs.shape[2] * self.gradients.shape[-1]

    @property
    def outer(self) -> bool:
        """Whether t^2 pairs of positions cost more than forming the gradient of the weights."""
        t, a = self.inputs.shape[1:]
        b = self.gradients.shape[-1]
        return t * t * (a + b) > a * b + t * (a + b)

    @property
    def flops(self) -> int:
        """Operations for one pair of rows."""
        c, t, b = self.gradients.shape[1:]
        a = self.inputs.shape[-1]
        bias = 2 * c * c * b if t > 1 and self.bias_scale else 0
        if self.weight_scale and self.outer:
            return 2 * c * c * a * b + bias
        return 2 * t * t * (a + c * c * b) + bias

    def pair(self, other: LayerFactors) -> Tensor:
        """This layer's part of the kernel, [n, m, c, c]."""
        if self.inputs.shape[1] == 1 == other.inputs.shape[1]:
            inner = self.weight_scale**2 * (self.inputs[:, 0] @ other.inputs[:, 0].T)
            inner = inner + self.bias_scale**2
            return inner[:, :, None, None] * products(self.gradients, other.gradients)
        kernel = products(self.gradients.sum(2), other.gradients.sum(2)) * self.bias_scale**2
        if not self.weight_scale:
            return kernel
        if self.outer:
            return kernel + self.weight_scale**2 * products(self._formed(), other._formed())
        # [n, t, m, s] and [n, c, t, m, d, s]: positions against positions.
        inner = torch.einsum("nta,msa->ntms", self.inputs, other.inputs)
        outer = torch.einsum("nctb,mdsb->nctmds", self.gradients, other.gradients)
        return kernel + self.weight_scale**2 * torch.einsum("ntms,nctmds->nmcd", inner, outer)

    def _formed(self) -> Tensor:
        return torch.einsum("nctb,nta->ncba", self.gradients, self.inputs)


@dataclass(frozen=True)
class Kept:
    """What is stored for a block of rows."""

    layers: list[LayerFactors]
    rest: Parameters  # Jacobian with respect to what is in no linear layer, [n, c, *shape]

    @property
    def numbers(self) -> int:
        """Numbers stored for each row."""
        rest = sum(value[0].numel() for value in self.rest.values())
        return sum(layer.numbers for layer in self.layers) + rest

    @property
    def flops(self) -> int:
        """Operations for one pair of rows."""
        c = self.layers[0].gradients.shape[1]
        rest = sum(2 * c * value[0].numel() for value in self.rest.values())
        return sum(layer.flops for layer in self.layers) + rest


def products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products over all but rows and outputs: [n, c, *], [m, c, *] to [n, m, c, c]."""
    (n, c), (m, d) = left.shape[:2], right.shape[:2]
    return (left.reshape(n * c, -1) @ right.reshape(m * d, -1).T).view(n, c, m, d).transpose(1, 2)


class NotStructuredError(KernelError):
    """A network without linear layers, or one that uses their weights in another way."""


@dataclass
class _Call:
    module: nn.Linear
    inputs: Tensor
    output: Tensor


class Structured:
    """The structured method for a tangent kernel; `rows` may raise `NotStructuredError`."""

    name = "structured"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.layers, names = _linear_layers(network)
        self.rest = {n: p for n, p in network.parameters.items() if n not in names}
        self.covered = len(names)

    def rows(self, rows: InputRows) -> Kept:
        calls: list[_Call] = []
        with torch.enable_grad(), _watching(self.layers, calls):
            outputs = self.network(rows)
            groups = self._groups(calls)
            layers = self._backward(outputs, groups)
            self._certify(outputs, groups, layers)
        return Kept(layers, jacobian(self.network, self.rest, rows) if self.rest else {})

    def pair(self, left: Kept, right: Kept) -> Tensor:
        first, *others = [a.pair(b) for a, b in zip(left.layers, right.layers, strict=True)]
        for part in others:
            first += part
        return first + sum_of_products(left.rest, right.rest) if self.rest else first

    def _groups(self, calls: list[_Call]) -> dict[Key, list[_Call]]:
        """Calls that share their parameters, together; every parameter of a layer in one group."""
        groups: dict[Key, list[_Call]] = {}
        for call in calls:
            weight, bias = call.module.weight, call.module.bias
            key = (
                id(weight) if weight.requires_grad else None,
                id(bias) if bias is not None and bias.requires_grad else None,
            )
            groups.setdefault(key, []).append(call)
        used = [part for key in groups for part in key if part is not None]
        if len(set(used)) < len(used):
            raise NotStructuredError(
                "two linear layers share one parameter but not both; use method='jacobian'"
            )
        if len(used) < self.covered:
            raise NotStructuredError(
                "the network used a linear layer's weight without calling the layer, or did not "
                "call it at all; use method='jacobian'"
            )
        return groups

    def _backward(self, outputs: Tensor, groups: dict[Key, list[_Call]]) -> list[LayerFactors]:
        n, c = outputs.shape
        targets = [call.output for calls in groups.values() for call in calls]
        gradients = []
        for output in range(c):
            # Rows are independent, so the gradient of their sum is each row's own gradient.
            total = outputs[:, output].sum()
            grads = torch.autograd.grad(total, targets, retain_graph=True, allow_unused=True)
            gradients.append(
                [_positions(_or_zero(g, t), n) for g, t in zip(grads, targets, strict=True)]
            )
        layers, start = [], 0
        for key, calls in groups.items():
            here = range(start, start + len(calls))
            start += len(calls)
            weight_scale, bias_scale = _scales(calls[0].module)
            layers.append(
                LayerFactors(
                    weight_scale if key[0] is not None else 0.0,
                    bias_scale if key[1] is not None else 0.0,
                    torch.cat([_positions(call.inputs, n) for call in calls], 1),
                    torch.stack([torch.cat([g[i] for i in here], 1) for g in gradients], 1),
                )
            )
        return layers

    def _certify(
        self, outputs: Tensor, groups: dict[Key, list[_Call]], layers: list[LayerFactors]
    ) -> None:
        """Compare with autograd's gradient of one random combination of rows and outputs.

        One backward pass finds what this method cannot handle: a weight that is used elsewhere,
        a layer with a changed forward, rows that depend on each other, reordered positions.
        """
        generator = torch.Generator().manual_seed(0)
        signs = torch.randn(outputs.shape, generator=generator).to(outputs)
        parameters, structured = [], []
        for calls, layer in zip(groups.values(), layers, strict=True):
            module = calls[0].module
            combined = torch.einsum("nc,nctb->ntb", signs, layer.gradients)
            if layer.weight_scale:
                parameters.append(module.weight)
                structured.append(
                    layer.weight_scale * torch.einsum("ntb,nta->ba", combined, layer.inputs)
                )
            if layer.bias_scale:
                parameters.append(module.bias)
                structured.append(layer.bias_scale * combined.sum((0, 1)))
        total = (signs * outputs).sum()
        exact = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, ours, gradient in zip(parameters, structured, exact, strict=True):
            truth = _or_zero(gradient, parameter)
            error, size = (ours - truth).norm(), truth.norm()
            if error > torch.finfo(truth.dtype).eps ** 0.5 * (size + ours.norm()):
                raise NotStructuredError(
                    f"a linear layer's weight of shape {list(parameter.shape)} acts in another "
                    f"way than through the layer's call (gradients differ by "
                    f"{float(error):.2g} of {float(size):.2g}); use method='jacobian'"
                )


def _linear_layers(network: Network) -> tuple[list[nn.Linear], set[str]]:
    """Linear layers with something to train, and the names of what they train."""
    layers, trained = [], set()
    for module in network.module.modules():
        own = {id(p) for p in module.parameters(recurse=False) if p.requires_grad}
        if isinstance(module, nn.Linear) and own:
            layers.append(module)
            trained |= own
    if not layers:
        raise NotStructuredError(
            "no trained parameter belongs to a linear layer; use method='jacobian' or 'products'"
        )
    named = network.module.named_parameters()
    return layers, {name for name, p in named if id(p) in trained}


@contextmanager
def _watching(layers: list[nn.Linear], calls: list[_Call]) -> Iterator[None]:
    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(_Call(module, inputs[0].detach(), output))  # type: ignore[arg-type]
        # A copy is returned: an in-place activation must not change the recorded output.
        return output.clone()

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _scales(module: nn.Linear) -> tuple[float, float]:
    if isinstance(module, NTKLinear):
        return module.weight_scale, module.bias_scale
    return 1.0, 1.0


def _positions(values: Tensor, rows: int) -> Tensor:
    """Reshape to [n, t, width], also from [n t, width], where tokens were merged with rows."""
    if values.shape[0] % rows:
        raise NotStructuredError(
            f"a linear layer was called with shape {list(values.shape)}, which does not divide "
            f"into {rows} rows; use method='jacobian'"
        )
    return values.reshape(rows, -1, values.shape[-1])


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.detach()
