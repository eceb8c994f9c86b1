"""Conditions that are not data: learned ones, one for each task, and sampled ones for ensembles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError, TrainingError
from weightloom.hyper import Features, HyperNetwork
from weightloom.hyper.conditions import Condition
from weightloom.hyper.rows.functional import modes_restored
from weightloom.training.batches import seeded
from weightloom.training.fitting import fit
from weightloom.training.history import FitHistory

__all__ = [
    "LearnedConditions",
    "SampledCondition",
    "SampledNetworks",
    "fit_condition",
    "sample_networks",
]


class LearnedConditions(nn.Embedding):
    """A table with one learned condition for each of ``count`` tasks; an encoder of task ids.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([4, 8, 3]), wl.LearnedConditions(5, 16))
    >>> hyper(torch.randn(10, 4), torch.tensor(2)).shape           # all rows are of task 2
    torch.Size([10, 3])
    """

    def __init__(self, count: int, width: int, *, std: float = 1.0) -> None:
        super().__init__(count, width)
        nn.init.normal_(self.weight, std=std)

    @torch.no_grad()
    def append(self, condition: Features | Tensor) -> int:
        """Add a row, such as what `fit_condition` returned; returns its id.

        The table is a new parameter afterwards, so make optimisers anew.
        """
        row = condition.values if isinstance(condition, Features) else condition
        row = row.detach().reshape(-1, row.shape[-1])
        if row.shape != (1, self.embedding_dim):
            raise ShapeError(
                f"a condition of shape {tuple(row.shape)} was given; a row of this table has "
                f"{self.embedding_dim} numbers"
            )
        rows = torch.cat([self.weight, row.to(self.weight)])
        self.weight = nn.Parameter(rows, requires_grad=self.weight.requires_grad)
        self.num_embeddings += 1
        return self.num_embeddings - 1


def fit_condition(
    model: nn.Module, data: Any, *, start: Condition | None = None, **options: Any
) -> tuple[Features, FitHistory]:
    """Learn one condition for new data (x, target); everything in ``model`` stays as it is.

    Returns it as `Features`, which takes the place of a condition: ``model(x, condition)``. It
    begins at ``start``, or at the mean of the model's table of task ids. ``options`` are those of
    `fit`.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([4, 8, 3]), wl.LearnedConditions(5, 16))
    >>> x, y = torch.randn(32, 4), torch.randn(32, 3)
    >>> condition, history = fit_condition(hyper, (x, y), epochs=2, progress=False)
    >>> hyper(x, condition).shape, hyper.encoder.append(condition)
    (torch.Size([32, 3]), 5)
    """
    wrapper = _OneCondition(model, _start(model, start))
    with modes_restored(model):
        model.eval()
        history = fit(wrapper, data, **options)
    return Features(wrapper.values.detach().clone(), single=True), history


class _OneCondition(nn.Module):
    """The model with one condition as the only parameter."""

    def __init__(self, model: nn.Module, start: Tensor) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple: as a submodule it would be trained too
        self.values = nn.Parameter(start.clone())

    def forward(self, x: Any, *args: Any) -> Any:
        (model,) = self._model
        return model(x, Features(self.values, single=True), *args)


@torch.no_grad()
def _start(model: nn.Module, start: Condition | None) -> Tensor:
    """[1, k]"""
    if start is not None and not isinstance(start, Features):
        if not isinstance(model, HyperNetwork):
            raise TrainingError(
                f"start is a {type(start).__name__}, and only a HyperNetwork can encode it; pass "
                f"Features(values[1, k])"
            )
        start = model.encode(start)
    if isinstance(start, Features):
        return start.values.mean(0, keepdim=True)
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, nn.Embedding):
        return encoder.weight.mean(0, keepdim=True)
    raise TrainingError(
        f"the encoder is a {type(encoder).__name__}, not a table of task ids whose mean is the "
        f"place to begin; pass start= a condition (of a similar task)"
    )


# -- ensembles -----------------------------------------------------------------------------------


class SampledCondition(nn.Module):
    """``model(x, z)`` as a network of x alone: every call draws z from the standard normal.

    Each row of x gets its own z [width], so that training it, ``fit(sampled, (x, y))``, fits the
    networks of all z at once: an ensemble without end. `sample_networks` draws members of it.

    ``prior`` adds a fixed random function to each member: ``model`` as it is now, times this
    number. What is trained makes up for it at the data and not elsewhere, so members agree where
    there are data ("Randomized prior functions", Osband and others, 2018). With ``prior=0`` only
    what is left of the initialisation keeps them apart.
    """

    def __init__(self, model: nn.Module, width: int, *, prior: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.width = width
        self.scale = prior
        self.fixed: nn.Module | None = None
        if prior:
            self.fixed = copy.deepcopy(model).requires_grad_(False)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """One z for each row of x, drawn unless given."""
        if z is None:
            z = torch.randn(len(x), self.width, device=x.device, dtype=x.dtype)
        output: Tensor = self.model(x, z)
        return output if self.fixed is None else output + self.scale * self.fixed(x, z)


class Spread(NamedTuple):
    """What an ensemble predicts."""

    mean: Tensor
    std: Tensor


class SampledNetworks:
    """Made by `sample_networks`: n networks of one model. ``networks(x)`` is [n, *output]."""

    def __init__(self, model: nn.Module, conditions: Condition, count: int) -> None:
        self.model = model
        self.conditions: Any = conditions
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __call__(self, x: Tensor) -> Tensor:
        """Every network's output for the same x: [n, *output]."""
        rows = x.unsqueeze(0).expand(self.count, *x.shape)
        output: Tensor = self.model(rows, self.conditions)
        return output

    @torch.no_grad()
    def predict(self, x: Tensor) -> Spread:
        """Mean and standard deviation over the networks."""
        with modes_restored(self.model):
            self.model.eval()
            outputs = self(x)
        return Spread(outputs.mean(0), outputs.std(0))


