"""The compiled loops against torch, against mpmath, and on awkward shapes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weightloom.errors import KernelError, MissingDependencyError, ShapeError
from weightloom.kernels import fused
from weightloom.kernels.activations import activation
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.hyperkernel import ConditionPart, HyperKernel
from weightloom.kernels.tower import Tower
from weightloom.linalg.memory import empty

pytest.importorskip("numba", reason="fused kernels need numba")

LEAKY = {"name": "leaky_relu", "slope": 0.3}
STEEP = {"name": "piecewise_linear", "positive": 0.5, "negative": -2.0}
ACTIVATIONS = ["relu", "abs", "identity", LEAKY, STEEP]
EPS = 2.0**-53


def make(depth: int, spec: object, sigma_b: float, kind: str = "ntk") -> HyperKernel:
    g = Tower(depth, spec, gain=1.1, sigma_w=1.3, sigma_b=sigma_b)  # type: ignore[arg-type]
    return HyperKernel(Tower(3), g, kind)


def tables(
    kernel: HyperKernel, u: int, p: int, dtype: torch.dtype = torch.float64
) -> tuple[ConditionPart, Covariance]:
    """Conditions and points of many lengths, close pairs, opposite pairs and rows of zeros."""
    generator = torch.Generator().manual_seed(u + 100 * p)
    sides = []
    for rows, width in ((u, 6), (p, 3)):
        side = torch.randn(rows, width, dtype=torch.float64, generator=generator)
        side *= 3 ** torch.randn(rows, 1, dtype=torch.float64, generator=generator)
        if rows > 5:
            side[1] = side[0] * (1 + 1e-9 * torch.arange(width, dtype=torch.float64))
            side[2] = -2 * side[0]
            side[3] = 0
        sides.append(side.to(dtype))
    return kernel.condition_part(sides[0]), kernel.point_part(sides[1])


def indices(u: int, p: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points number 0 .. n - 1: every pair of a condition and a point once, in runs, then again."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(u * p, generator=generator) for _ in range(n // (u * p) + 1)])
    order = order[:n].sort().values if seed == 0 else order[:n]
    return order // p, order % p


def take(cov: Covariance, i: Tensor, j: Tensor) -> Covariance:
    return Covariance(cov.left[i].double(), cov.right[:, j].double(), cov.gap[i][:, j].double())


def by_torch(
    kernel: HyperKernel,
    condition: ConditionPart,
    points: Covariance,
    rows: tuple[Tensor, Tensor],
    columns: tuple[Tensor, Tensor],
) -> Tensor:
    """The plain way: gather everything, then HyperKernel.join, in float64."""
    tangent = None if condition.ntk is None else condition.ntk[rows[0]][:, columns[0]].double()
    part = ConditionPart(take(condition.covariance, rows[0], columns[0]), tangent)
    return kernel.join(part, take(points, rows[1], columns[1]))


def worst(result: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Largest error as a share of sqrt(K_ii K_jj), where that is not 0."""
    error = (result.double() - expected).abs()
    assert torch.all(error[scale == 0] == 0)
    return float((error / scale.where(scale > 0, 1.0)).max())


