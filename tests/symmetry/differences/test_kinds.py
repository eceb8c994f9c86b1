"""Each kind of change, made by hand, and near misses that must not be called so."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weightloom.symmetry.differences import reordering
from weightloom.symmetry.differences.distances import measure
from weightloom.symmetry.differences.kinds import CRITERIA, classify

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix(rows: int = 96, columns: int = 128, dtype: torch.dtype = torch.float32) -> Tensor:
    return (0.02 * torch.randn(rows, columns, generator=generator(), dtype=torch.float64)).to(dtype)


def update(shape: torch.Size, rank: int, size: float = 0.005) -> Tensor:
    left = torch.randn(shape[0], rank, generator=generator(1), dtype=torch.float64)
    right = torch.randn(rank, shape[1:].numel(), generator=generator(2), dtype=torch.float64)
    return (size * left @ right).reshape(shape)


def noise(shape: torch.Size, size: float, seed: int = 3) -> Tensor:
    return size * torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def plus(a: Tensor, change: Tensor) -> Tensor:
    return (a.double() + change).to(a.dtype)


# -- identical -----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool, torch.complex64])
def test_identical(dtype: torch.dtype) -> None:
    a = matrix().to(dtype)
    assert classify(a, a.clone()).kind == "identical"


def test_nan_in_the_same_places_is_identical_and_elsewhere_is_not() -> None:
    a = matrix()
    a[3, 4], a[5, 6] = math.nan, -math.inf
    assert classify(a, a.clone()).kind == "identical"
    b = a.clone()
    b[7, 7] = math.nan
    change = classify(a, b)
    assert change.kind == "sparse"
    assert change.details["entries"] == 1
    assert "2 in a, 3 in b, 1 of them differ" in change.notes[0]
    c = plus(a, noise(a.shape, 0.1))
    change = classify(a, c)
    assert change.kind == "other"
    assert "in the same places" in change.notes[0]
    assert change.measured is not None
    assert math.isfinite(change.measured.relative)


def test_infinities_that_became_numbers() -> None:
    """A mask of -inf against one of the lowest number: nothing can be subtracted."""
    a = torch.full((5, 5), -math.inf)
    change = classify(a, torch.full((5, 5), torch.finfo(torch.float32).min))
    assert change.kind == "other"
    assert change.measured is not None
    assert math.isnan(change.measured.relative)
    assert math.isnan(change.measured.max_abs)
    assert "25 in a, 0 in b, 25 of them differ" in change.notes[0]


def test_complex_entries_are_counted_once() -> None:
    a = torch.randn(5, 5, dtype=torch.complex64, generator=generator())
    b = a.clone()
    b[2, 2] += 1 + 1j
    assert classify(a, b).details == {"entries": 1}
    assert "25 of 25 entries" in classify(a, a.conj().resolve_conj() + 1j).text


def test_signed_zeros_are_equal_and_not_identical() -> None:
    a = torch.zeros(4, 4)
    assert classify(a, -a).kind == "equal"


# -- cast ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("narrow", NARROW)
def test_cast(narrow: torch.dtype) -> None:
    a = matrix()
    name = str(narrow).removeprefix("torch.")
    assert classify(a, a.to(narrow)).text.startswith(f"b is a rounded to {name}")
    assert classify(a.to(narrow), a).text.startswith(f"a is b rounded to {name}")
    there_and_back = a.to(narrow).to(a.dtype)
    change = classify(a, there_and_back)
    assert change.kind == "cast"
    assert "stored as float32" in change.text
    assert classify(there_and_back, a).kind == "cast"
    assert classify(a.to(narrow), there_and_back).text == "the same numbers as float32"


def test_two_roundings_of_the_same_numbers() -> None:
    a = matrix(dtype=torch.float64)
    assert "both are roundings" in classify(a.half(), a.bfloat16()).text
    b = a.clone()
    b[1, 1] *= 1.02  # more than both roundings
    assert classify(a.half(), b.bfloat16()).kind != "cast"


@pytest.mark.parametrize("narrow", NARROW)
def test_a_cast_with_one_other_entry_is_no_cast(narrow: torch.dtype) -> None:
    a = matrix()
    b = a.to(narrow).float()
    b[5, 17] = b[5, 17] * 1.3 + 0.001
    assert classify(a, b).kind not in ("cast", "identical", "equal")


def test_numbers_that_a_cast_loses_are_counted() -> None:
    a = matrix()
    a[0, :3] = torch.tensor([1e-12, 1e30, 1e-13])
    change = classify(a, a.half())
    assert change.kind == "cast"
    assert change.details["lost"] == 3


def test_zeros_are_no_cast_of_tiny_numbers() -> None:
    a = 1e-12 * matrix()
    assert classify(a, torch.zeros_like(a)).kind == "other"


def test_integers() -> None:
    a = torch.arange(40).reshape(5, 8)
    assert classify(a, a.int()).kind == "cast"
    b = a.clone()
    b[2, 3] = 2**60 + 1
    c = b.clone()
    c[2, 3] += 1  # one number in float64
    assert classify(b, c).details == {"entries": 1}
    assert classify(b, c.int()).kind != "cast"


# -- scaled --------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [1.7, -0.3, 1.01])
def test_scaled(dtype: torch.dtype, factor: float) -> None:
    a = matrix(dtype=dtype)
    change = classify(a, a * factor)
    assert change.kind == "scaled"
    assert change.details["factor"] == pytest.approx(factor, rel=torch.finfo(dtype).eps)
    assert change.details["residual"] <= 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_scaled_with_one_entry_off_is_not_scaled(dtype: torch.dtype) -> None:
    a = matrix(dtype=dtype)
    b = a * 1.7
    b[4, 4] = b[4, 4] * (1 + 8 * torch.finfo(dtype).eps)
    assert classify(a, b).kind == "other"


def test_noise_of_a_few_roundings_in_a_small_matrix_has_no_rank() -> None:
    for seed in range(200):
        a = torch.randn(3, 4, generator=generator(seed), dtype=torch.float64).half()
        assert classify(a, plus(a, noise(a.shape, 1e-3, seed + 1))).kind != "low-rank"
        a = torch.randn(9, 9, generator=generator(seed), dtype=torch.float64).half()
        assert classify(a, plus(a, noise(a.shape, 1e-3, seed + 1))).kind != "low-rank"


def test_a_factor_of_few_entries_proves_nothing() -> None:
    assert classify(torch.tensor([0.3, 0.0]), torch.tensor([0.7, 0.0])).kind != "scaled"
    assert classify(torch.ones(()), torch.tensor(2.0)).kind == "other"


# -- low rank ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_low_rank(dtype: torch.dtype, rank: int) -> None:
    a = matrix(dtype=dtype)
    b = plus(a, update(a.shape, rank))
    change = classify(a, b)
    assert change.kind == "low-rank"
    assert change.details["rank"] == rank
    # The second way: all singular values, and what is left beyond this rank.
    values = torch.linalg.svdvals(b.double() - a.double())
    rest = float(values[rank:].norm() / values.norm())
    assert change.details["residual"] == pytest.approx(rest, rel=0.05, abs=1e-12)


def test_low_rank_of_a_convolution() -> None:
    a = 0.1 * torch.randn(32, 16, 3, 3, generator=generator())
    assert classify(a, plus(a, update(a.shape, 2))).details["rank"] == 2


def test_a_high_rank_is_found_by_the_larger_sub_matrix() -> None:
    a = matrix(400, 500)
    assert classify(a, plus(a, update(a.shape, 60))).details["rank"] == 60


@pytest.mark.parametrize("dtype", FLOATS)
def test_low_rank_and_noise_is_not_low_rank(dtype: torch.dtype) -> None:
    a = matrix(dtype=dtype)
    size = 20 * 0.02 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    b = plus(a, update(a.shape, 4) + noise(a.shape, size))
    assert classify(a, b).kind == "other"


def test_low_rank_and_one_entry_has_one_rank_more() -> None:
    a = matrix()
    change = update(a.shape, 4)
    change[8, 9] += 0.05
    assert classify(a, plus(a, change)).details["rank"] == 5


def test_a_high_rank_of_a_small_matrix_is_not_low() -> None:
    a = matrix(12, 12)
    assert classify(a, plus(a, update(a.shape, 6))).kind == "other"


def test_a_small_matrix_has_no_rank() -> None:
    a = matrix(4, 60)
    assert classify(a, plus(a, update(a.shape, 1))).kind == "other"


def test_a_weak_direction_above_the_noise_counts() -> None:
    """It is smaller than all rounding together, and larger than rounding in one direction."""
    a = matrix(256, 256, torch.bfloat16)
    left, right = (
        torch.linalg.qr(torch.randn(256, 4, generator=generator(k), dtype=torch.float64)).Q
        for k in (1, 2)
    )
    sizes = torch.tensor([1.0, 0.5, 0.2, 0.02], dtype=torch.float64)
    b = plus(a, left * sizes @ right.T)
    assert 2 * measure(a, b).rounding > 0.02
    assert classify(a, b).details["rank"] == 4


def test_a_change_below_rounding_has_no_rank() -> None:
    a = matrix(dtype=torch.bfloat16)
    b = plus(a, update(a.shape, 4, size=1e-5))
    assert classify(a, b).kind != "low-rank"


# -- sparse --------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
def test_sparse(dtype: torch.dtype) -> None:
    a = matrix(dtype=dtype)
    b = a.clone()
    b[3, 4], b[50, 60], b[95, 127] = 1.0, 2.0, 0.0
    change = classify(a, b)
    assert (change.kind, change.details) == ("sparse", {"entries": 3})
    b.view(-1)[: a.numel() // 5] += 1.0
    assert classify(a, b).kind != "sparse"


def test_within_rounding() -> None:
    a = matrix()
    b = torch.nextafter(a, torch.full_like(a, math.inf))
    assert classify(a, b).kind == "rounding"
    assert classify(a, a * (1 + 1e-4 * (noise(a.shape, 1.0) > 0).float())).kind == "other"


# -- quantised -----------------------------------------------------------------------------------
def on_grid(a: Tensor, size: int, top: int, dtype: torch.dtype) -> Tensor:
    """Symmetric, absolute maximum, by blocks of ``size`` entries."""
    blocks = a.double().reshape(-1, size)
    step = blocks.abs().amax(1, keepdim=True) / top
    return ((blocks / step).round() * step).reshape(a.shape).to(dtype)


def with_offset(a: Tensor, size: int, top: int, dtype: torch.dtype) -> Tensor:
    blocks = a.double().reshape(-1, size)
    low = blocks.amin(1, keepdim=True)
    step = (blocks.amax(1, keepdim=True) - low) / top
    return (((blocks - low) / step).round() * step + low).reshape(a.shape).to(dtype)


@pytest.mark.parametrize("quantise", [on_grid, with_offset])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_int8_by_rows(quantise, dtype: torch.dtype) -> None:
    a = matrix(64, 96, dtype)
    top = 127 if quantise is on_grid else 255
    change = classify(a, quantise(a, 96, top, dtype))
    if dtype == torch.float16:  # its own rounding blurs 256 levels, so nothing is claimed
        assert change.kind in ("quantised", "other")
        return
    assert change.kind == "quantised"
    assert (change.details["group"], change.details["uniform"]) == ("row", True)
    assert 200 < change.details["levels"] <= 2 * 128  # levels that some row spans
    assert change.details["steps"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("quantise", [on_grid, with_offset])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [32, 64])
def test_four_bits_by_blocks(quantise, dtype: torch.dtype, size: int) -> None:
    a = matrix(dtype=dtype)
    change = classify(a, quantise(a, size, 7 if quantise is on_grid else 15, dtype))
    assert change.kind == "quantised"
    assert change.details["group"] == f"block of {size}"
    assert change.details["levels"] in (15, 16)


def test_levels_that_are_not_uniform() -> None:
    levels = torch.tensor([-1.0, -0.7, -0.52, -0.3, -0.1, 0.0, 0.08, 0.25, 0.4, 0.6, 0.83, 1.0])
    blocks = matrix().reshape(-1, 64)
    top = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks[..., None] / top[..., None] - levels).abs().argmin(-1)
    b = (levels[nearest] * top).reshape(96, 128)
    change = classify(matrix(), b)
    assert change.kind == "quantised"
    assert (change.details["levels"], change.details["uniform"]) == (12, False)


def test_one_grid_for_the_tensor() -> None:
    a = matrix()
    change = classify(a, on_grid(a, a.numel(), 127, torch.float32))
    assert change.details["group"] == "tensor"


@pytest.mark.parametrize("size", [32, 96 * 128])
def test_one_entry_off_the_grid(size: int) -> None:
    a = matrix()
    b = on_grid(a, size, 7, torch.float32)
    b[40, 40] += 2.3 * float(b.abs().max()) / 7
    assert classify(a, b).kind == "other"


def test_a_grid_far_from_a_is_not_round_off() -> None:
    a = matrix()
    b = on_grid(plus(a, noise(a.shape, 0.02)), 32, 7, torch.float32)
    assert classify(a, b).kind == "other"


# -- permuted ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3, 3)])
def test_permuted(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = (100 * torch.randn(shape, generator=generator())).to(dtype)
    rows, columns = (torch.randperm(n, generator=generator(n)) for n in shape[:2])
    assert classify(a, a[rows]).details["axes"] == "rows"
    assert classify(a, a[:, columns]).details["axes"] == "columns"
    change = classify(a, a[rows][:, columns])
    assert change.kind == "permuted"
    moved = int((rows != torch.arange(20)).sum() + (columns != torch.arange(30)).sum())
    assert change.details == {"axes": "rows and columns", "moved": moved}


def test_permuted_with_one_entry_off() -> None:
    a = matrix()
    b = a[torch.randperm(96, generator=generator(5))]
    b[1, 1] = torch.nextafter(b[1, 1], torch.tensor(1.0))
    assert classify(a, b).kind == "other"
    c = matrix()
    c[:, 3] = c[torch.randperm(96, generator=generator(6)), 3]  # the same entries, other rows
    assert classify(a, c).kind != "permuted"


def test_equal_keys_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns are found by keys; whether they are equal is seen in their bits."""
    a = matrix()
    b = a.clone()
    b[:, 3] = a[torch.randperm(96, generator=generator(6)), 3]
    for name, size in (("_row_keys", 96), ("_column_keys", 128)):
        keys = torch.zeros(size, dtype=torch.int64)
        monkeypatch.setattr(reordering, name, lambda *_, keys=keys, **__: keys)
    assert reordering.read_reordering(a, b, measure(a, b)) is None


