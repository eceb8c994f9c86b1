"""Kernel matrices in blocks: the same numbers, half of the work, no more memory than asked for."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.test_tower import rows
from weightloom.errors import ConfigError, MemoryLimitError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower, assembly
from weightloom.kernels import assembly as blocks
from weightloom.linalg import memory

FEATURES = [None, FourierFeatures(2.0), FourierFeatures(2.0, 24), FourierFeatures(2.0, period=3.0)]


def points(n, images, coordinates, d=20):
    """n points from few images and coordinates; all different where a number is None."""
    x = rows(n, d) if images is None else rows(images, d)[torch.randint(images, (n,))]
    if coordinates is None:
        return x, rows(n, 2, 1)
    return x, rows(coordinates, 2, 1)[torch.randint(coordinates, (n,))]


@pytest.fixture(params=["torch", "fused"])
def method(request, monkeypatch):
    """Both ways to fill a block; compiled loops are skipped where numba is missing."""
    if request.param == "fused":
        pytest.importorskip("numba")
        monkeypatch.setattr(assembly, "_WORTH", 0)
    else:
        monkeypatch.setattr(assembly, "_WORTH", 1 << 60)
    return request.param


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("repeats", [(5, 7), (None, 7), (5, None), (None, None)])
def test_the_same_numbers_as_in_one_piece(method, features, repeats):
    x, z = points(90, *repeats)
    x2, z2 = points(50, *repeats)
    for kind in ("ntk", "nngp"):
        kernel = HyperKernel(Tower(3), Tower(2, sigma_b=0.2), kind, features)
        gram = kernel(x, z, memory="80 kB")
        assert torch.equal(gram, gram.mT)
        whole = kernel.join(kernel.condition_part(x), kernel.point_part(z))
        scale = whole.diagonal().sqrt()
        assert float(((gram - whole).abs() / (scale[:, None] * scale)).max()) < 1e-14
        other = kernel(x, z, x2, z2, memory="80 kB")
        wanted = kernel.join(kernel.condition_part(x, x2), kernel.point_part(z, z2))
        size = float(scale.max() ** 2)
        assert float((other - wanted).abs().max()) < 1e-14 * size


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_cover_the_matrix(method, symmetric):
    x, z = points(70, 4, None)
    second = () if symmetric else points(33, None, 3)
    kernel = HyperKernel(Tower(2), Tower(3), features=FourierFeatures(2.0))
    seen = torch.zeros(70, 70 if symmetric else 33)
    matrix = kernel(x, z, *second)
    for r, c, block in kernel.blocks(x, z, *second, memory="100 kB"):
        seen[r, c] += 1
        assert block.shape == matrix[r, c].shape
        torch.testing.assert_close(block, matrix[r, c], rtol=1e-13, atol=1e-15)
    lower = torch.tril(torch.ones_like(seen), -blocks.block_side("100 kB"))
    if symmetric:
        assert (seen + seen.mT >= 1).all()
        assert not (seen * lower).any()  # nothing of the lower half but in blocks on the diagonal
        assert len(list(kernel.blocks(x, z, memory="100 kB"))) > 3
    else:
        assert (seen == 1).all()


def test_only_the_upper_half_is_computed(monkeypatch):
    """Entries that join() is asked for: half of the matrix and half of the diagonal's blocks."""
    asked = []
    plain = HyperKernel.join

    def join(self, condition, points):
        result = plain(self, condition, points)
        asked.append(result.numel())
        return result

    monkeypatch.setattr(HyperKernel, "join", join)
    x, z = points(320, 5, 7)
    HyperKernel(Tower(2), Tower(2))(x, z, memory="300 kB")
    side = blocks.block_side("300 kB")
    assert sum(asked) <= 320 * (320 + side) / 2


def test_what_repeats_is_computed_once(monkeypatch):
    """200 points of 5 images and 7 coordinates: 25 and 49 covariances of rows, not 40,000."""
    kernel = HyperKernel(Tower(2), Tower(2))
    seen = []
    plain = assembly.input_covariance

    def counted(first, second=None):
        cov = plain(first, second)
        seen.append(cov.gap.numel())
        return cov

    monkeypatch.setattr(assembly, "input_covariance", counted)
    x, z = points(200, 5, 7)
    kernel(x, z)
    assert sum(seen) == 25


class Meter(TorchDispatchMode):
    """Bytes of tensors made inside that are alive at once, at most."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and not func.is_view and tensor._base is None:
                size = tensor.untyped_storage().nbytes()
                if func._schema.name.endswith("_"):
                    continue  # in place: nothing new
                self.now += size
                weakref.finalize(tensor, self._release, size)
        self.peak = max(self.peak, self.now)
        return result

    def _release(self, size):
        self.now -= size


@pytest.mark.parametrize("features", FEATURES[:3])
@pytest.mark.parametrize("repeats", [(20, 20), (None, None)])
@pytest.mark.parametrize("names", [("relu", "relu"), ("erf", "sin"), ("cos", "abs")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_temporaries_stay_below_the_memory_asked_for(features, repeats, names, dtype, monkeypatch):
    monkeypatch.setattr(assembly, "_WORTH", 1 << 60)
    asked = 600_000
    assert used(160, repeats, names, features, dtype, asked) < asked


@pytest.mark.parametrize("names", [("tanh", "relu"), ("relu", "gelu")])
def test_quadrature_adds_tables_of_a_fixed_size(names):
    """Coefficients of a block's rows: no more than 2 MB here, whatever the memory."""
    asked = 600_000
    assert used(64, (None, None), names, None, torch.float64, asked) < asked + 2_000_000


def used(n, repeats, names, features, dtype, asked):
    x, z = (part.to(dtype) for part in points(n, *repeats))
    f, g = (Tower(3, name, sigma_b=0.1, gain=1.0) for name in names)
    kernel = HyperKernel(f, g, "ntk", features)
    meter = Meter()
    with meter:
        result = kernel(x, z, memory=asked)
    assert meter.peak > result.nbytes
    return meter.peak - result.nbytes


def test_more_memory_than_there_is(monkeypatch):
    x, z = points(2000, 3, 3)
    kernel = HyperKernel(Tower(2), Tower(2))
    started = []
    monkeypatch.setattr(assembly.Assembly, "__init__", lambda *_: started.append(1))
    monkeypatch.setattr("weightloom.linalg.memory.available", lambda: 30_000_000)
    with pytest.raises(
        MemoryLimitError, match=r"kernel matrix of 2000 x 2000 points needs 32 MB.*blocks\(\)"
    ):
        kernel(x, z)
    assert not started


def test_memory_that_cannot_be_read():
    x, z = points(3, 3, 3)
    with pytest.raises(ConfigError, match="memory 'lots' cannot be read"):
        HyperKernel(Tower(2), Tower(2))(x, z, memory="lots")


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 30))
def test_tiles(n, m, side):
    seen = torch.zeros(n, m)
    for r, c in blocks.tiles(n, m, side, half=False):
        seen[r, c] += 1
        assert max(r.stop - r.start, c.stop - c.start) <= side
    assert (seen == 1).all()
    half = torch.zeros(n, n)
    for r, c in blocks.tiles(n, n, side, half=True):
        half[r, c] += 1
    assert torch.equal(half.triu(), torch.ones(n, n).triu())


def test_available_memory_is_a_number_of_this_machine():
    assert 10**7 < memory.available() < 10**14