class TestAgainstTorch:
    @pytest.mark.parametrize("kind", ["ntk", "nngp"])
    @pytest.mark.parametrize("sigma_b", [0.0, 0.7])
    @pytest.mark.parametrize("depth", [1, 2, 3, 5])
    @pytest.mark.parametrize("spec", ACTIVATIONS, ids=str)
    def test_gram(self, spec: object, depth: int, sigma_b: float, kind: str) -> None:
        kernel = make(depth, spec, sigma_b, kind)
        condition, points = tables(kernel, 12, 11)
        where = indices(12, 11, 140)
        out = empty((140, 140), torch.float64).fill_(math.nan)
        assert fused.join(kernel, condition, points, where, where, out, symmetric=True) is out
        expected = by_torch(kernel, condition, points, where, where)
        root = expected.diagonal().sqrt()
        # A few roundings in each of `depth` layers, in both computations.
        assert worst(out, expected, root * root[:, None]) < 16 * depth * EPS
        assert torch.equal(out, out.T)

    @pytest.mark.parametrize("kind", ["ntk", "nngp"])
    @pytest.mark.parametrize("spec", ACTIVATIONS, ids=str)
    def test_single_precision_loses_only_what_the_result_must(
        self, spec: object, kind: str
    ) -> None:
        # Compared with float64 on the same float32 tables: what is left is the final rounding, and
        # a product of float32 numbers near the end of it.
        for depth, sigma_b in ((2, 0.0), (4, 0.5)):
            kernel = make(depth, spec, sigma_b, kind)
            condition, points = tables(kernel, 12, 11, torch.float32)
            where = indices(12, 11, 140)
            out = empty((140, 140), torch.float32)
            fused.join(kernel, condition, points, where, where, out, symmetric=True)
            expected = by_torch(kernel, condition, points, where, where)
            root = expected.diagonal().sqrt()
            assert worst(out, expected, root * root[:, None]) < 1.01 * 2.0**-24

    @given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["ntk", "nngp"]))
    @settings(max_examples=25, deadline=None)
    def test_any_shape(self, n: int, m: int, kind: str) -> None:
        kernel = make(2, "relu", 0.0, kind)
        condition, points = tables(kernel, 9, 8)
        rows, columns = indices(9, 8, n), indices(9, 8, m, seed=1)
        out = empty((n, m), torch.float64).fill_(math.nan)
        fused.join(kernel, condition, points, rows, columns, out)
        expected = by_torch(kernel, condition, points, rows, columns)
        assert float((out - expected).abs().max()) <= 64 * EPS * float(expected.abs().max())

    def test_two_different_sides(self) -> None:
        kernel = make(3, LEAKY, 0.4)
        generator = torch.Generator().manual_seed(0)
        x, x2, z, z2 = (
            torch.randn(*shape, dtype=torch.float64, generator=generator)
            for shape in ((7, 4), (5, 4), (6, 3), (9, 3))
        )
        condition, points = kernel.condition_part(x, x2), kernel.point_part(z, z2)
        rows, columns = indices(7, 6, 200), indices(5, 9, 130)
        out = empty((200, 130), torch.float64)
        fused.join(kernel, condition, points, rows, columns, out)
        x, z, x2, z2 = x[rows[0]], z[rows[1]], x2[columns[0]], z2[columns[1]]
        scale = kernel.diagonal(x, z).sqrt()[:, None] * kernel.diagonal(x2, z2).sqrt()
        expected = by_torch(kernel, condition, points, rows, columns)
        assert worst(out, expected, scale) < 16 * 3 * EPS
        # The gaps of S and Q^0 are now computed for other shapes, with other roundings.
        assert worst(out, kernel(x, z, x2, z2), scale) < 128 * 3 * EPS


def in_many_digits(
    spec: object, depth: int, sigma_b: float, kind: str, s: tuple[float, ...], q: tuple[float, ...]
) -> mp.mpf:
    """The recursion as theory.md has it, cross moments instead of gaps, 100 digits.

    s and q are (left, right, gap); Theta_f is 1.
    """
    act = activation(spec)  # type: ignore[arg-type]
    up, down = mp.mpf(act.positive), mp.mpf(act.negative)  # type: ignore[attr-defined]
    gain2, w2, b2 = mp.mpf(1.1) ** 2, mp.mpf(1.3) ** 2, mp.mpf(sigma_b) ** 2

    def matrix(left: float, right: float, gap: float) -> list[mp.mpf]:
        left, right = mp.mpf(left), mp.mpf(right)
        return [left, right, mp.sqrt(left * right) * (1 - mp.mpf(gap))]

    S, Q = matrix(*s), matrix(*q)
    A = [w2 * v + b2 for v in Q]
    theta = A[2]
    for _ in range(1, depth):
        lam = [a * b for a, b in zip(S, A, strict=True)]
        scale = mp.sqrt(lam[0] * lam[1])
        t = mp.acos(lam[2] / scale)
        relu = scale / (2 * mp.pi) * (mp.sin(t) + (mp.pi - t) * mp.cos(t))
        # s = down t + (up - down) relu(t)
        value = up * down * lam[2] + (up - down) ** 2 * relu
        slope = up * down + (up - down) ** 2 * (mp.pi - t) / (2 * mp.pi)
        half = (up**2 + down**2) / 2
        Q = [gain2 * half * lam[0], gain2 * half * lam[1], gain2 * value]
        A = [w2 * v + b2 for v in Q]
        theta = A[2] + S[2] * w2 * gain2 * slope * theta
    return theta if kind == "ntk" else S[2] * A[2]


class TestAgainstManyDigits:
    @pytest.mark.parametrize("kind", ["ntk", "nngp"])
    @pytest.mark.parametrize("spec", ["relu", LEAKY, STEEP], ids=str)
    @pytest.mark.parametrize(("depth", "sigma_b"), [(2, 0.0), (2, 0.6), (4, 0.0), (4, 0.6)])
    def test_near_coincident_inputs(
        self, spec: object, depth: int, sigma_b: float, kind: str
    ) -> None:
        kernel = make(depth, spec, sigma_b, kind)
        gaps = [0.0, *(10.0**-k for k in range(2, 31, 4)), 0.3, 0.9]
        with mp.workdps(100):
            for s_gap in gaps:
                for q_gap in gaps:
                    s, q = (0.7, 1.9, s_gap), (2.3, 0.4, q_gap)
                    result = self._joined(kernel, s, q)
                    wanted = in_many_digits(spec, depth, sigma_b, kind, s, q)
                    assert abs(result / wanted - 1) < 1e-14, (s_gap, q_gap)

    @staticmethod
    def _joined(kernel: HyperKernel, s: tuple[float, ...], q: tuple[float, ...]) -> float:
        S, Q = (
            Covariance(*(torch.tensor([[v]], dtype=torch.float64) for v in part)) for part in (s, q)
        )
        theta = torch.ones(1, 1, dtype=torch.float64) if kernel.kind == "ntk" else None
        out = empty((1, 1), torch.float64)
        index = (None, None)
        return float(fused.join(kernel, ConditionPart(S, theta), Q, index, index, out))


