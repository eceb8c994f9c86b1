"""Distinct rows against a dictionary of tuples, and on the rows that trick hashes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weightloom.errors import ShapeError
from weightloom.kernels import inputs as unique
from weightloom.kernels.inputs import unique_rows


def by_dictionary(rows: Tensor) -> tuple[list[tuple[float, ...]], list[int]]:
    """Python's own equality of numbers, under which -0.0 == 0.0."""
    groups: dict[tuple[float, ...], int] = {}
    index = [groups.setdefault(tuple(row), len(groups)) for row in rows.tolist()]
    return list(groups), index


entries = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 1e-300, 1.0 + 2.0**-52, 1.0 + 2.0**-23])


class TestAgainstADictionary:
    @given(st.integers(0, 3), st.data(), st.sampled_from([torch.float32, torch.float64]))
    @settings(max_examples=100, deadline=None)
    def test_few_values(self, width: int, data: st.DataObject, dtype: torch.dtype) -> None:
        lists = data.draw(st.lists(st.lists(entries, min_size=width, max_size=width), max_size=12))
        rows = torch.tensor(lists, dtype=dtype).reshape(len(lists), width)
        unique, index = unique_rows(rows)
        expected, expected_index = by_dictionary(rows)
        assert [tuple(row) for row in unique.tolist()] == expected
        assert index.tolist() == expected_index
        assert unique.dtype == dtype

    def test_images_repeated_in_mixed_order(self) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(50, 784, dtype=torch.float64, generator=generator)
        rows = images[torch.randint(0, 50, (3000,), generator=generator)]
        unique, index = unique_rows(rows)
        assert len(unique) == 50
        assert torch.equal(unique[index], rows)
        assert index.tolist() == by_dictionary(rows)[1]

    def test_powers_of_two_do_not_need_the_slow_road(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Their bits differ in the exponent alone, the worst case for a product modulo 2^64.
        monkeypatch.setattr(unique, "_group_bytes", None)
        for dtype in (torch.float32, torch.float64):
            exponents = torch.randint(
                -30, 30, (4000, 3), generator=torch.Generator().manual_seed(1)
            )
            rows = torch.pow(2.0, exponents.to(dtype))
            assert unique_rows(rows)[1].tolist() == by_dictionary(rows)[1]

    def test_whole_numbers_and_half_precision(self) -> None:
        whole = torch.tensor([[1, 2], [3, 4], [1, 2]])
        for rows in (whole, whole.half(), whole.bfloat16(), whole.bool()):
            unique, index = unique_rows(rows)
            assert index.tolist() == by_dictionary(rows)[1]
            assert unique.dtype == rows.dtype


class TestCollisions:
    def test_equal_keys_of_different_rows_are_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unique, "_keys", lambda rows: (rows[:, 0] > 0).long())
        rows = torch.tensor([[1.0, 2.0], [1.0, 3.0], [-1.0, 0.0], [1.0, 3.0], [-1.0, -0.0]])
        distinct, index = unique_rows(rows)
        assert index.tolist() == [0, 1, 2, 1, 2]
        assert torch.equal(distinct, rows[:3])

    def test_nans_are_compared_by_their_bits(self) -> None:
        rows = torch.tensor([[np.nan, 1.0], [np.nan, 1.0], [np.nan, 2.0], [0.0, 1.0]])
        assert unique_rows(rows)[1].tolist() == [0, 0, 1, 2]

    def test_a_collision_beyond_the_first_part_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unique, "_CHUNK", 4)
        monkeypatch.setattr(unique, "_keys", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
        rows = torch.zeros(9, 2)
        rows[8, 1] = 1.0
        assert unique_rows(rows)[1].tolist() == [0] * 8 + [1]


def test_rows_must_be_a_matrix() -> None:
    with pytest.raises(ShapeError, match=r"shape \[2, 3, 4\]; wanted \[n, d\]"):
        unique_rows(torch.zeros(2, 3, 4))
