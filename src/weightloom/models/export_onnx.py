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

__all__ = ["write_onnx"]

# Protocol buffers, and so single ONNX files, end at 2 GiB; some room is left for the graph.
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
    with _evaluating(network), torch.no_grad():
        output = network(*inputs)  # what is wrong with the inputs is said here, and plainly
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
            f"{type(network).__name__} holds {size / 2**30:.1f} GiB of weights, and one ONNX file "
            f"ends at 2 GiB; export to .safetensors, or a materialized network of one condition"
        )


def _convert(network: nn.Module, inputs: tuple[Any, ...], names: list[str] | None) -> Any:
    """An ONNX program whose sizes are free or, where that cannot be had, those of the example."""
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
    """The ONNX program, or None if it is clear before the slow part that sizes cannot be free."""
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
    """A convolution with one group per condition: ONNX wants the number of groups written down."""
    return any(
        isinstance(argument, torch.fx.Node) and "sym_" in str(argument.target)
        for node in program.graph.nodes
        if "conv" in str(node.target)
        for argument in node.args
    )


def _state_sizes(program: Any) -> None:
    """Sizes that turned out to be fixed come back as names ("6"); as numbers they are checked."""
    graph = program.model.graph
    for value in (*graph.inputs, *graph.outputs):
        for i, size in enumerate(value.shape or ()):
            if str(getattr(size, "value", None)).isdigit():
                value.shape[i] = int(size.value)


def _summary(error: Exception) -> str:
    """The line of a long report that says what happened."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = str(root).strip().splitlines()
    return f"{type(root).__name__}: {lines[0][:300].rstrip('.')}" if lines else type(root).__name__


# -- leaving no trace ----------------------------------------------------------------------------


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module back in its own mode afterwards."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No reports on what the exporter lacks that has nothing to do with this network."""
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
    """Leave as many vmap levels as were found.

    Seen in PyTorch 2.13: a conversion that fails inside a traced vmap leaves its level behind, and
    from then on random in-place operations anywhere in the process raise.
    """
    before = _vmap_levels()
    try:
        yield
    finally:
        for _ in range(_vmap_levels() - before):
            torch._C._functorch._vmap_decrement_nesting()


def _vmap_levels() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or [])
