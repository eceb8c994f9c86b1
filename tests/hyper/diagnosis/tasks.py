"""Small versions of runs that fail and runs that train: (hypernetwork, x, condition, target)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.data import load_digits, pixel_centres
from weightloom.data.image_sets import find_set

Task = tuple[wl.HyperNetwork, Tensor, Tensor, Tensor]


class Fourier(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(7)
        self.register_buffer("frequencies", 3.0 * torch.randn(2, count, generator=random))

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30.0 * x)


def discs(count: int, side: int) -> Tensor:
    """White paper with three coloured discs on it: [count, side^2, 3]."""
    random = torch.Generator().manual_seed(0)
    points = pixel_centres(side)
    centres = 1.2 * torch.rand(count, 3, 1, 2, generator=random) - 0.6
    radii = 0.4 * torch.rand(count, 3, 1, generator=random) + 0.2
    colours = torch.rand(count, 3, 3, generator=random)
    pictures = torch.ones(count, side * side, 3)
    for j in range(3):
        inside = (points - centres[:, j]).norm(dim=-1) < radii[:, j]
        pictures = torch.where(inside[..., None], colours[:, j, None], pictures)
    return pictures


def emoji(init: str | None = "hyperfan_in", head: str = "full") -> Task:
    """Discs as emoji: held at 1.35 of their variance by init="hyperfan_in" at Adam 1e-3."""
    return drawing(discs(16, 64), init, head, seed=2)


def real_emoji(init: str | None = "hyperfan_in", head: str = "full") -> Task:
    """Emoji themselves; raises MissingDataError if they are not there."""
    folder = find_set("emoji", ["emoji"], ["emoji64.npz"], None)
    raw = torch.from_numpy(np.load(folder / "emoji64.npz")["images"][:960:60]).float() / 255
    colour, alpha = raw[..., :3], raw[..., 3:]
    return drawing((colour * alpha + 1 - alpha).flatten(1, 2), init, head, seed=0)


def drawing(pictures: Tensor, init: str | None, head: str, seed: int) -> Task:
    """A convolutional encoder whose features are small, a Fourier primary, a final Sigmoid."""
    torch.manual_seed(seed)
    condition = pictures.unflatten(1, (64, 64)).permute(0, 3, 1, 2).contiguous()
    layers: list[nn.Module] = []
    for channels, wider in ((3, 16), (16, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(channels, wider, 3, 2, 1), nn.ReLU()]
    encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU())
    primary = nn.Sequential(Fourier(32), *wl.mlp([64, 32, 32, 3]), nn.Sigmoid())
    hyper = wl.HyperNetwork(primary, encoder, head, init, calibration=condition)
    seen = torch.randperm(4096, generator=torch.Generator().manual_seed(1))[:512]
    points = pixel_centres(64)[seen].expand(len(pictures), -1, -1)
    return hyper, points, condition, pictures[:, seen]


def siren(init: str | None = "hyperfan_in", head: str = "full") -> Task:
    torch.manual_seed(0)
    pictures = discs(16, 16).mean(-1, keepdim=True)
    sizes = [2, 32, 32, 32, 1]
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layer = nn.Linear(inputs, outputs)
        bound = 1.0 / inputs if i == 0 else math.sqrt(6.0 / inputs) / 30.0
        nn.init.uniform_(layer.weight, -bound, bound)
        layers += [layer, Sine()]
    encoder = wl.mlp([256, 64, 64], last_activation=True)
    condition = pictures[..., 0]
    hyper = wl.HyperNetwork(nn.Sequential(*layers[:-1]), encoder, head, init, calibration=condition)
    return hyper, pixel_centres(16).expand(16, -1, -1), condition, pictures


def textures(init: str | None = "hyperfan_in", head: str = "full") -> Task:
    """Waves with up to eight periods, and the recipe of docs/start.md."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    frequencies = 8.0 * math.pi * (2.0 * torch.rand(32, 2, 1, generator=random) - 1.0)
    phases = 2.0 * math.pi * torch.rand(32, 1, 3, generator=random)
    pictures = 0.5 + 0.5 * torch.sin(pixel_centres(16) @ frequencies + phases)
    encoder = wl.mlp([768, 128, 128], "leaky_relu", last_activation=True)
    condition = pictures.flatten(1)
    hyper = wl.HyperNetwork(wl.mlp([2, 32, 32, 3]), encoder, head, init, calibration=condition)
    return hyper, pixel_centres(16).expand(32, -1, -1), condition, pictures


def digits(init: str | None = "hyperfan_in", head: str = "full") -> Task:
    torch.manual_seed(0)
    pictures = load_digits(held_out=360).train[:32]
    encoder = wl.mlp([64, 128, 128], "leaky_relu", last_activation=True)
    hyper = wl.HyperNetwork(wl.mlp([2, 32, 32, 1]), encoder, head, init, calibration=pictures)
    return hyper, pixel_centres(8).expand(32, -1, -1), pictures, pictures[..., None]


def smooth(init: str | None = None, head: str = "full") -> Task:
    """Conditions are coefficients of a smooth function."""
    torch.manual_seed(0)
    condition = torch.randn(16, 4)
    x = torch.rand(16, 40, 2) * 2.0 - 1.0
    basis = torch.stack([x[..., 0], x[..., 1], x[..., 0] * x[..., 1], x[..., 0] ** 2], -1)
    encoder = wl.mlp([4, 32, 32], "leaky_relu", last_activation=True)
    hyper = wl.HyperNetwork(wl.mlp([2, 32, 32, 1]), encoder, head, init)
    return hyper, x, condition, basis @ condition[..., None]


def steps_of(task: Task, choice: object, **options: object) -> wl.Diagnosis:
    hyper, x, condition, target = task
    return wl.diagnose(hyper, x, condition, target, optimiser=choice, **options)  # type: ignore[arg-type]