class TestPolynomials:
    """Each stands for f(w) sqrt(w)^k, w = 1 - cos a; see fused_loops."""

    @staticmethod
    def exact(name: str, w: mp.mpf) -> mp.mpf:
        a, c = 2 * mp.asin(mp.sqrt(w / 2)), 1 - w
        s = mp.sqrt(w * (2 - w))
        return {"angle": a, "lift": s - a * c, "pair": s - 2 * a * c}[name] / mp.pi

    @pytest.mark.parametrize("name", ["angle", "lift", "pair"])
    def test_values(self, name: str) -> None:
        from weightloom.kernels import fused_loops

        points = [*np.linspace(1e-3, 1, 300), *np.logspace(-30, -3, 40)]
        with mp.workdps(120):
            for w in map(float, points):
                error = abs(getattr(fused_loops, name)(w) - self.exact(name, mp.mpf(w)))
                # `pair` changes its sign within [0, 1]; it is a summand beside numbers near 1.
                size = mp.sqrt(w) if name == "pair" else self.exact(name, mp.mpf(w))
                assert error <= 4 * EPS * size
        assert getattr(fused_loops, name)(0.0) == 0

    @pytest.mark.parametrize("name", ["angle", "lift", "pair"])
    def test_refitting_gives_the_coefficients(self, name: str) -> None:
        from weightloom.kernels import fused_loops

        stored = getattr(fused_loops, name.upper())
        power = mp.mpf(3 if name == "lift" else 1) / 2
        with mp.workdps(60):
            n = len(stored)
            nodes = [(1 + mp.cos(mp.pi * (2 * k + 1) / (2 * n))) / 2 for k in range(n)]
            values = mp.matrix([self.exact(name, w) / w**power for w in nodes])
            powers = mp.matrix(n, n)
            for i, w in enumerate(nodes):
                for j in range(n):
                    powers[i, j] = w**j
            fitted = mp.lu_solve(powers, values)
            assert [float(c) for c in fitted] == list(stored)


class TestPlaces:
    def setup_method(self) -> None:
        self.kernel = make(2, "relu", 0.0)
        self.condition, self.points = tables(self.kernel, 12, 11)

    def gram(self, n: int, *, symmetric: bool = True) -> Tensor:
        where = indices(12, 11, n)
        out = empty((n, n), torch.float64)
        return fused.join(
            self.kernel, self.condition, self.points, where, where, out, symmetric=symmetric
        )

    @pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 256, 300])
    def test_the_upper_half_does_not_depend_on_symmetry(self, n: int) -> None:
        assert torch.equal(self.gram(n).triu(), self.gram(n, symmetric=False).triu())

    def test_only_the_block_is_written(self) -> None:
        large = torch.full((200, 301), -1.0, dtype=torch.float64)
        rows, columns = indices(12, 11, 140), indices(12, 11, 150, seed=3)
        fused.join(self.kernel, self.condition, self.points, rows, columns, large[30:170, 100:250])
        expected = by_torch(self.kernel, self.condition, self.points, rows, columns)
        torch.testing.assert_close(large[30:170, 100:250], expected, rtol=1e-13, atol=1e-13)
        large[30:170, 100:250] = -1
        assert torch.all(large == -1)

    def test_points_that_never_repeat_need_no_index(self) -> None:
        condition, index = self.condition, indices(12, 11, 11)[0]
        out, expected = (empty((11, 11), torch.float64) for _ in range(2))
        fused.join(self.kernel, condition, self.points, (index, None), (index, None), out)
        every = torch.arange(11)
        fused.join(self.kernel, condition, self.points, (index, every), (index, every), expected)
        assert torch.equal(out, expected)

    def test_threads_do_not_change_a_bit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = self.gram(700)
        for threads in (1, 2, 5):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            assert torch.equal(self.gram(700), expected)

    def test_several_callers_at_once(self) -> None:
        expected = self.gram(400)
        with ThreadPoolExecutor(4) as pool:
            for result in pool.map(lambda _: self.gram(400), range(8)):
                assert torch.equal(result, expected)

    def test_a_gram_matrix_has_no_negative_eigenvalues(self) -> None:
        gram = self.gram(60)
        values = torch.linalg.eigvalsh(gram)
        assert float(values.min()) > -60 * 16 * EPS * float(values.max())


