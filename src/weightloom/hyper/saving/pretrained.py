"""What a hypernetwork learned, as a folder: config.json and model.safetensors, without the base.

The layout is that of the Hugging Face hub. Saved are the head, the parameters of the encoder and of
the primary that are trained, and running statistics. What is frozen is given again when loading;
config.json has its names, shapes and short hashes, so that another base is noticed. Loading runs no
code from the folder.
"""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from weightloom.errors import CheckpointError, UnsupportedModuleError
from weightloom.files import atomic_write, check_folder, own_version
from weightloom.hyper import heads
from weightloom.hyper.encoders import FeatureStatistics, is_frozen
from weightloom.hyper.saving.folders import (
    CONFIG,
    TENSORS,
    as_json,
    digest,
    find_folder,
    head_as_json,
    head_from_json,
    read_config,
    read_tensors,
    stamp,
)
from weightloom.hyper.start import restored, stored

if TYPE_CHECKING:
    from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["load_pretrained", "save_pretrained"]

_SHOWN = 6

H = TypeVar("H", bound="HyperNetwork")
V = TypeVar("V")


def save_pretrained(hyper: HyperNetwork, folder: str | os.PathLike[str]) -> Path:
    """Write config.json and model.safetensors; each file is replaced in one step."""
    import safetensors.torch

    learned, frozen = _divided(hyper)
    text = json.dumps(_config(hyper, frozen), indent=2) + "\n"
    target = check_folder(Path(folder), "save_pretrained:")
    with atomic_write(target / TENSORS) as part:
        # Copies: safetensors refuses tensors that share memory.
        tensors = {n: v.detach().clone(memory_format=torch.contiguous_format)
                   for n, v in learned.items()}  # fmt: skip
        safetensors.torch.save_file(tensors, part, {"format": "pt"})
    with atomic_write(target / CONFIG) as part:
        part.write_text(text)
    return target


def load_pretrained(
    kind: type[H],
    folder: str | os.PathLike[str],
    primary: nn.Module,
    encoder: nn.Module | None,
    head: heads.Head | None,
    revision: str | None,
) -> H:
    """A hypernetwork with what was learned; see `HyperNetwork.from_pretrained`."""
    place = find_folder(folder, revision)
    config, state = read_config(place), read_tensors(place)
    _check_generated(place, config, primary)
    _check_encoder(place, config, encoder)
    hyper = _built(place, kind, config, primary, encoder, head)
    frozen = config["frozen"]
    if isinstance(hyper.encoder, nn.Identity):  # conditions are features: nothing of it is needed
        state, frozen = _without_encoder(state), _without_encoder(frozen)
    _check_tensors(place, hyper, state)
    _check_frozen(place, hyper, state, frozen)
    _put(hyper, state)
    hyper.initialisation = config["initialisation"]
    hyper.initial_features = FeatureStatistics(**config["initial_features"])
    hyper.eval()
    return hyper


# -- what is learned -----------------------------------------------------------------------------


