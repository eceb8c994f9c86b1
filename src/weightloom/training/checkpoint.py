"""Checkpoints: one safetensors file, written atomically.

Tensors are stored as they are and numbers as JSON, which keeps every bit of a Python float; nothing
is pickled. The file describes the run it belongs to, so that another run cannot load it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import CheckpointError
from weightloom.files import atomic_write, read_safetensors
from weightloom.training.members import Member
from weightloom.training.partition import shapes
from weightloom.training.settings import Settings

__all__ = ["Snapshot", "describe", "digest", "ends", "read", "write"]

FORMAT = 1
KEY = "weightloom.training"


@dataclass
class Snapshot:
    """What a checkpoint holds: tensors by name, and everything else as plain values."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def describe(members: Sequence[Member], settings: Settings) -> dict[str, Any]:
    """What a checkpoint belongs to: settings, and for each member what was trained on what.

    Data are compared by shapes and by their first and last rows; reading all rows would take longer
    than some steps of training.
    """
    return {
        "settings": settings.plain(),
        "members": [
            {
                "name": member.name,
                "seed": member.seed,
                "learning_rate": member.learning_rate,
                "architecture": digest(repr(shapes(member)[:2])),
                "data": digest(repr(shapes(member)[2:]), *_samples(member)),
            }
            for member in members
        ],
    }


def _samples(member: Member) -> list[bytes]:
    rows = []
    for _, split in sorted({"train": member.train, **member.held_out}.items()):
        rows += [ends(column) for column in split.columns]
    return rows


def ends(column: Tensor) -> bytes:
    """Its first and its last row."""
    flat = torch.stack([column[0], column[-1]]).detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digest(*parts: str | bytes) -> str:
    """A short string that differs where the parts differ."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def write(path: Path, snapshot: Snapshot, belongs: Mapping[str, Any]) -> None:
    """Write to a temporary file and move it to ``path`` when it is safely on the disk."""
    from safetensors.torch import save_file

    about = {"format": FORMAT, "belongs": belongs, **snapshot.about}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")  # one that a crash left behind is overwritten
    try:
        with atomic_write(path, part):
            save_file(_separate(snapshot.tensors), part, metadata={KEY: json.dumps(about)})
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} could not be written: {error}. The one before, if any, is "
            f"still whole; make room or choose another place, and start again to go on from it"
        ) from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two in the same memory: what safetensors takes."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in seen or plain.untyped_storage().nbytes() != (
            plain.numel() * plain.element_size()
        ):
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        separate[name] = plain
    return separate


def read(path: Path, belongs: Mapping[str, Any], labels: Sequence[str]) -> Snapshot | None:
    """The snapshot that the same run saved at ``path``; None if there is none.

    ``labels`` are the members' names in messages.
    """
    from safetensors import SafetensorError

    if not path.exists():
        return None
    try:
        about, tensors = read_safetensors(path, KEY)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no checkpoint of weightloom.training that can be read "
            f"({type(error).__name__}: {error}); remove it to start from the beginning"
        ) from error
    if about["format"] != FORMAT:
        raise CheckpointError(
            f"{path} was written in format {about['format']}, this version of weightloom reads "
            f"{FORMAT}; finish that run with the version that began it, or remove the file"
        )
    differences = _differences(about["belongs"], json.loads(json.dumps(belongs)), labels)
    if differences:
        raise CheckpointError(
            f"{path} is the checkpoint of another run: {'; '.join(differences)}. Give this run a "
            f"file of its own, or remove that one to start from the beginning"
        )
    return Snapshot(tensors, about)


def _differences(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], labels: Sequence[str]
) -> list[str]:
    differences = [
        f"{name} is {saved['settings'].get(name)!r} there, {value!r} here"
        for name, value in wanted["settings"].items()
        if saved["settings"].get(name) != value
    ]
    if len(saved["members"]) != len(wanted["members"]):
        return [
            *differences,
            f"it has {len(saved['members'])} members, not {len(wanted['members'])}",
        ]
    for number, (old, new) in enumerate(zip(saved["members"], wanted["members"], strict=True)):
        for key, value in new.items():
            if old.get(key) == value:
                continue
            values = f" ({old.get(key)!r} there, {value!r} here)"
            shown = "" if key in ("architecture", "data", "validation") else values
            differences.append(f"{labels[number]} has another {key}{shown}")
    return differences[:8]
