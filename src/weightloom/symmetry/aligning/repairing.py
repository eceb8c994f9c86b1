"""Statistics of an average of networks, repaired (REPAIR, Jordan et al. 2022).

The values of a hidden unit vary less in the average of two networks than in either: its incoming
weights partly cancel. So the signal shrinks from layer to layer. REPAIR gives the values that each
layer writes, on data, the mean and the deviation that they have on average in the networks:

    y -> (y - mean) / std * sum_k w_k std_k + sum_k w_k mean_k,

written into the layer's weight and bias. Layers before BatchNorm do not need it; there the running
statistics are measured again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.aligning.averaging import require_values
from weightloom.symmetry.aligning.batches import DataBatches, evaluating, run_on
from weightloom.symmetry.aligning.observation import Observer, Use
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.reading.reader import read

__all__ = ["repair", "repaired", "shares_of"]


def repair(
    merged: nn.Module,
    networks: Sequence[nn.Module],
    data: Any,
    *,
    weights: Sequence[float] | None = None,
    progress: bool = False,
) -> nn.Module:
    """A copy of an average of networks whose statistics on data are repaired.

    ``networks`` are those that were averaged, aligned to each other (`align`), with the ``weights``
    of the average (default: equal). Each linear layer and convolution that writes hidden units gets
    the mean and the deviation that its outputs have on average in the networks. Layers without a
    bias get the deviation only; layers that run several times in one call are left alone. Running
    statistics of BatchNorm are measured anew, over all data (``networks=[]``: only those).

    ``data``: a tensor of inputs, (inputs, targets), or an iterable of batches; see `align`. One
    pass is made for each network. While the average runs, each batch is normalised by its own
    statistics, as in training: give batches of a hundred inputs or more.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> other = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> from weightloom.symmetry import interpolate
    >>> half, x = interpolate(net, other, 0.5), torch.randn(100, 2)
    >>> hidden = repair(half, [net, other], x)[0](x)
    >>> goal = (net[0](x).std(0) + other[0](x).std(0)) / 2
    >>> torch.allclose(hidden.std(0), goal, rtol=1e-4)
    True
    """
    require_values(merged, *networks)
    return repaired(
        merged, networks, DataBatches(data, progress), shares_of(weights, len(networks))
    )


def shares_of(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """The share of each network in an average: the weights divided by their sum."""
    if weights is None:
        return (1 / max(count, 1),) * count
    shares = [float(weight) for weight in weights]
    if len(shares) != count:
        raise ConfigError(f"{len(shares)} weights are given for {count} networks; one each")
    wrong = [share for share in shares if not 0 <= share < float("inf")]
    if wrong or not sum(shares) > 0:
        raise ConfigError(
            f"weights are {shares}; wanted are numbers of at least 0, not all of them 0"
        )
    return tuple(share / sum(shares) for share in shares)


def repaired(
    merged: nn.Module, networks: Sequence[nn.Module], batches: DataBatches, shares: Sequence[float]
) -> nn.Module:
    """`repair` with data and shares as they are used."""
    result = copy.deepcopy(merged)
    goals = _goals(networks, _hidden_rows(merged) if networks else {}, batches, shares)
    work = _Repair(goals)
    with evaluating(result):
        for batch in batches.read("repairing"):
            with Observer(result, work.visit):
                run_on(result, batch)
        work.write(result)
    return result


class _Statistics:
    """Mean and variance of values [samples, rows] that come in batches."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    @classmethod
    def of(cls, values: Tensor) -> _Statistics:
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        var, mean = torch.var_mean(wide, 0, correction=0)
        result = cls()
        result.count, result.mean = len(values), mean.cpu().double()
        result.squares = var.cpu().double() * len(values)
        return result

    def add(self, other: _Statistics) -> None:
        """Chan et al. 1983: the moments of two sets from those of each."""
        total, step = self.count + other.count, other.mean - self.mean
        between = step.square() * (self.count * other.count / total)
        self.squares = self.squares + other.squares + between
        self.mean = self.mean + step * (other.count / total)
        self.count = total

    @property
    def std(self) -> Tensor:
        return (self.squares / self.count).sqrt()


@dataclass(frozen=True)
class _Goal:
    """What the rows of a layer shall have: mean and standard deviation [rows]."""

    dim: int
    mean: Tensor
    std: Tensor

    def ratio(self, std: Tensor) -> Tensor:
        """What values of this deviation are multiplied by; constant ones stay constant."""
        usable = std > 1e-6 * self.std
        return torch.where(usable, self.std / torch.where(usable, std, 1.0), 1.0)


