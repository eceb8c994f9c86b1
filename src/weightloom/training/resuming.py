"""The checkpoint of `fit`: all that the next step depends on, in one file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weightloom.errors import CheckpointError
from weightloom.training import checkpoint as files
from weightloom.training.feeding import Feed
from weightloom.training.history import Best, FitHistory, PartOfEpoch, fill, kept

__all__ = ["FitCheckpoint", "described"]

# Seconds between two files; saving takes at most this share of the time.
EVERY = 30.0
SAVING = 0.1


def described(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: Mapping[str, Feed | None],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What a checkpoint belongs to; tensors are compared by shapes and by first and last rows."""
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimiser.param_groups
    ]
    own = kept(model)
    frozen = [p for name, p in model.named_parameters() if name not in own]
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in own.items()]
    return {
        "settings": {**settings, "optimiser": f"{type(optimiser).__name__} {options}"},
        "members": [
            {
                "architecture": files.digest(repr(shapes), *map(_ends, frozen)),
                **{name: None if feed is None else _digest(feed) for name, feed in data.items()},
            }
        ],
    }


def _digest(feed: Feed) -> str:
    if not feed.in_memory:  # reading from a loader would change its random numbers
        return f"{type(feed.source).__name__} of {len(feed)} batches"
    columns = tree_leaves(feed.source)
    shapes = [(tuple(column.shape), str(column.dtype)) for column in columns]
    return files.digest(repr(shapes), *map(_ends, columns))


def _ends(tensor: Tensor) -> bytes:
    return files.ends(tensor if tensor.dim() else tensor[None]) if tensor.numel() else b""


class FitCheckpoint:
    """One file, which is read once and then written again and again."""

    def __init__(
        self, path: Path, model: nn.Module, history: FitHistory, belongs: Mapping[str, Any]
    ) -> None:
        self.path, self.model, self.history, self.belongs = path, model, history, belongs
        self._saved, self._pause = time.monotonic(), EVERY
        snapshot = files.read(path, belongs, ["the model"])
        if snapshot is None:
            self.save()  # if that fails, it fails before the training and not after it
        else:
            self._load(snapshot)

    def _load(self, snapshot: files.Snapshot) -> None:
        history, about, tensors = self.history, snapshot.about, snapshot.tensors
        for name in ("losses", "validation", "steps", "seconds"):
            setattr(history, name, about[name])
        fill(self.model, _part(tensors, "model/"))
        optimiser: Any = history.optimiser
        optimiser.load_state_dict(_from_plain(about["optimiser"], tensors))
        if about["best"] is not None:
            value, epoch = about["best"]
            history.best = Best(value, epoch, self._placed(tensors, "best/"))
        if about["part"] is not None:
            batches, loss, rows = about["part"]
            history.part = PartOfEpoch(batches, loss, rows, self._placed(tensors, "part/"))

    def _placed(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        own = kept(self.model)
        return {name: t.to(own[name].device) for name, t in _part(tensors, prefix).items()}

    def save_if_due(self) -> None:
        if time.monotonic() - self._saved >= self._pause:
            self.save()

    def save(self) -> None:
        started, history = time.monotonic(), self.history
        tensors = {f"model/{name}": tensor for name, tensor in kept(self.model).items()}
        optimiser: Any = history.optimiser
        about: dict[str, Any] = {
            "losses": history.losses,
            "validation": history.validation,
            "steps": history.steps,
            "seconds": history.seconds,
            "optimiser": _plain(optimiser.state_dict(), tensors),
            "best": None,
            "part": None,
        }
        if history.best is not None:
            about["best"] = [history.best.value, history.best.epoch]
            tensors.update({f"best/{n}": t for n, t in history.best.weights.items()})
        if history.part is not None:
            about["part"] = [history.part.batches, history.part.loss, history.part.rows]
            tensors.update({f"part/{n}": t for n, t in history.part.before.items()})
        files.write(self.path, files.Snapshot(tensors, about), self.belongs)
        self._saved = time.monotonic()
        self._pause = max(EVERY, (self._saved - started) / SAVING) if EVERY > 0 else 0.0


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


# -- what an optimiser keeps, as JSON and tensors --------------------------------------------------


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Tensors by name; dicts as lists of items, because their keys may be numbers."""
    if isinstance(value, Tensor):
        name = f"optimiser/{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _plain(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_plain(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"the optimiser keeps a {type(value).__name__}, which a checkpoint cannot hold; leave "
        f"checkpoint= out and go on with resume=history"
    )


def _from_plain(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_from_plain(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_from_plain(item, tensors) for item in value["tuple"])
    return {key: _from_plain(item, tensors) for key, item in value["items"]}
