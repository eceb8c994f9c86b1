"""Tasks one after another: a penalty on changes of the weights written for earlier tasks.

"Continual learning with hypernetworks", von Oswald and others, 2020, Eq. 2.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from weightloom.errors import TrainingError
from weightloom.hyper import HyperNetwork
from weightloom.hyper.conditions import Condition
from weightloom.hyper.rows.functional import modes_restored
from weightloom.training.batches import seeded
from weightloom.training.settings import spelled

__all__ = ["OutputRegulariser", "candidate_change", "output_regulariser"]


def output_regulariser(
    hyper: HyperNetwork, conditions: Condition, *, sample: int | None = None, seed: int = 0
) -> OutputRegulariser:
    """Remember the weights that ``hyper`` writes now; the result penalises changes of them.

    Call it before a new task begins, with the conditions of all earlier tasks. Calling the result
    gives the mean over them of |f(c; now) - f(c; then)|^2, the squared distance summed over all
    written weights. Add it to the loss of the new task, times a strength (0.01 to 0.1 in the
    paper). Without conditions (before the first task) it is 0.

    ``sample``: each call takes so many of the conditions, at random; its mean is the same.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([4, 8, 3]), wl.LearnedConditions(5, 16))
    >>> regulariser = wl.output_regulariser(hyper, torch.arange(2))    # tasks 0 and 1 are learned
    >>> regulariser().item()
    0.0
    """
    if not isinstance(hyper, HyperNetwork):
        raise TrainingError(
            f"hyper is a {type(hyper).__name__}; the penalty is on weights that a HyperNetwork "
            f"writes, so pass one"
        )
    if sample is not None and (isinstance(sample, bool) or sample < 1):
        raise TrainingError(f"sample={sample!r} was given; take at least 1 condition in each call")
    _warn_of_direct(hyper)
    return OutputRegulariser(hyper, conditions, sample, seed)


class OutputRegulariser:
    """Made by `output_regulariser`. `targets` are the weights to keep, {name: [tasks, *shape]}."""

    def __init__(
        self, hyper: HyperNetwork, conditions: Condition, sample: int | None, seed: int
    ) -> None:
        self.hyper = hyper
        self.targets: dict[str, Tensor] = {}
        self.tasks = 0
        if _is_empty(conditions):
            return
        with torch.no_grad(), _evaluating(hyper):
            features = hyper.encode(conditions)
            self.tasks = len(features)
            written = hyper.weights(conditions)
        if features.single:
            conditions = tree_map(lambda tensor: tensor.unsqueeze(0), conditions)
            written = {name: value.unsqueeze(0) for name, value in written.items()}
        self.conditions = tree_map(lambda tensor: tensor.detach().clone(), conditions)
        self.targets = {name: value.detach().clone() for name, value in written.items()}
        self._sample = sample if sample is not None and sample < self.tasks else None
        self._generator = seeded("old tasks", seed)

    def __call__(
        self,
        optimiser: torch.optim.Optimizer | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Tensor:
        """The penalty. With an optimiser it looks ahead, as the paper does.

        Call it then between ``loss.backward()`` of the new task and ``optimiser.step()``: the
        weights are those after the step that these gradients would make. No gradient flows through
        that change (the paper's default).

            optimiser.zero_grad()
            loss.backward()
            (0.01 * regulariser(optimiser)).backward()
            optimiser.step()
        """
        optimiser = spelled("optimiser", optimiser, optimizer)
        if not self.tasks:
            return torch.zeros((), requires_grad=True)  # backward() works, and does nothing
        conditions, targets, count = self._chosen()
        ahead = {} if optimiser is None else _moved(self.hyper, optimiser)
        with _evaluating(self.hyper):  # dropout would count as a change
            now = functional_call(_WeightsOf(self.hyper), ahead, (conditions,))
        moved = [(now[name] - target).square().sum() for name, target in targets.items()]
        return torch.stack(moved).sum() / count

    def _chosen(self) -> tuple[Any, dict[str, Tensor], int]:
        if self._sample is None:
            return self.conditions, self.targets, self.tasks
        rows = torch.randperm(self.tasks, generator=self._generator)[: self._sample]

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows.to(tensor.device)]

        return tree_map(pick, self.conditions), tree_map(pick, self.targets), self._sample


class _WeightsOf(nn.Module):
    """`HyperNetwork.weights` as a forward pass, for `functional_call`."""

    def __init__(self, hyper: HyperNetwork) -> None:
        super().__init__()
        self.hyper = hyper

    def forward(self, conditions: Condition) -> dict[str, Tensor]:
        return self.hyper.weights(conditions)


def _moved(hyper: HyperNetwork, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters after the step to come, by their names in `_WeightsOf`."""
    change = candidate_change(optimiser)
    moved = {
        f"hyper.{name}": parameter + change[parameter]
        for name, parameter in hyper.named_parameters()
        if parameter in change
    }
    if not moved:
        raise TrainingError(
            "the look-ahead needs gradients in parameters of the hypernetwork that the optimiser "
            "holds, and there are none; call loss.backward() of the new task first, or leave the "
            "optimiser out"
        )
    return moved


def candidate_change(optimiser: torch.optim.Optimizer) -> dict[Tensor, Tensor]:
    """What ``optimiser.step()`` would add to each parameter that has a gradient.

    A copy of the optimiser makes the step, so this holds for every one of torch.optim, and neither
    the parameters nor the state (Adam's moments) are touched.
    """
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise TrainingError(
            f"optimiser is a {type(optimiser).__name__}; the look-ahead takes the "
            f"torch.optim.Optimizer that will make the step"
        )
    twin = copy.deepcopy(optimiser)  # of its state and groups; hooks and schedulers stay behind
    change: dict[Tensor, Tensor] = {}
    pairs = [
        (own, other)
        for group, twins in zip(optimiser.param_groups, twin.param_groups, strict=True)
        for own, other in zip(group["params"], twins["params"], strict=True)
        if own.grad is not None
    ]
    for own, other in pairs:
        other.grad = own.grad.detach().clone()
    twin.step()
    for own, other in pairs:
        change[own] = other.detach() - own.detach()
    return change


@contextmanager
def _evaluating(hyper: HyperNetwork) -> Iterator[None]:
    with modes_restored(hyper):
        hyper.eval()
        yield


def _is_empty(conditions: Any) -> bool:
    return isinstance(conditions, Tensor) and conditions.dim() > 0 and len(conditions) == 0


def _warn_of_direct(hyper: HyperNetwork) -> None:
    direct = [name for name, p in hyper.primary.named_parameters() if p.requires_grad]
    if direct:
        warnings.warn(
            f"{len(direct)} parameters of the primary ({direct[0]!r}, ...) are learned directly; "
            f"all tasks share them and the penalty does not hold them, so earlier tasks will "
            f"change. Generate them too, or pass freeze_rest=True",
            stacklevel=3,
        )
