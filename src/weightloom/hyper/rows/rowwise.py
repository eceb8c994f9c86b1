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

from weightloom.errors import SlowPathWarning
from weightloom.hyper.rows.any_module import VMAP_REFUSALS, RowwiseTask, known_slow
from weightloom.hyper.rows.generated import Generated
from weightloom.hyper.rows.routes import Route, Step, route_key, sequence
from weightloom.hyper.rows.rules import Decision, Rules

__all__ = ["RowwiseCall"]

# Calls of one network differ in few ways (training and inference, the last batch of an epoch).
_MOST_ROUTES = 16


class RowwiseCall:
    """Calls a module with one set of generated weights for each row of its arguments.

    Make one for each module and keep it: it remembers which parts of the module need a loop over
    conditions, and how chains of layers were computed (`Route`). A later call that looks the same
    follows that route instead of choosing again.
    """

    def __init__(self) -> None:
        self._slow: dict[str, str] = {}
        """prefix of a part that needs a loop -> why"""
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
            this = _OneCall(generated, rows, order, self._slow, decisions)
            return this.any_module(module, "", args, kwargs or {})
        x = args[0]
        if torch.compiler.is_compiling():  # choosing again is free there: it happens once
            return _OneCall(generated, rows, order, self._slow, decisions).chain(module, x)[0]
        key = route_key(x, order)
        route = self._routes.get(key)
        if route is not None and decisions is None and route.holds(generated):
            return route.follow(generated, x)
        y, steps = _OneCall(generated, rows, order, self._slow, decisions).chain(module, x)
        if steps is not None:
            self._keep(key, Route(module, steps, generated))
        return y

    def _keep(self, key: object, route: Route) -> None:
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[key] = route

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no routes: a route belongs to the modules of one network."""
        return {"_slow": self._slow, "_routes": {}}


class _OneCall:
    """The state of one rowwise call: its rules, and what is decided on the way."""

    def __init__(
        self,
        generated: Mapping[str, Generated],
        rows: int,
        order: str,
        slow: dict[str, str],
        decisions: list[Decision] | None,
    ) -> None:
        self.rows = rows
        self.slow = slow
        self.decisions = decisions
        self.rules = Rules(generated, order, decisions)

    def chain(self, module: nn.Module, x: Any) -> tuple[Any, list[Step] | None]:
        """The output, and the steps that lead there; None if the steps alone cannot repeat it."""
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
        reason = self.slow.get(prefix) or known_slow(module)
        if torch.compiler.is_compiling():
            return task.vmapped(lazy=False) if reason is None else task.looped()
        if reason is None:
            try:
                result = task.vmapped(lazy=True)
            except VMAP_REFUSALS as error:
                result = task.looped()  # if the input is wrong, this raises the plain error
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


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__
