"""Which structure is chosen, and the sentence that says why."""

import pytest
import torch

from tests.kernels.regression.test_points import grid, points
from weightloom.errors import KernelError, MemoryLimitError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import Options
from weightloom.kernels.regression import choice as choosing
from weightloom.kernels.regression.choice import choose, system_class
from weightloom.kernels.regression.points import PointSystem

KERNEL = HyperKernel(Tower(2), Tower(2), features=FourierFeatures(1.0))


def stand_in(why_not=None, needed=1):
    class StandIn:
        @staticmethod
        def fits(kernel, problem):
            return why_not

        @staticmethod
        def bytes(kernel, problem):
            return needed

    return StandIn


@pytest.fixture
def structures(monkeypatch):
    """Large grids everywhere, and structures that answer what a test wants them to."""
    known = {"torus": stand_in(), "kronecker": stand_in(), "points": PointSystem}
    monkeypatch.setattr(choosing, "SMALL_GRID", 3)
    monkeypatch.setattr(choosing, "system_class", known.__getitem__)
    return known


def test_points_are_points():
    for solver in ("auto", "cholesky", "lu", "cg"):
        assert choose(KERNEL, points(), Options(solver))[0] is PointSystem


def test_small_grids_are_points_too():
    system, reason = choose(KERNEL, grid(masked=False), Options())
    assert system is PointSystem
    assert reason == "a grid of 30 equations is small: taken as points"


@pytest.mark.parametrize("solver", ["cholesky", "lu", "cg"])
@pytest.mark.usefixtures("structures")
def test_a_dense_solver_that_was_asked_for(solver):
    system, reason = choose(KERNEL, grid(masked=False), Options(solver))
    assert system is PointSystem
    assert f"{solver} was asked for" in reason


def test_the_first_structure_that_fits(structures):
    problem = grid(masked=False)
    assert choose(KERNEL, problem, Options())[0] is structures["torus"]
    structures["torus"] = stand_in("there is no period")
    system, reason = choose(KERNEL, problem, Options())
    assert system is structures["kronecker"]
    assert "Kronecker" in reason
    assert "not torus: there is no period" in reason
    structures["kronecker"] = stand_in("it is too odd")
    system, reason = choose(KERNEL, problem, Options())
    assert system is PointSystem
    assert "not kronecker: it is too odd" in reason


def test_memory_decides(structures):
    problem = grid(masked=False)
    structures["torus"] = stand_in(needed=2_000_000)
    system, reason = choose(KERNEL, problem, Options(memory=1_000_000))
    assert system is structures["kronecker"]
    assert "not torus: it needs 2 MB and there are 1 MB" in reason
    with pytest.raises(MemoryLimitError, match=r"solver='torus' for 30 equations needs 2 MB"):
        choose(KERNEL, problem, Options("torus", memory=1_000_000))


def test_what_was_asked_for_or_an_error(structures):
    problem = grid(masked=False)
    for name in ("torus", "kronecker"):
        system, reason = choose(KERNEL, problem, Options(name))
        assert (system, reason) == (structures[name], f"{name} was asked for")
        with pytest.raises(KernelError, match=rf"solver='{name}' is for grids"):
            choose(KERNEL, points(), Options(name))
    structures["torus"] = stand_in("there is no period")
    with pytest.raises(KernelError, match=r"cannot be used: there is no period; use solver='auto'"):
        choose(KERNEL, problem, Options("torus"))


def test_names():
    for name in ("points", "torus", "kronecker"):
        assert system_class(name).name == name
    with pytest.raises(KernelError, match=r"there is no system 'moon'"):
        system_class("moon")


def test_a_torus_is_recognised():
    """The real structures, on a grid that is large enough not to be taken as points."""
    images = torch.randn(130, 3)
    line = torch.arange(4) / 4
    coordinates = torch.cartesian_prod(line, line)
    problem = type(grid(False))(images, coordinates, torch.randn(130, 16, 1))
    periodic = HyperKernel(Tower(2), Tower(2), features=FourierFeatures(1.0, period=1.0))
    assert choose(periodic, problem, Options())[0].name == "torus"
    system, reason = choose(KERNEL, problem, Options())
    assert system.name == "kronecker"
    assert "not torus" in reason
