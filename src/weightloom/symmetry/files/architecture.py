"""The architecture of a saved network, inferred from the names and shapes of its tensors.

A state dict has weights. It does not have activations, strides, pooling or the order of layers.
What is inferred is a plain chain of Linear and Conv layers with one activation between any two.
Every assumption is returned in words, and an ambiguous state dict raises an error that names the
ambiguity. The network is an nn.Sequential that keeps the names of the tensors.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce as fold_left

import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError, ConfigError, NonFiniteWeightsError
from weightloom.networks.activations import TABLE, classify, named_modules
from weightloom.symmetry.spec import Kind

__all__ = ["REQUESTED", "Inferred", "NamedLayer", "assumable", "build", "check_tensors", "infer"]

REQUESTED = "as asked for"
"""in an assumption: the activation was given by the caller"""

_CONV = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_POOL = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}
_DEEPEST = 16  # dots in a name
_MOST_FAMILIES = 7  # names that nothing orders: 7! orders are tried at most
_HELP = "give the network's own code with --module path.py:factory (in Python: build it and load)"


@dataclass(frozen=True)
class NamedLayer:
    """The weight [out, in, kernel...] and bias [out] of one Linear or Conv layer."""

    name: str
    weight: Tensor
    bias: Tensor | None


def build(
    layers: list[NamedLayer], activation: Callable[[], nn.Module], dtype: torch.dtype
) -> nn.Sequential:
    """The layers as nested nn.Sequentials, so that every tensor keeps its name in the file."""
    parts: list[tuple[list[str], nn.Module]] = []
    for i, layer in enumerate(layers):
        *parents, leaf = layer.name.split(".")
        if i and layer.weight.ndim == 2 and layers[i - 1].weight.ndim > 2:
            before = layers[i - 1].weight
            pool = _POOL[before.ndim](_grid(layer.weight.shape[1] // before.shape[0], before.ndim))
            parts.append(([*parents, f"{leaf}_pool"], pool))
            parts.append(([*parents, f"{leaf}_flatten"], nn.Flatten()))
        parts.append(([*parents, leaf], _filled(layer, dtype)))
        if i < len(layers) - 1:
            parts.append(([*parents, f"{leaf}_activation"], activation()))
    try:
        return _nested(parts)
    except KeyError:  # names that nn.Sequential cannot have: numbers instead
        flat = [([str(i)], module) for i, (_, module) in enumerate(parts)]
        return _nested(flat)


def _nested(parts: list[tuple[list[str], nn.Module]]) -> nn.Sequential:
    children: OrderedDict[str, nn.Module] = OrderedDict()
    for key, group in itertools.groupby(parts, key=lambda part: part[0][0]):
        members = list(group)
        paths = [path for path, _ in members]
        if key in children or len(paths[0]) > _DEEPEST:
            raise KeyError(key)
        if len(members) == 1 and len(paths[0]) == 1:
            children[key] = members[0][1]
        elif any(len(path) == 1 for path in paths):
            raise KeyError(key)
        else:
            children[key] = _nested([(path[1:], module) for path, module in members])
    return nn.Sequential(children)


def _filled(layer: NamedLayer, dtype: torch.dtype) -> nn.Module:
    """A module with the weight and bias of a saved layer."""
    outputs, inputs, *kernel = layer.weight.shape
    biased = layer.bias is not None
    module: nn.Module
    with torch.device("meta"):  # nothing is sampled, so the caller's random state does not change
        if not kernel:
            module = nn.Linear(inputs, outputs, bias=biased)
        else:
            # Padded: the symmetries of a padded network are among those of one without padding.
            padding = tuple(size // 2 for size in kernel)
            conv = _CONV[layer.weight.ndim]
            module = conv(inputs, outputs, tuple(kernel), padding=padding, bias=biased)  # type: ignore[arg-type]
    tensors = {"weight": layer.weight.to(dtype)}
    if layer.bias is not None:
        tensors["bias"] = layer.bias.to(dtype)
    module.load_state_dict(tensors, assign=True)
    return module


def _grid(cells: int, ndim: int) -> tuple[int, ...]:
    """``cells`` pixels as a grid that is as square as possible, in ndim - 2 dimensions."""
    if ndim == 3:
        return (cells,)
    side = next(s for s in range(int(cells**0.5), 0, -1) if cells % s == 0)
    return (*(1,) * (ndim - 4), side, cells // side)


@dataclass(frozen=True)
class Inferred:
    """A network that holds the weights of a state dict, and what had to be assumed for it."""

    module: nn.Sequential
    layers: tuple[str, ...]
    """names in the state dict, in the order in which the layers are assumed to follow each other"""
    activation: str
    convolutional: bool
    """strides, padding and pooling are made up: weights can be compared, outputs mean nothing"""
    assumptions: tuple[str, ...]


def infer(
    state: Mapping[str, Tensor],
    activation: str | None = None,
    names: Sequence[str] | None = None,
) -> Inferred:
    """The chain of layers that a state dict holds; raises `CheckpointError` if it is ambiguous.

    Layers are ordered by the numbers in their names ("0", "2"; "fc1", "fc2"; "layers.2"). Families
    of names ("features.0, features.3" and "classifier.0") are put into the only order in which the
    shapes fit; if there is none, or several, an error is raised. ``activation``: a name in
    `assumable()`, default relu. ``names`` renames the layers by position, so that two files can be
    compared.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> inferred = infer(net.state_dict())
    >>> inferred.layers, inferred.assumptions[0]
    (('0', '2'), 'a plain chain: no skip connections, no layer used twice')
    >>> x = torch.ones(3, 2)
    >>> bool((inferred.module(x) == net(x)).all())
    True
    """
    new_activation = _activation(activation)
    layers = _ordered(_layers(state))
    own_names = tuple(layer.name for layer in layers)
    conv = any(layer.weight.ndim > 2 for layer in layers)
    if conv:
        _check_kind(activation or "relu")
    _check_room(layers)
    dtype, several = _dtype(layers)
    assumptions = [*_assumptions(layers, activation, conv), *several]
    if names is not None:
        if len(names) != len(layers):
            raise ConfigError(f"{len(names)} names were given for {len(layers)} layers")
        layers = [NamedLayer(n, x.weight, x.bias) for n, x in zip(names, layers, strict=True)]
    module = build(layers, new_activation, dtype).eval()
    return Inferred(module, own_names, activation or "relu", conv, tuple(assumptions))


# -- layers --------------------------------------------------------------------------------------
def _layers(state: Mapping[str, Tensor]) -> list[NamedLayer]:
    """Weights with their biases; any other tensor in the state dict raises an error."""
    check_tensors(state)
    layers = []
    for name, tensor in state.items():
        layer, _, kind = name.rpartition(".")
        if kind == "bias" and f"{layer}.weight" in state:
            continue
        if kind != "weight" or not layer or tensor.ndim not in (2, 3, 4, 5):
            raise CheckpointError(
                f"tensor {name!r} of shape {tuple(tensor.shape)} is not the weight or bias of a "
                f"Linear or Conv layer, so the architecture cannot be inferred; {_HELP}"
            )
        bias = state.get(f"{layer}.bias")
        if bias is not None and bias.shape != tensor.shape[:1]:
            raise CheckpointError(
                f"'{layer}.bias' has shape {tuple(bias.shape)}, but {name!r} of shape "
                f"{tuple(tensor.shape)} needs ({tensor.shape[0]},); is it a transposed "
                f"convolution? {_HELP}"
            )
        layers.append(NamedLayer(layer, tensor, bias))
    return layers


def check_tensors(state: Mapping[str, Tensor]) -> None:
    """Refuses empty state dicts, and tensors that are no finite weights."""
    if not state:
        raise CheckpointError("the state dict is empty; wanted the weights of at least one layer")
    for name, tensor in state.items():
        _check_tensor(name, tensor)


def _check_tensor(name: str, tensor: Tensor) -> None:
    if not name.isprintable():
        raise CheckpointError(f"a tensor is called {name[:80]!r}; names must be printable text")
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise CheckpointError(
            f"tensor {name!r} is {tensor.dtype}; wanted weights in float16 or wider. A counter or "
            f"mask belongs to a layer that a plain chain does not have; convert quantised weights "
            f"to float32 first"
        )
    if not tensor.numel():
        raise CheckpointError(f"tensor {name!r} of shape {tuple(tensor.shape)} holds no numbers")
    if not torch.isfinite(tensor).all():
        raise NonFiniteWeightsError(
            f"tensor {name!r} holds NaN or infinity ({int((~torch.isfinite(tensor)).sum())} of "
            f"{tensor.numel()} numbers); such a network cannot be examined"
        )


def _dtype(layers: list[NamedLayer]) -> tuple[torch.dtype, list[str]]:
    """The widest dtype, and a sentence if there are several."""
    used = [t.dtype for x in layers for t in (x.weight, x.bias) if t is not None]
    widest = fold_left(torch.promote_types, used)
    several = sorted({str(dtype) for dtype in used})
    return widest, [f"{' and '.join(several)} weights as {widest}"] if len(several) > 1 else []


# -- order ---------------------------------------------------------------------------------------
def _ordered(layers: list[NamedLayer]) -> list[NamedLayer]:
    """The only order that names and shapes allow."""
    groups: dict[str, list[NamedLayer]] = {}
    # Files sort their tensors as text, "10" before "2", so the order in the state dict is no help.
    for layer in sorted(layers, key=lambda x: _numbers(x.name)):
        groups.setdefault(re.sub(r"[0-9]+", "#", layer.name), []).append(layer)
    if len(groups) > _MOST_FAMILIES:
        raise CheckpointError(
            f"{len(groups)} families of layers ({_listed(groups)}) are too many to find their "
            f"order by the shapes; {_HELP}"
        )
    orders = [list(itertools.chain(*order)) for order in itertools.permutations(groups.values())]
    fitting = [order for order in orders if _misfit(order) is None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        first_two = " or ".join(_listed([x.name for x in order]) for order in fitting[:2])
        raise CheckpointError(f"the order of the layers is not clear: {first_two}; {_HELP}")
    raise CheckpointError(f"the layers do not fit into a chain: {_misfit(orders[0])}; {_HELP}")


def _numbers(name: str) -> list[tuple[int, str]]:
    """A sort key that puts "layers.10" after "layers.9"."""
    parts = re.split(r"([0-9]+)", name)
    # Not int(): a name may have more digits than Python converts.
    return [(len(p.lstrip("0")), p.lstrip("0")) if p.isdigit() else (-1, p) for p in parts]


def _misfit(layers: Sequence[NamedLayer]) -> str | None:
    """The first two neighbours whose shapes do not fit, in words."""
    for first, second in itertools.pairwise(layers):
        units, wanted = first.weight.shape[0], second.weight.shape[1]
        flat = first.weight.ndim > 2 and second.weight.ndim == 2
        fits = wanted % units == 0 if flat else wanted == units
        if not fits or not (flat or first.weight.ndim == second.weight.ndim):
            return (
                f"{first.name!r} of shape {tuple(first.weight.shape)} writes {units} units, "
                f"{second.name!r} of shape {tuple(second.weight.shape)} reads {wanted}"
            )
    return None


def _check_room(layers: list[NamedLayer]) -> None:
    """Refuses numbers that leave room for an activation between some layers but not all.

    In an nn.Sequential an activation has a number of its own. Numbers without any room are those of
    an nn.ModuleList.
    """
    gaps: dict[int, tuple[str, str]] = {}
    for first, second in itertools.pairwise(layers):
        (parent, _, a), (other, _, b) = first.name.rpartition("."), second.name.rpartition(".")
        if parent == other and a.isdecimal() and b.isdecimal() and max(len(a), len(b)) < 10:
            gaps.setdefault(min(int(b) - int(a), 2), (first.name, second.name))
    if len(gaps) > 1:
        tight, wide = gaps[min(gaps)], gaps[2]
        raise CheckpointError(
            f"{tight[0]!r} and {tight[1]!r} have no room for an activation between them, but "
            f"{wide[0]!r} and {wide[1]!r} have; {_HELP}"
        )


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    """The first six names."""
    return ", ".join(list(names)[:6]) + (", ..." if len(names) > 6 else "")


# -- assumptions ---------------------------------------------------------------------------------
def assumable() -> dict[str, Callable[[], nn.Module]]:
    """The activations that can be assumed, with torch's default settings, by name.

    Not the identity, which would make two layers one; nor PReLU, whose slopes are in the file; nor
    what explodes or jumps (no Lipschitz constant), such as exp.
    """
    return {
        name: module
        for name, module in named_modules().items()
        if name not in ("identity", "prelu") and not math.isinf(TABLE[name].lipschitz)
    }


def _activation(name: str | None) -> Callable[[], nn.Module]:
    known = assumable()
    if name is not None and name not in known:
        raise ConfigError(
            f"activation {name[:40]!r} is not known; wanted one of {', '.join(known)}. "
            f"For any other, {_HELP}"
        )
    return known[name or "relu"]


def _check_kind(name: str) -> None:
    """Refuses activations with signs for convolutions.

    Signs do not commute with max pooling, nor shifts with zero padding, and a state dict shows
    neither.
    """
    if classify(assumable()[name]()).kind not in (Kind.SCALE, Kind.PERMUTE):
        raise CheckpointError(
            f"the file holds convolutions, and {name} allows sign flips between them only if there "
            f"is no pooling and no padding, which a state dict does not show; {_HELP}"
        )


def _assumptions(layers: list[NamedLayer], activation: str | None, conv: bool) -> list[str]:
    assumptions = ["a plain chain: no skip connections, no layer used twice"]
    if len(layers) > 1:
        source = REQUESTED if activation else "the default; change it with --activation"
        name = activation or "relu"
        assumptions.append(f"{name} after every layer but the last, where there is none ({source})")
    if conv:
        assumptions.append(
            "convolutions without groups and dilation, not transposed; strides, padding and "
            "pooling are not in the file and were made up, so outputs are those of a stand-in"
        )
    return assumptions