class TestSpread:
    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_every_item_once(self, threads: int) -> None:
        seen: list[int] = []
        fused._spread(seen.append, range(50), threads)
        assert sorted(seen) == list(range(50))

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_an_error_is_raised_and_the_rest_is_left(self, threads: int) -> None:
        seen: list[int] = []

        def work(item: int) -> None:
            seen.append(item)
            if item == 3:
                raise ArithmeticError("item 3")
            time.sleep(1e-3)  # all of them would take a minute: none is slow enough to be cut short

        with pytest.raises(ArithmeticError, match="item 3"):
            fused._spread(work, range(100_000), threads)
        assert 3 in seen
        assert len(seen) < 100_000


class TestRefusals:
    def setup_method(self) -> None:
        self.kernel = make(2, "relu", 0.0)
        self.condition, self.points = tables(self.kernel, 6, 7)

    def join(self, rows: object, columns: object, out: Tensor, **options: bool) -> None:
        fused.join(
            self.kernel,
            self.condition,
            self.points,
            rows,  # type: ignore[arg-type]
            columns,  # type: ignore[arg-type]
            out,
            **options,
        )

    def test_what_is_supported(self) -> None:
        assert fused.supports(self.kernel, torch.float32)
        assert not fused.supports(self.kernel, torch.float16)
        smooth = HyperKernel(Tower(2), Tower(2, torch.tanh))
        assert not fused.supports(smooth, torch.float64)
        with pytest.raises(KernelError, match="cannot be fused; wanted a piecewise-linear"):
            fused.join(
                smooth, *tables(self.kernel, 6, 7), (None, None), (None, None), torch.empty(6, 6)
            )

    def test_numbers_that_want_gradients(self) -> None:
        sigma = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        assert not fused.supports(HyperKernel(Tower(2), Tower(2, sigma_w=sigma)), torch.float64)
        still = sigma.detach()
        assert fused.supports(HyperKernel(Tower(2), Tower(2, sigma_w=still)), torch.float64)

    def test_indices_outside_the_tables(self) -> None:
        good, out = indices(6, 7, 4), empty((4, 4), torch.float64)
        bad = good[0].clone()
        bad[2] = 6
        with pytest.raises(
            ShapeError, match=r"rows into the conditions runs from \d to 6; .* has 6"
        ):
            self.join((bad, good[1]), good, out)
        bad[2] = -1
        with pytest.raises(ShapeError, match="columns into the points runs from -1"):
            self.join(good, (good[0], bad), out)
        with pytest.raises(ShapeError, match=r"has shape \[3\]; out wants \[4\]"):
            self.join((good[0][:3], good[1]), good, out)
        with pytest.raises(ShapeError, match="runs from 0 to 6; the table has 6"):
            self.join((None, None), (None, None), empty((6, 7), torch.float64))

    def test_matrices_that_cannot_be_filled(self) -> None:
        good = indices(6, 7, 4)
        with pytest.raises(ShapeError, match="rows are contiguous"):
            self.join(good, good, torch.empty(4, 8, dtype=torch.float64)[:, ::2])
        with pytest.raises(ShapeError, match="square"):
            self.join(good, good, empty((4, 5), torch.float64), symmetric=True)
        with pytest.raises(ShapeError, match=r"float64 with shape .* out is torch.float32"):
            self.join(good, good, empty((4, 4), torch.float32))

    def test_the_part_of_another_kind(self) -> None:
        self.condition = ConditionPart(self.condition.covariance, None)
        with pytest.raises(KernelError, match=r"'ntk' but condition\.ntk is missing"):
            self.join(*[indices(6, 7, 4)] * 2, empty((4, 4), torch.float64))

    def test_without_numba(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fused, "_loops", lambda: None)
        assert not fused.supports(self.kernel, torch.float64)
        with pytest.raises(MissingDependencyError, match="pip install numba"):
            self.join(*[indices(6, 7, 4)] * 2, empty((4, 4), torch.float64))


def test_numba_is_not_imported_before_it_is_wanted() -> None:
    code = "import sys, weightloom.kernels.fused; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestWithoutLoops:
    """Only a missing numba means that there are no compiled loops."""

    def test_no_numba(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "numba", None)
        assert fused._loops.__wrapped__() is None

    def test_an_error_in_the_loops_is_not_hidden(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "weightloom.kernels.fused_loops", None)
        monkeypatch.delattr("weightloom.kernels.fused_loops", raising=False)
        with pytest.raises(ImportError):
            fused._loops.__wrapped__()
