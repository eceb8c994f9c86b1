"""Saved networks: load them, compare two, examine one.

Only safetensors files are read; nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from weightloom.bounds import BoundsReport, report
from weightloom.errors import (
    CheckpointError,
    ConfigError,
    ShapeError,
    UnsupportedModuleError,
    WeightloomError,
)
from weightloom.hyper.saving.described import built
from weightloom.networks.activations import lookup
from weightloom.symmetry.files.answers import FileVerdict
from weightloom.symmetry.files.architecture import REQUESTED, assumable, check_tensors, infer
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
    """strides, padding and pooling were made up"""
    assumptions: tuple[str, ...]
    activation: str | None = None
    """the only one of the network; None: there are several, or the user's own code built it"""
    described: bool = False
    """the layers are those that the file lists in its metadata"""
    guessed: bool = False
    """nothing says which activation there is"""


def load_by_names(
    path: Path,
    activation: str | None,
    names: Sequence[str] | None = None,
    label: str | None = None,
    assumed: str | None = None,
) -> Loaded:
    """The network of a file: the layers that its metadata list, or inferred from names and shapes.

    ``names`` are those of another file's layers, used if the number of layers is the same.
    ``label`` is the file's name in messages, if that is not its path. ``activation`` was asked for;
    ``assumed`` is used if neither that nor the file says one.
    """
    label = str(path) if label is None else label
    state, metadata = read_state(path, label)
    if _json_value(metadata.get("tied", "{}")):
        raise CheckpointError(
            f"{label!r} holds a network that uses one tensor in several places, so it is not a "
            f"plain chain; use --module"
        )
    try:
        if activation is None and "structure" in metadata:
            return _as_described(Path(label), metadata["structure"], state, names)
        noted = _noted_activation(metadata) if activation is None else None
        chosen = activation or noted or assumed
        inferred = infer(state, chosen)
        if names is not None and len(names) == len(inferred.layers):
            inferred = infer(state, chosen, names)
    except WeightloomError as error:
        raise type(error)(f"{label!r}: {error}") from error
    source = "from the file's metadata" if noted else REQUESTED
    if not activation and not noted and assumed:
        source = "assumed; the file does not say"
    return Loaded(
        Path(label),
        inferred.module,
        inferred.layers,
        inferred.convolutional,
        tuple(text.replace(REQUESTED, source) for text in inferred.assumptions),
        inferred.activation,
        guessed=not activation and not noted and len(inferred.layers) > 1,
    )


def _as_described(
    path: Path, structure: str, state: dict[str, Tensor], names: Sequence[str] | None
) -> Loaded:
    """The layers that the file itself lists; nothing is assumed."""
    check_tensors({n: t for n, t in state.items() if not n.endswith("num_batches_tracked")})
    entries = _json_value(structure)
    module = built(entries, state, names)
    prefixes = dict.fromkeys(name.rpartition(".")[0] for name in state)
    own = tuple(entry["name"] for entry in entries if entry["name"] in prefixes)
    return Loaded(path, module, own, False, (), _one_activation(module), described=True)


def _one_activation(module: nn.Module) -> str | None:
    """The activation of a network that has only one, with default settings."""
    records = {
        record.name
        for part in module.modules()
        if not isinstance(part, nn.Identity) and (record := lookup(part)) is not None
    }
    return records.pop() if len(records) == 1 else None


def _noted_activation(metadata: dict[str, str]) -> str | None:
    """The activation in the metadata: the only one that the network has."""
    if "activation" in metadata:
        return metadata["activation"]
    noted = _json_value(metadata.get("activations", "{}"))
    names = set(noted.values()) if isinstance(noted, dict) else set()
    only = names.pop() if len(names) == 1 else None
    return only if only in assumable() else None


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


def as_dict(findings: Sequence[Findings], comparison: FileVerdict | None) -> dict[str, Any]:
    """Plain values for JSON; infinities and NaN become None."""
    plain: dict[str, Any] = {"equivalence": None, "networks": [*map(_network, findings)]}
    if comparison is not None:
        plain["equivalence"] = comparison.as_dict()
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
