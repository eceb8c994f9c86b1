"""Networks as files: safetensors to load again, ONNX to run without PyTorch.

Loading never runs code from the file. Writing is atomic: the file is written under another name
and then moved, so an interrupted export leaves the older file as it was.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weightloom.errors import CheckpointError, UnsupportedModuleError
from weightloom.files import atomic_write, own_version
from weightloom.hyper.building import plain_features_hint
from weightloom.hyper.saving.described import about
from weightloom.networks import WeightSpec

__all__ = ["export", "load"]

_SHOWN = 6


def export(network: nn.Module, path: str | os.PathLike[str], *inputs: Any) -> Path:
    """Write ``network`` to ``path`` in the format its suffix names; returns the path.

    ``.safetensors``: the state dict, for `load`; needs no inputs. The metadata hold the version of
    weightloom, the class, the activations, the layers of an nn.Sequential (so that ``weightloom
    inspect`` need not guess them) and, for a HyperNetwork, its spec.

    ``.onnx``: what the network computes in evaluation mode, for onnxruntime and others. ``inputs``
    are examples of its arguments: ``export(hyper, "h.onnx", x, condition)`` for the whole h(x, I),
    ``export(hyper.materialize(c), "digit.onnx", x)`` for one generated network. A dimension of
    which the example has more than one is dynamic (more rows, more points) where the network
    allows it. Convolutions with one kernel per condition, attention, and Python code that branches
    on a size keep the sizes of the example. The network is not changed.
    """
    target = Path(path)
    if target.suffix == ".safetensors":
        _atomically(target, lambda part: _write_safetensors(network, part))
    elif target.suffix == ".onnx":
        from weightloom.hyper.saving.onnx import write_onnx

        _atomically(target, lambda part: write_onnx(network, part, inputs, own_version()))
    else:
        raise CheckpointError(
            f"{str(target)!r} ends in {target.suffix or 'no suffix'!r}; export writes .safetensors "
            f"(weights, for load) and .onnx (the whole computation)"
        )
    return target


def load(network: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """``network`` with the weights of a .safetensors, .pt or .pth file; its own are replaced.

    The network must have the architecture of the saved one. If it does not, the error lists the
    differences and the network keeps its weights. Code in the file is never run: .pt files are
    read with ``weights_only=True``.
    """
    source = Path(path)
    state, spec = _read(source)
    _check_spec(source, network, spec)
    _check_state(source, network, state)
    network.load_state_dict(state)
    return network


# -- writing -------------------------------------------------------------------------------------


def _atomically(target: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` write to a temporary file, then move it to ``target`` in one step."""
    if not target.parent.is_dir():
        raise CheckpointError(
            f"the folder {str(target.parent)!r} does not exist; create it before exporting "
            f"{target.name!r} into it"
        )
    with atomic_write(target) as part:
        write(part)


def _write_safetensors(network: nn.Module, part: Path) -> None:
    from safetensors.torch import save_file

    tensors, tied = _untied(network.state_dict())
    metadata = {
        "format": "pt",
        "weightloom_version": own_version(),
        "class": type(network).__name__,
        "tied": json.dumps(tied),
    } | about(network)
    spec = getattr(network, "spec", None)
    if isinstance(spec, WeightSpec):
        metadata["spec"] = json.dumps(_spec_as_json(spec))
    save_file(tensors, part, metadata)


