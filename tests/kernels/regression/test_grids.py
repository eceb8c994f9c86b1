"""Regression on grids: the torus, and sums of Kronecker products, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.regression.oracle import Oracle
from tests.kernels.regression.system_contract import SystemContract
from weightloom.errors import ConvergenceError, NotPositiveDefiniteError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import GridProblem, Options, PointProblem
from weightloom.kernels.regression.grid import GridSystem
from weightloom.kernels.regression.torus import TorusSystem, read_lattice

SHAPE, PERIOD = (3, 4), (1.5, 2.0)


def grid(n=5, seed=0, dtype=torch.float64, mask=False):
    """A 3 x 4 lattice with its coordinates shuffled and moved, two channels."""
    random = torch.Generator().manual_seed(seed)
    z = torch.cartesian_prod(*(torch.arange(s) * 0.5 for s in SHAPE))
    z = z[torch.randperm(len(z), generator=random)].to(dtype) + 0.3
    x = torch.randn(n, 4, generator=random, dtype=dtype)
    values = torch.randn(n, len(z), 2, generator=random, dtype=dtype)
    seen = torch.rand(n, len(z), generator=random) < 0.7 if mask else None
    if seen is not None:
        values = values.masked_fill(~seen[..., None], 0)
    return GridProblem(x, z, values, seen)


def features(**options):
    return FourierFeatures(1.3, **options)


class TestTorus(SystemContract):
    tolerance = 1e-8  # predictions off the lattice go through an expansion with error 1e-10

    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(3, sigma_b=0.1), Tower(2), "nngp", features(period=PERIOD))

    @pytest.fixture
    def problem(self):
        return grid()

    @pytest.fixture
    def system_class(self):
        return TorusSystem


class TestTorusTangentKernel(TestTorus):
    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(2), Tower(3), "ntk", features(period=PERIOD))


class TestTorusOfAnyNorm(TestTorus):
    """g is not homogeneous and the images differ in norm: exact on the lattice all the same."""

    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(3), Tower(2, "erf"), "nngp", features(period=PERIOD))


class TestGrid(SystemContract):
    tolerance = 1e-8

    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(3, sigma_b=0.1), Tower(2), "nngp", features())

    @pytest.fixture
    def problem(self):
        return grid()

    @pytest.fixture
    def system_class(self):
        return GridSystem

    def fit(self, system_class, kernel, problem):
        # The expansion's own error, 1e-10 of the largest entry, is what the certificate sees.
        return system_class.fit(kernel, problem, self.ridge, Options(tolerance=1e-11))

    def test_the_error_of_the_expansion_is_reported(self, system, oracle):
        apart = np.abs(system.factor.whole.dense().numpy() - oracle_whole(system)).max()
        largest = np.abs(oracle_whole(system)).max()
        assert apart / largest <= system.separation.error
        assert f"{system.separation.error:.1e}" in system.plan.reason


def oracle_whole(system):
    """The Gram matrix of the whole grid, observed or not."""
    points = system.problem.query.points()
    return system.kernel(points.x, points.z).numpy()


class TestGridTangentKernel(TestGrid):
    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(2), Tower(3), "ntk", features(count=40))


class TestPartialGrid(TestGrid):
    @pytest.fixture
    def problem(self):
        return grid(mask=True)


class TestRepeatedImages(TestGrid):
    @pytest.fixture
    def problem(self):
        base = grid()
        images = base.images[[0, 1, 2, 1, 0]]
        return GridProblem(images, base.coordinates, base.values)


class TestLittleMemory(TestGrid):
    """A preconditioner with no blocks at all: more iterations, the same answers."""

    def fit(self, system_class, kernel, problem):
        return system_class.fit(kernel, problem, self.ridge, Options(tolerance=1e-11, memory=1))

    def test_it_says_so(self, system):
        assert "enough for 0 of the preconditioner's 12 blocks" in system.plan.reason


def test_both_agree_on_a_torus():
    kernel = HyperKernel(Tower(3), Tower(2), "ntk", features(period=PERIOD))
    options = Options(tolerance=1e-10)
    torus, kronecker = (s.fit(kernel, grid(), 1e-3, options) for s in (TorusSystem, GridSystem))
    assert torch.allclose(torus.mean(grid().query), kronecker.mean(grid().query), atol=1e-7)
    # In the Fourier basis the preconditioner is the inverse, up to the expansion's rounding.
    assert kronecker.solution.iterations <= 2


@pytest.mark.parametrize("system_class", [TorusSystem, GridSystem])
def test_single_precision(system_class):
    kernel = HyperKernel(Tower(3), Tower(2), "nngp", features(period=PERIOD))
    problem = grid(dtype=torch.float32)
    system = system_class.fit(kernel, problem, 0.1, Options(tolerance=1e-4))
    assert system.mean(problem.query).dtype == torch.float32
    wanted = Oracle(kernel, problem, 0.1).mean(problem.query)
    np.testing.assert_allclose(system.mean(problem.query).numpy(), wanted, atol=1e-3)


def test_the_certificate_is_taken_with_the_kernel_itself():
    """A solution of another kernel's equations is detected, whatever its own residual is."""
    kernel = HyperKernel(Tower(3), Tower(2), "nngp", features())
    system = GridSystem.fit(kernel, grid(), 1e-2, Options())
    assert system.certificate() < 1e-6
    system.kernel = HyperKernel(Tower(3), Tower(2), "nngp", FourierFeatures(1.31))
    assert system.certificate() > 1e-3


