"""Batched rules: how one layer treats x [b, ...] when each of the b rows has its own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from weightloom.weights.fused import transformed
from weightloom.weights.generated import Generated, LinearCall
from weightloom.weights.route import Alone, Each, Leg, Linear, Run, has_hooks

__all__ = ["Decision", "Rules"]

Parts = list[tuple[str, nn.Module]]
"""modules that run one after the other, each with the prefix of its parameters' names"""

_CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}

# Modules that treat every number alike: one call does all rows. Dropout is one of them: every
# element draws its own noise, so conditions and samples never share a mask.
# A tuple: the compiler of PyTorch 2.6 cannot look into a frozenset.
_ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Dropout,
)  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """How one generated layer was computed: the order chosen and the cost of each one offered."""

    layer: str
    order: str
    costs: Mapping[str, float]
    reason: str


class Rules:
    """Applies single layers with generated weights; records which order it chose for each."""

    def __init__(
        self,
        generated: Mapping[str, Generated],
        order: str = "auto",
        decisions: list[Decision] | None = None,
    ) -> None:
        self.generated = generated
        self.order = order
        self.decisions = decisions
        self.legs: list[Leg] | None = []
        """what was done so far, to be done again; None once something is not that simple"""

    def apply(self, parts: Parts, x: Tensor) -> tuple[Tensor, int] | None:
        """Run the first of ``parts`` on x [b, ...]; perhaps more, if that is faster.

        Returns the output and how many parts are done, or None if there is no rule.
        """
        prefix, module = parts[0]
        kind = type(module)
        if kind in _ELEMENTWISE and not has_hooks(module):
            return self._go(Each(module), x), 1
        written = kind is nn.Linear and prefix + "weight" in self.generated
        if written and not has_hooks(module) and x.dim() in (2, 3):
            leg, count = self._linear_leg(parts, x)
            return self._go(leg, x), count
        self.legs = None
        if has_hooks(module):  # hooks must see the module's own call
            return None
        if isinstance(module, nn.Flatten) and kind is nn.Flatten:
            return _flatten(module, x), 1
        if kind is nn.Linear and x.dim() >= 2:
            return self._linear_layers(parts, x)
        if kind in _CONVOLUTIONS:
            relu = _relu_follows(parts, 1)
            y = self._convolution(module, prefix, x, relu)  # type: ignore[arg-type]
            return None if y is None else (y, 1 + relu)
        return None

    # -- linear layers --------------------------------------------------------------------------

    def _go(self, leg: Leg, x: Tensor) -> Tensor:
        if self.legs is not None:
            self.legs.append(leg)
        return leg.go(self.generated, x)

    def _linear_layers(self, parts: Parts, x: Tensor) -> tuple[Tensor, int]:
        """What is less simple than a leg: an ordinary weight, or points in several dimensions."""
        prefix, module = parts[0]
        if prefix + "weight" in self.generated:
            flat = x.flatten(1, -2)
            leg, count = self._linear_leg(parts, flat)
            return leg.go(self.generated, flat).unflatten(1, x.shape[1:-1]), count
        bias = self._vector(module, prefix)
        y = F.linear(x, module.weight)  # type: ignore[arg-type]
        return (y if bias is None else y + _rows(bias, x.dim())), 1

    def _linear_leg(self, parts: Parts, x: Tensor) -> tuple[Leg, int]:
        """x [b, in] or [b, n, in] through the first layer, and all that are written like it.

        How, and how many of ``parts`` that covers.
        """
        run: list[Linear] = []
        at = 0
        points = x.shape[1] if x.dim() == 3 else 1
        while at < len(parts):
            prefix, module = parts[at]
            weight = self.generated.get(prefix + "weight")
            if type(module) is not nn.Linear or weight is None or has_hooks(module):
                break
            name = prefix + "weight"
            order = self._order(name, weight, x.shape[0], points, bool(run) or x.requires_grad)
            relu = _relu_follows(parts, at + 1)
            layer = Linear(name, self._bias(module, prefix), relu)
            if order != "write":
                if not run:
                    return Alone(layer, order), 1 + relu
                if self.decisions is not None:  # the next call will decide, and record, again
                    self.decisions.pop()
                break
            run.append(layer)
            at += 1 + relu
        return Run(tuple(run)), at

    def _bias(self, module: nn.Module, prefix: str) -> str | nn.Module | None:
        """Where the bias comes from; see `Linear`."""
        if prefix + "bias" in self.generated:
            return prefix + "bias"
        return None if module.bias is None else module

    def _order(
        self, name: str, weight: Generated, conditions: int, points: int, input_grad: bool
    ) -> str:
        """The cheapest order for this use of a weight, or the forced one; recorded if wanted."""
        if not weight.could_skip_writing() and self.decisions is None and self.order == "auto":
            return "write"  # nothing to compare, nobody to tell
        grad = torch.is_grad_enabled()
        # Inside vmap no tensor says that it requires a gradient; a head's tensors mostly do.
        hidden = grad and not torch.compiler.is_compiling() and transformed()
        learned = grad and (hidden or weight.requires_grad)
        call = LinearCall(conditions, points, grad and input_grad, learned)
        costs = weight.orders(call)
        order = self._choose(costs)
        if self.decisions is not None:
            layer = name.rpartition(".")[0] or name
            self.decisions.append(Decision(layer, order, costs, _why(call, order, self.order)))
        return order

    def linear(
        self,
        name: str,
        weight: Generated,
        x: Tensor,
        bias: Tensor | None,
        conditions: int,
        input_grad: bool = False,
    ) -> Tensor:
        """``x W^T + bias`` for x [b, n, in], in the cheapest order (or the forced one)."""
        wanted = input_grad or x.requires_grad
        order = self._order(name, weight, conditions, x.shape[1], wanted)
        return weight.linear(x, bias, order)

    def _choose(self, costs: Mapping[str, float]) -> str:
        if self.order in costs:
            return self.order
        return min(costs, key=costs.__getitem__) if self.order == "auto" else "write"

    def lazy(self, name: str, local: str, root: nn.Module) -> bool:
        """Whether a weight of ``root``, which vmap runs, may be better left unwritten."""
        owner, _, leaf = local.rpartition(".")
        value = self.generated[name]
        if leaf != "weight" or not value.could_skip_writing() or self.order == "write":
            return False
        module = _submodule(root, owner)
        return type(module) is nn.Linear or (type(module) in _CONVOLUTIONS and _is_1x1(module))

    # -- convolutions ---------------------------------------------------------------------------

    def _convolution(self, module: _ConvNd, prefix: str, x: Tensor, relu: bool) -> Tensor | None:
        """One grouped convolution for all conditions.

        Groups want channels of all conditions side by side, [n, b * c, *space]. The result is
        handed on as a view [b, n, c, *space] of that layout; elementwise layers keep the strides,
        so the next convolution finds its layout ready and nothing is copied in between.
        """
        space = len(module.kernel_size)
        if module.padding_mode != "zeros" or x.dim() not in (space + 2, space + 3):
            return None
        weight = self.generated.get(prefix + "weight")
        if weight is None:
            return None
        bias = self._vector(module, prefix)
        single = x.dim() == space + 2
        x = x.unsqueeze(1) if single else x
        if _is_1x1(module) and weight.could_skip_writing():
            y = self._pointwise(prefix, weight, x, bias)
            y = torch.relu(y) if relu else y
        else:
            y = _grouped(module, weight.dense(), x, bias, relu)
            if self.decisions is not None:
                self.decisions.append(
                    Decision(prefix.rstrip("."), "write", {}, "one grouped convolution")
                )
        return y.squeeze(1) if single else y

    def _pointwise(self, prefix: str, weight: Generated, x: Tensor, bias: Tensor | None) -> Tensor:
        """A 1x1 convolution is a linear layer over channels."""
        last = x.movedim(2, -1)
        points = last.reshape(x.shape[0], -1, x.shape[2])
        y = self.linear(prefix + "weight", weight, points, bias, conditions=x.shape[0])
        return y.reshape(*last.shape[:-1], y.shape[-1]).movedim(-1, 2)

    def _vector(self, module: nn.Module, prefix: str) -> Tensor | None:
        """The layer's bias: [b, out] if generated, [out] if learned directly, or None."""
        generated = self.generated.get(prefix + "bias")
        return module.bias if generated is None else generated.dense()  # type: ignore[return-value]


