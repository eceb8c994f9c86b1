"""Combined adapters against dense algebra."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightloom as wl
from tests.hyper.adapters.models import random_adapter
from tests.hyper.adapters.test_adapter import layers
from tests.oracle import close
from weightloom.errors import ShapeError
from weightloom.hyper.adapters import Adapter, AdapterLayer

DOUBLE = {"dtype": torch.float64}


def test_the_exact_sum():
    a = random_adapter({"x": (9, 7), "y": (5, 6)}, rank=2, alpha=3.0, seed=1, **DOUBLE)
    b = random_adapter({"y": (5, 6), "z": (4, 8)}, rank=3, alpha=1.0, seed=2, **DOUBLE)
    both = wl.combine([a, b], weights=[0.7, -0.3])
    close(both["x"].change(), 0.7 * a["x"].change())
    close(both["y"].change(), 0.7 * a["y"].change() - 0.3 * b["y"].change())
    close(both["z"].change(), -0.3 * b["z"].change())
    assert {name: layer.rank for name, layer in both.items()} == {"x": 2, "y": 5, "z": 3}
    assert both.errors == {"x": 0.0, "y": 0.0, "z": 0.0}
    close(wl.combine([a, b])["y"].change(), a["y"].change() + b["y"].change())


def test_every_kind_of_layer():
    torch.manual_seed(0)
    a, b = Adapter(layers()), Adapter(layers(rank=3))
    for rank in (None, 5, 4):
        both = wl.combine([a, b], [2.0, 1.0], rank)
        for name, layer in both.items():
            want = 2.0 * a[name].change() + b[name].change()
            assert layer.shape == a[name].shape
            if rank != 4:
                close(layer.change(), want, 10)
            error = float((layer.change() - want).norm() / want.norm())
            assert error == pytest.approx(both.errors[name], rel=1e-3, abs=1e-5)


@given(
    out=st.integers(1, 12), inner=st.integers(1, 12), rank=st.integers(1, 6),
    first=st.integers(1, 8), second=st.integers(1, 8), seed=st.integers(0, 99),
)  # fmt: skip
def test_truncation_is_the_best_there_is(out, inner, rank, first, second, seed):
    """Against the singular values of the full matrix; factors may be wider than the matrix."""
    shapes = {"x": (out, inner)}
    a = random_adapter(shapes, first, 2.0, seed, **DOUBLE)
    b = random_adapter(shapes, second, 1.0, seed + 100, **DOUBLE)
    full = a["x"].change() + b["x"].change()
    both = wl.combine([a, b], rank=rank)
    values = torch.linalg.svdvals(full)
    best = float(values[rank:].norm() / values.norm())
    error = float((both["x"].change() - full).norm() / full.norm())
    assert error == pytest.approx(best, abs=1e-12)
    assert both.errors["x"] == pytest.approx(best, abs=1e-12)
    assert both["x"].rank <= max(rank, first + second if first + second <= rank else rank)


def test_never_forms_the_matrix():
    """A dense [out, in] of this size would have 4e10 numbers."""
    A, B = torch.randn(2, 200_000), torch.randn(200_000, 2)
    a = Adapter({"x": AdapterLayer(A, B, 2.0)})
    both = wl.combine([a, a, a], rank=2)
    assert both["x"].rank == 2
    assert both.errors["x"] < 1e-6


def test_a_sum_that_is_zero():
    a = random_adapter({"x": (9, 7)})
    both = wl.combine([a, a], [1.0, -1.0], rank=1)
    assert both.errors["x"] <= 1.0
    assert float(both["x"].change().abs().max()) < 1e-5


def test_the_error_is_in_the_description():
    a, b = (random_adapter({"x": (9, 7)}, seed=seed) for seed in (0, 1))
    assert "error up to 0." in repr(wl.combine([a, b], rank=1))
    assert "error" not in repr(wl.combine([a, b]))


def test_messages():
    a = random_adapter({"x": (9, 7)})
    with pytest.raises(ShapeError, match="1 adapters and 2 weights were given"):
        wl.combine([a], [0.5, 0.5])
    with pytest.raises(ShapeError, match="0 adapters"):
        wl.combine([])
    with pytest.raises(ShapeError, match="rank=0 was given"):
        wl.combine([a], rank=0)
    with pytest.raises(ShapeError, match="'x' differs between the adapters"):
        wl.combine([a, random_adapter({"x": (9, 8)})])
