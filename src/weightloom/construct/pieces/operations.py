"""Operations of an exported graph as steps of a program.

A value keeps the batch dimension of one that the graph was made with: rows of a program stand
before it, and operations are mapped over them. What depends on weights alone is computed here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weightloom.construct.pieces.bending import pieces_of, windows_of
from weightloom.construct.pieces.maxima import Builder
from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom.networks.graph import Graph, Node, NodeKind, substitute

__all__ = ["add_operations"]

# Linear in all values together; constants among the values are added.
_REARRANGING = {
    "reshape", "permute", "slice", "select", "expand", "flip", "roll", "index_select", "index",
    "repeat", "tile", "diagonal", "tril", "triu", "pixel_shuffle", "pixel_unshuffle",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "channel_shuffle", "narrow",
    "unfold", "im2col", "squeeze", "unsqueeze", "view", "transpose", "t",
}  # fmt: skip
_SUMMING = {
    "mean", "sum", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d",
}  # fmt: skip
_ARITHMETIC = {"add", "sub", "rsub", "mul", "div"}
_SUMS = {"add", "sub", "rsub"}
_JOINING = {"cat", "stack", "hstack", "vstack"}
# Linear in one value if everything else is constant: the place of an added constant, if any.
_PRODUCTS = {
    "linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "conv_transpose1d": 2,
    "conv_transpose2d": 2, "conv_transpose3d": 2, "convolution": 2, "addmm": 0, "baddbmm": 0,
    "matmul": None, "mm": None, "bmm": None, "mv": None, "mul": None, "div": None, "neg": None,
}  # fmt: skip
_FILLED = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
_PADS = {"pad", "constant_pad_nd"}


def add_operations(builder: Builder, graph: Graph, value: int) -> int:
    """Adds the operations of a graph that was made with one input; returns the output's number."""
    return _Operations(builder, graph, value).output()


