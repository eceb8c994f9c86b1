"""Tangent kernels of networks with linear layers: watching the layers, and checking the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import KernelError
from weightloom.kernels.empirical.jacobian import jacobian, sum_of_products
from weightloom.kernels.empirical.layers import Kept, Layer
from weightloom.kernels.empirical.rows import Network, Rows
from weightloom.kernels.finite import NTKLinear

__all__ = ["NotStructuredError", "Structured"]

Key = tuple[int | None, int | None]


class NotStructuredError(KernelError):
    """A network without linear layers, or one that uses their weights in another way."""


@dataclass
class _Call:
    module: nn.Linear
    inputs: Tensor
    output: Tensor


class Structured:
    """The structured road to a tangent kernel; `rows` may raise `NotStructuredError`."""

    name = "structured"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.layers, names = _linear_layers(network)
        self.rest = {n: p for n, p in network.parameters.items() if n not in names}
        self.covered = len(names)

    def rows(self, rows: Rows) -> Kept:
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

    def _backward(self, outputs: Tensor, groups: dict[Key, list[_Call]]) -> list[Layer]:
        n, c = outputs.shape
        targets = [call.output for calls in groups.values() for call in calls]
        gradients = []
        for output in range(c):
            # Rows are independent, so the gradient of their sum is each row's own gradient.
            total = outputs[:, output].sum()
            found = torch.autograd.grad(total, targets, retain_graph=True, allow_unused=True)
            gradients.append(
                [_positions(_or_zero(g, t), n) for g, t in zip(found, targets, strict=True)]
            )
        layers, start = [], 0
        for key, calls in groups.items():
            mine = range(start, start + len(calls))
            start += len(calls)
            weight_scale, bias_scale = _scales(calls[0].module)
            layers.append(
                Layer(
                    weight_scale if key[0] is not None else 0.0,
                    bias_scale if key[1] is not None else 0.0,
                    torch.cat([_positions(call.inputs, n) for call in calls], 1),
                    torch.stack([torch.cat([g[i] for i in mine], 1) for g in gradients], 1),
                )
            )
        return layers

    def _certify(
        self, outputs: Tensor, groups: dict[Key, list[_Call]], layers: list[Layer]
    ) -> None:
        """Compare with what autograd says about one random combination of rows and outputs.

        It sees whatever this road cannot: a weight also used elsewhere, a layer whose forward was
        changed, rows that depend on each other, positions in another order. One backward pass.
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
        for parameter, mine, truth in zip(parameters, structured, exact, strict=True):
            truth = _or_zero(truth, parameter)
            error, size = (mine - truth).norm(), truth.norm()
            if error > torch.finfo(truth.dtype).eps ** 0.5 * (size + mine.norm()):
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
        # A copy goes on: an activation that works in place must not reach what was noted.
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
    """[n, t, width], also of [n t, width], as layers see tokens that were joined with rows."""
    if values.shape[0] % rows:
        raise NotStructuredError(
            f"a linear layer was called with shape {list(values.shape)}, which does not divide "
            f"into {rows} rows; use method='jacobian'"
        )
    return values.reshape(rows, -1, values.shape[-1])


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.detach()
