"""What operations with weights do to labels: linear maps, convolutions, norms, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weightloom.networks.activations import Kind
from weightloom.networks.graph import Node
from weightloom.symmetry.reading.labels.labeller import LabelledLayer, Labeller, Rule
from weightloom.symmetry.reading.labels.rules import scaled_by_weight
from weightloom.symmetry.reading.labels.values import Dim, Labelled

__all__ = ["WEIGHTED"]


def _arguments(node: Node, *names: str) -> dict[str, Any]:
    """The arguments of a node by name; those that are missing are None."""
    return {
        **dict.fromkeys(names),
        **dict(zip(names, node.args, strict=False)),
        **node.kwargs,
    }


def _optional(state: Labeller, node: Any) -> Labelled | None:
    return state.labelled(node) if isinstance(node, Node) else None


def _shifted(state: Labeller, value: Labelled, bias: Labelled | None) -> Labelled:
    return value if bias is None else state.labels.broadcast([value, bias], "sum")


def _record(
    state: Labeller,
    kind: str,
    weight: Labelled,
    bias: Labelled | None,
    given: Dim | None,
    written: Dim,
) -> None:
    if weight.tensor is None:
        return
    name = weight.tensor.removesuffix(".weight")
    shift = None if bias is None else bias.tensor
    state.layers.append(LabelledLayer(name, kind, weight.tensor, shift, given, written))


def _linear(state: Labeller, node: Node) -> Labelled:
    parts = _arguments(node, "input", "weight", "bias")
    value, weight = state.labelled(parts["input"]), state.labelled(parts["weight"])
    return _affine(state, value, weight, _optional(state, parts["bias"]), 1)


def _addmm(state: Labeller, node: Node) -> Labelled:
    """bias + x W, with W [in, out]."""
    if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        return state.frozen(node)
    bias, value, weight = (state.labelled(x) for x in node.args[:3])
    return _affine(state, value, weight, bias, 0)


def _affine(
    state: Labeller, value: Labelled, weight: Labelled, bias: Labelled | None, columns: int
) -> Labelled:
    """A linear map of the last dimension; ``columns`` is the dimension of its inputs."""
    if len(weight.dims) != 2:
        state.labels.contract(value, -1, weight, 0)
        return Labelled(value.dims[:-1])
    state.labels.contract(value, -1, weight, columns)
    written = weight.dims[1 - columns]
    _record(state, "linear", weight, bias, value.dims[-1], written)
    return _shifted(state, Labelled((*value.dims[:-1], written)), bias)


def _matmul(state: Labeller, node: Node) -> Labelled:
    first, second = (state.labelled(x) for x in node.args[-2:])
    if node.operation == "baddbmm":
        if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            return state.frozen(node)
        return state.labels.broadcast(
            [state.labelled(node.args[0]), _product(state, first, second)], "sum"
        )
    if min(len(first.dims), len(second.dims)) < 2:
        return state.frozen(node)
    return _product(state, first, second)


def _product(state: Labeller, first: Labelled, second: Labelled) -> Labelled:
    """A matrix product of the last two dimensions."""
    labels = state.labels
    labels.contract(first, -1, second, -2)
    batch = labels.broadcast([Labelled(first.dims[:-2]), Labelled(second.dims[:-2])], "product")
    if second.tensor is not None and len(second.dims) == 2:
        _record(state, "linear", second, None, first.dims[-1], second.dims[-1])
    return Labelled((*batch.dims, first.dims[-2], second.dims[-1]))


def _convolution(count: int, transposed: bool) -> Rule:
    """A convolution over ``count`` dimensions of positions."""

    def rule(state: Labeller, node: Node) -> Labelled:
        parts = _arguments(
            node,
            *("input", "weight", "bias", "stride", "padding"),
            *(("output_padding", "groups") if transposed else ("dilation", "groups")),
        )
        value, weight = state.labelled(parts["input"]), state.labelled(parts["weight"])
        bias, groups = _optional(state, parts["bias"]), parts["groups"] or 1
        for dim in (*value.dims[-count:], *weight.dims[2:]):
            state.labels.units.freeze(dim)
        channels, batch = value.dims[-count - 1], value.dims[: -count - 1]
        given, written = (0, 1) if transposed else (1, 0)
        if groups == 1:
            state.labels.contract(value, -count - 1, weight, given)
            output = weight.dims[written]
            _record(state, "conv", weight, bias, channels, output)
        else:
            output = _grouped(state, node, channels, weight, bias, groups, transposed)
        moved = state.labels.fixed(node.sizes[-count:])
        result = Labelled((*batch, output))
        return Labelled((*_shifted(state, result, bias).dims, *moved.dims))

    return rule


def _grouped(
    state: Labeller,
    node: Node,
    channels: Dim,
    weight: Labelled,
    bias: Labelled | None,
    groups: int,
    transposed: bool,
) -> Dim:
    """Channels in groups: whole groups move; a group of one channel can also be scaled."""
    labels = state.labels
    many = labels.length(channels)
    if groups == many == labels.length(weight.dims[0]) and labels.length(weight.dims[1]) == 1:
        once = len(state.graph.users(node.args[1])) == 1
        rows = Labelled(weight.dims[:1], weight.tensor)
        dim = scaled_by_weight(state, Labelled((channels,)), rows, once).dims[0]
        _record(state, "depthwise", weight, bias, channels, dim)
        return dim
    size = node.sizes[1 - len(weight.dims)]
    inner = labels.reshape(Labelled((channels,)), (groups, many // groups))
    rows = labels.reshape(
        Labelled((weight.dims[0],)), (groups, labels.length(weight.dims[0]) // groups)
    )
    for dim in (inner.dims[1], rows.dims[1], weight.dims[1]):
        labels.units.freeze(dim)
    dim = labels.unite(inner.dims[0], rows.dims[0], "product")
    labels.restrict([dim])
    inside = weight.dims[1] if transposed else rows.dims[1]
    return labels.reshape(Labelled((dim, inside)), (size,)).dims[0]


def _embedding(state: Labeller, node: Node) -> Labelled:
    weight, indices = (state.labelled(x) for x in node.args[:2])
    state.labels.units.freeze(weight.dims[0])
    _record(state, "embedding", weight, None, None, weight.dims[1])
    return Labelled((*indices.dims, weight.dims[1]))


def _normalised(names: tuple[str, ...]) -> Rule:
    """Mean and variance, or the mean square, over the last dimensions; then a gain and a bias."""

    def rule(state: Labeller, node: Node) -> Labelled:
        parts = _arguments(node, *names)
        return _with_gain(state, state.labelled(parts["input"]), parts)

    return rule


def _with_gain(state: Labeller, value: Labelled, parts: dict[str, Any]) -> Labelled:
    labels = state.labels
    labels.restrict(value.dims)
    labels.stiffen(value.dims)
    weight, bias = _optional(state, parts["weight"]), _optional(state, parts.get("bias"))
    result = Labelled(value.dims)
    if weight is not None:
        result = labels.broadcast([result, weight], "product")
        _record(state, "norm", weight, bias, value.dims[-1], value.dims[-1])
    return Labelled(_shifted(state, result, bias).dims)


def _group_norm(state: Labeller, node: Node) -> Labelled:
    parts = _arguments(node, "input", "num_groups", "weight", "bias", "eps")
    value, groups, labels = state.labelled(parts["input"]), parts["num_groups"], state.labels
    channels = value.dims[1]
    count = labels.length(channels)
    if 1 < groups < count:
        inner = labels.reshape(Labelled((channels,)), (groups, count // groups))
        labels.units.freeze(inner.dims[1])
    alone = frozenset({Kind.SIGN}) if groups == count else frozenset[Kind]()
    return _per_channel(state, value, parts, alone)


def _instance_norm(state: Labeller, node: Node) -> Labelled:
    names = ("input", "weight", "bias", "mean", "var", "use_input_stats")
    parts = _arguments(node, *names)
    if not parts["use_input_stats"]:
        return state.frozen(node)
    return _per_channel(state, state.labelled(parts["input"]), parts, frozenset({Kind.SIGN}))


def _per_channel(
    state: Labeller, value: Labelled, parts: dict[str, Any], kinds: frozenset[Kind]
) -> Labelled:
    """A normalisation that keeps ``kinds`` of the channels' factors, then a gain and a bias."""
    labels = state.labels
    labels.restrict((value.dims[0], *value.dims[2:]))
    labels.restrict([value.dims[1]], kinds)
    labels.stiffen(value.dims)
    weight, bias = _optional(state, parts["weight"]), _optional(state, parts["bias"])
    dim = value.dims[1]
    if weight is not None:
        _record(state, "norm", weight, bias, dim, dim)
        if kinds:  # the gain keeps its sign, and the factor passes
            labels.restrict(weight.dims)
        dim = labels.unite(dim, weight.dims[0], "product")
    if bias is not None:
        dim = labels.unite(dim, bias.dims[0], "sum")
    return Labelled((value.dims[0], dim, *value.dims[2:]))