def sample_networks(
    model: nn.Module,
    n: int,
    *,
    prior: Callable[[int, torch.Generator], Condition] | None = None,
    seed: int = 0,
) -> SampledNetworks:
    """Draw n conditions from a prior: n networks, whose mean and spread are a prediction.

    The prior is the standard normal of a `SampledCondition` or of a HyperNetwork without encoder;
    of a table of task ids it is the normal distribution with the mean and deviation of its rows.
    Any other is a function (n, generator) -> conditions.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([1, 16, 1]), features=4)
    >>> networks = wl.sample_networks(hyper, 10)
    >>> mean, std = networks.predict(torch.randn(50, 1))
    >>> networks(torch.randn(50, 1)).shape, std.shape
    (torch.Size([10, 50, 1]), torch.Size([50, 1]))
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise TrainingError(f"n={n!r} was given; a spread needs at least 2 networks")
    generator = seeded("networks", seed)
    conditions = _draw(model, n, generator) if prior is None else prior(n, generator)
    return SampledNetworks(model, conditions, n)


@torch.no_grad()
def _draw(model: nn.Module, n: int, generator: torch.Generator) -> Condition:
    own = next(model.parameters())
    if isinstance(model, SampledCondition):
        return torch.randn(n, model.width, generator=generator).to(own)
    encoder = getattr(model, "encoder", None)
    if isinstance(model, HyperNetwork) and isinstance(encoder, nn.Identity):
        return torch.randn(n, model.head.features, generator=generator).to(own)
    if isinstance(encoder, nn.Embedding):
        rows = encoder.weight
        noise = torch.randn(n, rows.shape[1], generator=generator).to(rows)
        return Features(rows.mean(0) + rows.std(0) * noise)
    raise TrainingError(
        f"the prior of a {type(model).__name__} with this encoder is not known; pass prior= a "
        f"function (n, generator) -> n conditions"
    )
