"""Call a module with given weights: one set for all of x, or one set for each row of x.

`call` is `torch.func.functional_call` with the checks it lacks. `RowwiseCall` gives every row of x
its own weights, in the cheapest way that is known for each part of the module:

1. containers (`nn.Sequential`) are walked;
2. Linear and convolution layers have batched rules (`weights/rules.py`), chosen by cost;
3. anything else goes through `torch.vmap`, with linear layers inside it still chosen by cost;
4. what vmap cannot do (recurrent layers, control flow that looks at values) runs in a loop over
   conditions, with a warning that names the operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

from weightloom.errors import ShapeError, SlowPathWarning
from weightloom.weights.fused import under_autocast
from weightloom.weights.generated import Generated
from weightloom.weights.lazy import LazyWeight
from weightloom.weights.recurrent import forget_weights
from weightloom.weights.route import Route, Routes, sequence
from weightloom.weights.rules import Decision, Rules
from weightloom.weights.spec import WeightSpec

__all__ = ["VMAP_REFUSALS", "RowwiseCall", "Shared", "call", "shared", "with_aliases"]

V = TypeVar("V")

_TENSOR = object()
"""marks where a tensor stood in a module's output"""

# torch.vmap reports what it cannot do through any of these.
VMAP_REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True)
class Shared:
    """An argument that all conditions share; see `shared`."""

    value: Tensor


def shared(value: Tensor) -> Shared:
    """Mark an extra tensor argument as common to all conditions instead of one row each.

    >>> hyper(x, condition, mask=shared(mask))  # doctest: +SKIP
    """
    return Shared(value)


