"""Batched rules: how one layer treats x [b, ...] when each of the b rows has its own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.hyper.rows.fused import transformed
from weightloom.hyper.rows.generated import Generated, LinearCall
from weightloom.hyper.rows.known import ELEMENTWISE_MODULES, is_plain
from weightloom.hyper.rows.routes import (
    ElementwiseStep,
    LinearLayer,
    Step,
    UnwrittenStep,
    WrittenStep,
)
from weightloom.networks.layers import CONVOLUTIONS, Convolution
from weightloom.tables import aligned

__all__ = ["CallPlan", "Decision", "Rules"]

Parts = list[tuple[str, nn.Module]]
"""modules that run one after the other, each with the prefix of its parameters' names"""

_CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


@dataclass(frozen=True)
class Decision:
    """How one generated layer was computed: the chosen order, and the cost of each possible one."""

    layer: str
    order: str
    costs: Mapping[str, float]
    reason: str


@dataclass(frozen=True)
class CallPlan:
    """The result of `HyperNetwork.plan`; ``print`` it for a table."""

    decisions: tuple[Decision, ...]
    conditions: int

    @property
    def orders(self) -> dict[str, str]:
        """Layer name -> "write", "contract", "factor" or "loop"."""
        return {decision.layer: decision.order for decision in self.decisions}

    def __str__(self) -> str:
        if not self.decisions:
            return "nothing to choose: no linear or convolution layer is generated row by row"
        rows = [["layer", "order", "why"]]
        for decision in self.decisions:
            rows.append([decision.layer, decision.order, decision.reason])
            if len(decision.costs) > 1:
                costs = ", ".join(f"{k} {v / 1e6:,.1f}" for k, v in decision.costs.items())
                rows.append(["", "", f"({costs})"])
        title = f"{self.conditions} conditions, costs in millions of operations"
        return "\n".join([title, *aligned(rows, widths=[0, 8])])


class Applied(NamedTuple):
    """What a rule did."""

    output: Tensor
    parts: int
    """how many of the parts it ran"""
    step: Step | None = None
    """how to do the same again; None if no step describes it"""


