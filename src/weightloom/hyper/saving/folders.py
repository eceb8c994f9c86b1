"""The two files of a saved hypernetwork: where they are, how they are read, what JSON can hold."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import CheckpointError
from weightloom.hyper import heads

__all__ = [
    "CONFIG",
    "TENSORS",
    "as_json",
    "digest",
    "find_folder",
    "head_as_json",
    "head_from_json",
    "read_config",
    "read_tensors",
    "stamp",
]

CONFIG = "config.json"
TENSORS = "model.safetensors"
_FORMAT = "weightloom.HyperNetwork"
_VERSION = 1
#: How many values of a frozen tensor are hashed.
_SAMPLED = 64
#: Keys of config.json, and what their values are.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "generate": dict,
    "head": dict,
    "features": int,
    "encoder": (str, type(None)),
    "condition_dims": (int, dict, list, type(None)),
    "freeze_rest": bool,
    "initialisation": str,
    "initial_features": dict,
    "frozen": dict,
}


def stamp() -> dict[str, Any]:
    """What marks a config.json as one of ours."""
    return {"format": _FORMAT, "format_version": _VERSION}


# -- finding and reading -------------------------------------------------------------------------


def find_folder(folder: str | os.PathLike[str], revision: str | None) -> Path:
    """The folder itself; or a copy of a repository of the Hugging Face hub that has this name."""
    place = Path(folder)
    if place.is_dir():
        return place
    name = str(folder)
    if place.exists() or place.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise CheckpointError(f"there is no folder {name!r}; check the path")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError(
            f"there is no folder {name!r}; check the path. If it is a name on the Hugging Face "
            f"hub: huggingface_hub is not installed, run pip install huggingface_hub"
        ) from error
    try:
        snapshot = hub.snapshot_download(name, revision=revision, allow_patterns=[CONFIG, TENSORS])
    except Exception as error:  # the hub's errors and those of its transport have no common base
        raise CheckpointError(
            f"there is no folder {name!r}, and the Hugging Face hub did not give it either "
            f"({_first_line(error)}); check the path or the name"
        ) from error
    return Path(snapshot)


def read_config(place: Path) -> dict[str, Any]:
    """The content of config.json, with all keys there and of the right kind."""
    path = _there(place / CONFIG)
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        keys = ", ".join(list(config)[:6]) if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(
            f"{str(path)!r} was not written by save_pretrained of a HyperNetwork (it has: {keys}); "
            f"check the path"
        )
    version = config.get("format_version")
    if not isinstance(version, int) or version > _VERSION:
        raise CheckpointError(
            f"{str(path)!r} has format {version}, and this weightloom reads up to {_VERSION}: it "
            f"was written by a newer version of weightloom "
            f"({config.get('weightloom_version')}); upgrade"
        )
    wrong = [key for key, kind in _KINDS.items() if not isinstance(config.get(key, ...), kind)]
    if wrong or not _is_whole(config):
        what = ", ".join(wrong) or "generate, initial_features or frozen"
        raise _damaged(path, ValueError(f"missing or of a wrong kind: {what}"))
    return config


def _is_whole(config: Mapping[str, Any]) -> bool:
    """Whether what is inside the dicts is there."""
    generate, frozen = config["generate"], config["frozen"].values()
    return (
        isinstance(generate.get("shapes"), dict)
        and isinstance(generate.get("aliases"), dict)
        and set(config["initial_features"]) == {"moment", "spread", "source"}
        and all(isinstance(entry, list) and len(entry) == 2 for entry in frozen)
    )


def read_tensors(place: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = _there(place / TENSORS)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _there(path: Path) -> Path:
    if not path.is_file():
        raise CheckpointError(
            f"there is no {path.name} in {str(path.parent)!r}; pass a folder that "
            f"hyper.save_pretrained(folder) wrote"
        )
    return path


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} cannot be read: it is damaged or incomplete ({_first_line(error)}). Copy "
        f"or save it again"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


# -- what JSON can hold --------------------------------------------------------------------------


def digest(value: Tensor) -> str:
    """A short hash of values spread over the tensor; the same in float32 and in bfloat16.

    Not of all values: a base of billions of numbers would take longer to hash than to load.
    """
    if value.is_meta:
        return ""
    flat = value.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].cpu().contiguous()
    if sample.is_floating_point():
        sample = sample.to(torch.bfloat16)
    return hashlib.blake2b(sample.view(torch.uint8).numpy().tobytes(), digest_size=6).hexdigest()


def head_as_json(head: heads.Head) -> dict[str, Any]:
    """The head's class and options; options that JSON does not have are None."""
    kind = type(head)
    own = getattr(heads, kind.__name__, None) is kind
    try:
        options = as_json(head.options())
    except TypeError:  # something that JSON does not have; from_pretrained asks for head=
        options = None
    name = kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"
    return {"class": name, "options": options}


def as_json(value: Any) -> Any:
    """Numbers, texts, heads, and lists and dicts of them; TypeError for anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, heads.Head):
        return {"__head__": head_as_json(value)}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    raise TypeError(f"{type(value).__name__} is not JSON")


def head_from_json(place: Path, config: Mapping[str, Any]) -> heads.Head:
    """A new head of the class and with the options in config.json."""
    return _new_head(place, config, str(config.get("class")).rpartition(".")[2])


def _new_head(place: Path, config: Mapping[str, Any], top: str) -> heads.Head:
    name, options = config.get("class"), config.get("options")
    kind = getattr(heads, str(name), None)
    known = isinstance(kind, type) and issubclass(kind, heads.Head)
    if kind is None or not known or not isinstance(options, dict):
        raise CheckpointError(
            f"{str(place)!r} was saved with a head {name}, which weightloom cannot make "
            f"from the folder; pass head={top}(...) with the options it had"
        )
    try:
        return kind(**{key: _option(place, value, top) for key, value in options.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{str(place)!r} was saved with a head {name} with options {options}, which "
            f"cannot be made here ({error}); pass head={top}(...)"
        ) from error


def _option(place: Path, value: Any, top: str) -> Any:
    if isinstance(value, dict) and "__head__" in value:
        return _new_head(place, value["__head__"], top)
    if isinstance(value, dict):
        return {name: _option(place, part, top) for name, part in value.items()}
    if isinstance(value, list):
        return [_option(place, part, top) for part in value]
    return value
