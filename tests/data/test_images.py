"""Rotated and shifted images: quarter turns exact, there and back, and compared with scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from weightloom.data import angle_class, pixel_centres, rotate, shift
from weightloom.data.images import MODES
from weightloom.errors import ShapeError


def smooth(side, seed=0, dtype=torch.float64):
    """A few waves under a bell that is 0 near the edge: nothing is lost when it is rotated."""
    generator = torch.Generator().manual_seed(seed)
    at = (torch.arange(side, dtype=dtype) + 0.5) * (2 / side) - 1
    y, x = torch.meshgrid(at, at, indexing="ij")
    a, b = torch.randn(2, 3, 1, 1, dtype=dtype, generator=generator) * 3
    waves = torch.cos(a * x + b * y).sum(0)
    return (waves * torch.exp(-12 * (x**2 + y**2))).reshape(1, 1, side, side)


def degrees(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("quarters", [-5, -1, 0, 1, 2, 3, 4])
def test_quarter_turns_are_exact(mode, samples, quarters):
    images = torch.randn(3, 2, 7, 7)
    rotated = rotate(images, degrees(*[90.0 * quarters] * 3), mode=mode, samples=samples)
    assert torch.equal(rotated, torch.rot90(images, quarters, (2, 3)))


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("angle", [7.0, 30.0, 123.4, 359.0, -61.0])
def test_bilinear_is_scipys(side, angle):
    """Order 1 there: the same function, sampled by other code.

    Beyond the last centres scipy cuts off at once, here the image fades out; with a frame of zeros
    around it scipy's does too.
    """
    image = torch.rand(1, 1, side, side, dtype=torch.float64)
    rotated = rotate(image, degrees(angle))[0, 0].numpy()
    padded = np.pad(image[0, 0].numpy(), 3)
    theirs = ndimage.rotate(padded, angle, reshape=False, order=1, mode="constant")[3:-3, 3:-3]
    np.testing.assert_allclose(rotated, theirs, atol=1e-12)


def test_turning_a_known_function():
    """Against the function itself, rotated by formula: bilinear errs as h^2, cubic less."""
    angle = 0.7
    for samples in (1, 2):
        errors = {}
        for side in (32, 64):
            at = (torch.arange(side, dtype=torch.float64) + 0.5) * (2 / side) - 1
            y, x = torch.meshgrid(at, at, indexing="ij")

            def bump(x, y):
                return torch.exp(-20 * ((x - 0.3) ** 2 + 2 * (y + 0.1) ** 2))

            # Counter-clockwise as seen, y down: the bump at (0.3, -0.1) goes up and left.
            back_x = math.cos(angle) * x - math.sin(angle) * y
            back_y = math.sin(angle) * x + math.cos(angle) * y
            image, wanted = bump(x, y)[None, None], bump(back_x, back_y)
            for mode in MODES:
                rotated = rotate(image, degrees(math.degrees(angle)), mode=mode, samples=samples)
                errors[mode, side] = float((rotated[0, 0] - wanted).abs().max())
        # h^2/8 (f_xx + f_yy), and as much over 3 for a mean over a pixel instead of its centre.
        bound = (2 / 32) ** 2 * (40 + 80) * (1 / 8 + (samples > 1) / 24)
        assert 0.5 * bound < errors["bilinear", 32] < bound
        assert 3.0 < errors["bilinear", 32] / errors["bilinear", 64] < 5.0
        if samples == 1:
            assert errors["bicubic", 64] < 0.9 * errors["bilinear", 64]


@settings(deadline=None, max_examples=15)
@given(st.floats(-360, 360), st.floats(-360, 360), st.integers(0, 99))
def test_two_turns_are_one(first, second, seed):
    image = smooth(48, seed)
    twice = rotate(rotate(image, degrees(first)), degrees(second))
    once = rotate(image, degrees(first + second))
    # A bilinear turn errs by at most 1/8 of the second differences along both axes: three turns.
    down, right = (image.diff(n=2, dim=dim).abs().max() for dim in (2, 3))
    assert float((twice - once).abs().max()) < 3 * float(down + right) / 8
    assert float(down + right) < 0.3 * float(image.abs().max())


def test_mean_over_pixels_by_hand():
    """samples = 2: the mean of four rotated points of each pixel, computed with scipy."""
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    angle = 25.0
    rotated = rotate(image, degrees(angle), samples=2)[0, 0].numpy()
    at = (np.arange(12) + 0.5) / 2 - 0.5 - 2.5
    rows, columns = np.meshgrid(at, at, indexing="ij")
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    old = np.stack([s * columns + c * rows, c * columns - s * rows]) + 2.5 + 2
    values = ndimage.map_coordinates(np.pad(image[0, 0].numpy(), 2), old, order=1)
    wanted = values.reshape(6, 2, 6, 2).mean((1, 3))
    np.testing.assert_allclose(rotated, wanted, atol=1e-12)


def test_edges_are_no_staircases():
    """A rotated edge: pixels get the share of them that is covered, not 0 or 1."""
    side, angle = 32, 20.0
    image = torch.zeros(1, 1, side, side, dtype=torch.float64)
    image[..., side // 2 :] = 1.0
    at = (torch.arange(side * 16, dtype=torch.float64) + 0.5) / 16 - side / 2
    y, x = torch.meshgrid(at, at, indexing="ij")
    turn = math.radians(angle)
    covered = (math.cos(turn) * x - math.sin(turn) * y > 0).double()
    keep = slice(8, 24)
    share = torch.nn.functional.avg_pool2d(covered[None, None], 16)[..., keep, keep]
    error = (rotate(image, degrees(angle))[..., keep, keep] - share).abs().max()
    assert error < 0.2
    assert (share.round() - share).abs().max() > 0.4  # of the nearest pixel's value


def test_what_is_too_fine_for_the_grid_fades_instead_of_aliasing():
    """A checkerboard rotated by 45 degrees has sqrt(2) times the frequency that pixels can hold."""
    side = 32
    board = (torch.arange(side)[:, None] + torch.arange(side)).remainder(2).double() * 2 - 1
    keep = slice(8, 24)
    spread = [
        float(rotate(board[None, None], degrees(45.0), samples=n)[..., keep, keep].std())
        for n in (1, 2, 4)
    ]
    assert spread[1] < 0.5 * spread[0]
    assert spread[2] < 0.5 * spread[0]
    assert spread[2] == pytest.approx(spread[1], abs=0.1)


def test_flat_and_many_and_each_its_own_angle():
    images = torch.rand(1100, 16)
    angles = torch.rand(1100) * 720 - 360
    rotated = rotate(images, angles)
    assert rotated.shape == images.shape
    assert rotated.dtype == torch.float32
    for i in (0, 511, 512, 1099):
        alone = rotate(images[i].reshape(1, 1, 4, 4), angles[i : i + 1])
        assert torch.allclose(rotated[i], alone.flatten(), atol=1e-6)
    assert rotate(images[:0], angles[:0]).shape == (0, 16)


def test_channels_turn_together():
    images = torch.rand(2, 3, 5, 5)
    angles = torch.tensor([33.0, 210.0])
    rotated = rotate(images, angles)
    for channel in range(3):
        assert torch.allclose(rotated[:, channel], rotate(images[:, [channel]], angles)[:, 0])


def test_classes_as_printed_and_on_the_circle():
    fine = torch.arange(0, 360, 0.5, dtype=torch.float64) + 0.25
    centres = torch.arange(12, dtype=torch.float64) * 30 / 360
    printed = (fine[:, None] / 360 - centres).abs().argmin(1)  # the paper's sentence
    assert torch.equal(angle_class(fine), printed)
    gap = (fine[:, None] - 360 * centres).abs()
    circle = torch.minimum(gap, 360 - gap).argmin(1)
    assert torch.equal(angle_class(fine, circular=True), circle)
    assert torch.bincount(printed).tolist() == [30] + [60] * 10 + [90]
    assert torch.bincount(circle).tolist() == [60] * 12
    assert angle_class(degrees(-10.0, 370.0), circular=True).tolist() == [0, 0]
    assert angle_class(degrees(100.0), classes=4).tolist() == [1]


@pytest.mark.parametrize(
    ("images", "angles", "options", "message"),
    [
        (torch.rand(2, 5), torch.zeros(2), {}, r"\(2, 5\); square images are wanted"),
        (torch.rand(2, 1, 4, 5), torch.zeros(2), {}, "square images are wanted"),
        (torch.zeros(2, 4).long(), torch.zeros(2), {}, "type torch.int64; a rotated pixel"),
        (torch.rand(2, 4), torch.zeros(3), {}, r"degrees has shape \(3,\); one angle for each"),
        (torch.rand(1, 4), torch.tensor([math.nan]), {}, "not finite; give angles"),
        (torch.rand(1, 4), torch.zeros(1), {"mode": "nearest"}, "'nearest' is unknown; choose"),
        (torch.rand(1, 4), torch.zeros(1), {"samples": 0}, "samples=0 was given"),
    ],
)
def test_messages(images, angles, options, message):
    with pytest.raises(ValueError, match=message):
        rotate(images, angles, **options)


def test_classes_need_a_number():
    with pytest.raises(ValueError, match="classes=0 was given"):
        angle_class(torch.zeros(1), classes=0)


# -- pixel centres and shifts ----------------------------------------------------------------------


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
