"""The architecture of a saved network, from the names and shapes of its tensors alone.

A state dict shows weights; it does not show activations, strides, pooling or how layers are
connected. What is inferred here is a plain chain of Linear and Conv layers with one activation
between any two, every assumption is returned in words, and whatever has a second reading is refused
with an error that names it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce as fold_left

import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError, ConfigError, NonFiniteWeightsError
from weightloom.symmetry.activations import classify
from weightloom.symmetry.checkpoint_build import NamedLayer, build
from weightloom.symmetry.spec import Kind

__all__ = ["ACTIVATIONS", "Inferred", "infer"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
}
"""The activations that can be assumed, with torch's default settings."""

_GROUPS = 7  # names that nothing orders: 7! orders are tried at most
_HELP = "give the network's own code with --module path.py:factory (in Python: build it and load)"


@dataclass(frozen=True)
class Inferred:
    """A network that holds the weights of a state dict, and what had to be assumed for it."""

    module: nn.Sequential
    layers: tuple[str, ...]
    """names in the state dict, in the order in which the layers are assumed to follow each other"""
    activation: str
    convolutional: bool
    """strides, padding and pooling are stand-ins: weights can be compared, outputs mean nothing"""
    assumptions: tuple[str, ...]


def infer(
    state: Mapping[str, Tensor],
    activation: str | None = None,
    names: Sequence[str] | None = None,
) -> Inferred:
    """The chain of layers that a state dict holds; raises CheckpointError if it is not clear.

    Layers are ordered by the numbers in their names ("0", "2"; "fc1", "fc2"; "layers.2"). Families
    of names ("features.0, features.3" and "classifier.0") are put into the only order in which the
    shapes fit; none or several: an error. ``activation``: a name in `ACTIVATIONS`, default relu.
    ``names`` renames the layers by position, so that two files can be compared.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> found = infer(net.state_dict())
    >>> found.layers, found.assumptions[0]
    (('0', '2'), 'a plain chain: no skip connections, no layer used twice')
    >>> x = torch.ones(3, 2)
    >>> bool((found.module(x) == net(x)).all())
    True
    """
    made = _activation(activation)
    layers = _ordered(_layers(state))
    found = tuple(layer.name for layer in layers)
    conv = any(layer.weight.ndim > 2 for layer in layers)
    if conv:
        _check_kind(activation or "relu")
    _check_room(layers)
    said = _assumptions(layers, activation, conv)
    dtype, mixed = _dtype(layers)
    said += mixed
    if names is not None:
        if len(names) != len(layers):
            raise ConfigError(f"{len(names)} names were given for {len(layers)} layers")
        layers = [NamedLayer(n, x.weight, x.bias) for n, x in zip(names, layers, strict=True)]
    module = build(layers, made, dtype).eval()
    return Inferred(module, found, activation or "relu", conv, tuple(said))


# -- layers --------------------------------------------------------------------------------------


def _layers(state: Mapping[str, Tensor]) -> list[NamedLayer]:
    """Weights with their biases; anything else in the state dict is an error that names it."""
    if not state:
        raise CheckpointError("the state dict is empty; wanted the weights of at least one layer")
    for name, tensor in state.items():
        _check_tensor(name, tensor)
    made = []
    for name, tensor in state.items():
        layer, _, kind = name.rpartition(".")
        if kind == "bias" and f"{layer}.weight" in state:
            continue
        if kind != "weight" or not layer or tensor.ndim not in (2, 3, 4, 5):
            raise CheckpointError(
                f"tensor {name!r} of shape {tuple(tensor.shape)} is not the weight or bias of a "
                f"Linear or Conv layer, so the architecture cannot be told from the file; {_HELP}"
            )
        bias = state.get(f"{layer}.bias")
        if bias is not None and bias.shape != tensor.shape[:1]:
            raise CheckpointError(
                f"'{layer}.bias' has shape {tuple(bias.shape)}, but {name!r} of shape "
                f"{tuple(tensor.shape)} needs ({tensor.shape[0]},); is it a transposed "
                f"convolution? {_HELP}"
            )
        made.append(NamedLayer(layer, tensor, bias))
    return made


def _check_tensor(name: str, tensor: Tensor) -> None:
    if not name.isprintable():
        raise CheckpointError(f"a tensor is called {name[:80]!r}; names must be printable text")
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise CheckpointError(
            f"tensor {name!r} is {tensor.dtype}; wanted weights in float16 or wider. A counter or "
            f"mask belongs to a layer that a plain chain has not; quantised weights have to be "
            f"written out as float32 first"
        )
    if not tensor.numel():
        raise CheckpointError(f"tensor {name!r} of shape {tuple(tensor.shape)} holds no numbers")
    if not torch.isfinite(tensor).all():
        raise NonFiniteWeightsError(
            f"tensor {name!r} holds NaN or infinity ({int((~torch.isfinite(tensor)).sum())} of "
            f"{tensor.numel()} numbers); nothing can be said about such a network"
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
    # Files sort their tensors as text, "10" before "2": the order in the state dict says nothing.
    for layer in sorted(layers, key=lambda x: _numbers(x.name)):
        groups.setdefault(re.sub(r"[0-9]+", "#", layer.name), []).append(layer)
    if len(groups) > _GROUPS:
        raise CheckpointError(
            f"{len(groups)} families of layers ({_shown(groups)}) are too many to find their order "
            f"by the shapes; {_HELP}"
        )
    orders = [list(itertools.chain(*one)) for one in itertools.permutations(groups.values())]
    fitting = [one for one in orders if _misfit(one) is None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = " or ".join(_shown([x.name for x in one]) for one in fitting[:2])
        raise CheckpointError(f"the order of the layers is not clear: {shown}; {_HELP}")
    raise CheckpointError(f"the layers do not fit into a chain: {_misfit(orders[0])}; {_HELP}")


def _numbers(name: str) -> list[tuple[int, str]]:
    """ "layers.10" after "layers.9"."""
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
    """In an nn.Sequential an activation has a number: refuse numbers with room only here and there.

    Numbers without any room are those of an nn.ModuleList; that is said as an assumption.
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


def _shown(names: Sequence[str] | Mapping[str, object]) -> str:
    listed = list(names)
    return ", ".join(listed[:6]) + (", ..." if len(listed) > 6 else "")


# -- what is assumed -----------------------------------------------------------------------------


def _activation(name: str | None) -> type[nn.Module]:
    if name is not None and name not in ACTIVATIONS:
        raise ConfigError(
            f"activation {name[:40]!r} is not known; wanted one of {', '.join(ACTIVATIONS)}. "
            f"For any other, {_HELP}"
        )
    return ACTIVATIONS[name or "relu"]


def _check_kind(name: str) -> None:
    """Signs do not pass max pooling, shifts do not pass zero padding; neither can be seen."""
    if classify(ACTIVATIONS[name]()).kind not in (Kind.SCALE, Kind.PERMUTE):
        raise CheckpointError(
            f"the file holds convolutions, and {name} allows sign flips between them only if there "
            f"is no pooling and no padding, which a state dict does not show; {_HELP}"
        )


def _assumptions(layers: list[NamedLayer], activation: str | None, conv: bool) -> list[str]:
    said = ["a plain chain: no skip connections, no layer used twice"]
    if len(layers) > 1:
        given = "as asked for" if activation else "the default; change it with --activation"
        name = activation or "relu"
        said.append(f"{name} after every layer but the last, where there is none ({given})")
    if conv:
        said.append(
            "convolutions without groups and dilation, not transposed; strides, padding and "
            "pooling are not in the file and were made up, so outputs are those of a stand-in"
        )
    return said
