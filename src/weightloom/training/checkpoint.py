"""Checkpoints: one safetensors file that is there whole or not at all.

Tensors are stored as they are and numbers as JSON, which keeps every bit of a Python float; nothing
is pickled. The file says what it belongs to, so that it is never mistaken for another run's.
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
from weightloom.files import described, whole
from weightloom.training.data import Member, label
from weightloom.training.plan import shapes
from weightloom.training.settings import Settings

__all__ = ["Snapshot", "describe", "read", "write"]

FORMAT = 1
KEY = "weightloom.training"


@dataclass
class Snapshot:
    """What a checkpoint holds: tensors by name, and everything else as plain values."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def describe(members: Sequence[Member], settings: Settings) -> dict[str, Any]:
    """What a checkpoint belongs to: settings, and for each member what was trained on what.

    Data are told apart by shapes and by their first and last rows; reading all of them would take
    longer than some steps of training.
    """
    return {
        "settings": settings.plain(),
        "members": [
            {
                "name": member.name,
                "seed": member.seed,
                "learning_rate": member.learning_rate,
                "architecture": _digest(repr(shapes(member)[:2])),
                "data": _digest(repr(shapes(member)[2:]), *_samples(member)),
            }
            for member in members
        ],
    }


def _samples(member: Member) -> list[bytes]:
    found = []
    for _, split in sorted({"train": member.train, **member.held_out}.items()):
        found += [_bytes(row) for column in split.columns for row in (column[0], column[-1])]
    return found


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _digest(*parts: str | bytes) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(part.encode() if isinstance(part, str) else part)
    return made.hexdigest()


def write(path: Path, snapshot: Snapshot, belongs: Mapping[str, Any]) -> None:
    """Write the file beside its place and move it there when it is safely on the disk."""
    from safetensors.torch import save_file

    about = {"format": FORMAT, "belongs": belongs, **snapshot.about}
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.part")  # one that was left by a crash is written over
    try:
        with whole(path, half):
            save_file(_separate(snapshot.tensors), half, metadata={KEY: json.dumps(about)})
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} could not be written: {error}. The one before, if any, is "
            f"still whole; make room or choose another place, and start again to go on from it"
        ) from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two in the same memory: what safetensors takes."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in seen or plain.untyped_storage().nbytes() != (
            plain.numel() * plain.element_size()
        ):
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        found[name] = plain
    return found


def read(path: Path, belongs: Mapping[str, Any], members: Sequence[Member]) -> Snapshot | None:
    """What was saved at ``path`` by the same run; None if nothing was."""
    from safetensors import SafetensorError

    if not path.exists():
        return None
    try:
        about, tensors = described(path, KEY)
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
    differences = _differences(about["belongs"], json.loads(json.dumps(belongs)), members)
    if differences:
        raise CheckpointError(
            f"{path} is the checkpoint of another run: {'; '.join(differences)}. Give this run a "
            f"file of its own, or remove that one to start from the beginning"
        )
    return Snapshot(tensors, about)


def _differences(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], members: Sequence[Member]
) -> list[str]:
    found = [
        f"{name} is {saved['settings'].get(name)!r} there, {value!r} here"
        for name, value in wanted["settings"].items()
        if saved["settings"].get(name) != value
    ]
    if len(saved["members"]) != len(wanted["members"]):
        return [*found, f"it has {len(saved['members'])} members, not {len(wanted['members'])}"]
    for number, (old, new) in enumerate(zip(saved["members"], wanted["members"], strict=True)):
        for key, value in new.items():
            if old[key] == value:
                continue
            shown = f" ({old[key]!r} there, {value!r} here)"
            who = label(members[number], number)
            found.append(
                f"{who} has another {key}{'' if key in ('architecture', 'data') else shown}"
            )
    return found[:8]
