"""The primary, run once for each condition, with hooks that measure its layers.

Measured are scale, gradients, dependence on the condition and effective rank.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from weightloom.errors import ShapeError
from weightloom.hyper.diagnosis.report import LayerRow
from weightloom.hyper.rows import call
from weightloom.hyper.rows.any_module import stacked
from weightloom.hyper.rows.functional import unshare, with_aliases
from weightloom.networks import WeightSpec

__all__ = [
    "ConditionDependence",
    "Gradients",
    "Inputs",
    "Loss",
    "MeasuredRun",
    "dependence",
    "finite",
    "is_float",
    "one_number",
    "participation",
    "pick",
    "rms",
]


Loss = Callable[[Any], Tensor]
"""output of the hypernetwork -> one number"""

Gradients = Mapping[Tensor, Tensor]
"""tensor -> its gradient"""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""positional and keyword arguments of the primary"""


class ConditionDependence(NamedTuple):
    """How generated numbers change with the condition; the fields are those of `LayerRow`."""

    between: float | None = None
    within: float | None = None
    share: float | None = None
    rank: float | None = None


def rms(tensors: Iterable[Tensor]) -> float | None:
    """Root of the mean square of all numbers in ``tensors`` together; None if there are none."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += tensor.detach().double().square().sum().item()
        count += tensor.numel()
    return math.sqrt(total / count) if count else None


def _norm(tensors: Sequence[Tensor]) -> float | None:
    root = rms(tensors)
    return None if root is None else root * math.sqrt(sum(t.numel() for t in tensors))


def dependence(written: Tensor) -> ConditionDependence:
    """Of generated numbers [b, size]; with one condition only ``within`` is known."""
    within = written.var(dim=1, unbiased=False).mean().item()
    if written.shape[0] < 2:
        return ConditionDependence(within=within)
    between = written.var(dim=0, unbiased=True).mean().item()
    mean_square = written.square().mean().item()
    if not math.isfinite(mean_square):
        return ConditionDependence(between, within, math.nan, math.nan)
    # Unbiased: for conditions that share nothing, between / mean square is 1 on average.
    share = min(between / mean_square, 1.0) if mean_square > 0.0 else 0.0
    return ConditionDependence(between, within, share, participation(written))


def participation(rows: Tensor) -> float:
    """(sum l)^2 / sum l^2 for the squared singular values l of ``rows`` centred over dimension 0.

    From the Gram matrix [b, b]: its trace is the first sum, its squared entries add up to the
    second. Rows that are equal up to rounding count as equal: the result is 0.
    """
    centred = rows - rows.mean(dim=0)
    gram = centred @ centred.T
    trace = gram.trace().item()
    if not math.isfinite(trace):
        return math.nan
    rounding = torch.finfo(torch.float32).eps ** 2 * rows.square().sum().item()
    return 0.0 if trace <= rounding else trace**2 / gram.square().sum().item()


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def finite(leaf: Any) -> bool:
    """Whether it has no NaN or infinity; True for anything but a floating-point tensor."""
    return not is_float(leaf) or bool(torch.isfinite(leaf).all())


@dataclass
class MeasuredLayer:
    """A module of the primary that owns parameters, and what it returned."""

    name: str
    kind: str
    generated: dict[str, Tensor] = field(default_factory=dict)
    """[b, *shape] by name within the layer"""
    learned: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


class MeasuredRun:
    """A copy of the primary with hooks on its layers, to be called with ``weights`` [b, *shape]."""

    def __init__(self, primary: nn.Module, spec: WeightSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec = spec
        self.weights = weights
        self.primary = copy.deepcopy(primary)
        self.finished: list[str] = []
        self.layers: dict[str, MeasuredLayer] = {}
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

    def _layer(self, parameter: str) -> tuple[MeasuredLayer, str]:
        """The layer that owns a parameter, and the name there. Parametrised: the outer module's."""
        match = re.search(r"(?:^|\.)parametrizations\.", parameter)
        name = parameter[: match.start()] if match else parameter.rpartition(".")[0]
        if name not in self.layers:
            kind = type(self.primary.get_submodule(name)).__name__
            self.layers[name] = MeasuredLayer(name, kind)
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
        """The loss; None if the primary or the loss raised and the weights are not finite."""
        try:
            if single:
                args, kwargs = tree_map(unshare, inputs)
                return one_number(loss(self._call(0, args, kwargs)))
            rows = len(next(iter(self.weights.values())))
            outputs = [self._call(i, *pick(inputs, i)) for i in range(rows)]
            return one_number(loss(stacked(outputs)))
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

        def place(layer: MeasuredLayer) -> int:
            name = layer.name
            while name and name not in position:
                name = name.rpartition(".")[0]
            return position.get(name, len(position))

        return [_row(layer, gradients) for layer in sorted(self.layers.values(), key=place)]


def _row(layer: MeasuredLayer, gradients: Gradients) -> LayerRow:
    tensors = {**layer.learned, **layer.generated}
    weights = [tensor for name, tensor in tensors.items() if "bias" not in name]
    biases = [tensor for name, tensor in tensors.items() if "bias" in name]
    measured, size = ConditionDependence(), 0
    if layer.generated:
        flat = [tensor.detach().flatten(1) for tensor in layer.generated.values()]
        written = torch.cat(flat, dim=1).double()
        measured, size = dependence(written), written.shape[1]
    slopes = [gradients[tensor] for tensor in layer.outputs if tensor in gradients]
    return LayerRow(
        layer=layer.name or "primary",
        kind=layer.kind,
        size=size,
        weight_rms=rms(weights),
        bias_rms=rms(biases),
        output_rms=rms(layer.outputs),
        weight_grad_rms=rms(gradients[t] for t in weights if t in gradients),
        bias_grad_rms=rms(gradients[t] for t in biases if t in gradients),
        output_grad_rms=rms(slopes),
        between=measured.between,
        within=measured.within,
        dependence=measured.share,
        effective_rank=measured.rank,
        non_finite=sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors.values()),
        output_grad_norm=_norm(slopes),
    )


def pick(inputs: Inputs, i: int) -> Inputs:
    """Row i of every tensor; shared tensors whole."""
    picked = tree_map(lambda leaf: leaf[i] if isinstance(leaf, Tensor) else unshare(leaf), inputs)
    return picked[0], picked[1]


def one_number(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
        raise ShapeError(
            f"loss returned {shape}; it must return a tensor with one number, such as the mean"
        )
    return value
