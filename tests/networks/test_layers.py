"""Kinds of layers: complete lists, and subclasses that compute something else left out."""

from __future__ import annotations

import pytest
from torch import nn

from weightloom.networks import layers


class Renamed(nn.Conv2d):
    pass


class Scaled(nn.Linear):
    def forward(self, x):
        return 2.0 * super().forward(x)


def test_subclasses_count_while_they_keep_the_forward():
    assert layers.kind_of(Renamed(1, 1, 1), layers.AFFINE) is nn.Conv2d
    assert layers.kind_of(Scaled(1, 1), layers.AFFINE) is None
    assert layers.kind_of(nn.ReLU(), layers.AFFINE) is None


FAMILIES = {
    "CONVOLUTIONS": "Conv", "BATCH_NORMS": "BatchNorm", "MAX_POOLS": "MaxPool",
    "AVERAGE_POOLS": "AvgPool", "ADAPTIVE_MAX_POOLS": "AdaptiveMaxPool",
    "ADAPTIVE_AVERAGE_POOLS": "AdaptiveAvgPool",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_three_dimensions(name):
    wanted = {getattr(nn, f"{FAMILIES[name]}{d}d") for d in (1, 2, 3)}
    assert set(getattr(layers, name)) == wanted


def test_convolutions_of_every_sort():
    for kind in (*layers.CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        layer = kind(1, 1, 1)
        assert isinstance(layer, layers.ANY_CONVOLUTIONS)
        transposed = kind.__name__.startswith("ConvTranspose")
        assert isinstance(layer, layers.TRANSPOSED_CONVOLUTIONS) == transposed