def _grouped(module: _ConvNd, weight: Tensor, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    b, n = x.shape[:2]
    if bias is not None:
        bias = bias.expand(b, -1).reshape(-1)
    y = _CONVOLUTIONS[type(module)](
        x.movedim(0, 1).reshape(n, -1, *x.shape[3:]),
        weight.flatten(0, 1),
        bias,
        module.stride,
        module.padding,
        module.dilation,
        b * module.groups,
    )
    # In place on the tensor itself: on a view of it autograd would copy.
    y = y.relu_() if relu else y
    return y.unflatten(1, (b, -1)).movedim(1, 0)


def _relu_follows(parts: Parts, at: int) -> bool:
    """Whether part ``at`` is a plain ReLU, which can be applied to a fresh tensor in place."""
    return at < len(parts) and type(parts[at][1]) is nn.ReLU and not has_hooks(parts[at][1])


def _is_1x1(module: nn.Module | None) -> bool:
    """Kernel 1, stride 1, no padding, one group: every position is treated by one matrix."""
    if not isinstance(module, _ConvNd):
        return False
    ones = (1,) * len(module.kernel_size)
    return (
        module.kernel_size == ones
        and module.stride == ones
        and module.groups == 1
        and module.padding in ("valid", (0,) * len(ones))
    )


def _flatten(module: nn.Flatten, x: Tensor) -> Tensor:
    """Flatten sees one row at a time, so non-negative dimensions move by one."""
    start, end = module.start_dim, module.end_dim
    return x.flatten(start + 1 if start >= 0 else start, end + 1 if end >= 0 else end)


def _rows(bias: Tensor, ndim: int) -> Tensor:
    """A bias [b, out] made to broadcast over [b, ..., out]; [out] stays as it is."""
    return bias.reshape(bias.shape[0], *(1,) * (ndim - 2), -1) if bias.dim() == 2 else bias


def _submodule(root: nn.Module, name: str) -> nn.Module | None:
    try:
        return root.get_submodule(name)
    except AttributeError:
        return None


def _why(shape: LinearCall, order: str, asked: str) -> str:
    if asked != "auto":
        return f"order={asked!r} was asked for"
    meaning = {
        "write": "writing the weights, then applying them",
        "contract": "contracting the input with the head's table; the weights are never written",
        "factor": "applying the two factors; the matrix is never formed",
    }
    grad = "training" if shape.weight_grad else "inference"
    inputs = "input" if shape.points == 1 else "inputs"
    return f"{meaning[order]} is cheapest: {shape.points} {inputs} per condition, {grad}"