def _divided(hyper: HyperNetwork) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What was learned, and what is frozen; a tensor with several names has its first one."""
    learned: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    seen: set[int] = set()
    for part, name, value in _entries(hyper):
        if id(value) in seen:
            continue
        seen.add(id(value))
        (learned if _is_learned(hyper, part, name, value) else frozen)[f"{part}.{name}"] = value
    return learned, frozen


def _entries(hyper: HyperNetwork) -> Iterator[tuple[str, str, Tensor]]:
    for part in ("head", "encoder", "primary"):
        for name, value in getattr(hyper, part).state_dict(keep_vars=True).items():
            if not isinstance(value, Tensor) or is_lazy(value):
                what = "has no shape yet" if isinstance(value, Tensor) else "is not a tensor"
                raise UnsupportedModuleError(
                    f"'{part}.{name}' {what} ({type(value).__name__}), so safetensors cannot hold "
                    f"it; save with torch.save(hyper.state_dict(), 'hyper.pt') instead"
                )
            yield part, name, value


def _is_learned(hyper: HyperNetwork, part: str, name: str, value: Tensor) -> bool:
    if part == "head":
        return True
    if isinstance(value, nn.Parameter):
        return value.requires_grad
    module: nn.Module = getattr(hyper, part)
    if not is_frozen(module):
        return True
    # Running statistics of a primary move in training even if all its parameters are frozen. Other
    # buffers of a frozen module belong to the base: quantised weights are such buffers.
    owner = module.get_submodule(name.rpartition(".")[0])
    return part == "primary" and isinstance(owner, _NormBase)


def _config(hyper: HyperNetwork, frozen: Mapping[str, Tensor]) -> dict[str, Any]:
    spec = hyper.spec
    given = {*spec, *spec.aliases}
    rest = [p.requires_grad for n, p in hyper.primary.named_parameters() if n not in given]
    bare = isinstance(hyper.encoder, nn.Identity)
    return {
        **stamp(),
        "weightloom_version": own_version(),
        "generate": {
            "shapes": {name: list(shape) for name, shape in spec.shapes.items()},
            "aliases": dict(spec.aliases),
        },
        "head": head_as_json(hyper.head),
        "features": hyper.head.features,
        "encoder": None if bare else type(hyper.encoder).__name__,
        "condition_dims": as_json(hyper._dims.given),
        "freeze_rest": bool(rest) and not any(rest),
        "initialisation": hyper.initialisation,
        "scaling": stored(hyper.scaling),
        "multipliers": hyper.multipliers,
        "initial_features": asdict(hyper.initial_features),
        "frozen": {name: [list(value.shape), digest(value)] for name, value in frozen.items()},
    }


# -- loading -------------------------------------------------------------------------------------


def _built(
    place: Path,
    kind: type[H],
    config: Mapping[str, Any],
    primary: nn.Module,
    encoder: nn.Module | None,
    head: heads.Head | None,
) -> H:
    """The hypernetwork as it was built once, with parameters that are replaced afterwards."""
    head = head_from_json(place, config["head"]) if head is None else head
    # The values do not matter; only "ntk" changes the encoder and the head for good.
    init = "ntk" if config["initialisation"].startswith("ntk:") else "default"
    hyper = kind(
        primary,
        encoder,
        head,
        None if head.relative else init,
        [glob.escape(name) for name in config["generate"]["shapes"]],
        features=config["features"],
        freeze_rest=config["freeze_rest"],
        condition_dims=config["condition_dims"],
    )
    like = next(hyper.head.parameters())
    hyper.scaling = restored(config.get("scaling"), config["features"], like)
    hyper.multipliers = dict(config.get("multipliers", {}))
    return hyper


def _without_encoder(entries: Mapping[str, V]) -> dict[str, V]:
    return {name: value for name, value in entries.items() if not name.startswith("encoder.")}


@torch.no_grad()
def _put(hyper: HyperNetwork, state: Mapping[str, Tensor]) -> None:
    """Learned tensors in their places.

    The encoder is the user's own module: its tensors are overwritten and keep their type. Those of
    the primary may be shared with the given base, so they are replaced; those of the head are
    replaced and have the type that was saved.
    """
    for name, value in state.items():
        part, _, inner = name.partition(".")
        module: nn.Module = getattr(hyper, part)
        old = _named(module)[inner]
        if part == "encoder":
            old.copy_(value)
            continue
        # A copy: tensors lie in the file's buffer at any address, and sums of unaligned ones round
        # differently.
        new = value.to(old.device, old.dtype if part == "primary" else value.dtype, copy=True)
        _replace(module, old, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)
    for name, parameter in hyper.primary.named_parameters():
        if parameter.requires_grad and f"primary.{name}" not in state:
            parameter.requires_grad_(False)


def _named(module: nn.Module) -> dict[str, Tensor]:
    return module.state_dict(keep_vars=True)


def _replace(module: nn.Module, old: Tensor, new: Tensor) -> None:
    """``new`` under every name that ``old`` has."""
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for leaf in [leaf for leaf, value in store.items() if value is old]:
                setattr(part, leaf, new)


# -- checks --------------------------------------------------------------------------------------


def _check_generated(place: Path, config: Mapping[str, Any], primary: nn.Module) -> None:
    """The generated parameters are in the primary, with their shapes and ties."""
    saved, aliases = config["generate"]["shapes"], config["generate"]["aliases"]
    own = dict(primary.named_parameters(remove_duplicate=False))
    shapes = {name: list(parameter.shape) for name, parameter in own.items()}
    problems = [
        _differs(name, shape, shapes.get(name))
        for name, shape in saved.items()
        if shapes.get(name) != shape
    ]
    problems += [
        f"{alias!r} is tied to {name!r} in the folder and not here"
        for alias, name in aliases.items()
        if alias not in own or own[alias] is not own.get(name)
    ]
    _refuse(place, problems, "load it with the base that it was trained on")


def _check_encoder(place: Path, config: Mapping[str, Any], encoder: nn.Module | None) -> None:
    if config["encoder"] is not None and encoder is None:
        raise CheckpointError(
            f"{str(place)!r} was saved with an encoder ({config['encoder']}); pass encoder= a "
            f"module of the same architecture (with its pretrained weights, if it was frozen), or "
            f"encoder=nn.Identity() if your conditions are its features"
        )
    if config["encoder"] is None and not isinstance(encoder, nn.Identity | None):
        raise CheckpointError(
            f"{str(place)!r} was saved without an encoder, and encoder= a {type(encoder).__name__} "
            f"was given; leave encoder= out"
        )


def _check_tensors(place: Path, hyper: HyperNetwork, state: Mapping[str, Tensor]) -> None:
    """Every learned tensor has its place here, and the head has no other ones."""
    own = {f"{part}.{name}": value for part, name, value in _entries(hyper)}
    head = [name for name in _divided(hyper)[0] if name.startswith("head.")]
    problems = [f"{name!r} is missing in the folder" for name in head if name not in state]
    problems += [f"{name!r} is unexpected in the folder" for name in state if name not in own]
    problems += [
        _differs(name, tuple(value.shape), tuple(own[name].shape))
        for name, value in state.items()
        if name in own and own[name].shape != value.shape
    ]
    _refuse(place, problems, "give the primary, encoder= and head= that were saved")


def _check_frozen(
    place: Path, hyper: HyperNetwork, state: Mapping[str, Tensor], saved: Mapping[str, Any]
) -> None:
    """Refuse frozen tensors of other shapes; warn about other values and about other tensors."""
    learned, frozen = _divided(hyper)
    own = {n: v for n, v in {**learned, **frozen}.items() if n not in state}
    shared = [name for name in own if name in saved]
    problems = [
        _differs(name, saved[name][0], list(own[name].shape))
        for name in shared
        if own[name].is_floating_point() and list(own[name].shape) != saved[name][0]
    ]
    _refuse(place, problems, "load it with the base and the encoder that it was trained on")
    for part in ("primary", "encoder"):
        _warn(
            place,
            part,
            changed=[n for n in _of(part, shared) if digest(own[n]) != saved[n][1]],
            missing=[n for n in _of(part, saved) if n not in own],
            new=[n for n in _of(part, own) if n not in saved],
        )


def _of(part: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{part}.")]


def _warn(place: Path, part: str, changed: list[str], missing: list[str], new: list[str]) -> None:
    what = [
        f"{label}: {_listed(names)}"
        for label, names in (
            ("other values", changed),
            ("missing here", missing),
            ("only here", new),
        )
        if names
    ]
    if what:
        warnings.warn(
            f"the frozen part of the {part} is not the one that {str(place)!r} was trained with "
            f"({'; '.join(what)}), so outputs will differ. Load the base or encoder that was used "
            f"in training, if this is not on purpose",
            UserWarning,
            stacklevel=5,
        )


def _differs(name: str, saved: Any, own: Any) -> str:
    return f"{name!r} is {saved} in the folder, {own or 'absent'} here"


def _refuse(place: Path, problems: list[str], advice: str) -> None:
    if problems:
        raise CheckpointError(
            f"{str(place)!r} belongs to another architecture: {_listed(problems, '; ')}. Nothing "
            f"was loaded; {advice}"
        )


def _listed(names: list[str], joint: str = ", ") -> str:
    more = f"{joint}and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return joint.join(names[:_SHOWN]) + more
