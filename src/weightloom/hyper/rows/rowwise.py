"""Call a module with one set of generated weights for each row of x.

Each part of the module is computed by the cheapest method that is known for it:

1. containers (`nn.Sequential`) are walked;
2. Linear and convolution layers have batched rules (`Rules`), chosen by cost;
3. anything else goes through `torch.vmap`, with linear layers inside it still chosen by cost;
4. what vmap cannot do (recurrent layers, control flow that depends on values) runs in a loop over
   conditions, with a warning that names the operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import SlowPathWarning, WeightloomError
from weightloom.hyper.rows.any_module import VMAP_REFUSALS, RowwiseTask, known_slow
from weightloom.hyper.rows.functional import check_places
from weightloom.hyper.rows.fused import under_autocast
from weightloom.hyper.rows.generated import Generated
from weightloom.hyper.rows.routes import Route, Step, route_key, sequence
from weightloom.hyper.rows.rules import Decision, Rules
from weightloom.hyper.rows.shells import structure_of

__all__ = ["RowwiseCall"]

# Calls of one network differ in few ways (training and inference, the last batch of an epoch).
_MOST_ROUTES = 16
_MOST_KINDS = 64

BRANCHES = "rows that take the same way through the module go together"
"""in place of a reason: no loop is needed"""


class RowwiseCall:
    """Calls a module with one set of generated weights for each row of its arguments.

    Make one for each module and keep it: it remembers which kinds of calls vmap refused, and how
    chains of layers were computed (`Route`). A later call that looks the same follows that route
    instead of choosing again. Several threads may use it: entries of the dictionaries are never
    changed, and a lost entry costs one more choice.
    """

    def __init__(self) -> None:
        self._refused: dict[object, str] = {}
        """kind of call (`_OneCall.kind`) -> why it needs a loop; BRANCHES: why it does not"""
        self._warned: set[tuple[str, str]] = set()
        """parts that need a loop, and the reasons that were given for it"""
        self._routes: dict[object, Route] = {}

    def run(
        self,
        module: nn.Module,
        generated: Mapping[str, Generated],
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        order: str = "auto",
        decisions: list[Decision] | None = None,
    ) -> Any:
        """Row i of the output is the module applied to row i of ``args`` with the i-th weights.

        ``order`` forces "write", "contract" or "factor" where a layer offers it ("auto": the
        cheapest). With ``decisions``, a list that collects what was chosen, no route is reused.
        """
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            return self._call(generated, rows, order, decisions).any_module(
                module, "", args, kwargs or {}
            )
        x = args[0]
        if torch.compiler.is_compiling():  # choosing again is free there: it happens once
            return self._call(generated, rows, order, decisions).chain(module, x)[0]
        key = route_key(x, order)
        route = self._routes.get(key)
        if route is not None and decisions is None and route.holds(module, generated):
            return route.follow(generated, x)
        y, steps = self._call(generated, rows, order, decisions).chain(module, x)
        if steps is not None:
            self._keep(key, Route(module, steps, generated))
        return y

    def _call(
        self,
        generated: Mapping[str, Generated],
        rows: int,
        order: str,
        decisions: list[Decision] | None,
    ) -> _OneCall:
        return _OneCall(self, Rules(generated, order, decisions), rows)

    def _keep(self, key: object, route: Route) -> None:
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[key] = route

    def refuse(self, kind: object, reason: str) -> None:
        """Remember that calls of this kind need a loop (or BRANCHES)."""
        if len(self._refused) >= _MOST_KINDS:
            self._refused.clear()
        self._refused[kind] = reason

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles begin anew: what was remembered belongs to the modules of one network.

        They give no warning that was given before.
        """
        return {"_warned": set(self._warned)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._refused, self._routes = {}, {}
        self._warned = set(state.get("_warned", ()))  # pickles of older versions have none


class _OneCall:
    """The state of one rowwise call: its rules, and what is decided on the way."""

    def __init__(self, memory: RowwiseCall, rules: Rules, rows: int) -> None:
        self.memory = memory
        self.rules = rules
        self.rows = rows

    def chain(self, module: nn.Module, x: Any) -> tuple[Any, list[Step] | None]:
        """The output, and the steps that lead there; None if the steps alone cannot repeat it."""
        check_places(module, self.rules.generated)
        parts = sequence(module, "")
        steps: list[Step] | None = []
        while parts:
            applied = self.rules.apply(parts, x) if isinstance(x, Tensor) else None
            if applied is None:
                steps = None
                prefix, part = parts.pop(0)
                x = self.any_module(part, prefix, (x,), {})
                continue
            x, count, step = applied
            parts = parts[count:]
            steps = None if steps is None or step is None else [*steps, step]
        return x, steps

    def any_module(
        self, module: nn.Module, prefix: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What has no batched rule: vmap, or a loop with a warning."""
        task = RowwiseTask(module, prefix, self.rules, self.rows, args, kwargs)
        reason = known_slow(module)
        if torch.compiler.is_compiling():
            return task.vmapped(lazy=False) if reason is None else task.looped()
        kind = None
        if reason is None and self.memory._refused:
            kind = _kind(task)
            reason = self.memory._refused.get(kind)
        if reason is None or reason is BRANCHES:
            try:
                return task.vmapped(lazy=True) if reason is None else task.branched()
            except WeightloomError:
                raise
            except VMAP_REFUSALS as error:
                return self._refused(task, kind or _kind(task), error)
        result = task.looped()
        self._warn_slow(task, reason)
        return result

    def _refused(self, task: RowwiseTask, kind: object, error: Exception) -> Any:
        """What vmap did not do: in branches if values were asked for, else in a loop."""
        self.rules.forget(task.decided)
        if _asks_for_values(error):
            try:
                result = task.branched()
            except WeightloomError:
                raise
            except VMAP_REFUSALS:
                self.rules.forget(task.decided)
            else:
                self.memory.refuse(kind, BRANCHES)
                return result
        result = task.looped()  # if the input is wrong, this raises the plain error
        reason = f"torch.vmap refused it ({_first_line(error)})"
        self.memory.refuse(kind, reason)
        self._warn_slow(task, reason)
        return result

    def _warn_slow(self, task: RowwiseTask, reason: str) -> None:
        prefix = task.prefix
        if self.rules.decisions is not None:
            self.rules.decisions.append(Decision(prefix.rstrip("."), "loop", {}, reason))
        if (prefix, reason) in self.memory._warned:
            return
        self.memory._warned.add((prefix, reason))
        where = f"layer {prefix[:-1]!r}" if prefix else "the primary"
        warnings.warn(
            f"{where} ({type(task.module).__name__}) runs in a slow loop over {self.rows} "
            f"conditions: {reason}. The results are the same; to make it fast, leave its "
            f"parameters out of generate=, replace it by a layer that torch.vmap can batch, or "
            f"call hyper.bind(condition), which runs the primary once for all rows",
            SlowPathWarning,
            stacklevel=6,
        )


def _kind(task: RowwiseTask) -> object:
    """Calls that vmap treats alike: the same code, kinds of arguments and modes."""
    given = task.arguments
    return (
        task.prefix,
        structure_of(task.module),
        task.module.training,
        torch.is_grad_enabled(),
        any(under_autocast(tensor) for tensor in given.tensors()[:1]),
        len(given.given[0]),
        tuple(given.given[1]),
        tuple(map(_kind_of_argument, given.leaves)),
    )


def _kind_of_argument(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        return leaf.dim(), leaf.dtype
    return leaf if isinstance(leaf, bool | str | None) else type(leaf)


def _asks_for_values(error: Exception) -> bool:
    text = str(error)
    return "data-dependent control flow" in text or ".item()" in text


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__