def _untied(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, and {name: stored name} for the further names of tied tensors."""
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value):
            what = "has no shape yet" if isinstance(value, Tensor) else "is not a tensor"
            raise UnsupportedModuleError(
                f"{name!r} in the state dict {what} ({type(value).__name__}), so safetensors "
                f"cannot hold it; save with torch.save(network.state_dict(), 'network.pt') instead"
            )
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and same in first:
            tied[name] = first[same]
            continue
        first[same] = name
        # A copy of its own: safetensors refuses tensors that share memory without being equal.
        kept[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return kept, tied


def _spec_as_json(spec: WeightSpec) -> dict[str, Any]:
    shapes = {name: list(shape) for name, shape in spec.shapes.items()}
    return {"shapes": shapes, "aliases": dict(spec.aliases)}


# -- reading -------------------------------------------------------------------------------------


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The state dict in a file, and the spec of its hypernetwork if the file has one."""
    readers = {".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
    if source.suffix not in readers:
        hint = (
            "an ONNX file holds a computation: run it with onnxruntime, and export to .safetensors "
            "what you want to load again"
            if source.suffix == ".onnx"
            else "load reads .safetensors, .pt and .pth files"
        )
        raise CheckpointError(f"{str(source)!r} ends in {source.suffix or 'no suffix'!r}; {hint}")
    if not source.is_file():
        raise CheckpointError(f"there is no file {str(source)!r}; check the path")
    return readers[source.suffix](source)


def _read_safetensors(source: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tied = json.loads(metadata.get("tied", "{}"))
        state.update({name: state[first] for name, first in tied.items()})
        spec = json.loads(metadata["spec"]) if "spec" in metadata else None
        if spec is not None and not isinstance(spec.get("shapes"), dict):
            raise ValueError("the spec in its metadata has no shapes")
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(source, error) from error
    return state, spec


def _read_torch(source: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{str(source)!r} was refused: it holds pickled Python objects, or is no PyTorch file. "
            f"Unpickling them may run any code, so load never does it; ask for the file saved with "
            f"torch.save(network.state_dict(), ...) or as .safetensors"
        ) from error
    except Exception as error:  # a broken archive shows as RuntimeError, EOFError, KeyError, ...
        raise _damaged(source, error) from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(
            f"{str(source)!r} holds a {type(state).__name__}, not a state dict; save with "
            f"torch.save(network.state_dict(), ...)"
        )
    return dict(state), None


def _damaged(source: Path, error: Exception) -> CheckpointError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{str(source)!r} cannot be read: it is damaged or incomplete ({source.stat().st_size} "
        f"bytes; {reason[:160]}). Copy or export it again"
    )


def _check_spec(source: Path, network: nn.Module, saved: dict[str, Any] | None) -> None:
    """Refuse a different spec, which the names and sizes of a state dict need not show."""
    spec = getattr(network, "spec", None)
    if saved is None or not isinstance(spec, WeightSpec):
        return
    own, stored = _spec_as_json(spec)["shapes"], saved["shapes"]
    if own == stored and list(own) == list(stored) and dict(spec.aliases) == saved.get("aliases"):
        return
    different = [name for name in {**own, **stored} if own.get(name) != stored.get(name)]
    changes = [
        f"{name!r} is {stored.get(name, 'absent')} in the file, {own.get(name, 'absent')} here"
        for name in different[:_SHOWN]
    ]
    raise CheckpointError(
        f"{str(source)!r} belongs to a hypernetwork of another primary: "
        f"{'; '.join(changes) or 'the order of its weights or which of them are tied differs'}. "
        f"Build the HyperNetwork with the primary and generate= that were saved"
    )


def _check_state(source: Path, network: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise one error with all differences unless names and shapes are those of ``network``."""
    own = network.state_dict()
    problems = _names("missing in the file", [name for name in own if name not in state])
    problems += _names("unexpected in the file", [name for name in state if name not in own])
    for name, value in own.items():
        if name not in state or not isinstance(value, Tensor):
            continue
        if not isinstance(state[name], Tensor):
            problems.append(f"{name!r} is a {type(state[name]).__name__}, not a tensor")
        elif not is_lazy(value) and state[name].shape != value.shape:
            shapes = f"{tuple(state[name].shape)} in the file, {tuple(value.shape)} here"
            problems.append(f"shape of {name!r} is {shapes}")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError(
            f"{str(source)!r} belongs to another architecture than this {type(network).__name__}: "
            f"{'; '.join(problems[:_SHOWN])}{more}. Nothing was loaded; build the network with the "
            f"sizes, head and generate= of the one that was saved{plain_features_hint(own, state)}"
        )


def _names(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what}: {', '.join(map(repr, names[:_SHOWN]))}{more}"]
