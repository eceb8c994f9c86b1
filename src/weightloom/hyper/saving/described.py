"""The layers of an nn.Sequential as JSON: what a file of weights does not say by itself.

`described` writes it into the metadata of an exported file. `built` makes the network again, with
layers of torch.nn from a fixed list: nothing in the file is run. Networks with a forward of their
own have no such description.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError
from weightloom.hyper.coordinates import RandomFourier
from weightloom.networks.activations import Sine, lookup, named_modules

__all__ = ["about", "built", "described"]

Entry = dict[str, Any]
"""{"name": dotted name, "layer": class, "settings": arguments of its constructor}"""

_WEIGHTED = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm,
    nn.Embedding, nn.PReLU,
)  # fmt: skip
_SHAPING = (
    nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Softmax,
)  # fmt: skip
#: Arguments that are no settings of the function.
_ELSEWHERE = ("self", "device", "dtype", "inplace")
_LARGEST = 1024  # of sizes that no tensor of the file confirms
_MOST_LAYERS = 10_000


def _classes() -> dict[str, type[nn.Module]]:
    activations = [make for make in named_modules().values() if isinstance(make, type)]
    return {c.__name__: c for c in (*_WEIGHTED, *_SHAPING, *activations, Sine, RandomFourier)}


def described(network: nn.Module) -> list[Entry] | None:
    """One entry for each layer of an nn.Sequential, nested ones included; None for other networks.

    >>> described(nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.2)))[1]
    {'name': '1', 'layer': 'LeakyReLU', 'settings': {'negative_slope': 0.2}}
    """
    classes = _classes()
    entries: list[Entry] = []
    if type(network) is not nn.Sequential:
        return None
    leaves = list(_leaves(network, ""))
    owners = [layer for _, layer in leaves if layer.state_dict()]
    if len({id(layer) for layer in owners}) < len(owners):
        return None  # tensors under two names
    for name, layer in leaves:
        known = classes.get(type(layer).__name__)
        if known is not type(layer) or _is_changed(layer):
            return None
        settings = _settings(layer)
        if settings is None:
            return None
        entries.append({"name": name, "layer": type(layer).__name__, "settings": settings})
    return entries


def about(network: nn.Module) -> dict[str, str]:
    """Metadata for the file of a network: its ``structure``, and its ``activations`` by name.

    >>> about(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))["activations"]
    '{"1": "tanh"}'
    """
    activations = {
        name: record.name
        for name, part in network.named_modules()
        if next(part.children(), None) is None and (record := lookup(part)) is not None
    }
    entries = described(network)
    result = {} if entries is None else {"structure": json.dumps(entries)}
    return result | ({"activations": json.dumps(activations)} if activations else {})


def _leaves(network: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in network._modules.items():  # a layer that is used twice counts twice
        if child is None:
            continue
        if type(child) is nn.Sequential and not _is_changed(child) and len(child):
            yield from _leaves(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _is_changed(layer: nn.Module) -> bool:
    """Whether hooks or a forward of its own change what the layer does."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))


def _settings(layer: nn.Module) -> dict[str, Any] | None:
    """The arguments that would make the layer again; None if they are not plain values."""
    if isinstance(layer, RandomFourier):
        frequencies, inputs = layer.matrix.shape
        return {"inputs": inputs, "frequencies": frequencies}
    settings = {}
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name in _ELSEWHERE or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        value = getattr(layer, name, parameter.default)
        if name == "bias":
            value = layer.bias is not None
        elif name == "num_parameters":
            value = next(layer.parameters()).numel()
        elif name == "_freeze":
            continue
        value = list(value) if isinstance(value, tuple) else value
        if not _is_plain(value):
            return None
        if value != parameter.default:
            settings[name] = value
    return settings


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, int) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