class Rules:
    """Applies layers with generated weights; records which order it chose for each."""

    def __init__(
        self,
        generated: Mapping[str, Generated],
        order: str = "auto",
        decisions: list[Decision] | None = None,
    ) -> None:
        self.generated = generated
        self.order = order
        self.decisions = decisions

    def decided(self) -> int:
        """How many decisions are recorded."""
        return 0 if self.decisions is None else len(self.decisions)

    def forget(self, count: int) -> None:
        """Keep the first ``count`` decisions: what followed them was done again in another way."""
        if self.decisions is not None:
            del self.decisions[count:]

    def apply(self, parts: Parts, x: Tensor) -> Applied | None:
        """Run the first of ``parts`` on x [b, ...], and those behind it if that is faster.

        None if there is no rule for it.
        """
        prefix, module = parts[0]
        kind = type(module)
        if not is_plain(module):  # hooks and code of its own must see the module's own call
            return None
        if kind in ELEMENTWISE_MODULES:
            return self._take(ElementwiseStep(module), 1, x)
        if kind is nn.Linear and prefix + "weight" in self.generated and x.dim() in (2, 3):
            step, count = self._linear_step(parts, x)
            return self._take(step, count, x)
        if isinstance(module, nn.Flatten) and kind is nn.Flatten:
            return Applied(_flatten(module, x), 1)
        if kind is nn.Linear and x.dim() >= 2:
            return self._linear_layers(parts, x)
        if kind in _CONVOLUTIONS:
            relu = _relu_follows(parts, 1)
            y = self._convolution(module, prefix, x, relu)  # type: ignore[arg-type]
            return None if y is None else Applied(y, 1 + relu)
        return None

    # -- linear layers --------------------------------------------------------------------------

    def _take(self, step: Step, count: int, x: Tensor) -> Applied:
        return Applied(step.apply(self.generated, x), count, step)

    def _linear_layers(self, parts: Parts, x: Tensor) -> Applied:
        """What no step describes: an ordinary weight, or points in several dimensions."""
        prefix, module = parts[0]
        if prefix + "weight" in self.generated:
            flat = x.flatten(1, -2)
            step, count = self._linear_step(parts, flat)
            return Applied(step.apply(self.generated, flat).unflatten(1, x.shape[1:-1]), count)
        bias = self._vector(module, prefix)
        y = F.linear(x, module.weight)  # type: ignore[arg-type]
        return Applied(y if bias is None else y + _rows(bias, x.dim()), 1)

    def _linear_step(self, parts: Parts, x: Tensor) -> tuple[Step, int]:
        """How x [b, in] or [b, n, in] goes through the first layer, and how many parts that covers.

        Layers behind the first that are written too belong to the same step.
        """
        run: list[LinearLayer] = []
        at = 0
        points = x.shape[1] if x.dim() == 3 else 1
        while at < len(parts):
            prefix, module = parts[at]
            weight = self.generated.get(prefix + "weight")
            if type(module) is not nn.Linear or weight is None or not is_plain(module):
                break
            name = prefix + "weight"
            order = self._order(name, weight, x.shape[0], points, bool(run) or x.requires_grad)
            relu = _relu_follows(parts, at + 1)
            layer = LinearLayer(name, self._bias(module, prefix), relu)
            if order != "write":
                if not run:
                    return UnwrittenStep(layer, order), 1 + relu
                if self.decisions is not None:  # the next step will decide, and record, again
                    self.decisions.pop()
                break
            run.append(layer)
            at += 1 + relu
        return WrittenStep(tuple(run)), at

    def _bias(self, module: nn.Module, prefix: str) -> str | nn.Module:
        """Where the bias comes from; see `LinearLayer`."""
        return prefix + "bias" if prefix + "bias" in self.generated else module

    def _order(
        self, name: str, weight: Generated, conditions: int, points: int, input_grad: bool
    ) -> str:
        """The cheapest order for this use of a weight, or the forced one; recorded in decisions."""
        if not weight.could_skip_writing() and self.decisions is None and self.order == "auto":
            return "write"  # nothing to compare, nothing to record
        grad = torch.is_grad_enabled()
        # Inside vmap requires_grad is False for all tensors; a head's tensors usually need one.
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
        if self.order != "auto":
            return "write"
        least = min(costs.values())
        return next(name for name, cost in costs.items() if cost == least)  # torch.compile reads it

    def lazy(self, name: str, local: str, root: nn.Module) -> bool:
        """Whether it may pay not to write this weight of ``root``, which runs inside vmap."""
        owner, _, leaf = local.rpartition(".")
        value = self.generated[name]
        if leaf != "weight" or not value.could_skip_writing() or self.order == "write":
            return False
        module = _submodule(root, owner)
        return type(module) is nn.Linear or (type(module) in _CONVOLUTIONS and _is_1x1(module))

    # -- convolutions ---------------------------------------------------------------------------

    def _convolution(
        self, module: Convolution, prefix: str, x: Tensor, relu: bool
    ) -> Tensor | None:
        """One grouped convolution for all conditions.

        A grouped convolution takes the channels of all conditions side by side,
        [n, b * c, *space]. The result is a view [b, n, c, *space] of that layout. Elementwise
        layers keep the strides, so the next convolution has its layout without a copy.
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


def _grouped(
    module: Convolution, weight: Tensor, x: Tensor, bias: Tensor | None, relu: bool
) -> Tensor:
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
    return at < len(parts) and type(parts[at][1]) is nn.ReLU and is_plain(parts[at][1])


def _is_1x1(module: nn.Module | None) -> bool:
    """Kernel 1, stride 1, no padding, one group: one matrix is applied at every position."""
    if not isinstance(module, CONVOLUTIONS):
        return False
    ones = (1,) * len(module.kernel_size)
    return (
        module.kernel_size == ones
        and module.stride == ones
        and module.groups == 1
        and module.padding in ("valid", (0,) * len(ones))
    )


def _flatten(module: nn.Flatten, x: Tensor) -> Tensor:
    """The module sees one row at a time, so non-negative dimensions move by one."""
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
