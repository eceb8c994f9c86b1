"""Choose the structure that solves a problem, and give the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightloom.errors import KernelError
from weightloom.kernels.regression.points import PointSystem
from weightloom.kernels.regression.problem import GridProblem, Problem
from weightloom.kernels.regression.system import Options, System
from weightloom.linalg.memory import available, check, readable

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import HyperKernel

__all__ = ["SMALL_GRID", "choose", "system_class"]

#: Grids with fewer equations are solved as points: a factor takes a fraction of a second.
SMALL_GRID = 2_000

#: The structures of a grid, and why each is used.
_MEANING = {
    "torus": "a full grid of coordinates on a torus splits into one small system per frequency",
    "kronecker": "on a grid the kernel is a short sum of Kronecker products",
}


def system_class(name: str) -> type[System[Any]]:
    """The system called ``name``: "points", "torus" or "kronecker"."""
    if name == "torus":
        from weightloom.kernels.regression.torus import TorusSystem

        return TorusSystem
    if name == "kronecker":
        from weightloom.kernels.regression.grid import GridSystem

        return GridSystem
    if name == "points":
        return PointSystem
    raise KernelError(f"there is no system {name!r}; wanted points, torus or kronecker")


def choose(
    kernel: HyperKernel, problem: Problem, options: Options
) -> tuple[type[System[Any]], str]:
    """(system, reason); raises if the requested solver cannot be used."""
    if options.solver in _MEANING:
        return _asked(kernel, problem, options)
    if not isinstance(problem, GridProblem):
        return PointSystem, "points have no structure between them"
    if options.solver != "auto":
        return PointSystem, f"{options.solver} was asked for, which takes the grid as points"
    if problem.size <= SMALL_GRID:
        return PointSystem, f"a grid of {problem.size:,} equations is small: taken as points"
    return _structured(kernel, problem, options)


def _asked(
    kernel: HyperKernel, problem: Problem, options: Options
) -> tuple[type[System[Any]], str]:
    name = options.solver
    if not isinstance(problem, GridProblem):
        raise KernelError(
            f"solver={name!r} is for grids, and these are points; fit((images, coordinates), "
            "values) with values [n, P], or solver='auto'"
        )
    system = system_class(name)
    why_not = system.fits(kernel, problem)
    if why_not is not None:
        raise KernelError(f"solver={name!r} cannot be used: {why_not}; use solver='auto'")
    check(
        system.bytes(kernel, problem),
        f"solver={name!r} for {problem.size:,} equations",
        "use fewer images or coordinates, or dtype=torch.float32",
        options.memory,
    )
    return system, f"{name} was asked for"


def _structured(
    kernel: HyperKernel, problem: GridProblem, options: Options
) -> tuple[type[System[Any]], str]:
    room = available() if options.memory is None else options.memory
    against: list[str] = []
    for name, meaning in _MEANING.items():
        system = system_class(name)
        why_not = system.fits(kernel, problem)
        if why_not is None:
            needed = system.bytes(kernel, problem)
            if needed <= room:
                return system, "; ".join([meaning, *against])
            why_not = f"it needs {readable(needed)} and there are {readable(room)}"
        against.append(f"not {name}: {why_not}")
    return PointSystem, "; ".join(["no structure of the grid can be used", *against])