def call(
    module: nn.Module,
    spec: WeightSpec,
    weights: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """``module(*args, **kwargs)`` with the tensors of ``spec`` replaced by ``weights``."""
    spec.check(weights)
    state = _distinct(module, with_aliases(spec, weights))
    return _functional(module, state, args, dict(kwargs or {}))


def _distinct(module: nn.Module, state: Mapping[str, V]) -> dict[str, V]:
    """Each parameter under one name only, where the same submodule appears under several.

    `functional_call` would restore such a parameter twice, the second time to the wrong tensor.
    """
    found: dict[tuple[int, str], str] = {}
    for name in state:
        owner, _, leaf = name.rpartition(".")
        found.setdefault((id(module.get_submodule(owner)), leaf), name)
    return {name: state[name] for name in found.values()}


def _functional(
    module: nn.Module, state: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not state:  # nothing to replace; scripted modules allow no replacing at all
        return module(*args, **kwargs)
    forget_weights(module)
    try:
        return functional_call(module, state, args, kwargs)
    finally:
        forget_weights(module)


def with_aliases(spec: WeightSpec, weights: Mapping[str, V]) -> Mapping[str, V]:
    """All names of tied parameters, each mapped to the one tensor they share."""
    if not spec.aliases:
        return weights
    return {**weights, **{alias: weights[name] for alias, name in spec.aliases.items()}}


class RowwiseCall:
    """Applies a module to row i of x with the i-th set of generated weights, for all rows at once.

    ``order`` forces "write", "contract" or "factor" where a layer offers it ("auto": cheapest);
    ``decisions`` collects what was chosen. ``slow`` remembers which parts have to be looped over,
    ``routes`` how a chain of layers was computed (the caller looks there before it calls).
    """

    def __init__(
        self,
        generated: Mapping[str, Generated],
        rows: int,
        order: str = "auto",
        slow: dict[str, str] | None = None,
        decisions: list[Decision] | None = None,
        routes: Routes | None = None,
    ) -> None:
        self.generated = generated
        self.rows = rows
        self.slow = {} if slow is None else slow
        self.decisions = decisions
        self.routes = routes
        self.rules = Rules(generated, order, decisions)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            return self._walk(module, args[0])
        return self._rowwise(module, "", args, kwargs)

    def _walk(self, module: nn.Module, x: Tensor) -> Any:
        y = self._explore(module, x)
        if self.routes is not None and self.rules.legs is not None:
            self.routes.keep(x, self.rules.order, Route(module, self.rules.legs, self.generated))
        return y

    def _explore(self, module: nn.Module, x: Any) -> Any:
        parts = sequence(module, "")
        while parts:
            done = self.rules.apply(parts, x) if isinstance(x, Tensor) else None
            if done is None:
                self.rules.legs = None
                prefix, part = parts.pop(0)
                x = self._rowwise(part, prefix, (x,), {})
            else:
                x, count = done
                parts = parts[count:]
        return x

    # -- any module -----------------------------------------------------------------------------

    def _rowwise(
        self, module: nn.Module, prefix: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        task = _Task(module, prefix, self, args, kwargs)
        reason = self.slow.get(prefix) or _known_slow(module)
        if torch.compiler.is_compiling():
            return task.vmapped(lazy=False) if reason is None else task.looped()
        if reason is None:
            try:
                result = task.vmapped(lazy=True)
            except VMAP_REFUSALS as error:
                result = task.looped()  # if the input is at fault, this raises the plain error
                reason = f"torch.vmap refused it ({_first_line(error)})"
            else:
                return result
        else:
            result = task.looped()
        self._warn_slow(prefix, module, reason)
        return result

    def _warn_slow(self, prefix: str, module: nn.Module, reason: str) -> None:
        if prefix in self.slow:
            return
        self.slow[prefix] = reason
        where = f"layer {prefix[:-1]!r}" if prefix else "the primary"
        warnings.warn(
            f"{where} ({type(module).__name__}) runs in a slow loop over {self.rows} conditions: "
            f"{reason}. The results are the same; to make it fast, leave its parameters out of "
            f"generate=, or replace it by a layer that torch.vmap can batch",
            SlowPathWarning,
            stacklevel=6,
        )
        if self.decisions is not None:
            self.decisions.append(Decision(prefix.rstrip("."), "loop", {}, reason))


class _Task:
    """One call of one module with one set of weights for each row; by vmap or by a loop."""

    def __init__(
        self,
        module: nn.Module,
        prefix: str,
        owner: RowwiseCall,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.module = module
        self.prefix = prefix
        self.owner = owner
        mine = [name for name in owner.generated if name.startswith(prefix)]
        self.weights = _distinct(module, {n[len(prefix) :]: owner.generated[n] for n in mine})
        self.leaves, self.tree = tree_flatten((args, dict(kwargs)))
        self.split = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self._check_rows()

    def _check_rows(self) -> None:
        rows = self.owner.rows
        for i in self.split:
            leaf = self.leaves[i]
            if leaf.dim() == 0 or leaf.shape[0] != rows:
                raise ShapeError(
                    f"an argument of shape {tuple(leaf.shape)} was given with {rows} conditions; "
                    f"every tensor needs one row for each condition (wrap it in "
                    f"weightloom.shared(...) if all conditions share it)"
                )

    def _arguments(self, rows: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [leaf.value if isinstance(leaf, Shared) else leaf for leaf in self.leaves]
        for i, row in zip(self.split, rows, strict=True):
            leaves[i] = row
        args, kwargs = tree_unflatten(leaves, self.tree)
        return args, kwargs

    def _call(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], rows: list[Tensor]
    ) -> Any:
        """One condition; ``buffers`` is updated in place with what the module left in them."""
        state = {**weights, **buffers}
        args, kwargs = self._arguments(rows)
        output = _functional(self.module, state, args, kwargs)
        buffers.update({name: state[name] for name in buffers})
        return output

    # -- by vmap --------------------------------------------------------------------------------

    def vmapped(self, lazy: bool) -> Any:
        rules = self.owner.rules
        lazily = set()
        if lazy:
            lazily = {
                name for name in self.weights if rules.lazy(self.prefix + name, name, self.module)
            }
        eager = {n: _autocast_safe(w.dense()) for n, w in self.weights.items() if n not in lazily}
        pieces = {name: self.weights[name].batched() for name in lazily}
        buffers = _copies(_statistics(self.module), self.owner.rows)
        tensors = [_autocast_safe(self.leaves[i]) for i in self.split]
        rest: list[Any] = []

        def one(
            eager: dict[str, Tensor],
            pieces: dict[str, tuple[Tensor, ...]],
            buffers: dict[str, Tensor],
            rows: list[Tensor],
        ) -> tuple[list[Tensor], dict[str, Tensor]]:
            weights = dict(eager)
            for name, parts in pieces.items():
                value = self.weights[name].rebuild(tuple(part.unsqueeze(0) for part in parts))
                weights[name] = LazyWeight.make(value, self._lazy_linear(name))
            buffers = dict(buffers)
            leaves, tree = tree_flatten(self._call(weights, buffers, rows))
            rest[:] = [tree, [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]]
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)], buffers

        mapped = vmap(one, randomness="different")
        if torch.compiler.is_compiling():  # nothing to switch, and PyTorch 2.6 could not trace it
            values, updated = mapped(eager, pieces, buffers, tensors)
        else:
            with _attention_that_differentiates():
                values, updated = mapped(eager, pieces, buffers, tensors)
        _keep_average(self.module, updated)
        tree, leaves = rest
        stacked = iter(values)
        return tree_unflatten([next(stacked) if v is _TENSOR else v for v in leaves], tree)

    def _lazy_linear(self, name: str) -> Callable[[Generated, Tensor, Tensor | None], Tensor]:
        full = self.prefix + name

        def linear(value: Generated, x: Tensor, bias: Tensor | None) -> Tensor:
            # Inside vmap no tensor says that it requires a gradient; most inputs of layers do.
            return self.owner.rules.linear(
                full, value, x, bias, conditions=self.owner.rows, input_grad=True
            )

        return linear

    # -- by a loop ------------------------------------------------------------------------------

    def looped(self) -> Any:
        rows = self.owner.rows
        # unbind, not indexing: the backward pass of indexing writes the whole tensor each time.
        weights = {name: value.dense().unbind(0) for name, value in self.weights.items()}
        split = [self.leaves[i].unbind(0) for i in self.split]
        state = dict(self.module.named_buffers()) if self.module.training else {}
        outputs, buffers = [], []
        for i in range(rows):
            mine = {name: value.clone() for name, value in state.items()}
            outputs.append(
                self._call({n: w[i] for n, w in weights.items()}, mine, [t[i] for t in split])
            )
            buffers.append(mine)
        averaged = {name: torch.stack([row[name] for row in buffers]) for name in state}
        _keep_average(self.module, averaged)
        return _stack(outputs)


def _stack(outputs: list[Any]) -> Any:
    flat = [tree_flatten(output) for output in outputs]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    stacked = [
        torch.stack(list(column)) if isinstance(column[0], Tensor) else column[0]
        for column in columns
    ]
    return tree_unflatten(stacked, flat[0][1])


def _known_slow(module: nn.Module) -> str | None:
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase):
            return f"{type(part).__name__} {name!r} has no batched form in PyTorch"
    return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__


@contextmanager
def _attention_that_differentiates() -> Iterator[None]:
    """No fused attention while gradients are wanted.

    In evaluation mode attention layers take a fused path without derivatives unless a weight says
    that it requires a gradient, and inside vmap none does.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    if torch.is_grad_enabled() and before:
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    else:
        yield


def _autocast_safe(tensor: Tensor) -> Tensor:
    """Under autocast vmap does not cast, so all that enters it must have one type: float32."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.float() if half and under_autocast(tensor) else tensor


# -- running statistics -------------------------------------------------------------------------
#
# One set of running statistics serves all conditions: during training every condition normalises
# by its own batch statistics, exactly as the primary would alone, and the running statistics then
# move to the average over conditions. Conditions are not a fixed list, so there is nowhere else
# to keep them.


def _statistics(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that the normalisation layers inside ``module`` will write to."""
    found = {}
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase) and part.training and part.track_running_stats:
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


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
