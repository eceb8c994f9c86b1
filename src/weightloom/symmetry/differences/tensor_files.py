"""Single files of tensors: safetensors, and torch.save without running any code."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import CheckpointError
from weightloom.symmetry.differences.sources import Checkpoint, LazyTensor, of_state

__all__ = ["PICKLES", "read_file"]

PICKLES = (".pt", ".pth", ".bin", ".ckpt")

#: Names of dtypes in safetensors' headers. Other dtypes (4 and 6 bits) are compared as bytes.
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip

#: Where training scripts put the weights in what they save.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")


def read_file(path: Path) -> Checkpoint:
    """The tensors of one file, not read yet. The kind of file is told by its first bytes."""
    if not path.is_file():
        raise CheckpointError(f"there is no file or folder {str(path)!r}; check the path")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be opened: {error}") from error
    if start.startswith(b"PK") or (path.suffix.lower() in PICKLES and start[8:9] != b"{"):
        return _read_torch(path)
    return _read_safetensors(path)


# -- safetensors ---------------------------------------------------------------------------------
def _read_safetensors(path: Path) -> Checkpoint:
    """Tensors by their place in the file.

    Not through safetensors' mapped tensors: pages of a mapped file stay in the memory of the
    process, which would grow to the size of both files.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):  # checks the header, all offsets and the size
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{str(path)!r} cannot be read as safetensors: it is damaged, incomplete or another "
            f"kind of file ({path.stat().st_size} bytes; {reason[:160]!r}). Copy or save it again"
        ) from error
    header.pop("__metadata__", None)
    tensors = {name: _stored(path, name, about, 8 + length) for name, about in header.items()}
    if not tensors:
        raise CheckpointError(f"{str(path)!r} holds no tensors; nothing can be compared")
    return Checkpoint(str(path), tensors)


def _stored(path: Path, name: str, about: Mapping[str, Any], base: int) -> LazyTensor:
    start, stop = about["data_offsets"]
    dtype = _DTYPES.get(about["dtype"])
    label = about["dtype"] if dtype is None else str(dtype).removeprefix("torch.")
    shape = tuple(about["shape"])
    return LazyTensor(name, shape, dtype, label, stop - start, path, base + start)


# -- torch.save ----------------------------------------------------------------------------------
def _read_torch(path: Path) -> Checkpoint:
    """Only tensors and plain containers are unpickled (weights_only); code is never run."""
    loaded = _load(path)
    notes: tuple[str, ...] = ()
    if isinstance(loaded, Mapping) and not _is_state(loaded):
        entry = next((key for key in _WRAPPERS if _is_state(loaded.get(key))), None)
        if entry is not None:
            rest = ", ".join(repr(str(key)) for key in loaded if key != entry)
            left_out = f"; left out: {rest}" if rest else ""
            notes = (f"{path.name}: the entry {entry!r} was read{left_out}",)
            loaded = loaded[entry]
    if isinstance(loaded, Tensor):
        loaded = {"": loaded}
    if not isinstance(loaded, Mapping):
        raise CheckpointError(
            f"{str(path)!r} holds a {type(loaded).__name__}; wanted a state dict, name -> tensor"
        )
    checkpoint = of_state(loaded, str(path))
    return replace(checkpoint, notes=notes + checkpoint.notes)


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, Tensor) for v in value.values())


def _load(path: Path) -> Any:
    zipped = zipfile.is_zipfile(path)
    try:
        # Mapped, so that numbers are read when they are compared. Files of before torch 1.6 are
        # no archives and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{str(path)!r} was refused: it holds more than tensors, and reading the rest may run "
            f"any code. Convert it where you trust it: torch.save(model.state_dict(), path). "
            f"({_first_line(error)})"
        ) from error
    except Exception as error:  # a broken archive shows as RuntimeError, EOFError, KeyError, ...
        raise CheckpointError(
            f"{str(path)!r} cannot be read as a file of torch.save: it is damaged, incomplete or "
            f"another kind of file ({path.stat().st_size} bytes; {_first_line(error)}). Copy or "
            f"save it again"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:160]
