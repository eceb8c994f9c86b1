"""The symmetry group of a network: random elements, products, inverses, and how they act.

Hidden units are permuted and rescaled. In attention, heads are permuted, and each head has two
free invertible maps: head h computes softmax(q k^T / sqrt(d)) v with q = W_Q x + b_Q, and so on.
q -> A q, k -> A^-T k leaves q^T k unchanged for any invertible A [d, d]; v -> B v is undone by
W_O -> W_O B^-1. (functional-equivalence states permutations of the d columns, a special case.)
Invariant are the two products `query_key` and `value_output`, head by head, up to the order of
heads.

Two symmetries of attention are not in this group. The key bias adds the same number to all scores
of a query, which softmax ignores, and W_O b_V can move into b_O. `head_invariants` removes both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Attention, Axis, Element, Kind, Space, Spec

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
        name: torch.eye(layer.head_dim, dtype=torch.float64).repeat(layer.heads, 1, 1)
        for layer in spec.attentions
        for name in (layer.query_map, layer.value_map)
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
    """A random element: uniform permutations and signs, scales log-uniform between ``scales``.

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
    for layer in spec.attentions:
        heads, d = layer.heads, layer.head_dim
        permutation[layer.head_space] = torch.randperm(heads, generator=generator)
        for name in (layer.query_map, layer.value_map):
            left, right = orthogonal(heads, d), orthogonal(heads, d)
            maps[name] = left * positive(heads, 1, d) @ right
    return Element(permutation, factor, maps)


def compose(a: Element, b: Element) -> Element:
    """First b, then a: apply(compose(a, b), net) is apply(a, apply(b, net))."""

    def moved(name: str, tensor: Tensor) -> Tensor:
        """Values of b in the order that a gives to the units."""
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
    """Another network of the same shape that computes the same function.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> twin, x = random_equivalent(net), torch.randn(5, 2)
    >>> torch.equal(net[0].weight, twin[0].weight), torch.allclose(net(x), twin(x), atol=1e-5)
    (False, True)
    """
    spec = read(module)
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
    for layer in spec.attentions:
        _transform_heads(result, layer, element)
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
    for name, factor in element.factor.items():
        _check_name(name, spec.spaces)
        _check_factor(spec.spaces[name], factor)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in spec.attentions:
        shape = (layer.heads, layer.head_dim, layer.head_dim)
        shapes |= {layer.query_map: shape, layer.value_map: shape}
    for name, matrices in element.maps.items():
        _check_name(name, shapes)
        if tuple(matrices.shape) != shapes[name]:
            raise ShapeError(f"maps {name!r} have shape {list(matrices.shape)}, not {shapes[name]}")


def _check_factor(space: Space, factor: Tensor) -> None:
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


# -- attention -----------------------------------------------------------------------------------
def split_heads(tensors: Mapping[str, Tensor], spec: Attention) -> dict[str, Tensor]:
    """The weights of an attention layer, head by head.

    "query", "key" and "value" are [heads, d, E + 1] with the bias as the last column, "out" is the
    output projection [heads, E, d], "bias" its bias [E]. Missing biases are zeros.
    """
    heads, d = spec.heads, spec.head_dim
    weight = tensors[spec.in_weight]
    bias = weight.new_zeros(len(weight)) if spec.in_bias is None else tensors[spec.in_bias]
    together = torch.cat((weight, bias[:, None]), 1).reshape(3, heads, d, -1)
    out = tensors[spec.out_weight]
    out_bias = out.new_zeros(len(out)) if spec.out_bias is None else tensors[spec.out_bias]
    return {
        "query": together[0], "key": together[1], "value": together[2],
        "out": out.reshape(-1, heads, d).transpose(0, 1), "bias": out_bias,
    }  # fmt: skip


def query_key(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """(W_Q, b_Q)^T (W_K, b_K) [heads, E + 1, E + 1]: the scores as a bilinear form of (x, 1)."""
    parts = split_heads(tensors, spec)
    return parts["query"].transpose(1, 2) @ parts["key"]


def value_output(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """W_O (W_V, b_V) [heads, E, E + 1]: what a head outputs for a position it attends to."""
    parts = split_heads(tensors, spec)
    return parts["out"] @ parts["value"]


def head_invariants(tensors: Mapping[str, Tensor], spec: Attention) -> tuple[Tensor, Tensor]:
    """What the function of each head depends on: [heads, E + 1, E] and [heads, E, E].

    `query_key` without its last column (the key bias, which softmax ignores; with add_zero_attn it
    does matter), and `value_output` without the bias (the bias of the whole layer is
    b_O + sum_h W_O b_V).
    """
    return query_key(tensors, spec)[..., :-1], value_output(tensors, spec)[..., :-1]


def _transform_heads(tensors: dict[str, Tensor], spec: Attention, element: Element) -> None:
    """Applies an element to the tensors of one attention layer, in place in the dict.

    New head h is old head permutation[h], then q -> A q, k -> A^-T k, v -> B v, W_O -> W_O B^-1.
    Products are in float64; a permutation alone is exact.
    """
    order = element.permutation.get(spec.head_space)
    a, b = element.maps.get(spec.query_map), element.maps.get(spec.value_map)
    rows = [None, None, None] if a is None else [a, torch.linalg.inv(a).transpose(1, 2), None]
    rows[2] = b
    for name in (spec.in_weight, spec.in_bias):
        if name is not None:
            tensors[name] = _transform_rows(tensors[name], spec, order, rows)
    out = tensors[spec.out_weight]
    blocks = out.reshape(-1, spec.heads, spec.head_dim)
    blocks = blocks if order is None else blocks[:, order.to(out.device)]
    if b is not None:
        inverse = torch.linalg.inv(b).to(out.device)
        blocks = torch.einsum("ehd,hdc->ehc", blocks.to(inverse.dtype), inverse).to(out.dtype)
    tensors[spec.out_weight] = blocks.reshape(out.shape)


def _transform_rows(
    tensor: Tensor, spec: Attention, order: Tensor | None, maps: list[Tensor | None]
) -> Tensor:
    blocks = tensor.reshape(3, spec.heads, spec.head_dim, -1)
    blocks = blocks if order is None else blocks[:, order.to(tensor.device)]
    parts = []
    for part, matrix in zip(blocks, maps, strict=True):
        if matrix is not None:
            matrix = matrix.to(part.device)
            part = (matrix @ part.to(matrix.dtype)).to(tensor.dtype)
        parts.append(part)
    return torch.stack(parts).reshape(tensor.shape)
