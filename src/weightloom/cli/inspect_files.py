"""Networks from files for ``weightloom inspect``: safetensors only, nothing is ever unpickled."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import CheckpointError, ConfigError, NonFiniteWeightsError, WeightloomError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Loaded", "load_by_code", "load_by_names"]

# torch.save writes zip archives, older ones and other pickles begin with the protocol's mark.
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
MARKS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# safetensors has the same limit; checked here so that the message says what to do.
HEADER = 100_000_000


@dataclass(frozen=True)
class Loaded:
    """One file as a network, and what had to be assumed for that."""

    path: Path
    module: nn.Module
    layers: tuple[str, ...] | None
    """None: built by the user's own code"""
    convolutional: bool
    assumptions: tuple[str, ...]


def load_by_names(path: Path, activation: str | None, names: Sequence[str] | None = None) -> Loaded:
    """The network of a file, its architecture inferred; ``names``: of another file's layers."""
    from weightloom.symmetry.checkpoint import infer

    state, metadata = _read(path)
    if json_of(metadata.get("tied", "{}")):
        raise CheckpointError(
            f"{str(path)!r} holds a network that uses one tensor in several places, so it is no "
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
        raise type(error)(f"{str(path)!r}: {error}") from error
    said = [text.replace("as asked for", source or "as asked for") for text in found.assumptions]
    return Loaded(path, found.module, found.layers, found.convolutional, tuple(said))


def load_by_code(path: Path, factory: str) -> Loaded:
    """The network that the user's ``factory`` makes, with the weights of a file."""
    import torch

    from weightloom.models.export import load

    state, _ = _read(path)
    module = _made(factory)
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(kinds) == 1:  # else float64 weights would be rounded, and small differences lost
        module = module.to(kinds.pop())
    load(module, path)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise NonFiniteWeightsError(f"{str(path)!r}: tensor {name!r} holds NaN or infinity")
    return Loaded(path, module.eval(), None, False, ())


# -- files ---------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    _check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return state, file.metadata() or {}
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{str(path)!r} cannot be read as safetensors: it is damaged or incomplete "
            f"({path.stat().st_size} bytes; {reason[:160]!r}). Copy or export it again"
        ) from error


def _check_file(path: Path) -> None:
    """Refuse pickles by name and by content, and headers that no file of this size can have."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {str(path)!r}; check the path")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be opened: {error}") from error
    if path.suffix.lower() in PICKLES or start.startswith(MARKS[:1]) or _is_pickle(start):
        raise CheckpointError(
            f"{str(path)!r} was refused: it is a pickle (torch.save), and reading such files may "
            f"run any code. Convert it where you trust it: state = torch.load(path, "
            f"weights_only=True); safetensors.torch.save_file(state, 'network.safetensors')"
        )
    size = path.stat().st_size
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, HEADER):
        raise CheckpointError(
            f"{str(path)!r} cannot be read as safetensors: it has {size} bytes and announces a "
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


# -- the user's own code -------------------------------------------------------------------------


def _made(spec: str) -> nn.Module:
    """Call ``path.py:factory`` or ``package.module:factory``."""
    from torch import nn

    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"--module {spec}: wanted path.py:factory or package.module:factory, where factory() "
            f"returns the network"
        )
    factory = getattr(_imported(where, spec), name, None)
    if not callable(factory):
        raise ConfigError(f"--module {spec}: {where} has no function {name!r}")
    try:
        made = factory()
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"--module {spec}: {name}() failed with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"--module {spec}: {name}() returned a {type(made).__name__}; wanted an nn.Module"
        )
    return made


def _imported(where: str, spec: str) -> Any:
    path = Path(where)
    try:
        if path.suffix != ".py":
            return importlib.import_module(where)
        if not path.is_file():
            raise ConfigError(f"--module {spec}: there is no file {where!r}; check the path")
        found = importlib.util.spec_from_file_location(f"_weightloom_{path.stem}", path)
        if found is None or found.loader is None:
            raise ConfigError(f"--module {spec}: {where!r} cannot be imported")
        module = importlib.util.module_from_spec(found)
        sys.modules[found.name] = module  # dataclasses and pickling look there
        found.loader.exec_module(module)
    except WeightloomError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"--module {spec}: importing {where} failed with {type(error).__name__}: {error}"
        ) from error
    return module
