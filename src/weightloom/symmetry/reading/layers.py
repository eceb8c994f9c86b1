"""What `read` does with layers that have weights: one function for each family."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from weightloom.networks.activations import classify
from weightloom.networks.layers import BATCH_NORMS, CONVOLUTIONS
from weightloom.symmetry.reading.state import Reader, Value, unsupported
from weightloom.symmetry.spec import Attention, Kind, Layer

__all__ = ["LAYERS", "add", "affine", "channelwise", "join", "pads_with_zeros"]


def pads_with_zeros(layer: nn.Module) -> bool:
    """Whether a layer is a convolution that reads zeros beyond the border."""
    if not isinstance(layer, CONVOLUTIONS) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):  # "same" pads unless every kernel is a single point
        return layer.padding == "same" and max(layer.kernel_size) > 1
    return max(layer.padding) > 0


def join(prefix: str, name: str) -> str:
    """Dotted name of a child."""
    return f"{prefix}.{name}" if prefix else name


def add(reader: Reader, name: str, what: object, a: Value, b: Value) -> Value:
    """The sum (or difference) of two values; their units become one space."""
    layout = _common_layout(name, what, a, b)
    reader.classes.unite(a.units, b.units, name, what)
    if a.phase != b.phase:
        reader.classes.drop(a.units, Kind.EVEN, Kind.FLIP)
    if a.phase == "post":
        reader.classes.drop(a.units, Kind.FLIP)  # the constants would add up
    return Value(a.units, layout, a.phase, (*a.layers, *b.layers))


def _common_layout(name: str, what: object, a: Value, b: Value) -> str:
    layouts = {a.layout, b.layout} - {"any"}
    if len(layouts) > 1:
        raise unsupported(name, what, "it joins values whose units lie in different dimensions")
    return layouts.pop() if layouts else "any"


def consume(reader: Reader, value: Value, shift: bool) -> None:
    """A layer reads a value; ``shift`` is whether its bias can absorb a constant."""
    if value.phase == "pre":
        reader.classes.drop(value.units, Kind.EVEN, Kind.FLIP)
    elif not shift:
        reader.classes.drop(value.units, Kind.FLIP)


def channelwise(reader: Reader, name: str, what: object, value: Value, count: int) -> None:
    """Checks an operation that has one weight or shift for each unit."""
    size = reader.classes.size(value.units)
    if value.layout == "flat" or size not in (None, count):
        raise unsupported(name, what, f"it has {count} entries for a value with {size} units")
    if value.phase == "post":
        reader.classes.drop(value.units, Kind.EVEN, Kind.FLIP)


def affine(
    reader: Reader,
    name: str,
    what: object,
    value: Value,
    tensors: tuple[Tensor, Tensor | None],
    kind: str = "linear",
    padded: bool = False,
) -> Value:
    """A linear layer or convolution without groups: weight [out, in, ...], bias [out] or None."""
    weight, bias = (reader.tensor_name(name, what, tensor) for tensor in tensors)
    rows, columns = tensors[0].shape[:2]
    size = reader.classes.size(value.units)
    wanted = ("channel",) if kind == "conv" else ("last", "flat")
    if value.layout not in (*wanted, "any"):
        raise unsupported(
            name, what, f"its input has its units in the layout {value.layout!r}, and it mixes "
            f"another dimension ({' or '.join(wanted)} is wanted)"
        )  # fmt: skip
    repeat = 1 if size is None else columns // size
    fits = size is None or (columns == size * repeat and (value.layout != "last" or repeat == 1))
    if not fits and not reader.classes.fixed[reader.classes.root(value.units)]:
        raise unsupported(name, what, f"it reads {columns} numbers from {size} units")
    consume(reader, value, shift=bias is not None and not padded)
    written = reader.classes.new(name, rows)
    if fits:
        reader.axis(weight, 1, value.units, "in", repeat)
    reader.axis(weight, 0, written, "out")
    reader.axis(bias, 0, written, "out")
    layer = Layer(name, kind, weight, bias, None, None)
    index = reader.layer(layer, value.units, written)
    return Value(written, "channel" if kind == "conv" else "last", layers=(index,))


def linear(reader: Reader, name: str, module: nn.Linear, value: Value) -> Value:
    return affine(reader, name, module, value, (module.weight, module.bias))


def convolution(
    reader: Reader, name: str, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, value: Value
) -> Value:
    if module.groups == 1:
        tensors = (module.weight, module.bias)
        return affine(reader, name, module, value, tensors, "conv", pads_with_zeros(module))
    if not module.groups == module.in_channels == module.out_channels:
        raise unsupported(
            name, module, f"groups={module.groups} of several channels each; only groups=1 and "
            "one channel per group are supported"
        )  # fmt: skip
    return _depthwise(reader, name, module, value)


def _depthwise(
    reader: Reader, name: str, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, value: Value
) -> Value:
    # Inputs and outputs are permuted together and share one factor. That is a subgroup: with an
    # activation in between, each side could have a factor of its own.
    channelwise(reader, name, module, value, module.out_channels)
    weight = reader.tensor_name(name, module, module.weight)
    bias = reader.tensor_name(name, module, module.bias)
    reader.axis(weight, 0, value.units, "fixed")
    reader.axis(bias, 0, value.units, "out")
    layer = Layer(name, "depthwise", weight, bias, None, None)
    reader.layer(layer, value.units, value.units)
    return Value(value.units, "channel", value.phase)


def batch_norm(reader: Reader, name: str, module: nn.BatchNorm1d, value: Value) -> Value:
    """gain * (x - mean) / sqrt(var + eps) + bias for each unit.

    An input f x gives f times the output if mean and bias are multiplied by f.
    """
    if module.training or module.running_mean is None:
        raise unsupported(
            name, module, "its statistics come from the batch; call .eval() on the network first "
            "(and keep track_running_stats=True)"
        )  # fmt: skip
    channelwise(reader, name, module, value, module.num_features)
    tensors = (module.weight, module.running_var, module.bias, module.running_mean)
    weight, var, bias, mean = (reader.tensor_name(name, module, tensor) for tensor in tensors)
    for tensor, side in ((weight, "fixed"), (var, "fixed"), (bias, "out"), (mean, "out")):
        reader.axis(tensor, 0, value.units, side)
    reader.layer(Layer(name, "norm", weight, bias, None, None), value.units, value.units)
    return value


def layer_norm(reader: Reader, name: str, module: nn.LayerNorm, value: Value) -> Value:
    """Mean and variance over the units: only permutations remain."""
    size = reader.classes.size(value.units)
    if value.layout == "channel" or (size and tuple(module.normalized_shape) != (size,)):
        raise unsupported(name, module, "it must normalise over the units alone (last dimension)")
    reader.classes.drop(value.units, Kind.SCALE, Kind.SIGN, Kind.FLIP, Kind.EVEN)
    return _gain_and_bias(reader, name, module, value)


def group_norm(reader: Reader, name: str, module: nn.GroupNorm, value: Value) -> Value:
    """One group: only permutations remain. A group for each unit: also signs (not scales: eps)."""
    if module.num_groups not in (1, module.num_channels):
        raise unsupported(
            name, module, f"{module.num_groups} groups of several channels bind units together; "
            "only one group, or one per channel, is supported"
        )  # fmt: skip
    channelwise(reader, name, module, value, module.num_channels)
    signs = (Kind.SIGN,) if module.num_groups == 1 else ()
    reader.classes.drop(value.units, Kind.SCALE, Kind.FLIP, Kind.EVEN, *signs)
    return _gain_and_bias(reader, name, module, value)


def _gain_and_bias(
    reader: Reader, name: str, module: nn.LayerNorm | nn.GroupNorm, value: Value
) -> Value:
    weight = reader.tensor_name(name, module, module.weight)
    bias = reader.tensor_name(name, module, module.bias)
    reader.axis(weight, 0, value.units, "fixed")
    reader.axis(bias, 0, value.units, "out")
    reader.layer(Layer(name, "norm", weight, bias, None, None), value.units, value.units)
    return value


def prelu(reader: Reader, name: str, module: nn.PReLU, value: Value) -> Value:
    """One slope, or one for each unit; positive scales remain in either case."""
    if module.num_parameters > 1:
        weight = reader.tensor_name(name, module, module.weight)
        channelwise(reader, name, module, value, module.num_parameters)
        reader.axis(weight, 0, value.units, "fixed")
        reader.layer(Layer(name, "prelu", weight, None, None, None), value.units, value.units)
    return reader.activate(value, classify(module))


def embedding(reader: Reader, name: str, module: nn.Embedding, value: Value) -> Value:
    if module.max_norm is not None:
        raise unsupported(name, module, "max_norm changes its weights while it runs")
    written = reader.classes.new(name, module.embedding_dim)
    weight = reader.tensor_name(name, module, module.weight)
    reader.axis(weight, 1, written, "out")
    reader.classes.fix(value.units)
    index = reader.layer(Layer(name, "embedding", weight, None, None, None), None, written)
    return Value(written, "last", layers=(index,))


def attention(reader: Reader, name: str, module: nn.MultiheadAttention, value: Value) -> Value:
    """Self-attention; the units of its input and output are separate spaces."""
    if module.bias_k is not None or module.in_proj_weight is None:
        raise unsupported(name, module, "add_bias_kv, kdim and vdim are not supported")
    if value.layout not in ("last", "any"):
        raise unsupported(name, module, f"its input has the layout {value.layout!r}, not 'last'")
    out = module.out_proj
    tensors = (module.in_proj_weight, module.in_proj_bias, out.weight, out.bias)
    in_weight, in_bias, out_weight, out_bias = (
        reader.tensor_name(name, module, tensor) for tensor in tensors
    )
    consume(reader, value, shift=False)
    written = reader.classes.new(name, module.embed_dim)
    reader.axis(in_weight, 1, value.units, "in")
    reader.axis(out_weight, 0, written, "out")
    reader.axis(out_bias, 0, written, "out")
    reader.attentions.append(
        Attention.fused(
            name, module.num_heads, module.head_dim, str(in_weight), in_bias, str(out_weight),
            out_bias,
        )
    )  # fmt: skip
    layer = Layer(name, "attention", out_weight, out_bias, None, None)
    return Value(written, "last", layers=(reader.layer(layer, value.units, written),))


def encoder_layer(
    reader: Reader, name: str, module: nn.TransformerEncoderLayer, value: Value
) -> Value:
    """nn.TransformerEncoderLayer: attention and a feed-forward network in residual blocks."""

    def self_attention(x: Value) -> Value:
        return attention(reader, join(name, "self_attn"), module.self_attn, x)

    def feed_forward(x: Value) -> Value:
        hidden = linear(reader, join(name, "linear1"), module.linear1, x)
        hidden = reader.activate(hidden, classify(module.activation))
        return linear(reader, join(name, "linear2"), module.linear2, hidden)

    for block, norm_name in ((self_attention, "norm1"), (feed_forward, "norm2")):
        norm = getattr(module, norm_name)
        if module.norm_first:
            normed = layer_norm(reader, join(name, norm_name), norm, value)
            value = add(reader, name, module, value, block(normed))
        else:
            value = add(reader, name, module, value, block(value))
            value = layer_norm(reader, join(name, norm_name), norm, value)
    return value


def encoder(reader: Reader, name: str, module: nn.TransformerEncoder, value: Value) -> Value:
    for index, layer in enumerate(module.layers):
        if not isinstance(layer, nn.TransformerEncoderLayer):
            raise unsupported(
                join(name, f"layers.{index}"), layer, "it is not an nn.TransformerEncoderLayer"
            )
        value = encoder_layer(reader, join(name, f"layers.{index}"), layer, value)
    if isinstance(module.norm, nn.LayerNorm):
        value = layer_norm(reader, join(name, "norm"), module.norm, value)
    return value


LAYERS: dict[type[nn.Module], Callable[..., Value]] = {
    nn.Linear: linear,
    **dict.fromkeys(CONVOLUTIONS, convolution),
    **dict.fromkeys(BATCH_NORMS, batch_norm),
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
    nn.PReLU: prelu,
    nn.Embedding: embedding,
    nn.MultiheadAttention: attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
}
"""Layers with weights, by class; subclasses count when they keep the forward of the class."""
