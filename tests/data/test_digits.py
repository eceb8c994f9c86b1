"""The digits, their split, and images as functions of the plane."""

from __future__ import annotations

import sys

import pytest
import torch

from weightloom.data import load_digits, pixel_centres, shift
from weightloom.errors import MissingDependencyError, ShapeError


def test_split_is_a_partition_of_the_set() -> None:
    from sklearn.datasets import load_digits as bundled

    data, source = load_digits(), bundled()
    assert data.train.shape == (1437, 64)
    assert data.held_out.shape == (360, 64)
    original = torch.as_tensor(source.data, dtype=torch.float32) / 16
    assert torch.equal(data.held_out, original[data.held_out_index])
    assert data.held_out_labels.tolist() == source.target[data.held_out_index].tolist()
    assert data.held_out_index.unique().numel() == 360
    everything = torch.cat([data.train, data.held_out])
    # A permutation of the rows keeps the sum of any function of a row; a weighted one tells rows.
    key = torch.arange(64, dtype=torch.float64).sin()
    there, here = original.double() @ key, everything.double() @ key
    torch.testing.assert_close(there.sort().values, here.sort().values)


def test_brightness_is_between_zero_and_one() -> None:
    train = load_digits().train
    assert train.min() == 0.0
    assert train.max() == 1.0


def test_the_split_depends_on_its_seed_alone() -> None:
    first = load_digits()
    torch.manual_seed(99)
    assert torch.equal(first.held_out_index, load_digits().held_out_index)
    assert not torch.equal(first.held_out_index, load_digits(seed=1).held_out_index)


def test_first_of_each_is_the_first() -> None:
    data = load_digits()
    rows = data.first_of_each()
    assert data.held_out_labels[rows].tolist() == list(range(10))
    for digit, row in enumerate(rows):
        assert digit not in data.held_out_labels[:row].tolist()


@pytest.mark.parametrize("count", [0, -1, 1797, 5000])
def test_impossible_split(count: int) -> None:
    with pytest.raises(ShapeError, match=rf"held_out={count} was given; the set has 1797 images"):
        load_digits(held_out=count)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"scikit-learn.*pip install 'weightloom\[dem"):
        load_digits()


def test_finer_grids_tile_the_same_square() -> None:
    coarse, fine = pixel_centres(8), pixel_centres(32)
    # The centre of a coarse pixel is the mean of the sixteen fine ones inside it.
    blocks = fine.reshape(8, 4, 8, 4, 2).mean(dim=(1, 3)).reshape(64, 2)
    torch.testing.assert_close(blocks, coarse)


def test_whole_pixel_shift_moves_right_and_down() -> None:
    images = torch.rand(3, 64)
    moved = shift(images, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).reshape(3, 8, 8)
    grids = images.reshape(3, 8, 8)
    torch.testing.assert_close(moved[0, :, 1:], grids[0, :, :-1])
    assert moved[0, :, 0].abs().max() < 1e-5
    torch.testing.assert_close(moved[1, 1:], grids[1, :-1])
    torch.testing.assert_close(moved[2], grids[2])


def test_half_pixel_shift_is_a_mean() -> None:
    images = torch.rand(1, 64)
    moved = shift(images, torch.tensor([[0.5, 0.0]])).reshape(8, 8)
    grid = images.reshape(8, 8)
    torch.testing.assert_close(moved[:, 1:], (grid[:, 1:] + grid[:, :-1]) / 2)


def test_shift_says_what_it_wants() -> None:
    with pytest.raises(ShapeError, match=r"images has shape \(2, 63\); square images are wanted"):
        shift(torch.zeros(2, 63), torch.zeros(2, 2))
    with pytest.raises(ShapeError, match=r"pixels has shape \(3, 2\).*\[2, 2\]"):
        shift(torch.zeros(2, 64), torch.zeros(3, 2))
    with pytest.raises(ShapeError, match="side=0 was given"):
        pixel_centres(0)
