"""Checkpoints as lists of tensors that are read one at a time.

A `Checkpoint` knows names, shapes and dtypes of its tensors. Their numbers stay where they are (on
disk, in a module) until somebody asks, so a checkpoint may be larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError, ConfigError

__all__ = [
    "Checkpoint",
    "LazyTensor",
    "NoNumbersError",
    "in_memory",
    "of_module",
    "of_state",
    "wrong_type",
]


class NoNumbersError(CheckpointError):
    """A tensor that has a shape and no numbers."""


@dataclass(frozen=True)
class LazyTensor:
    """One tensor that has not been read yet, either in a file or in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: torch has no such dtype, and only bytes can be compared"""
    dtype_name: str
    nbytes: int
    path: Path | None = None
    offset: int = 0
    """first byte in the file"""
    compute: Callable[[], Tensor] | None = None
    """for tensors that are not in a file: returns the numbers"""
    storage: tuple[int, ...] | None = None
    """where the numbers are in memory; equal for tensors that share them (tied weights)"""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def opened(self) -> AbstractContextManager[FileIO | None]:
        """The tensor's file, to be passed to `read_into`; None for tensors in memory."""
        if self.path is None:
            return nullcontext()
        try:
            return self.path.open("rb", buffering=0)
        except OSError as error:
            raise self._unreadable(error) from error

    def read_into(self, start: int, buffer: np.ndarray, file: FileIO | None) -> np.ndarray:
        """Bytes from ``start`` on, as many as ``buffer`` (uint8) has; not always a copy."""
        if file is None:
            return _raw(self.tensor())[start : start + len(buffer)]
        try:
            file.seek(self.offset + start)
            filled = 0
            while filled < len(buffer):
                count = file.readinto(buffer.data[filled:])
                if not count:
                    raise OSError(f"the file ends {len(buffer) - filled} bytes too early")
                filled += count
        except OSError as error:
            raise self._unreadable(error) from error
        return buffer

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"tensor {self.name!r} cannot be read from {str(self.path)!r}: {error}. Was the file "
            f"changed or cut while it was compared? Copy it again"
        )

    def tensor(self) -> Tensor:
        """All numbers, contiguous, on the CPU."""
        if self.compute is not None:
            return self.compute().detach().cpu().contiguous()
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype or torch.uint8)
        with self.opened() as file:
            buffer = self.read_into(0, np.empty(self.nbytes, dtype=np.uint8), file)
        raw = torch.from_numpy(buffer)
        return raw if self.dtype is None else raw.view(self.dtype).reshape(self.shape)

    def loaded(self) -> LazyTensor:
        """The same, with its numbers in memory if they would have to be computed again."""
        if self.compute is None:
            return self
        value = self.tensor()
        return replace(self, compute=lambda: value)

    def rows(self, start: int, stop: int) -> LazyTensor:
        """The rows [start, stop) as a tensor of their own; its name says which."""
        width = self.nbytes // self.shape[0]
        part = replace(
            self,
            name=f"{self.name}[{start}:{stop}]",
            shape=(stop - start, *self.shape[1:]),
            nbytes=width * (stop - start),
            offset=self.offset + width * start,
            storage=None,
        )
        if self.compute is None:
            return part
        whole = self.compute
        return replace(part, compute=lambda: whole()[start:stop])


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one side of a comparison."""

    label: str
    tensors: dict[str, LazyTensor]
    missing: dict[str, str] = field(default_factory=dict)
    """tensors that the index lists and that cannot be read: name -> what is missing"""
    config: dict[str, Any] | None = None
    """config.json of the folder"""
    notes: tuple[str, ...] = ()
    adapter: Path | None = None
    """the folder, if these are the factors of an adapter"""


def _raw(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor, without a copy."""
    if not tensor.numel():
        return np.empty(0, dtype=np.uint8)
    return tensor.reshape(-1).view(torch.uint8).numpy()


def in_memory(name: str, value: Tensor) -> LazyTensor:
    """A tensor that is in memory already, or that is mapped from a file.

    Quantised tensors of torch are compared by the numbers that they stand for.
    """
    storage = None
    if value.is_quantized:
        storage = None
    elif value.layout == torch.strided and value.device.type != "meta" and value.numel():
        storage = (value.data_ptr(), *value.shape, *value.stride())
    dtype = torch.float32 if value.is_quantized else value.dtype
    return LazyTensor(
        name,
        tuple(value.shape),
        dtype,
        str(value.dtype).removeprefix("torch."),
        value.numel() * dtype.itemsize,
        compute=lambda: _dense(name, value),
        storage=storage,
    )


def _dense(name: str, value: Tensor) -> Tensor:
    if value.device.type == "meta":
        raise NoNumbersError(f"tensor {name!r} is on the meta device and has no numbers")
    if value.is_quantized:
        return value.dequantize()
    return value if value.layout == torch.strided else value.to_dense()


def of_state(state: Mapping[Any, Any], label: str) -> Checkpoint:
    """The tensors of a state dict; values that are no tensors are named in a note."""
    tensors = {str(k): in_memory(str(k), v) for k, v in state.items() if isinstance(v, Tensor)}
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if not tensors:
        raise CheckpointError(
            f"{label} holds no tensors (its keys: {', '.join(map(repr, others[:4])) or 'none'}); "
            f"wanted a state dict, name -> tensor"
        )
    shown = ", ".join(map(repr, others[:4])) + (", ..." if len(others) > 4 else "")
    notes = (f"{label}: entries that are no tensors were left out: {shown}",) if others else ()
    return Checkpoint(label, tensors, notes=notes)


def of_module(module: nn.Module, label: str) -> Checkpoint:
    """The state dict of a module, and its Hugging Face configuration if it has one."""
    checkpoint = of_state(module.state_dict(), label)
    # What save_pretrained would write into config.json, without the defaults.
    as_json = getattr(getattr(module, "config", None), "to_json_string", None)
    if not callable(as_json):
        return checkpoint
    try:
        config = json.loads(as_json())
    except (TypeError, ValueError):
        config = None
    return replace(checkpoint, config=config if isinstance(config, dict) else None)


def wrong_type(value: object) -> ConfigError:
    return ConfigError(
        f"a {type(value).__name__} was given; wanted an nn.Module, a state dict, or the path of a "
        f"file (.safetensors, .pt, .pth, .bin), an index.json or a folder"
    )
