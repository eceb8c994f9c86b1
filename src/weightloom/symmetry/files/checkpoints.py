"""Saved networks: load them, compare two, examine one.

Only safetensors files are read; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.bounds import BoundsReport, report
from weightloom.errors import (
    CheckpointError,
    ConfigError,
    ShapeError,
    UnsupportedModuleError,
    WeightloomError,
)
from weightloom.symmetry.equivalence import Equivalence, default_tolerance, equivalent
from weightloom.symmetry.files.architecture import REQUESTED, infer
from weightloom.symmetry.fingerprints import fingerprint
from weightloom.symmetry.reduction.reducer import reduce
from weightloom.symmetry.reduction.removable import Normality, is_normal

__all__ = [
    "CONVOLUTIONAL",
    "Findings",
    "Loaded",
    "as_dict",
    "examine",
    "load_by_names",
    "read_state",
    "same_function",
]


CONVOLUTIONAL = "strides, padding and pooling are not in the file"

_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
# torch.save writes zip archives; other pickles begin with the version of their protocol.
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# The limit of safetensors; checked here so that the message says what to do.
_LARGEST_HEADER = 100_000_000
# A network that raises one of these has no answer to a question; other errors are passed on.
_UNAVAILABLE = (UnsupportedModuleError, ShapeError, ConfigError)


@dataclass(frozen=True)
class Loaded:
    """The network of one file, and what had to be assumed for it."""

    path: Path
    """the name that the user gave"""
    module: nn.Module
    layers: tuple[str, ...] | None
    """None: built by the user's own code"""
    convolutional: bool
    assumptions: tuple[str, ...]
    activation: str | None = None
    """the one assumed between layers; None: built by the user's own code"""


def load_by_names(
    path: Path,
    activation: str | None,
    names: Sequence[str] | None = None,
    label: str | None = None,
) -> Loaded:
    """The network of a file, with its architecture inferred from names and shapes.

    ``names`` are those of another file's layers, used if the number of layers is the same.
    ``label`` is the file's name in messages, if that is not its path.
    """
    label = str(path) if label is None else label
    state, metadata = read_state(path, label)
    if _json_value(metadata.get("tied", "{}")):
        raise CheckpointError(
            f"{label!r} holds a network that uses one tensor in several places, so it is not a "
            f"plain chain; use --module"
        )
    source = ""
    if activation is None and "activation" in metadata:
        activation, source = metadata["activation"], "from the file's metadata"
    try:
        inferred = infer(state, activation)
        if names is not None and len(names) == len(inferred.layers):
            inferred = infer(state, activation, names)
    except WeightloomError as error:
        raise type(error)(f"{label!r}: {error}") from error
    return Loaded(
        Path(label),
        inferred.module,
        inferred.layers,
        inferred.convolutional,
        tuple(text.replace(REQUESTED, source or REQUESTED) for text in inferred.assumptions),
        inferred.activation,
    )


def same_function(a: Loaded, b: Loaded, tolerance: float | None = None) -> Equivalence:
    """Whether two files hold the same function, also if one is stored in a coarser dtype."""
    # The coarser file sets the tolerance; then both are run in the wider dtype.
    limit = default_tolerance(a.module, b.module) if tolerance is None else tolerance
    parameters = [*a.module.parameters(), *b.module.parameters()]
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    if len(dtypes) > 1:
        widest = torch.float64 if torch.float64 in dtypes else torch.float32
        a.module.to(widest)
        b.module.to(widest)
    # With assumed strides and pooling the outputs prove nothing, but cannot contradict the weights.
    return equivalent(a.module, b.module, limit)