def test_permuted_vectors() -> None:
    a = torch.randn(50, generator=generator())
    assert classify(a, a.flip(0)).details["axes"] == "entries"
    ones = torch.ones(50)
    ones[3] = 0
    assert classify(ones, ones.flip(0)).kind == "sparse"  # of two values any two are permutations


# -- all kinds -----------------------------------------------------------------------------------
def test_distances_against_torch() -> None:
    a, b = matrix(700, 700), plus(matrix(700, 700), noise(torch.Size([700, 700]), 0.01))
    measured = measure(a, b)
    x, y = a.double().flatten(), b.double().flatten()
    assert measured.max_abs == float((y - x).abs().max())
    assert measured.relative == pytest.approx(float((y - x).norm() / x.norm()), rel=1e-12)
    cosine = float(torch.nn.functional.cosine_similarity(x, y, dim=0))
    assert measured.cosine == pytest.approx(cosine, rel=1e-12)
    assert measured.changed == int((x != y).sum())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    dtype=st.sampled_from(FLOATS),
    other=st.sampled_from(FLOATS),
    size=st.sampled_from([0.0, 1e-8, 1e-3, 1.0]),
)
def test_unrelated_tensors_are_never_given_a_structure(
    seed: int, rows: int, columns: int, dtype: torch.dtype, other: torch.dtype, size: float
) -> None:
    """Noise is other; what is claimed for small noise is true when it is computed again."""
    a = torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64)
    b = (a + noise(a.shape, size, seed + 1)).to(other)
    a = a.to(dtype)
    change = classify(a, b)
    assert change.kind in CRITERIA
    x, y = a.double(), b.double()
    if change.kind == "identical":
        assert torch.equal(a, b)
    elif change.kind in ("cast", "rounding"):
        eps = max(torch.finfo(dtype).eps, torch.finfo(other).eps)
        assert bool(((x - y).abs() <= 2 * eps * torch.maximum(x.abs(), y.abs()) + 1e-7).all())
    elif change.kind == "sparse":
        assert change.details["entries"] == int((x != y).sum()) <= max(1, x.numel() / 10)
    elif change.kind == "scaled":
        scaled = change.details["factor"] * x
        eps = max(torch.finfo(dtype).eps, torch.finfo(other).eps)
        assert bool(((y - scaled).abs() <= 2 * eps * scaled.abs() + 1e-7).all())
    else:
        assert change.kind in ("other", "equal"), change


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), rank=st.integers(1, 3), dtype=st.sampled_from(FLOATS))
def test_any_low_rank_change_is_seen(seed: int, rank: int, dtype: torch.dtype) -> None:
    a = torch.randn(24, 40, generator=generator(seed), dtype=torch.float64).to(dtype)
    left = torch.randn(24, rank, generator=generator(seed + 1), dtype=torch.float64)
    right = torch.randn(rank, 40, generator=generator(seed + 2), dtype=torch.float64)
    change = classify(a, plus(a, left @ right))
    assert change.kind == "low-rank"
    assert change.details["rank"] == rank