def _batch_norm(state: Labeller, node: Node) -> Labelled:
    """In eval mode an affine map of each unit: mean and bias scale with the units."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training")
    parts = _arguments(node, *names)
    if parts["training"] or parts["running_mean"] is None:
        raise state.refused(node)
    labels, value = state.labels, state.labelled(parts["input"])
    weight, bias = _optional(state, parts["weight"]), _optional(state, parts["bias"])
    mean, var = state.labelled(parts["running_mean"]), state.labelled(parts["running_var"])
    dim = labels.unite(value.dims[1], mean.dims[0], "sum")
    for tensor in (var, weight):
        if tensor is not None:
            labels.restrict(tensor.dims)
            dim = labels.unite(dim, tensor.dims[0], "product")
    if weight is not None:
        _record(state, "norm", weight, bias, dim, dim)
    if bias is not None:
        dim = labels.unite(dim, bias.dims[0], "sum")
    return Labelled((value.dims[0], dim, *value.dims[2:]))


def _prelu(state: Labeller, node: Node) -> Labelled:
    """One slope, or one for each channel; positive factors pass."""
    value, weight = (state.labelled(x) for x in node.args[:2])
    labels = state.labels
    labels.restrict(value.dims, frozenset({Kind.SCALE}))
    labels.stiffen(value.dims)
    labels.restrict(weight.dims)
    if labels.length(weight.dims[0]) == 1 if weight.dims else True:
        return Labelled(value.dims)
    _record(state, "prelu", weight, None, value.dims[1], value.dims[1])
    dim = labels.unite(value.dims[1], weight.dims[0], "product")
    return Labelled((value.dims[0], dim, *value.dims[2:]))


_NORMS: dict[str, Callable[[Labeller, Node], Labelled]] = {
    "layer_norm": _normalised(("input", "normalized_shape", "weight", "bias", "eps")),
    "rms_norm": _normalised(("input", "normalized_shape", "weight", "eps")),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
}
WEIGHTED: dict[str, Rule] = {
    "linear": _linear,
    "addmm": _addmm,
    **dict.fromkeys(("matmul", "mm", "bmm", "baddbmm"), _matmul),
    **{f"conv{d}d": _convolution(d, False) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": _convolution(d, True) for d in (1, 2, 3)},
    "embedding": _embedding,
    **_NORMS,
    "prelu": _prelu,
}
