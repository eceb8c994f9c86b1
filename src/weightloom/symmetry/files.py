"""Saved networks as modules: safetensors only, nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError, WeightloomError
from weightloom.symmetry.checkpoint import infer
from weightloom.symmetry.equivalent import Equivalence, default_tolerance, equivalent

__all__ = ["Loaded", "load_by_names", "read_state", "same_function"]

# torch.save writes zip archives, older ones and other pickles begin with the protocol's mark.
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
MARKS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# safetensors has the same limit; checked here so that the message says what to do.
HEADER = 100_000_000


@dataclass(frozen=True)
class Loaded:
    """One file as a network, and what had to be assumed for that."""

    path: Path
    """as the user calls it"""
    module: nn.Module
    layers: tuple[str, ...] | None
    """None: built by the user's own code"""
    convolutional: bool
    assumptions: tuple[str, ...]
    activation: str | None = None
    """the one assumed between layers; None: the user's own code knows"""


def load_by_names(
    path: Path,
    activation: str | None,
    names: Sequence[str] | None = None,
    label: str | None = None,
) -> Loaded:
    """The network of a file, its architecture inferred; ``names``: of another file's layers.

    ``label`` is what the user calls the file, where that is not its path.
    """
    label = str(path) if label is None else label
    state, metadata = read_state(path, label)
    if json_of(metadata.get("tied", "{}")):
        raise CheckpointError(
            f"{label!r} holds a network that uses one tensor in several places, so it is no "
            f"plain chain; use --module"
        )
    source = ""
    if activation is None and "activation" in metadata:
        activation, source = metadata["activation"], "from the file's metadata"
    try:
        found = infer(state, activation)
        if names is not None and len(names) == len(found.layers):
            found = infer(state, activation, names)
    except WeightloomError as error:
        raise type(error)(f"{label!r}: {error}") from error
    said = [text.replace("as asked for", source or "as asked for") for text in found.assumptions]
    return Loaded(
        Path(label), found.module, found.layers, found.convolutional, tuple(said), found.activation
    )


def same_function(a: Loaded, b: Loaded, tolerance: float | None = None) -> Equivalence:
    """Whether two files hold the same function, also if one is kept in a coarser dtype."""
    # The coarser file sets the tolerance; then both in the wider dtype, so that they can be run.
    limit = default_tolerance(a.module, b.module) if tolerance is None else tolerance
    kinds = {p.dtype for one in (a, b) for p in one.module.parameters() if p.is_floating_point()}
    if len(kinds) > 1:
        widest = torch.float64 if torch.float64 in kinds else torch.float32
        a.module.to(widest)
        b.module.to(widest)
    # Outputs of a stand-in for convolutions prove nothing, but cannot contradict the weights.
    return equivalent(a.module, b.module, limit)


# -- files ---------------------------------------------------------------------------------------


def read_state(path: Path, label: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; anything else is refused, and named so."""
    from safetensors import SafetensorError, safe_open

    label = str(path) if label is None else label
    _check_file(path, label)
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return state, file.metadata() or {}
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{label!r} cannot be read as safetensors: it is damaged or incomplete "
            f"({path.stat().st_size} bytes; {reason[:160]!r}). Copy or export it again"
        ) from error


def _check_file(path: Path, label: str) -> None:
    """Refuse pickles by name and by content, and headers that no file of this size can have."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {label!r}; check the path")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{label!r} cannot be opened: {error}") from error
    if Path(label).suffix.lower() in PICKLES or start.startswith(MARKS[:1]) or _is_pickle(start):
        raise CheckpointError(
            f"{label!r} was refused: it is a pickle (torch.save), and reading such files may "
            f"run any code. Convert it where you trust it: state = torch.load(path, "
            f"weights_only=True); safetensors.torch.save_file(state, 'network.safetensors')"
        )
    size = path.stat().st_size
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, HEADER):
        raise CheckpointError(
            f"{label!r} cannot be read as safetensors: it has {size} bytes and announces a "
            f"header of {length}; it is damaged, incomplete or another kind of file"
        )


def _is_pickle(start: bytes) -> bool:
    """A pickle's mark where a real header would be shorter than 100 MB."""
    return start.startswith(MARKS[1:]) and int.from_bytes(start, "little") > HEADER


def json_of(text: str) -> Any:
    """The value of a JSON text in the metadata; broken text counts as something that is there."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
