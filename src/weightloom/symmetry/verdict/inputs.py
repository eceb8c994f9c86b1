"""Inputs that exercise a network, made from what its layers say about their shape.

Sequences are longer than one (softmax over one position hides queries and keys), batches are larger
than one, several lengths and several sizes of numbers are tried, and masks have both values.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.verdict import pretrained
from weightloom.symmetry.verdict.running import LARGE, Arguments, RunError, Runner

__all__ = ["make_probes"]

#: Factors of standard normal inputs: limits such as those of ReLU6 are far from 1.
_SIZES = (1.0, 8.0, 0.125)
_SIDES = (8, 16, 28, 32, 12, 4, 24, 20, 64, 48, 96, 128, 224, 2, 1, *range(3, 41))
_LENGTHS = (5, 9)
_FIRST = 6  # layers that may be the first to read an input
_TRIALS = 400
_ENTRIES = 1 << 14  # numbers in a batch, unless two rows have more

Shape = tuple[tuple[int, ...], int]
"""without the batch; number of indices (0: the input is a number)"""


def make_probes(a: nn.Module, rows: int, runner: Runner) -> list[Arguments]:
    """Arguments that ``runner`` accepts, about ``rows`` inputs in all; raises if there are none."""
    if pretrained.is_pretrained(a):
        probes = _accepted(pretrained.arguments(a), runner, 2)
    else:
        sizes, shapes = (_SIZES, 3) if runner.size <= LARGE else (_SIZES[:2], 2)
        probes = _accepted(_of_shapes(a, rows, sizes), runner, shapes)
    if probes:
        return probes
    names = ", ".join(parameter.name for parameter in _required(a)) or "*args"
    raise UnsupportedModuleError(
        f"no input was found that {type(a).__name__}.forward({names}) accepts; pass examples as "
        f"inputs=, a tensor, a tuple of arguments or a dict of keyword arguments"
    )


def _accepted(candidates: Iterator[list[Arguments]], runner: Runner, most: int) -> list[Arguments]:
    """The candidates that the network runs on; each comes with variants of the same shape."""
    kept: list[Arguments] = []
    shapes = 0
    for candidate in itertools.islice(candidates, _TRIALS):
        try:
            runner.run(candidate[0])
        except RunError:
            continue
        # All variants of the first shape; the others are there for their shape.
        kept += candidate[:1] if kept else candidate
        shapes += 1
        if shapes == most:
            break
    return kept


def _of_shapes(a: nn.Module, rows: int, sizes: Sequence[float]) -> Iterator[list[Arguments]]:
    """Candidates for modules of torch: one input for each argument without a default."""
    generator = torch.Generator().manual_seed(0)
    numbers = (p.dtype for p in a.parameters() if p.is_floating_point() or p.is_complex())
    dtype = next(numbers, torch.float32)
    each = max(2, rows // 5)  # three sizes of one shape, and two more shapes
    count = max(1, len(_required(a)))
    if isinstance(a, nn.MultiheadAttention):
        count = 1  # query, key and value are the same
    for shapes in _combinations(a, count):
        batch = max(2, min(each, _ENTRIES // max(math.prod(shape) for shape, _ in shapes)))
        probes = [
            Arguments(tuple(_sample(shape, batch, size, dtype, generator) for shape in shapes))
            for size in sizes
        ]
        if all(entries for _, entries in shapes):
            probes = probes[:1]  # indices have no size
        yield [*probes, *_masked(a, probes[0])]


def _combinations(module: nn.Module, count: int) -> Iterator[tuple[Shape, ...]]:
    """Shapes of all inputs: first the same for all, then those of different layers."""
    for layer in _first_layers(module):
        for shape in _shapes(layer):
            yield (shape,) * count
    if not any(True for _ in module.parameters()):
        for plain in ((4,), (5, 4), (3, 8, 8), (4, 8, 8)):
            yield ((plain, 0),) * count
    for layer in _first_layers(module):
        if isinstance(layer, nn.Bilinear) and count == 2:
            yield ((layer.in1_features,), 0), ((layer.in2_features,), 0)
    if count > 1:
        layers = [list(itertools.islice(_shapes(each), 2)) for each in _first_layers(module)]
        for level in range(2):
            shapes = [options[level] for options in layers if len(options) > level]
            yield from itertools.product(shapes, repeat=count)


def _first_layers(module: nn.Module) -> list[nn.Module]:
    own = (m for m in module.modules() if any(True for _ in m.parameters(recurse=False)))
    return list(itertools.islice(own, _FIRST))


def _shapes(layer: nn.Module) -> Iterator[Shape]:
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        yield from (((length,), layer.num_embeddings) for length in _LENGTHS)
    elif isinstance(layer, nn.modules.conv._ConvNd):
        dimensions = len(layer.kernel_size)
        yield from (((layer.in_channels, *(side,) * dimensions), 0) for side in _SIDES)
    else:
        width = _width(layer)
        yield (width,), 0
        yield from (((length, width), 0) for length in _LENGTHS)
        yield from (((width, *(side,) * 2), 0) for side in _SIDES[:8])
        yield (width, 8), 0


def _width(layer: nn.Module) -> int:
    for name in ("in_features", "embed_dim", "input_size", "num_features", "num_channels"):
        value = getattr(layer, name, None)
        if isinstance(value, int):
            return value
    shape = next(layer.parameters(recurse=False)).shape
    return shape[-1] if len(shape) else 1


def _sample(
    shape: Shape, batch: int, size: float, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    inner, entries = shape
    if entries:
        return torch.randint(0, entries, (batch, *inner), generator=generator)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return size * torch.randn(batch, *inner, generator=generator, dtype=wide).to(dtype)


def _masked(module: nn.Module, call: Arguments) -> list[Arguments]:
    """The same input with a mask that hides some positions, for encoders of torch."""
    layer = next(iter(module.modules()))
    if isinstance(layer, nn.TransformerEncoder):
        layer = layer.layers[0]
    if not isinstance(layer, nn.TransformerEncoderLayer) or call.args[0].dim() != 3:
        return []
    x = call.args[0]
    batch, length = x.shape[:2] if layer.self_attn.batch_first else (x.shape[1], x.shape[0])
    hidden = torch.zeros(batch, length, dtype=torch.bool)
    hidden[-1, length // 2 :] = True
    return [Arguments((x,), {"src_key_padding_mask": hidden})]


def _required(module: nn.Module) -> list[inspect.Parameter]:
    """Arguments of forward that have no default."""
    forward: Callable[..., Any] = module.forward
    try:
        parameters: Sequence[inspect.Parameter] = list(
            inspect.signature(forward).parameters.values()
        )
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.default is inspect.Parameter.empty and p.kind in kinds]
