"""The group of symmetries: random elements, products, inverses, and what they do to a network."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.attention import transform
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Axis, Element, Kind, Space, Spec

__all__ = [
    "apply",
    "apply_to_tensors",
    "check_element",
    "compose",
    "identity",
    "invert",
    "move",
    "random_element",
    "random_equivalent",
    "tensors_of",
]


def identity(spec: Spec) -> Element:
    """The element that changes nothing, with every space and map written out."""
    sizes = {name: space.size for name, space in spec.spaces.items()}
    heads = {one.head_space: one.heads for one in spec.attentions}
    maps = {
        name: torch.eye(one.head_dim, dtype=torch.float64).repeat(one.heads, 1, 1)
        for one in spec.attentions
        for name in (one.query_map, one.value_map)
    }
    return Element(
        {name: torch.arange(size) for name, size in (sizes | heads).items()},
        {name: torch.ones(size, dtype=torch.float64) for name, size in sizes.items()},
        maps,
    )


def random_element(
    spec: Spec,
    generator: torch.Generator | None = None,
    scales: tuple[float, float] = (0.5, 2.0),
) -> Element:
    """A random element: uniform exchanges and signs, scales log-uniform between ``scales``.

    The maps of attention are U diag(s) V with random orthogonal U, V and s from ``scales``, so
    their condition number is at most scales[1] / scales[0].
    """
    low, high = scales
    if not 0 < low <= high < math.inf:
        raise ConfigError(f"scales are {scales}; give two positive numbers, the smaller one first")

    def positive(*shape: int) -> Tensor:
        uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
        return low * (high / low) ** uniform

    def orthogonal(heads: int, d: int) -> Tensor:
        normal = torch.randn(heads, d, d, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(normal).Q

    permutation, factor, maps = {}, {}, {}
    for name, space in spec.spaces.items():
        permutation[name] = torch.randperm(space.size, generator=generator)
        factor[name] = (
            positive(space.size) if space.kind.scales else torch.ones(space.size).double()
        )
        if space.kind.signs:
            bits = torch.randint(0, 2, (space.size,), generator=generator)
            factor[name] = factor[name] * (1 - 2 * bits)
    for one in spec.attentions:
        permutation[one.head_space] = torch.randperm(one.heads, generator=generator)
        for name in (one.query_map, one.value_map):
            left, right = orthogonal(one.heads, one.head_dim), orthogonal(one.heads, one.head_dim)
            maps[name] = left * positive(one.heads, 1, one.head_dim) @ right
    return Element(permutation, factor, maps)


def compose(a: Element, b: Element) -> Element:
    """First b, then a: apply(compose(a, b), net) is apply(a, apply(b, net))."""

    def moved(name: str, tensor: Tensor) -> Tensor:
        """What b does to unit i's source, in the order of a."""
        return tensor[a.permutation[name]] if name in a.permutation else tensor

    permutation = dict(b.permutation)
    for name, first in a.permutation.items():
        permutation[name] = b.permutation[name][first] if name in b.permutation else first
    factor = {name: moved(name, value) for name, value in b.factor.items()}
    for name, value in a.factor.items():
        factor[name] = value * factor[name] if name in factor else value
    maps = {name: moved(_head_space(name), value) for name, value in b.maps.items()}
    for name, value in a.maps.items():
        maps[name] = value @ maps[name] if name in maps else value
    return Element(permutation, factor, maps)


def invert(element: Element) -> Element:
    """The element that undoes this one."""
    back = {name: torch.argsort(order) for name, order in element.permutation.items()}

    def moved(name: str, tensor: Tensor) -> Tensor:
        return tensor[back[name]] if name in back else tensor

    factor = {name: moved(name, 1 / value) for name, value in element.factor.items()}
    maps = {
        name: moved(_head_space(name), torch.linalg.inv(value))
        for name, value in element.maps.items()
    }
    return Element(back, factor, maps)


def _head_space(map_name: str) -> str:
    return map_name.rpartition(".")[0] + ".heads"


def random_equivalent(
    module: nn.Module,
    generator: torch.Generator | None = None,
    scales: tuple[float, float] = (0.5, 2.0),
) -> nn.Module:
    """A disguised copy: another network of the same shape that computes the same function.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> twin, x = random_equivalent(net), torch.randn(5, 2)
    >>> torch.equal(net[0].weight, twin[0].weight), torch.allclose(net(x), twin(x), atol=1e-5)
    (False, True)
    """
    spec = read(module)
    return apply(random_element(spec, generator, scales), module, spec)