# -- back ----------------------------------------------------------------------------------------
def built(
    entries: Any, state: Mapping[str, Tensor], names: Sequence[str] | None = None
) -> nn.Sequential:
    """The network of a description with these weights; `CheckpointError` if they do not fit.

    ``names`` rename the layers that have tensors, by position.
    """
    if not isinstance(entries, list) or not 0 < len(entries) <= _MOST_LAYERS:
        raise CheckpointError("the structure in its metadata is not a list of layers")
    layers = []
    for entry in entries:
        layers.append(_layer(entry, state))
    renamed = _renamed([name for name, _ in layers], state, names)
    tensors = {}
    for name, layer in layers:
        for key in layer.state_dict():
            if f"{name}.{key}" in state:
                tensors[f"{renamed[name]}.{key}"] = state[f"{name}.{key}"]
    if len(tensors) != len(state):
        owners = {name for name, _ in layers}
        extra = [name for name in state if name.rpartition(".")[0] not in owners]
        raise CheckpointError(
            f"the structure in its metadata does not have the tensors {', '.join(extra[:6])}"
        )
    network = _nested([(renamed[name], layer) for name, layer in layers])
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise CheckpointError(
            f"the structure in its metadata does not fit its tensors: {text[:200]}"
        ) from error
    return network.eval().requires_grad_(False)


def _layer(entry: Any, state: Mapping[str, Tensor]) -> tuple[str, nn.Module]:
    """The name and the empty layer of one entry."""
    classes = _classes()
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise CheckpointError("an entry of the structure in its metadata has no name")
    name, kind, settings = entry["name"], entry.get("layer"), entry.get("settings")
    make: Callable[..., nn.Module] | None = classes.get(kind) if isinstance(kind, str) else None
    if make is None or not isinstance(settings, dict):
        raise CheckpointError(
            f"the structure in its metadata has an unknown layer {str(kind)[:40]!r}"
        )
    sizes = {size for key, t in state.items() if key.startswith(f"{name}.") for size in t.shape}
    groups = settings.get("groups", 1)
    for value in settings.values():
        if not _is_plain(value) or not _is_small(value, sizes, groups):
            raise CheckpointError(
                f"layer {name!r} of the structure in its metadata has the setting "
                f"{str(value)[:40]}, which its tensors do not confirm"
            )
    try:
        with torch.device("meta"):  # nothing is sampled, and no size in the file takes memory
            return name, make(**settings)
    except Exception as error:  # constructors raise anything for settings that do not fit
        raise CheckpointError(
            f"layer {name!r} of the structure in its metadata cannot be made: {str(error)[:160]}"
        ) from error


def _is_small(value: Any, sizes: set[int], groups: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    known = sizes | {size * groups for size in sizes if isinstance(groups, int) and groups <= 4096}
    return all(
        not isinstance(v, int) or isinstance(v, bool) or abs(v) <= _LARGEST or v in known
        for v in values
    )


def _renamed(
    own: list[str], state: Mapping[str, Tensor], names: Sequence[str] | None
) -> dict[str, str]:
    prefixes = {key.rpartition(".")[0] for key in state}
    with_tensors = [name for name in own if name in prefixes]
    if names is None or len(names) != len(with_tensors):
        return {name: name for name in own}
    new = dict(zip(with_tensors, names, strict=True))
    last = ""
    for name in own:  # what has no tensors is named after the layer before it
        last = new.setdefault(name, f"{last or 'first'}_{name.replace('.', '_')}")
    return new


def _nested(layers: list[tuple[str, nn.Module]]) -> nn.Sequential:
    """Nested nn.Sequentials, so that every tensor keeps its name."""
    root: OrderedDict[str, Any] = OrderedDict()
    for name, layer in layers:
        *parents, leaf = name.split(".")
        level = root
        for parent in parents:
            level = level.setdefault(parent, OrderedDict())
            if not isinstance(level, OrderedDict):
                raise CheckpointError(f"the structure in its metadata has a layer inside {name!r}")
        if leaf in level or len(parents) > 16:
            raise CheckpointError(f"the structure in its metadata has {name[:80]!r} twice")
        level[leaf] = layer
    return _sequential(root)


def _sequential(level: OrderedDict[str, Any]) -> nn.Sequential:
    try:
        return nn.Sequential(
            OrderedDict(
                (name, _sequential(each) if isinstance(each, OrderedDict) else each)
                for name, each in level.items()
            )
        )
    except KeyError as error:  # names that a module cannot have
        raise CheckpointError(f"the structure in its metadata has a layer named {error}") from error
