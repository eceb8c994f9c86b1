"""The symmetry group of a network: random elements, products, inverses, and how they act.

Hidden units are permuted and rescaled. In attention, heads are permuted, and each head has two
free invertible maps (`weightloom.symmetry.heads`). Gains of norms are moved into the next layers.

Two symmetries of attention are not in this group. The key bias adds the same number to all scores
of a query, which softmax ignores, and W_O b_V can move into b_O. `head_invariants` removes both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.heads import (
    head_invariants,
    in_new_order,
    keeps_groups,
    keeps_pairs,
    query_key,
    random_heads,
    random_maps,
    split_heads,
    transform_heads,
    value_output,
)
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Attention, Axis, Element, Gain, Kind, Space, Spec

__all__ = [
    "apply",
    "apply_to_tensors",
    "check_element",
    "compose",
    "flipped_columns",
    "head_invariants",
    "identity",
    "invert",
    "move",
    "move_axis",
    "query_key",
    "random_element",
    "random_equivalent",
    "split_heads",
    "tensors_of",
    "value_output",
]


def identity(spec: Spec) -> Element:
    """The element that changes nothing, with every space and map written out."""
    sizes = {name: space.size for name, space in spec.spaces.items()}
    heads = {layer.head_space: layer.heads for layer in spec.attentions}
    maps = {
        name: torch.eye(layer.head_dim, dtype=torch.float64).repeat(layer.kv_heads, 1, 1)
        for layer in spec.attentions
        for name in (layer.query_map, layer.value_map)
    }
    gains = {gain.name: gain.size for gain in spec.gains}
    return Element(
        {name: torch.arange(size) for name, size in (sizes | heads).items()},
        {name: torch.ones(size, dtype=torch.float64) for name, size in (sizes | gains).items()},
        maps,
    )


def random_element(
    spec: Spec,
    generator: torch.Generator | None = None,
    scales: tuple[float, float] = (0.5, 2.0),
) -> Element:
    """A random element: uniform permutations and signs, scales log-uniform between ``scales``.

    The maps of attention are U diag(s) V with random orthogonal U, V and s from ``scales``, so
    their condition number is at most scales[1] / scales[0].
    """
    low, high = scales
    if not 0 < low <= high < math.inf:
        raise ConfigError(f"scales are {scales}; give two positive numbers, the smaller one first")

    permutation, factor = {}, {}
    maps: dict[str, Tensor] = {}
    for name, space in spec.spaces.items():
        permutation[name] = torch.randperm(space.size, generator=generator)
        factor[name] = _random_factor(space, scales, generator)
    for gain in spec.gains:
        factor[gain.name] = _random_factor(gain, scales, generator)
    for layer in spec.attentions:
        permutation[layer.head_space] = random_heads(layer, generator)
        maps |= random_maps(layer, scales, generator)
    return Element(permutation, factor, maps)


def _random_factor(
    units: Space | Gain, scales: tuple[float, float], generator: torch.Generator | None
) -> Tensor:
    factor = torch.ones(units.size, dtype=torch.float64)
    if units.kind.scales:
        low, high = scales
        uniform = torch.rand(units.size, generator=generator, dtype=torch.float64)
        factor = low * (high / low) ** uniform
    if units.kind.signs:
        bits = torch.randint(0, 2, (units.size,), generator=generator)
        factor = factor * (1 - 2 * bits)
    return factor


def compose(a: Element, b: Element) -> Element:
    """First b, then a: apply(compose(a, b), net) is apply(a, apply(b, net))."""

    def moved(name: str, tensor: Tensor) -> Tensor:
        """Values of b in the order that a gives to the units."""
        return tensor[a.permutation[name]] if name in a.permutation else tensor

    permutation = dict(b.permutation)
    for name, first in a.permutation.items():
        permutation[name] = b.permutation[name][first] if name in b.permutation else first
    factor = {name: moved(_permuted_by(name), value) for name, value in b.factor.items()}
    for name, value in a.factor.items():
        factor[name] = value * factor[name] if name in factor else value
    maps = {name: _moved_maps(name, value, a.permutation) for name, value in b.maps.items()}
    for name, value in a.maps.items():
        maps[name] = value @ maps[name] if name in maps else value
    return Element(permutation, factor, maps)


def invert(element: Element) -> Element:
    """The element that undoes this one."""
    back = {name: torch.argsort(order) for name, order in element.permutation.items()}

    def moved(name: str, tensor: Tensor) -> Tensor:
        return tensor[back[name]] if name in back else tensor

    factor = {name: moved(_permuted_by(name), 1 / value) for name, value in element.factor.items()}
    maps = {
        name: _moved_maps(name, torch.linalg.inv(value), back)
        for name, value in element.maps.items()
    }
    return Element(back, factor, maps)


def _moved_maps(name: str, maps: Tensor, permutation: Mapping[str, Tensor]) -> Tensor:
    order = permutation.get(name.rpartition(".")[0] + ".heads")
    return maps if order is None else in_new_order(maps, order)


def _permuted_by(name: str) -> str:
    """The space whose permutation moves these factors; see `Gain.name`."""
    return name.partition("::")[0]


def random_equivalent(
    module: nn.Module,
    generator: torch.Generator | None = None,
    scales: tuple[float, float] = (0.5, 2.0),
    *,
    inputs: Any = None,
) -> nn.Module:
    """Another network of the same shape that computes the same function.

    ``inputs``: an example call, where the network's own code does not say how to call it; see
    `read`.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> twin, x = random_equivalent(net), torch.randn(5, 2)
    >>> torch.equal(net[0].weight, twin[0].weight), torch.allclose(net(x), twin(x), atol=1e-5)
    (False, True)
    """
    spec = read(module, inputs)
    return apply(random_element(spec, generator, scales), module, spec)


def apply(element: Element, module: nn.Module, spec: Spec | None = None) -> nn.Module:
    """A copy of a network with an element applied; its function is unchanged up to rounding.

    Factors are rounded to the dtype of each tensor first, so that incoming weights are multiplied
    and outgoing weights divided by the same number. ``spec`` saves reading the module again.
    """
    spec = read(module) if spec is None else spec
    check_element(element, spec)
    result = copy.deepcopy(module)
    named = _named(result)
    changed = apply_to_tensors(
        element, spec, {name: tensor.detach() for name, tensor in named.items()}
    )
    with torch.no_grad():
        for name, tensor in changed.items():
            if tensor is not named[name]:
                named[name].copy_(tensor)
    return result


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, detached; they share memory with the module."""
    return {name: tensor.detach() for name, tensor in _named(module).items()}


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def apply_to_tensors(element: Element, spec: Spec, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`apply` on tensors by name; tensors that the element does not change are returned as given.

    The order matters for FLIP: first the columns of the weights, then the shifts of the biases
    (which need new columns and old rows), then the rows.
    """
    result = dict(tensors)
    sides: dict[bool, list[Axis]] = {True: [], False: []}
    for axis in spec.axes:
        sides[axis.side == "in"].append(axis)
    for axis in sides[True]:
        result[axis.tensor] = move_axis(result[axis.tensor], axis, spec, element)
    for name, space in spec.spaces.items():
        if space.kind is Kind.FLIP and name in element.factor:
            _shift_biases(result, spec, space, element.factor[name])
    for axis in sides[False]:
        result[axis.tensor] = move_axis(result[axis.tensor], axis, spec, element)
    for gain in spec.gains:
        for axis in gain.axes if gain.name in element.factor else ():
            factor = element.factor[gain.name]
            result[axis.tensor] = move(result[axis.tensor], axis, None, factor)
    for layer in spec.attentions:
        transform_heads(result, layer, element)
    return result


def move_axis(tensor: Tensor, axis: Axis, spec: Spec, element: Element) -> Tensor:
    """One axis of a tensor as an element moves it."""
    order, factor = element.permutation.get(axis.space), element.factor.get(axis.space)
    if factor is not None and (axis.side == "fixed" or bool((factor == 1).all())):
        factor = None
    if factor is not None and axis.side == "in":
        factor = spec.spaces[axis.space].kind.outgoing(factor)
    return move(tensor, axis, order, factor)


def move(tensor: Tensor, axis: Axis, order: Tensor | None, factor: Tensor | None) -> Tensor:
    """One axis of a tensor with its units permuted, then multiplied ("out") or divided ("in")."""
    shape = tensor.shape
    dim, units = axis.dim, shape[axis.dim] // axis.repeat
    tensor = tensor.unflatten(dim, (units, axis.repeat)) if axis.repeat > 1 else tensor
    if order is not None:
        tensor = tensor.index_select(dim, order.to(tensor.device))
    if factor is not None:
        shape_along = [-1 if d == dim else 1 for d in range(tensor.ndim)]
        factor = factor.to(tensor).reshape(shape_along)
        tensor = tensor / factor if axis.side == "in" else tensor * factor
    return tensor.reshape(shape)


def _shift_biases(tensors: dict[str, Tensor], spec: Spec, space: Space, factor: Tensor) -> None:
    """Moves the constants of flipped units into the next biases.

    y = c - y' for a flipped unit, so c times its old column (minus its new one) is added.
    """
    for axis in spec.axes_of(space.name, "in"):
        readers = spec.consumers(space.name)
        layer = next(reader for reader in readers if reader.weight == axis.tensor)
        if layer.bias is None:  # read() does not call such a space FLIP
            raise ShapeError(f"layer {layer.name!r} has no bias that could take up the flip")
        columns = flipped_columns(tensors[axis.tensor], axis, factor)
        bias = tensors[layer.bias]
        tensors[layer.bias] = (bias.to(torch.float64) - space.constant * columns).to(bias.dtype)


def flipped_columns(weight: Tensor, axis: Axis, factor: Tensor) -> Tensor:
    """Sum of the columns of units with a negative factor, over all kernel positions: [rows]."""
    flipped = (factor < 0).repeat_interleave(axis.repeat).to(weight.device)
    return weight[:, flipped].flatten(1).sum(1, dtype=torch.float64)


def check_element(element: Element, spec: Spec) -> None:
    """Raises `ConfigError` or `ShapeError` if an element does not fit these symmetries."""
    sizes = {name: space.size for name, space in spec.spaces.items()}
    sizes |= {layer.head_space: layer.heads for layer in spec.attentions}
    for name, order in element.permutation.items():
        _check_name(name, sizes)
        if not torch.equal(order.sort().values.cpu(), torch.arange(sizes[name])):
            raise ShapeError(
                f"the entry for space {name!r} is not a permutation of its {sizes[name]} units"
            )
    scaled: dict[str, Space | Gain] = {**spec.spaces, **{gain.name: gain for gain in spec.gains}}
    for name, factor in element.factor.items():
        _check_name(name, scaled)
        _check_factor(scaled[name], factor)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in spec.attentions:
        _check_heads(layer, element)
        shape = (layer.kv_heads, layer.head_dim, layer.head_dim)
        shapes |= {layer.query_map: shape, layer.value_map: shape}
    for name, matrices in element.maps.items():
        _check_name(name, shapes)
        if tuple(matrices.shape) != shapes[name]:
            raise ShapeError(f"maps {name!r} have shape {list(matrices.shape)}, not {shapes[name]}")


def _check_heads(layer: Attention, element: Element) -> None:
    order, maps = (
        entries.get(name)
        for entries, name in (
            (element.permutation, layer.head_space),
            (element.maps, layer.query_map),
        )
    )
    if order is not None and not keeps_groups(layer, order):
        raise ShapeError(
            f"the permutation of heads {layer.head_space!r} must keep the {layer.kv_heads} groups "
            f"of {layer.group} heads together"
            + ("" if layer.movable else ", and these heads cannot move at all")
        )
    fits = maps is not None and maps.shape[1:] == (layer.head_dim, layer.head_dim)
    if maps is not None and fits and not keeps_pairs(layer, maps):
        raise ConfigError(
            f"maps {layer.query_map!r} must commute with the rotary embedding of their layer: a "
            "rotation times a scale for each pair of entries"
        )


def _check_factor(space: Space | Gain, factor: Tensor) -> None:
    if factor.shape != (space.size,):
        raise ShapeError(
            f"space {space.name!r} has {space.size} units, factors have shape {list(factor.shape)}"
        )
    wrong = ~torch.isfinite(factor) | (factor == 0)
    wrong |= (factor < 0) & (not space.kind.signs) | (factor.abs() != 1) & (not space.kind.scales)
    if bool(wrong.any()):
        raise ConfigError(
            f"space {space.name!r} is of kind {space.kind.value!r}, which does not allow the "
            f"factor {float(factor[wrong][0]):g}"
        )


def _check_name(name: str, names: Mapping[str, object]) -> None:
    if name not in names:
        raise ConfigError(f"no space or map is called {name!r}; there are {', '.join(names)}")
