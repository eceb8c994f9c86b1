"""Batches of inputs: what users pass as data, and how a network is run on one of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from weightloom.errors import ConfigError

__all__ = ["DataBatches", "evaluating", "run_on"]

_ROWS = 256  # rows of one batch, where the data are one tensor


class DataBatches:
    """Data as batches that can be read many times.

    ``data`` is a tensor of inputs [n, ...]; a tuple (inputs, targets) or a dict of such tensors; or
    any iterable of batches, a data loader for instance. A batch is a tensor, a tuple or list that
    starts with one, or a dict of keyword arguments. Targets are not used.
    """

    def __init__(self, data: Any, progress: bool = False) -> None:
        self._progress = progress
        self._batches = _as_batches(data)

    def read(self, what: str) -> Iterator[Any]:
        """The batches once; ``what`` stands before the progress bar."""
        batches, count = self._batches, 0
        if self._progress:
            from tqdm import tqdm

            batches = tqdm(batches, desc=what, unit="batch", file=sys.stderr, leave=False)
        for batch in batches:
            count += 1
            yield batch
        if not count:
            raise ConfigError("data has no batches; at least one batch of inputs is needed")


def _as_batches(data: Any) -> Iterable[Any]:
    if isinstance(data, Tensor):
        return _rows(data)
    if isinstance(data, tuple) and data and all(isinstance(part, Tensor) for part in data):
        return _rows(data[0])
    if isinstance(data, Mapping):
        return [data]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise ConfigError(
            f"data is a {type(data).__name__}, which gives single samples; pass batches: "
            "torch.utils.data.DataLoader(data, batch_size=256)"
        )
    if not isinstance(data, Iterable):
        raise ConfigError(
            f"data is a {type(data).__name__}; wanted are a tensor of inputs, a tuple (inputs, "
            "targets), a dict of tensors, or an iterable of batches such as a DataLoader"
        )
    if iter(data) is data:
        raise ConfigError(
            "data is an iterator, which can be read once only, and several passes are needed; "
            "pass a list of batches or a DataLoader"
        )
    return data


def _rows(inputs: Tensor) -> Iterable[Tensor]:
    if inputs.dim() < 1 or not len(inputs):
        raise ConfigError(f"data has shape {list(inputs.shape)}; rows of inputs are needed")
    return inputs.split(_ROWS)


def run_on(module: nn.Module, batch: Any) -> Any:
    """The output of a network for one batch, which is moved to its device and floating dtype."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if isinstance(batch, Mapping):
        wanted = _keywords(module)
        named = {k: v for k, v in batch.items() if wanted is None or k in wanted}
        return module(**{key: _moved(value, like) for key, value in named.items()})
    if isinstance(batch, (tuple, list)) and batch:
        batch = batch[0]
    if isinstance(batch, Mapping):
        return run_on(module, batch)
    if not isinstance(batch, Tensor):
        raise ConfigError(
            f"a batch is a {type(batch).__name__}; wanted are a tensor, a tuple that starts with "
            "the inputs, or a dict of keyword arguments"
        )
    return module(_moved(batch, like))


def _keywords(module: nn.Module) -> set[str] | None:
    """The names that forward takes; None if it takes any."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def _moved(value: Any, like: Tensor | None) -> Any:
    if not isinstance(value, Tensor) or like is None:
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every submodule has the mode it had before."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        with torch.no_grad():
            yield
    finally:
        for part, training in before:
            part.training = training
