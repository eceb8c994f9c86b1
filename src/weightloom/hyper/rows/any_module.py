"""Any module with one set of weights for each row: by `torch.vmap`, or by a loop over conditions.

Inside vmap a module's own `forward` calls `F.linear(x, self.weight, self.bias)`. With a
`LazyWeight` as `self.weight` that call contracts x with the head's table. Every other operation
gets the written tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _NormBase

from weightloom.hyper.rows.arguments import RowArguments
from weightloom.hyper.rows.functional import call_with_state, distinct
from weightloom.hyper.rows.fused import under_autocast
from weightloom.hyper.rows.generated import Generated
from weightloom.hyper.rows.known import backward_hooks
from weightloom.hyper.rows.modes import RowsDisagree, refuse_reentrant, surroundings
from weightloom.hyper.rows.outputs import Structure, flattened, rebuilt, same_values, stacked
from weightloom.hyper.rows.rules import Rules
from weightloom.hyper.rows.stand_ins import (
    LazyWeight,
    attention_weights,
    held,
    without_nested_tensors,
)

__all__ = ["VMAP_REFUSALS", "RowwiseTask", "known_slow", "stacked"]

# What torch.vmap raises when it cannot do something.
VMAP_REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError)

Results = tuple[list[Tensor], dict[str, Tensor], Structure]
"""tensors with rows, running statistics of each row, and the rest of the output"""


class RowwiseTask:
    """One call of any module with one set of weights for each row, by vmap or by a loop."""

    def __init__(
        self,
        module: nn.Module,
        prefix: str,
        rules: Rules,
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.module = module
        self.prefix = prefix
        self.rules = rules
        self.rows = rows
        own = {n[len(prefix) :]: w for n, w in rules.generated.items() if n.startswith(prefix)}
        self.weights = distinct(module, own)
        self.arguments = RowArguments(module, rows, args, kwargs)
        self.decided = rules.decided()

    def _call(
        self,
        weights: dict[str, Tensor],
        buffers: dict[str, Tensor],
        rows: list[Tensor],
        prepare: Callable[[nn.Module], None] | None = None,
    ) -> Any:
        """Call the module for one condition; ``buffers`` gets the values that the module left."""
        args, kwargs = self.arguments.of_rows(rows)
        before = self.arguments.leaves_of(args, kwargs)
        output = call_with_state(self.module, weights, args, kwargs, buffers, prepare)
        self.arguments.check_unchanged(before, args, kwargs)
        return output

    # -- by vmap --------------------------------------------------------------------------------

    def vmapped(self, lazy: bool) -> Any:
        """The output of ``torch.vmap`` over conditions; ``lazy``: weights may stay unwritten."""
        values, updated, structure = self._mapped(None, lazy, agreed=False)
        _keep_average(self.module, updated)
        return rebuilt(values, structure)

    def branched(self) -> Any:
        """The same for code that asks for values: rows with the same answers go together."""
        pending, done = [list(range(self.rows))], []
        while pending:
            rows = pending.pop()
            self.rules.forget(self.decided)  # every group of rows decides the same layers again
            try:
                done.append((rows, self._mapped(rows, lazy=True, agreed=True)))
            except RowsDisagree as disagreement:
                pending += disagreement.groups(rows)
                if len(pending) + len(done) > max(2, self.rows // 2):
                    raise  # a loop over conditions is as fast
        order = torch.tensor([row for rows, _ in done for row in rows]).argsort()
        structure = same_values([structure for _, (_, _, structure) in done])
        columns = zip(*(values for _, (values, _, _) in done), strict=True)
        values = [torch.cat(column)[order.to(column[0].device)] for column in columns]
        every = [updated for _, (_, updated, _) in done]
        _keep_average(self.module, {n: torch.cat([part[n] for part in every]) for n in every[0]})
        return rebuilt(values, structure)

    def _mapped(self, rows: list[int] | None, lazy: bool, agreed: bool) -> Results:
        """vmap over the conditions ``rows`` (None: all)."""
        generated, tensors = self.weights, self.arguments.tensors()
        if rows is not None and len(rows) < self.rows:
            pick = _Picker(rows)
            generated = {
                name: value.rebuild(tuple(map(pick, value.batched())))
                for name, value in generated.items()
            }
            tensors = [pick(tensor) for tensor in tensors]
        lazily = set()
        if lazy:
            may_skip = self.rules.lazy
            lazily = {n for n in generated if may_skip(self.prefix + n, n, self.module)}
        eager = {n: _autocast_safe(w.dense()) for n, w in generated.items() if n not in lazily}
        pieces = {name: generated[name].batched() for name in lazily}
        buffers = _copies(_statistics(self.module), self.rows if rows is None else len(rows))
        tensors = [_autocast_safe(tensor) for tensor in tensors]
        compiling = torch.compiler.is_compiling()
        attention: Mapping[str, Tensor | None] = {}
        if torch.is_grad_enabled() and not compiling:
            attention = attention_weights(self.module, generated)
        structure: list[Structure] = []

        def one_condition(
            eager: dict[str, Tensor],
            pieces: dict[str, tuple[Tensor, ...]],
            buffers: dict[str, Tensor],
            rows: list[Tensor],
        ) -> tuple[list[Tensor], dict[str, Tensor]]:
            weights = dict(eager)
            for name, parts in pieces.items():
                value = generated[name].rebuild(tuple(part.unsqueeze(0) for part in parts))
                weights[name] = LazyWeight.make(value, self._lazy_linear(name))
            buffers = dict(buffers)
            weights = held(weights, attention) if attention else weights
            prepare = without_nested_tensors if attention else None
            values, rest = flattened(self._call(weights, buffers, rows, prepare))
            structure[:] = [rest]
            return values, buffers

        mapped = vmap(one_condition, randomness="different")
        if compiling:
            values, updated = mapped(eager, pieces, buffers, tensors)
        else:
            before = self.arguments.snapshot()
            with surroundings(tensors[0] if tensors else None, agreed):
                values, updated = mapped(eager, pieces, buffers, tensors)
            self.arguments.check_objects(before)
        return values, updated, structure[0]

    def _lazy_linear(self, name: str) -> Callable[[Generated, Tensor, Tensor | None], Tensor]:
        full = self.prefix + name

        def linear(value: Generated, x: Tensor, bias: Tensor | None) -> Tensor:
            # Inside vmap requires_grad is False for all tensors; most inputs of layers need one.
            return self.rules.linear(full, value, x, bias, conditions=self.rows, input_grad=True)

        return linear

    # -- by a loop ------------------------------------------------------------------------------

    def looped(self) -> Any:
        """The outputs of a loop over conditions, stacked."""
        # unbind and not indexing, whose backward pass writes the whole tensor each time.
        weights = {name: value.dense().unbind(0) for name, value in self.weights.items()}
        split = [tensor.unbind(0) for tensor in self.arguments.tensors()]
        state = dict(self.module.named_buffers()) if self.module.training else {}
        outputs, buffers = [], []
        compiling = torch.compiler.is_compiling()
        before = [] if compiling else self.arguments.snapshot()
        for i in range(self.rows):
            own = {name: value.clone() for name, value in state.items()}
            row = {name: values[i] for name, values in weights.items()}
            if not compiling:
                refuse_reentrant(row.values())
            outputs.append(self._call(row, own, [tensor[i] for tensor in split]))
            buffers.append(own)
        if not compiling:
            self.arguments.check_objects(before)
        averaged = {name: torch.stack([row[name] for row in buffers]) for name in state}
        _keep_average(self.module, averaged)
        return stacked(outputs)


class _Picker:
    """Takes some rows of a tensor."""

    def __init__(self, rows: list[int]) -> None:
        self.index = torch.tensor(rows)

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self.index.to(tensor.device))


def known_slow(module: nn.Module) -> str | None:
    """Why vmap cannot run this module, if that is known beforehand; else None."""
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase):
            return f"{type(part).__name__} {name!r} has no batched form in PyTorch"
    where = backward_hooks(module)
    if where is not None and torch.is_grad_enabled():
        return f"a backward hook of {where} would not be called inside torch.vmap"
    return None


def _autocast_safe(tensor: Tensor) -> Tensor:
    """Under autocast vmap does not cast, so its inputs must have one type: float32."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.float() if half and under_autocast(tensor) else tensor


# -- running statistics -------------------------------------------------------------------------
#
# All conditions share one set of running statistics. During training every condition normalises by
# its own batch statistics, exactly as the primary would alone; the running statistics then move to
# the average over conditions. Conditions are not a fixed list, so each cannot have its own.
def _statistics(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers inside ``module`` write to."""
    statistics = {}
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase) and part.training and part.track_running_stats:
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    statistics[f"{prefix}.{name}" if prefix else name] = buffer
    return statistics


def _copies(buffers: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {name: buffer.expand(rows, *buffer.shape).clone() for name, buffer in buffers.items()}


@torch.no_grad()
def _keep_average(module: nn.Module, updated: Mapping[str, Tensor]) -> None:
    if not updated:
        return
    own = dict(module.named_buffers())
    for name, rows in updated.items():
        value = rows.detach()
        own[name].copy_(value.mean(0) if value.is_floating_point() else value[0])
