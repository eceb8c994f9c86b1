"""Writing ONNX: the only place that needs the packages onnx and onnxscript."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weightloom.errors import MissingDependencyError, ShapeError, UnsupportedModuleError
from weightloom.hyper.rows.functional import modes_restored

__all__ = ["write_onnx"]

# Protocol buffers, and so single ONNX files, are limited to 2 GiB, graph included.
_LARGEST = 2**31 - 2**24
_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


def write_onnx(network: nn.Module, path: Path, inputs: tuple[Any, ...], version: str) -> None:
    """Write what ``network(*inputs)`` computes in evaluation mode as one ONNX file."""
    if not any(isinstance(value, Tensor) for value in inputs):
        raise ShapeError(
            'ONNX records a computation, so export needs example inputs: export(network, "n.onnx", '
            'x), or export(hyper, "h.onnx", x, condition)'
        )
    _require_packages()
    _require_small(network)
    with modes_restored(network), torch.no_grad():
        network.eval()
        output = network(*inputs)  # wrong inputs raise a readable error here
        names = ["output"] if isinstance(output, Tensor) else None
        program = _convert(network, inputs, names)
    _state_sizes(program)
    program.model.metadata_props["weightloom_version"] = version
    program.save(str(path), external_data=False)


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"writing ONNX needs the package {error.name or 'onnx'!r}, which is not installed; run "
            f"pip install 'weightloom[onnx]'"
        ) from error


def _require_small(network: nn.Module) -> None:
    size = sum(value.nbytes for value in (*network.parameters(), *network.buffers()))
    if size > _LARGEST:
        raise UnsupportedModuleError(
            f"{type(network).__name__} has {size / 2**30:.1f} GiB of weights, but one ONNX file "
            f"holds at most 2 GiB; export to .safetensors, or export a materialized network"
        )


def _convert(network: nn.Module, inputs: tuple[Any, ...], names: list[str] | None) -> Any:
    """An ONNX program with dynamic sizes if possible, else with the sizes of the example."""
    with contextlib.suppress(Exception):  # torch.export and torch.onnx raise all kinds
        program = _attempt(network, inputs, names, free=True)
        if program is not None:
            return program
    try:
        return _attempt(network, inputs, names, free=False)
    except Exception as error:
        raise UnsupportedModuleError(
            f"{type(network).__name__} cannot be written as ONNX: {_summary(error)}. If part of a "
            f"hypernetwork is at fault (recurrent layers, code that looks at values), "
            f"export(hyper.materialize(condition), ...) writes the network of one condition"
        ) from error


def _attempt(
    network: nn.Module, inputs: tuple[Any, ...], names: list[str] | None, free: bool
) -> Any | None:
    """The ONNX program; None if it is clear before the slow part that sizes cannot be dynamic."""
    with _quiet(), _balanced_vmap():
        program = _trace(network, inputs, free)
        if free and _has_symbolic_groups(program):
            return None
        return torch.onnx.export(program, dynamo=True, verbose=False, output_names=names)


def _trace(network: nn.Module, inputs: tuple[Any, ...], free: bool) -> Any:
    sizes = None
    if free:  # by name, because *args of a signature is one entry there, a tuple
        arguments = inspect.signature(network.forward).bind(*inputs).arguments
        sizes = {name: tree_map(_any_size, value) for name, value in arguments.items()}
    return torch.export.export(network, inputs, dynamic_shapes=sizes, strict=False)


def _any_size(value: Any) -> dict[int, Any] | None:
    if not isinstance(value, Tensor):
        return None
    return {i: torch.export.Dim.AUTO for i, size in enumerate(value.shape) if size > 1}


def _has_symbolic_groups(program: Any) -> bool:
    """Whether a convolution has one group per condition: ONNX needs a fixed number of groups."""
    return any(
        isinstance(argument, torch.fx.Node) and "sym_" in str(argument.target)
        for node in program.graph.nodes
        if "conv" in str(node.target)
        for argument in node.args
    )


def _state_sizes(program: Any) -> None:
    """Turn sizes that are fixed from names ("6") into numbers, which runtimes check."""
    graph = program.model.graph
    for value in (*graph.inputs, *graph.outputs):
        for i, size in enumerate(value.shape or ()):
            if str(getattr(size, "value", None)).isdigit():
                value.shape[i] = int(size.value)


def _summary(error: Exception) -> str:
    """The first line of the error at the root of the chain."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = str(root).strip().splitlines()
    return f"{type(root).__name__}: {lines[0][:300].rstrip('.')}" if lines else type(root).__name__


# -- restoring the state -------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's own warnings, which are not about this network."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _balanced_vmap() -> Iterator[None]:
    """Restore the number of vmap levels.

    Seen in PyTorch 2.13: a conversion that fails inside a traced vmap leaves its level behind.
    After that, random in-place operations anywhere in the process raise.
    """
    before = _vmap_levels()
    try:
        yield
    finally:
        for _ in range(_vmap_levels() - before):
            torch._C._functorch._vmap_decrement_nesting()


def _vmap_levels() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or [])
