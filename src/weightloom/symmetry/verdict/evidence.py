"""The two kinds of evidence: a group element between the weights, and outputs on probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.verdict.inputs import make_probes
from weightloom.symmetry.verdict.outputs import OutputDifference, compare_outputs, measure
from weightloom.symmetry.verdict.running import LARGE, Arguments, RunError, Runner

__all__ = ["Outputs", "listed", "run_both", "search_difference"]

_ROWS, _ROWS_LARGE, _ROWS_SEARCH = 64, 8, 4096
_HUGE = 1 << 24  # parameters above which float32 is tried first
_CLEAR = 100.0  # ratio of difference to noise that rounding in float32 does not reach
_UNIT_FLOAT32 = 2.0**-24


@dataclass(frozen=True)
class Outputs:
    """What running both networks showed; ``missing`` says why there is nothing to compare."""

    gap: OutputDifference | None
    missing: str | None = None
    domains: str | None = None
    """the networks take inputs of different shapes"""

    example: Arguments | None = None
    """what the first network takes"""

    @property
    def agree(self) -> bool:
        return self.gap is not None and not self.gap.beyond_rounding

    @property
    def differ(self) -> bool:
        return self.gap is not None and self.gap.beyond_rounding


def run_both(
    a: nn.Module,
    b: nn.Module,
    unit: float,
    tolerance: float | None,
    probes: int | None,
    inputs: Any = None,
) -> Outputs:
    """Compares outputs on ``inputs``, or on about ``probes`` inputs that are made."""
    size = max(sum(p.numel() for p in module.parameters()) for module in (a, b))
    rows = (_ROWS if size <= LARGE else _ROWS_LARGE) if probes is None else probes
    if rows <= 0 and inputs is None:
        return Outputs(None, "outputs of both networks on some inputs (probes=0 was given)")
    given = None if inputs is None else listed(inputs)
    if size > _HUGE and unit >= _UNIT_FLOAT32:
        # Half the time and memory. Its own rounding can look like a small difference.
        result = _in_dtype(a, b, unit, tolerance, rows, given, torch.float32)
        if result.gap is not None and not 1 < result.gap.ratio < _CLEAR:
            return result
    result = _in_dtype(a, b, unit, tolerance, rows, given, torch.float64)
    if result.gap is None and result.domains is None:
        # Code with a dtype of its own does not run in float64.
        result = _in_dtype(a, b, unit, tolerance, rows, given, None)
    return result


def search_difference(
    a: nn.Module, b: nn.Module, unit: float, tolerance: float | None
) -> Outputs | None:
    """Many more inputs, for networks whose weights do not agree and whose outputs do.

    Units that are active on few inputs hide what is different. None for large networks.
    """
    if not (_is_small(a) and _is_small(b)):
        return None
    return run_both(a, b, unit, tolerance, _ROWS_SEARCH)


def _is_small(module: nn.Module) -> bool:
    return sum(p.numel() for p in module.parameters()) <= LARGE


def listed(inputs: Any) -> list[Arguments]:
    """One call for each entry of a list; a tensor, a tuple or a mapping is one call."""
    return [Arguments.of(each) for each in (inputs if isinstance(inputs, list) else [inputs])]


def _in_dtype(
    a: nn.Module,
    b: nn.Module,
    unit: float,
    tolerance: float | None,
    rows: int,
    given: list[Arguments] | None,
    dtype: torch.dtype | None,
) -> Outputs:
    probes: list[Arguments] = []
    try:
        runner = Runner(a, dtype)
        probes = make_probes(a, rows, runner) if given is None else given
        first = measure(runner, probes, unit, tolerance)
        del runner  # one copy at a time is in memory
    except UnsupportedModuleError as error:
        return Outputs(None, str(error))
    except RunError as error:
        return Outputs(None, f"inputs that the first network accepts ({error})")
    try:
        runner = Runner(b, dtype)
        second = measure(runner, probes, unit, tolerance)
    except UnsupportedModuleError as error:
        return Outputs(None, str(error))
    except RunError as error:
        return _refused(a, b, rows, given, dtype, probes[0], str(error))
    return Outputs(compare_outputs(first, second, probes), example=probes[0])


def _refused(
    a: nn.Module,
    b: nn.Module,
    rows: int,
    given: list[Arguments] | None,
    dtype: torch.dtype | None,
    probe: Arguments,
    error: str,
) -> Outputs:
    """b does not take what a takes: another function only if b takes something that a does not."""
    missing = f"inputs that both networks accept; the second one refuses some ({error})"
    if given is not None:
        return Outputs(None, missing)
    try:
        own = make_probes(b, rows, Runner(b, dtype))
    except UnsupportedModuleError:
        return Outputs(None, missing)
    try:
        Runner(a, dtype).run(own[0])
    except RunError:
        shapes = [_shapes(arguments) for arguments in (probe, own[0])]
        return Outputs(
            None,
            missing,
            f"they take other inputs: the first {shapes[0]} and not {shapes[1]}, the second "
            "the other way round",
        )
    return Outputs(None, missing)


def _shapes(arguments: Arguments) -> str:
    values = [*arguments.args, *arguments.kwargs.values()]
    return ", ".join(str(list(value.shape)) for value in values if isinstance(value, Tensor))