def test_what_does_not_fit():
    flat = HyperKernel(Tower(3), Tower(2), features=features(period=PERIOD))
    points = PointProblem(torch.ones(3, 2), torch.ones(3, 1), torch.ones(3, 1))
    assert "points, not a grid" in TorusSystem.fits(flat, points)
    assert "points, not a grid" in GridSystem.fits(flat, points)
    assert "not observed" in TorusSystem.fits(flat, grid(mask=True))
    open_ = HyperKernel(Tower(3), Tower(2), features=features())
    assert "no period" in TorusSystem.fits(open_, grid())
    wrong = HyperKernel(Tower(3), Tower(2), features=features(period=2.0))
    assert "direction 0 do not divide the period 2" in TorusSystem.fits(wrong, grid())
    erf = HyperKernel(Tower(3), Tower(2, "erf"))
    assert "differ in norm" in GridSystem.fits(erf, grid())


def test_repeated_images_without_a_ridge():
    kernel = HyperKernel(Tower(3), Tower(2), features=features(period=PERIOD))
    problem = grid()
    twice = GridProblem(problem.images[[0, 0]], problem.coordinates, problem.values[:2])
    with pytest.raises(NotPositiveDefiniteError, match="repeated images with a tiny ridge"):
        TorusSystem.fit(kernel, twice, 0.0, Options())
    with pytest.raises((NotPositiveDefiniteError, ConvergenceError)):
        GridSystem.fit(kernel, twice, 0.0, Options())


class TestLattice:
    @given(
        st.lists(st.integers(1, 6), min_size=1, max_size=3),
        st.floats(0.1, 100),
        st.floats(-5, 5),
        st.sampled_from([torch.float64, torch.float32]),
        st.integers(0, 5),
    )
    def test_shuffled_and_moved(self, shape, length, move, dtype, seed):
        period = [length * (1 + k) for k in range(len(shape))]
        steps = [
            torch.arange(s, dtype=torch.float64) * t / s for s, t in zip(shape, period, strict=True)
        ]
        z = torch.cartesian_prod(*steps).view(-1, len(shape)) + move
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
        lattice = read_lattice(z[order].to(dtype), period)
        assert lattice.shape == tuple(shape)
        # Places are counted from the first coordinate: rows that follow it, around the torus.
        values = torch.arange(len(z))[None, :, None]
        assert torch.equal(lattice.restore(lattice.arrange(values)), values)
        back = lattice.arrange(z[order][None])[0]
        away = (
            back
            - back[0]
            - lattice.coordinates(
                torch.cartesian_prod(*(torch.arange(s) for s in shape)).view(-1, len(shape))
            )
        ) / torch.tensor(period, dtype=torch.float64)
        assert (away - away.round()).abs().max() < 1e-12

    def test_not_a_lattice(self):
        z = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
        assert read_lattice(z, 3.0).shape == (3, 3)
        assert "do not fill the grid 3 x 3" in read_lattice(z[:-1], 3.0)
        assert "do not fill" in read_lattice(torch.cat([z[:-1], z[:1]]), 3.0)
        assert "1 periods for coordinates with 2 directions" in read_lattice(z, [3.0])
        z[4, 1] += 0.1
        assert "direction 1" in read_lattice(z, 3.0)