def apply(element: Element, module: nn.Module, spec: Spec | None = None) -> nn.Module:
    """A copy of a network with an element applied; its function is unchanged to rounding.

    Factors are rounded to the dtype of each tensor first, so that what is multiplied and what is
    divided is the same number. ``spec`` saves reading the module again.
    """
    spec = read(module) if spec is None else spec
    check_element(element, spec)
    result = copy.deepcopy(module)
    named = _named(result)
    changed = apply_to_tensors(element, spec, {name: one.detach() for name, one in named.items()})
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
    """The same on tensors by name; what an element leaves alone is returned as it is.

    The order matters for FLIP: incoming sides of the weights first, then the shifts of the biases
    (which need the new columns and the old rows), then the outgoing sides.
    """
    result = dict(tensors)
    sides: dict[bool, list[Axis]] = {True: [], False: []}
    for axis in spec.axes:
        sides[axis.side == "in"].append(axis)
    for axis in sides[True]:
        result[axis.tensor] = _move_axis(result[axis.tensor], axis, spec, element)
    for name, space in spec.spaces.items():
        if space.kind is Kind.FLIP and name in element.factor:
            _shift_biases(result, spec, space, element.factor[name])
    for axis in sides[False]:
        result[axis.tensor] = _move_axis(result[axis.tensor], axis, spec, element)
    for one in spec.attentions:
        transform(result, one, element)
    return result


def _move_axis(tensor: Tensor, axis: Axis, spec: Spec, element: Element) -> Tensor:
    order, factor = element.permutation.get(axis.space), element.factor.get(axis.space)
    if factor is not None and (axis.side == "fixed" or bool((factor == 1).all())):
        factor = None
    if factor is not None and axis.side == "in":
        factor = spec.spaces[axis.space].kind.outgoing(factor)
    return move(tensor, axis, order, factor)


def move(tensor: Tensor, axis: Axis, order: Tensor | None, factor: Tensor | None) -> Tensor:
    """One axis of a tensor with its units exchanged, then multiplied ("out") or divided ("in")."""
    shape = tensor.shape
    dim, units = axis.dim, shape[axis.dim] // axis.repeat
    tensor = tensor.unflatten(dim, (units, axis.repeat)) if axis.repeat > 1 else tensor
    if order is not None:
        tensor = tensor.index_select(dim, order.to(tensor.device))
    if factor is not None:
        along = [-1 if one == dim else 1 for one in range(tensor.ndim)]
        number = factor.to(tensor).reshape(along)
        tensor = tensor / number if axis.side == "in" else tensor * number
    return tensor.reshape(shape)


def _shift_biases(tensors: dict[str, Tensor], spec: Spec, space: Space, factor: Tensor) -> None:
    """y = c - y' for a flipped unit: its old column times c, which is minus the new one, moves
    into the next bias (summed over the positions of a kernel or of a flattened channel)."""
    for axis in spec.axes_of(space.name, "in"):
        layer = next(one for one in spec.consumers(space.name) if one.weight == axis.tensor)
        if layer.bias is None:  # read() does not call such a space FLIP
            raise ShapeError(f"layer {layer.name!r} has no bias that could take up the flip")
        weight, bias = tensors[axis.tensor], tensors[layer.bias]
        flipped = (factor < 0).repeat_interleave(axis.repeat).to(weight.device)
        columns = weight[:, flipped].flatten(1).sum(1, dtype=torch.float64)
        tensors[layer.bias] = (bias.to(torch.float64) - space.constant * columns).to(bias.dtype)


def check_element(element: Element, spec: Spec) -> None:
    """Raises if an element does not belong to these symmetries."""
    sizes = {name: space.size for name, space in spec.spaces.items()}
    sizes |= {one.head_space: one.heads for one in spec.attentions}
    for name, order in element.permutation.items():
        _known(name, sizes)
        if not torch.equal(order.sort().values.cpu(), torch.arange(sizes[name])):
            raise ShapeError(f"permutation of space {name!r} is not one of {sizes[name]} units")
    for name, factor in element.factor.items():
        _known(name, spec.spaces)
        kind = spec.spaces[name].kind
        if factor.shape != (sizes[name],):
            raise ShapeError(
                f"space {name!r} has {sizes[name]} units, factors have shape {list(factor.shape)}"
            )
        wrong = ~torch.isfinite(factor) | (factor == 0)
        wrong |= (factor < 0) & (not kind.signs) | (factor.abs() != 1) & (not kind.scales)
        if bool(wrong.any()):
            raise ConfigError(
                f"space {name!r} is of kind {kind.value!r}, which has no factor "
                f"{float(factor[wrong][0]):g}"
            )
    shapes = {one.query_map: (one.heads, one.head_dim, one.head_dim) for one in spec.attentions}
    shapes |= {one.value_map: shapes[one.query_map] for one in spec.attentions}
    for name, matrices in element.maps.items():
        _known(name, shapes)
        if tuple(matrices.shape) != shapes[name]:
            raise ShapeError(f"maps {name!r} have shape {list(matrices.shape)}, not {shapes[name]}")


def _known(name: str, names: object) -> None:
    if isinstance(names, dict) and name not in names:
        raise ConfigError(f"no space or map is called {name!r}; there are {', '.join(names)}")
