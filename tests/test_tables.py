"""Aligned columns, as every table of the terminal is laid out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weightloom.tables import aligned, line

CELL = st.text("abc 1.", max_size=6).map(str.strip)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=1)
    )
)
def test_cells_stand_in_their_columns(rows):
    """Cut at the columns' places, every line gives its cells back."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for align in ("l", "r", "lr"):
        for row, text in zip(rows, aligned(rows, align), strict=True):
            assert text == text.rstrip()
            start = 0
            for cell, width in zip(row, widths, strict=True):
                assert text[start : start + width].strip() == cell
                start += width + 2


def test_the_last_letter_holds_for_the_columns_after_it():
    assert aligned([["a", "b", "c"], ["aa", "bb", "cc"]], "lr") == ["a    b   c", "aa  bb  cc"]


def test_least_widths_and_the_rule():
    lines = aligned([["name", "n"], ["x", "10"]], "lr", widths=[6], rule=True)
    assert lines == ["name     n", "------  --", "x       10"]


def test_no_rows():
    assert aligned([]) == []


def test_a_line_of_known_widths_may_be_longer():
    assert line(["too long", "1"], [3, 4], "lr") == "too long     1"
