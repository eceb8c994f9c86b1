"""Folders: one file, shards with an index, or an adapter. And anything else that is comparable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from weightloom.errors import CheckpointError
from weightloom.symmetry.differences.sources import (
    Checkpoint,
    LazyTensor,
    of_module,
    of_state,
    wrong_type,
)
from weightloom.symmetry.differences.tensor_files import PICKLES, read_file

__all__ = ["ADAPTER_CONFIG", "open_checkpoint"]

ADAPTER_CONFIG = "adapter_config.json"
_INDEX = ".index.json"
#: Files that are taken when a folder has no index, in this order.
_USUAL = (
    "model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
)  # fmt: skip
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")


def open_checkpoint(value: object, label: str) -> Checkpoint:
    """The tensors of a module, a state dict, a file, an index or a folder; nothing is read yet."""
    if isinstance(value, nn.Module):
        return of_module(value, label)
    if isinstance(value, Mapping):
        return of_state(value, label)
    if not isinstance(value, str | PathLike):
        raise wrong_type(value)
    path = Path(value)
    if path.is_dir():
        return _read_folder(path)
    if path.name.endswith(_INDEX):
        return _read_index(path)
    return read_file(path)


def _read_folder(folder: Path) -> Checkpoint:
    checkpoint = replace(_weights(folder), label=str(folder))
    if (folder / ADAPTER_CONFIG).is_file():
        return replace(checkpoint, adapter=folder, config=_read_json(folder / ADAPTER_CONFIG))
    config = folder / "config.json"
    return replace(checkpoint, config=_read_json(config) if config.is_file() else None)


def _weights(folder: Path) -> Checkpoint:
    indices = sorted(folder.glob(f"*{_INDEX}"))
    if len(indices) > 1:  # both formats of one model, as older repositories have them
        indices = [path for path in indices if "safetensors" in path.name] or indices
    if len(indices) > 1:
        raise _several(folder, indices)
    if indices:
        return _read_index(indices[0])
    for name in _USUAL:
        if (folder / name).is_file():
            return read_file(folder / name)
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
    if not files:
        raise CheckpointError(
            f"folder {str(folder)!r} holds no weights; wanted model.safetensors, "
            f"pytorch_model.bin, shards with an index.json, or an adapter"
        )
    if len(files) == 1:
        return read_file(files[0])
    return _without_index(folder, files)


def _several(folder: Path, files: list[Path]) -> CheckpointError:
    names = ", ".join(path.name for path in files[:4]) + (", ..." if len(files) > 4 else "")
    return CheckpointError(
        f"folder {str(folder)!r} holds several checkpoints ({names}); pass the file to compare"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is not valid JSON ({error}); copy it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} holds a {type(value).__name__}; wanted a JSON object")
    return value


# -- shards --------------------------------------------------------------------------------------
def _read_index(path: Path) -> Checkpoint:
    """The shards that an index lists; those that are not there are noted, not raised."""
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{str(path)!r} has no 'weight_map' (tensor -> file), so it is no index of shards"
        )
    for file in set(map(str, weight_map.values())):
        if Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(
                f"{str(path)!r} lists the shard {file!r}; wanted names of files beside the index"
            )
    shards = {
        file: read_file(path.parent / file).tensors
        for file in sorted(set(weight_map.values()))
        if (path.parent / file).is_file()
    }
    tensors: dict[str, LazyTensor] = {}
    missing: dict[str, str] = {}
    for name, file in weight_map.items():
        if file in shards and name in shards[file]:
            tensors[name] = shards[file][name]
        else:
            missing[name] = f"tensor {name!r} of {file}" if file in shards else file
    notes = []
    listed = set(weight_map)
    for file, content in shards.items():  # never dropped silently
        for name in content.keys() - listed:
            tensors[name] = content[name]
            notes.append(f"{path.name}: the index does not list {name!r} of {file}")
    return Checkpoint(str(path), tensors, missing, notes=tuple(notes))


def _without_index(folder: Path, files: list[Path]) -> Checkpoint:
    """Shards whose names say how many there are ("-00001-of-00003"), without their index."""
    matches = [_SHARD.fullmatch(path.name) for path in files]
    stems = {(match[1], match[3], match[4]) for match in matches if match}
    if None in matches or len(stems) != 1:
        raise _several(folder, files)
    ((stem, count, suffix),) = stems
    expected = [f"{stem}-{i:05d}-of-{count}{suffix}" for i in range(1, int(count) + 1)]
    absent = [name for name in expected if not (folder / name).is_file()]
    tensors: dict[str, LazyTensor] = {}
    for path in files:
        content = read_file(path).tensors
        twice = sorted(tensors.keys() & content.keys())
        if twice:
            raise CheckpointError(f"tensor {twice[0]!r} is in several shards of {str(folder)!r}")
        tensors |= content
    note = f"{folder.name}: there is no index; {len(files)} shards were taken together"
    missing = {f"(unknown tensors of {name})": name for name in absent}
    return Checkpoint(str(folder), tensors, missing, notes=(note,))