class _Operations:
    """Goes through a graph: a node becomes the number of a value, or a constant."""

    def __init__(self, builder: Builder, graph: Graph, value: int) -> None:
        self.builder, self.graph, self.input = builder, graph, value
        self.known: dict[Node, Any] = {}
        self.begun = False  # whether the input has been seen

    def output(self) -> int:
        for node in self.graph.nodes:
            if node.kind is NodeKind.OUTPUT:
                return self._returned(node)
            self.known[node] = self._visit(node)
        raise UnsupportedModuleError("the graph of the network has no output")

    def _returned(self, node: Node) -> int:
        outputs = [part for part in node.args[0] if part is not None]
        if len(outputs) != 1 or not isinstance(outputs[0], Node):
            raise UnsupportedModuleError(
                f"the network returns {len(outputs)} values; affine pieces are known for networks "
                f"that return one tensor"
            )
        value = self.known[outputs[0]]
        if isinstance(value, Tensor):  # it does not depend on the input
            value = self._value_of("output", value, value.shape)
        return int(value)

    def _visit(self, node: Node) -> Any:
        if node.kind is NodeKind.INPUT:
            if self.begun:
                raise UnsupportedModuleError(
                    f"the network has a second input, {node.target!r}; one input is wanted"
                )
            self.begun = True
            return _Number(self.input)
        if node.kind is NodeKind.ATTRIBUTE:
            return _finite(f"{node.target!r}", self.graph.attribute(node))
        if node.kind is NodeKind.CONSTANT:
            return _finite(f"a constant ({node.name})", node.target)
        if not any(_is_value(self.known[source]) for source in node.inputs):
            args, kwargs = substitute((node.args, node.kwargs), self.known.__getitem__)
            return node.target(*args, **kwargs)
        if _title(node) in _FILLED:  # of the input they use its shape alone
            like = torch.zeros(node.args[0].sizes, dtype=torch.float64)
            return node.target(like, *node.args[1:], **{**node.kwargs, "dtype": torch.float64})
        return _Number(self._operation(node))

    def _operation(self, node: Node) -> int:
        name = _title(node)
        if node.target is operator.getitem:
            if node.args[1] == 0:
                return int(self.known[node.args[0]])
            raise self._refused(node, "which entries are largest is not continuous")
        if name in _REARRANGING | _SUMMING | _JOINING | _SUMS or name == "to":
            return self._joint(node, name)
        if name in _PRODUCTS:
            return self._product(node, name)
        if name == "einsum":
            return self._contraction(node)
        if name in _PADS:
            return self._padded(node)
        if name == "batch_norm":
            return self._normalised(node)
        activation = pieces_of(node, self._known_or_none)
        if activation is not None:
            return self.builder.bend(_where(node), self._first(node), activation)
        maximum = self._maximum(node, name)
        if maximum is not None:
            return maximum
        raise self._refused(node, "it is not known to be affine or affine between kinks")

    # -- affine ----------------------------------------------------------------------------------

    def _joint(self, node: Node, name: str) -> int:
        """Linear in all values together, with constants added."""
        if name == "to" and not (node.dtype and node.dtype.is_floating_point):
            raise self._refused(node, f"it turns numbers into {node.dtype}")
        if name == "to":
            return self._first(node)  # pieces are those of the weights, whatever the precision
        terms = 2
        if name in _SUMMING and name != "cumsum":
            (source,) = node.inputs
            terms = max(2, math.prod(source.sizes) // max(1, math.prod(node.sizes)))
        if name in ("avg_pool1d", "avg_pool2d", "avg_pool3d"):
            kernel = node.args[1]
            terms = math.prod(kernel if isinstance(kernel, Sequence) else [kernel])
        absolute = {"sub": torch.add, "rsub": _reversed_sum}.get(name, node.target)
        entries = node.args[0] if name in _JOINING else node.args[:2] if name in _SUMS else ()
        added = not all(self._depends(entry) for entry in entries)
        return self._affine(node, absolute, terms, lambda place: added, added)

    def _product(self, node: Node, name: str) -> int:
        values = [i for i, arg in enumerate(node.args) if self._depends(arg)]
        added = _PRODUCTS[name]
        if name == "div" and (values != [0] or node.kwargs.get("rounding_mode")):
            raise self._refused(node, "it divides by a value that depends on the input, or rounds")
        if len([place for place in values if place != added]) != 1 or values == [added]:
            raise self._refused(node, "it multiplies values that both depend on the input")
        if added in values:
            raise self._refused(node, "its bias depends on the input")
        has = added is not None and len(node.args) > added and node.args[added] is not None
        absolute = torch.positive if name == "neg" else node.target
        terms = self._terms(node, name, values[0])
        return self._affine(node, absolute, terms, lambda place: place == added, has)

    def _terms(self, node: Node, name: str, value: int) -> int:
        """Number of products summed for one entry."""
        if name in ("mul", "div", "neg"):
            return 1
        if name.startswith("conv"):
            weight = self._constant(node.args[1])
            return (
                weight[0].numel() if "transpose" not in name else weight.numel() // weight.shape[1]
            )
        return int(node.args[value].sizes[-1 if value == 0 or name == "addmm" else -2]) + 1

    def _affine(
        self,
        node: Node,
        absolute: Callable[..., Tensor],
        terms: int,
        is_added: Callable[[int], bool],
        has_constant: bool,
    ) -> int:
        """A step that calls an operation; ``absolute``: the same with positive signs.

        ``is_added``: whether a constant argument at this place is added.
        """
        sources = [source for source in node.inputs if _is_value(self.known[source])]
        inputs = [self.known[source] for source in sources]

        def step(positive: bool, constants: bool) -> Callable[..., Tensor]:
            def change(place: int, constant: Any) -> Any:
                kept = constants or not is_added(place)
                return _changed(constant, positive, kept)

            args = [self._filled(node, place, change) for place in range(len(node.args))]
            signs = {key: abs(v) if positive else v for key, v in _factors(node).items()}
            call = absolute if positive else node.target

            def row(*values: Tensor) -> Tensor:
                given = dict(zip(sources, values, strict=True))
                return call(*substitute(args, given.__getitem__), **{**node.kwargs, **signs})

            return lambda *rows: torch.vmap(row)(*rows)

        size = None
        if has_constant:
            size = step(True, True)(*(self.builder.example(value) for value in inputs))
        return self.builder.affine(
            _where(node), inputs, step(False, True), step(True, False), terms,
            linear=step(False, False) if has_constant else None, size=size,
        )  # fmt: skip

    def _filled(self, node: Node, place: int, change: Callable[[int, Any], Any]) -> Any:
        """An argument with its constants changed; nodes of values stay."""

        def filled(arg: Any) -> Any:
            if isinstance(arg, Node):
                known = self.known[arg]
                return arg if _is_value(known) else change(place, known)
            if isinstance(arg, list | tuple):
                return [filled(entry) for entry in arg] if _has_nodes(arg) else arg
            number = isinstance(arg, int | float) and place < 2
            return change(place, arg) if number and _title(node) in _ARITHMETIC else arg

        return filled(node.args[place])

    def _contraction(self, node: Node) -> int:
        operands = node.args[1]
        if sum(self._depends(operand) for operand in operands) != 1:
            raise self._refused(node, "it multiplies values that both depend on the input")
        sizes = [
            self._constant(operand).numel() for operand in operands if not self._depends(operand)
        ]
        return self._affine(node, node.target, max(sizes, default=1), lambda place: False, False)

    def _padded(self, node: Node) -> int:
        mode = node.args[2] if node.operation == "pad" and len(node.args) > 2 else "constant"
        where = 3 if node.operation == "pad" else 2
        fill = node.args[where] if len(node.args) > where else node.kwargs.get("value")
        if mode != "constant" or fill not in (None, 0, 0.0):
            raise self._refused(node, "only zeros are known as padding")
        return self._affine(node, node.target, 1, lambda place: False, False)

    def _normalised(self, node: Node) -> int:
        x, weight, bias, mean, variance, training, _, eps, *_ = node.args
        if training or mean is None:
            raise self._refused(node, "it uses the statistics of its batch; call network.eval()")
        mean, variance = self._constant(mean), self._constant(variance)
        shape = (1, -1, *[1] * (len(x.sizes) - 2))
        scale = (variance + eps).rsqrt()
        scale = scale if weight is None else scale * self._constant(weight)
        shift = torch.zeros_like(mean) if bias is None else self._constant(bias)
        total = (shift - mean * scale).reshape(shape)
        size = (shift.abs() + (mean * scale).abs()).reshape(shape)
        scale = scale.reshape(shape)
        value = self._first(node)
        like = self.builder.example(value)
        return self.builder.affine(
            _where(node), (value,), lambda x: x * scale + total, lambda x: x * scale.abs(), 3,
            linear=lambda x: x * scale, size=like + size,
        )  # fmt: skip

    # -- bends -----------------------------------------------------------------------------------

    def _maximum(self, node: Node, name: str) -> int | None:
        where = _where(node)
        if name in ("maximum", "minimum", "fmax", "fmin") or (
            name in ("max", "min") and len(node.args) == 2 and isinstance(node.args[1], Node)
        ):
            a, b = (self._as_value(arg, node) for arg in node.args)
            smaller = name in ("minimum", "fmin", "min")
            return (self.builder.minimum if smaller else self.builder.maximum)(where, a, b)
        windows = windows_of(node)
        if windows is None:
            return None
        value = self._first(node)
        result = self.builder.maxima(where, value, windows)
        shape = self._shape_of_part(node)
        return self.builder.affine(where, (result,), lambda x: x.reshape(len(x), *shape))

    def _shape_of_part(self, node: Node) -> tuple[int, ...]:
        """The shape of the values of a maximum, which may come with indices."""
        if node.shape is not None:
            return node.shape
        parts = [u for u in self.graph.users(node) if u.target is operator.getitem]
        return parts[0].sizes

    # -- values and constants --------------------------------------------------------------------

    def _depends(self, arg: Any) -> bool:
        return isinstance(arg, Node) and _is_value(self.known[arg])

    def _known_or_none(self, arg: Any) -> Any:
        """A constant argument; None for one that depends on the input."""
        known = self.known[arg] if isinstance(arg, Node) else arg
        return None if _is_value(known) else known

    def _first(self, node: Node) -> int:
        return int(self.known[node.args[0]])

    def _constant(self, arg: Any) -> Tensor:
        known = self.known[arg]
        if not isinstance(known, Tensor):
            raise UnsupportedModuleError(f"{arg.name} depends on the input; a weight is wanted")
        return known

    def _as_value(self, arg: Any, node: Node) -> int:
        """An operand of a maximum: a constant becomes a value of the output's shape."""
        shape = torch.Size(node.sizes)
        if self._depends(arg):
            value = self.known[arg]
            return self.builder.affine(_where(node), (value,), lambda x: _expanded(x, shape))
        known = self._constant(arg)
        return self._value_of(_where(node), known, shape)

    def _value_of(self, name: str, constant: Tensor, shape: torch.Size) -> int:
        full = constant.expand(shape)[None]
        return self.builder.affine(
            name, (self.input,), lambda x: full.expand(len(x), *shape),
            linear=lambda x: full.new_zeros(len(x), *shape),
            absolute=lambda x: full.new_zeros(len(x), *shape), size=full.abs(),
        )  # fmt: skip

    def _refused(self, node: Node, why: str) -> UnsupportedModuleError:
        return UnsupportedModuleError(
            f"{_where(node)}: {why}; affine pieces are known for operations that are affine "
            f"(linear layers, convolutions, sums, means, rearrangements, batch norm in eval mode), "
            f"for activations that are affine between kinks, and for maxima"
        )


class _Number(int):
    """The number of a value, which is no constant."""


def _is_value(known: Any) -> bool:
    return isinstance(known, _Number)


def _has_nodes(args: Sequence[Any]) -> bool:
    return any(isinstance(arg, Node) for arg in args)


def _title(node: Node) -> str:
    return node.operation.rstrip("_")


def _where(node: Node) -> str:
    return f"{_title(node) or node.title} in {node.where or 'the network'}"


def _factors(node: Node) -> dict[str, Any]:
    return {key: node.kwargs[key] for key in ("alpha", "beta") if key in node.kwargs}


def _finite(name: str, given: Any) -> Any:
    """A constant in double precision on the CPU; NaN and infinity are refused."""
    if not isinstance(given, Tensor) or not given.is_floating_point():
        return given
    if not bool(torch.isfinite(given).all()):
        raise ConfigError(f"{name} holds NaN or infinity; finite weights are wanted")
    return given.detach().to(device="cpu", dtype=torch.float64)


def _changed(constant: Any, positive: bool, kept: bool) -> Any:
    """A constant, its absolute value, or zero; indices and masks stay."""
    if isinstance(constant, Tensor) and constant.is_floating_point():
        constant = constant if kept else torch.zeros_like(constant)
        return constant.abs() if positive else constant
    if isinstance(constant, int | float) and not isinstance(constant, bool):
        constant = constant if kept else 0.0
        return abs(constant) if positive else constant
    return constant


def _reversed_sum(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    return other + alpha * x


def _expanded(x: Tensor, shape: torch.Size) -> Tensor:
    """[rows, *shape] from [rows, *smaller]."""
    missing = len(shape) + 1 - x.dim()
    return x.reshape(len(x), *[1] * missing, *x.shape[1:]).expand(len(x), *shape)
