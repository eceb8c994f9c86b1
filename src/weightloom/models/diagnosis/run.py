"""The primary run once for each condition, by itself, with hooks that measure."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from weightloom.errors import ShapeError
from weightloom.models.diagnosis.numbers import Dependence, dependence, finite, is_float, rms
from weightloom.models.diagnosis.report import LayerRow
from weightloom.weights import Shared, WeightSpec, call, with_aliases

__all__ = ["Gradients", "Inputs", "Loss", "Run", "pick"]

Loss = Callable[[Any], Tensor]
Gradients = Mapping[Tensor, Tensor]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Layer:
    """A module of the primary that owns parameters, and what it returned."""

    name: str
    kind: str
    generated: dict[str, Tensor] = field(default_factory=dict)
    """[b, *shape] by name within the layer"""
    learned: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


class Run:
    """A copy of the primary with hooks on its layers, to be called with ``weights`` [b, *shape]."""

    def __init__(self, primary: nn.Module, spec: WeightSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec = spec
        self.weights = weights
        self.primary = copy.deepcopy(primary)
        self.finished: list[str] = []
        self.layers: dict[str, Layer] = {}
        for name, tensor in with_aliases(spec, weights).items():
            layer, rest = self._layer(name)
            layer.generated[rest] = tensor
        for name, parameter in self.primary.named_parameters(remove_duplicate=False):
            layer, rest = self._layer(name)
            layer.learned[rest] = parameter.requires_grad_(parameter.is_floating_point())
        for name in self.layers:
            module = self.primary.get_submodule(name)
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_hook(self._recorder(name))

    def _layer(self, parameter: str) -> tuple[Layer, str]:
        """The layer of a parameter and the name there; a parametrised one belongs to its module."""
        match = re.search(r"(?:^|\.)parametrizations\.", parameter)
        name = parameter[: match.start()] if match else parameter.rpartition(".")[0]
        if name not in self.layers:
            kind = type(self.primary.get_submodule(name)).__name__
            self.layers[name] = Layer(name, kind)
        return self.layers[name], parameter[len(name) :].lstrip(".")

    def _recorder(self, name: str) -> Callable[[nn.Module, Any, Any], Any]:
        """A hook that keeps the first tensor a layer returns and hands on a copy of it.

        A copy, because an activation that works in place would change what was kept.
        """

        def record(module: nn.Module, inputs: Any, output: Any) -> Any:
            if name not in self.finished:
                self.finished.append(name)
            leaves, tree = tree_flatten(output)
            first = next((i for i, leaf in enumerate(leaves) if is_float(leaf)), None)
            if first is None:
                return output
            self.layers[name].outputs.append(leaves[first])
            leaves[first] = leaves[first].clone()
            return tree_unflatten(leaves, tree)

        return record

    # -- forward and backward --------------------------------------------------------------------

    def forward(self, inputs: Inputs, single: bool, loss: Loss) -> Tensor | None:
        """The loss; or None if weights that are not finite made the primary or the loss raise."""
        try:
            if single:
                args, kwargs = tree_map(_unshared, inputs)
                return _one_number(loss(self._call(0, args, kwargs)))
            rows = len(next(iter(self.weights.values())))
            outputs = [self._call(i, *pick(inputs, i)) for i in range(rows)]
            return _one_number(loss(_stacked(outputs)))
        except Exception:
            if all(finite(weight) for weight in self.weights.values()):
                raise
            return None

    def _call(self, i: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        weights = {name: tensor[i] for name, tensor in self.weights.items()}
        return call(self.primary, self.spec, weights, args, kwargs)

    def backward(self, value: Tensor | None, parameters: Iterable[Tensor]) -> Gradients:
        """Tensor -> gradient, for weights, outputs and ``parameters``; empty without a loss.

        Zeros where a tensor has no influence on the loss.
        """
        if value is None:
            return {}
        every = [*self.weights.values(), *parameters]
        for layer in self.layers.values():
            every += [*layer.outputs, *layer.learned.values()]
        wanted = [tensor for tensor in dict.fromkeys(every) if tensor.requires_grad]
        if not value.requires_grad:
            return {tensor: torch.zeros_like(tensor) for tensor in wanted}
        gradients = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
        return {
            tensor: torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(wanted, gradients, strict=True)
        }

    # -- results ---------------------------------------------------------------------------------

    def rows(self, gradients: Gradients) -> list[LayerRow]:
        """Layers in the order in which they finish; one that is never called follows its parent."""
        position = {name: i for i, name in enumerate(self.finished)}

        def place(layer: Layer) -> int:
            name = layer.name
            while name and name not in position:
                name = name.rpartition(".")[0]
            return position.get(name, len(position))

        return [_row(layer, gradients) for layer in sorted(self.layers.values(), key=place)]


def _row(layer: Layer, gradients: Gradients) -> LayerRow:
    tensors = {**layer.learned, **layer.generated}
    weights = [tensor for name, tensor in tensors.items() if "bias" not in name]
    biases = [tensor for name, tensor in tensors.items() if "bias" in name]
    found, size = Dependence(), 0
    if layer.generated:
        flat = [tensor.detach().flatten(1) for tensor in layer.generated.values()]
        written = torch.cat(flat, dim=1).double()
        found, size = dependence(written), written.shape[1]
    return LayerRow(
        layer=layer.name or "primary",
        kind=layer.kind,
        size=size,
        weight_rms=rms(weights),
        bias_rms=rms(biases),
        output_rms=rms(layer.outputs),
        weight_grad_rms=rms(gradients[t] for t in weights if t in gradients),
        bias_grad_rms=rms(gradients[t] for t in biases if t in gradients),
        output_grad_rms=rms(gradients[t] for t in layer.outputs if t in gradients),
        between=found.between,
        within=found.within,
        dependence=found.share,
        effective_rank=found.rank,
        non_finite=sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors.values()),
    )


def pick(inputs: Inputs, i: int) -> Inputs:
    """Row i of every tensor; what is shared, whole."""
    picked = tree_map(lambda leaf: leaf[i] if isinstance(leaf, Tensor) else _unshared(leaf), inputs)
    return picked[0], picked[1]


def _unshared(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Shared) else leaf


def _stacked(outputs: list[Any]) -> Any:
    flat = [tree_flatten(output) for output in outputs]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    stacked = [torch.stack(c) if isinstance(c[0], Tensor) else c[0] for c in columns]
    return tree_unflatten(stacked, flat[0][1])


def _one_number(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
        raise ShapeError(
            f"loss returned {shape}; it must return a tensor with one number, such as the mean"
        )
    return value