# -- files ---------------------------------------------------------------------------------------
def read_state(path: Path, label: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; any other file raises `CheckpointError`."""
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
    """Refuses pickles, by name and by content, and files too short for their header."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {label!r}; check the path")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{label!r} cannot be opened: {error}") from error
    if Path(label).suffix.lower() in _PICKLE_SUFFIXES or _is_pickle(start):
        raise CheckpointError(
            f"{label!r} was refused: it is a pickle (torch.save), and reading such files may "
            f"run any code. Convert it where you trust it: state = torch.load(path, "
            f"weights_only=True); safetensors.torch.save_file(state, 'network.safetensors')"
        )
    size = path.stat().st_size
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise CheckpointError(
            f"{label!r} cannot be read as safetensors: it has {size} bytes and announces a "
            f"header of {length}; it is damaged, incomplete or another kind of file"
        )


def _is_pickle(start: bytes) -> bool:
    """Whether a file starts like a zip archive or a pickle.

    A safetensors file starts with the length of its header, which may have the same first two bytes
    as a pickle but is at most 100 MB.
    """
    if start.startswith(_ZIP_MAGIC):
        return True
    return start.startswith(_PICKLE_MAGIC) and int.from_bytes(start, "little") > _LARGEST_HEADER


def _json_value(text: str) -> Any:
    """The value of a JSON text in the metadata; the text itself if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# -- examination ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """Everything about one file; None where ``unavailable`` has the reason."""

    loaded: Loaded
    parameters: int
    dtype: str
    fingerprint: str | None
    normality: Normality | None
    removable: int | None
    """units that `reduce` removes in all its sweeps"""
    bounds: BoundsReport | None
    unavailable: dict[str, str]
    """why there is no answer, by question"""


def examine(
    loaded: Loaded, *, without_bounds: str | None = None, input_shape: Sequence[int] | None = None
) -> Findings:
    """Fingerprint, normality, removable units and bounds of one network.

    A question that cannot be answered is explained in ``unavailable``, not raised.
    ``without_bounds`` is the reason why bounds are left out; None: they are computed, for inputs of
    ``input_shape`` (without the batch), which convolutions need.
    """
    network = loaded.module
    questions: dict[str, Callable[[nn.Module], Any]] = {
        "fingerprint": fingerprint,
        "normality": is_normal,
    }
    if without_bounds is None:
        questions["bounds"] = partial(report, input_shape=input_shape)
    answers: dict[str, Any] = dict.fromkeys(("fingerprint", "normality", "bounds"))
    unavailable = {} if without_bounds is None else {"bounds": without_bounds}
    for name, ask in questions.items():
        try:
            answers[name] = ask(network)
        except _UNAVAILABLE as error:
            unavailable[name] = str(error)
    removable = None
    if answers["normality"] is not None:
        # Reducing copies the network, so only if there is something to remove.
        removable = 0 if answers["normality"] else reduce(network).removed
    size = sum(p.numel() for p in network.parameters())
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in network.parameters()})
    return Findings(
        loaded, size, ", ".join(dtypes), removable=removable, unavailable=unavailable, **answers
    )


def as_dict(findings: Sequence[Findings], verdict: Equivalence | None) -> dict[str, Any]:
    """Plain values for JSON; infinities and NaN become None."""
    plain: dict[str, Any] = {"equivalence": None, "networks": [*map(_network, findings)]}
    if verdict is not None:
        kept = ("same", "mismatch", "weight_deviation", "output_deviation", "tolerance")
        plain["equivalence"] = {key: _number(getattr(verdict, key)) for key in kept}
        plain["equivalence"] |= {"probes": verdict.probes, "reduced": verdict.reduced}
    return plain


def _network(findings: Findings) -> dict[str, Any]:
    normality, layers = findings.normality, findings.loaded.layers
    units = None
    if normality is not None:
        units = {"normal": bool(normality), "removable": findings.removable}
        units |= {f.name: getattr(normality, f.name) for f in fields(normality)}
    return {
        "path": str(findings.loaded.path),
        "layers": None if layers is None else list(layers),
        "assumptions": list(findings.loaded.assumptions),
        "parameters": findings.parameters,
        "dtype": findings.dtype,
        "fingerprint": findings.fingerprint,
        "normality": units,
        "bounds": None if findings.bounds is None else json.loads(findings.bounds.json()),
        "not_available": findings.unavailable,
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