def _hidden_rows(module: nn.Module) -> dict[str, int]:
    """The weights whose rows are hidden units, and the dimension of the rows."""
    tensors = tensors_of(module)
    return {
        axis.tensor: axis.dim
        for axis in read(module).axes
        if axis.side == "out" and tensors[axis.tensor].dim() > 1
    }


def _goals(
    networks: Sequence[nn.Module],
    rows: dict[str, int],
    batches: DataBatches,
    shares: Sequence[float],
) -> dict[str, _Goal]:
    """What each layer that can be repaired shall write, by the name of its weight."""
    goals: dict[str, _Goal] = {}
    left_out: set[str] = set()
    for network, share in zip(networks, shares, strict=True):
        statistics: dict[str, _Statistics] = {}
        with evaluating(network):
            for batch in batches.read("measuring"):
                _measure(network, batch, rows, statistics, left_out)
        for name, seen in statistics.items():
            mean, std = share * seen.mean, share * seen.std
            goal = goals.get(name, _Goal(rows[name], torch.zeros(()), torch.zeros(())))
            goals[name] = _Goal(goal.dim, goal.mean + mean, goal.std + std)
    return {name: goal for name, goal in goals.items() if name not in left_out}


def _measure(
    network: nn.Module,
    batch: Any,
    rows: dict[str, int],
    statistics: dict[str, _Statistics],
    left_out: set[str],
) -> None:
    """One batch: what layers write is added to the statistics; names what cannot be repaired."""
    writers: list[tuple[Tensor, str]] = []  # holds the tensors, so that none takes another's place

    def visit(use: Use) -> None:
        if use.norm is not None:
            left_out.update(name for written, name in writers if written is use.given)
        if use.weight not in rows:
            return
        values = use.values(rows[use.weight])
        if not use.affine or use.call or values is None:
            left_out.add(use.weight)
        elif use.places[rows[use.weight]][0] == "written":
            writers.append((use.written, use.weight))
            statistics.setdefault(use.weight, _Statistics()).add(_Statistics.of(values))

    with Observer(network, visit):
        run_on(network, batch)


class _Repair:
    """Normalises what layers write, batch by batch, and keeps the statistics of all batches."""

    def __init__(self, goals: dict[str, _Goal]) -> None:
        self.goals = goals
        self.rows: dict[str, tuple[_Statistics, str | None]] = {}
        self.norms: dict[str, tuple[_Statistics, Tensor, Tensor]] = {}

    def visit(self, use: Use) -> Tensor | None:
        norm = use.norm
        if norm is not None and norm.mean is not None and norm.var is not None:
            values = _enough(use, use.given.movedim(1, -1).flatten(0, -2))
            entry = (_Statistics(), norm.mean, norm.var)
            self.norms.setdefault(use.weight, entry)[0].add(_Statistics.of(values))
            return F.batch_norm(use.given, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
        goal = self.goals.get(use.weight)
        if goal is None:
            return None
        here = _Statistics.of(_enough(use, use.values(goal.dim)))
        self.rows.setdefault(use.weight, (_Statistics(), use.bias))[0].add(here)
        shape = [1] * use.written.dim()
        shape[use.places[goal.dim][1]] = -1

        written = use.written.to(torch.promote_types(use.written.dtype, torch.float32))

        def along(row: Tensor) -> Tensor:
            return row.to(written).reshape(shape)

        ratio = along(goal.ratio(here.std))
        if use.bias is None:
            return (written * ratio).to(use.written.dtype)
        changed = (written - along(here.mean)) * ratio + along(goal.mean)
        return changed.to(use.written.dtype)

    def write(self, module: nn.Module) -> None:
        """The statistics of all batches, into the weights and running statistics."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, (seen, bias) in self.rows.items():
            goal, weight = self.goals[name], parameters[name]
            ratio = goal.ratio(seen.std)
            shape = [-1 if dim == goal.dim else 1 for dim in range(weight.dim())]
            weight.copy_(weight.cpu().double() * ratio.reshape(shape))
            if bias is not None:
                shifted = (parameters[bias].cpu().double() - seen.mean) * ratio + goal.mean
                parameters[bias].copy_(shifted)
        for seen, mean, var in self.norms.values():
            mean.copy_(seen.mean)
            var.copy_(seen.squares / max(seen.count - 1, 1))


def _enough(use: Use, values: Tensor | None) -> Tensor:
    if values is None or len(values) < 2:
        raise ConfigError(
            f"a batch gives {0 if values is None else len(values)} value for each unit of "
            f"{use.weight!r}, which has no deviation; give batches of several inputs, better of a "
            "hundred or more"
        )
    return values
