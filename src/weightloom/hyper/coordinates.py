"""Networks of points: the usual primaries for pictures, shapes and fields.

A plain MLP of coordinates learns smooth functions only. Two remedies are common. Random Fourier
features put waves in front of it (Tancik et al. 2020, "Fourier features let networks learn high
frequency functions"). A SIREN has sines in place of ReLUs (Sitzmann et al. 2020, "Implicit neural
representations with periodic activation functions").

Every start below is made for coordinates in [-1, 1]: activations and gradients keep their scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.hyper.fully_connected import mlp
from weightloom.hyper.start import layer_gains
from weightloom.networks.activations import Sine

__all__ = ["RandomFourier", "coordinate_network"]

FEATURES = ("fourier", "siren", "none")

# Which option belongs to which kind. A SIREN has its own activation.
_BELONGS = {
    "frequencies": ("fourier",),
    "scale": ("fourier",),
    "omega": ("siren",),
    "activation": ("fourier", "none"),
}

# E[t^2] of a coordinate that is uniform on [-1, 1].
_COORDINATE = 1 / 3


class RandomFourier(nn.Module):
    """sqrt(2) [sin(2 pi B x), cos(2 pi B x)] of x [..., inputs]: [..., 2 frequencies].

    B [frequencies, inputs] is normal with standard deviation ``scale``, in periods per unit length.
    It is a buffer: it is saved, but neither learned nor generated. The factor sqrt(2), which the
    paper leaves out, gives the features a second moment of 1.

    >>> RandomFourier(2, 16)(torch.zeros(5, 2)).shape
    torch.Size([5, 32])
    """

    matrix: Tensor

    def __init__(
        self,
        inputs: int,
        frequencies: int,
        scale: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sampled = torch.empty(frequencies, inputs).normal_(generator=generator)
        self.register_buffer("matrix", scale * sampled)

    def forward(self, x: Tensor) -> Tensor:
        phase = 2 * math.pi * (x @ self.matrix.T)
        return math.sqrt(2.0) * torch.cat([phase.sin(), phase.cos()], dim=-1)

    def extra_repr(self) -> str:
        frequencies, inputs = self.matrix.shape
        return f"inputs={inputs}, frequencies={frequencies}"


def coordinate_network(
    inputs: int,
    outputs: int,
    width: int = 64,
    depth: int = 4,
    features: str = "fourier",
    *,
    frequencies: int | None = None,
    scale: float | None = None,
    omega: float | None = None,
    activation: str | Callable[[], nn.Module] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network of points in [-1, 1]^inputs: an `nn.Sequential`, ready to be a primary.

    ``depth`` counts weight matrices. ``features`` is

    - ``"fourier"``: fixed random waves (``frequencies`` of them, half of ``width`` by default, with
      standard deviation ``scale``, 1 by default), then an MLP. A larger scale is for finer detail:
      a period takes about 1 / ``scale`` of length, and [-1, 1] has length 2;
    - ``"siren"``: layers sin(``omega`` (W x + b)), with the start of its paper. Train it with a
      smaller learning rate than the others (1e-4 with Adam);
    - ``"none"``: an MLP alone.

    ``activation`` (ReLU by default) is that of the MLP. Everything random is sampled from
    ``generator``, so the waves of two networks can be made the same.

    >>> coordinate_network(2, 3, width=64, depth=3, features="siren")
    Sequential(
      (0): Linear(in_features=2, out_features=64, bias=True)
      (1): Sine(omega=30)
      (2): Linear(in_features=64, out_features=64, bias=True)
      (3): Sine(omega=30)
      (4): Linear(in_features=64, out_features=3, bias=True)
    )
    """
    _check_sizes(inputs=inputs, outputs=outputs, width=width, depth=depth)
    _check_options(
        features, frequencies=frequencies, scale=scale, omega=omega, activation=activation
    )
    hidden = [width] * (depth - 1)
    if features == "siren":
        omega = 30.0 if omega is None else omega
        network = mlp([inputs, *hidden, outputs], lambda: Sine(omega))
        _start_siren(network, omega, generator)
        return network
    activation = "relu" if activation is None else activation
    if features == "none":
        network = mlp([inputs, *hidden, outputs], activation)
        _start_mlp(network, generator, of_coordinates=True)
        return network
    frequencies = max(1, width // 2) if frequencies is None else frequencies
    scale = 1.0 if scale is None else scale
    waves = RandomFourier(inputs, frequencies, scale, generator)
    network = mlp([2 * frequencies, *hidden, outputs], activation)
    _start_mlp(network, generator, of_coordinates=False)
    return nn.Sequential(waves, *network)


# -- starts ---------------------------------------------------------------------------------------


@torch.no_grad()
def _start_siren(network: nn.Sequential, omega: float, generator: torch.Generator | None) -> None:
    """Sitzmann et al., Section 3.2: U(-1/n, 1/n) first, then U(-c, c) with c = sqrt(6/n) / omega.

    The input of every later sine is then about standard normal. The paper says nothing of biases.
    Those of the first layer are uniform phases, or the network would be odd. The others are zero:
    the authors' code leaves them as nn.Linear has them, which after the factor omega are several
    times as large as everything else that goes into the sine.
    """
    for position, layer in enumerate(_linear(network)):
        n = layer.in_features
        reach = math.sqrt(6 / n) / omega if position else 1 / n
        layer.weight.uniform_(-reach, reach, generator=generator)
        phase = 0.0 if position else math.pi / omega
        layer.bias.uniform_(-phase, phase, generator=generator)


def _start_mlp(
    network: nn.Sequential, generator: torch.Generator | None, of_coordinates: bool
) -> None:
    """He et al. 2015: normal weights that keep the second moment of activations at 1.

    Biases are zero, except in a first layer that reads coordinates. Without biases all its kinks
    would go through the origin; half of the variance goes to them, and they cover the cube.
    """
    with torch.enable_grad():  # gains are found by derivatives
        gains = layer_gains(network)
    for position, (name, layer) in enumerate(_named_linear(network)):
        variance, bias = gains[name].gain / layer.in_features, 0.0
        if of_coordinates and position == 0:
            variance, bias = variance / (2 * _COORDINATE), gains[name].gain / 2
        nn.init.normal_(layer.weight, 0.0, math.sqrt(variance), generator=generator)
        nn.init.normal_(layer.bias, 0.0, math.sqrt(bias), generator=generator)


def _linear(network: nn.Sequential) -> list[nn.Linear]:
    return [layer for _, layer in _named_linear(network)]


def _named_linear(network: nn.Sequential) -> list[tuple[str, nn.Linear]]:
    named = network.named_children()
    return [(name, layer) for name, layer in named if isinstance(layer, nn.Linear)]


# -- what is wrong --------------------------------------------------------------------------------


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ShapeError(
                f"{name}={size!r} was given; a network of points needs whole numbers of at least 1 "
                f"for inputs, outputs, width and depth (the number of weight matrices)"
            )


def _check_options(features: str, **options: Any) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    if features not in FEATURES:
        raise ShapeError(f"features={features!r} is unknown; choose {', '.join(FEATURES)}")
    for name, value in given.items():
        if features not in _BELONGS[name]:
            kinds = " or ".join(f"features={kind!r}" for kind in _BELONGS[name])
            raise ShapeError(
                f"{name}={value!r} was given with features={features!r}, which does not use it; "
                f"it belongs to {kinds}: change features, or leave {name} out"
            )
    if "frequencies" in given:
        _check_sizes(frequencies=given["frequencies"])
    for name in ("scale", "omega"):
        if name in given and not 0.0 < given[name] < math.inf:
            raise ShapeError(f"{name}={given[name]!r} was given; it is a positive, finite number")
