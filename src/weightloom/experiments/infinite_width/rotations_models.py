"""The networks of Section 5.2: f fully connected, depth 4, width 200; g of many depths and widths.

The paper does not say how they are initialised in this experiment, and it matters here:

- "default": what PyTorch's `nn.Linear` does by itself, in f and its last layer. The weights of g
  then have the same size whatever g is, too small for a narrow g, whose signal fades from layer to
  layer: that alone could make a wider or shallower g look better.
- "hyperfan_in": He et al. in f, and a last layer that writes weights of the size each layer of g
  needs. What is seen here of the effect of width and depth is not one of scale.
- "ntk": the parametrisation of the paper's Section 2, without biases. With the learning rates of
  standard parametrisations it learns much more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from weightloom.errors import ConfigError
from weightloom.experiments.infinite_width.rotations_task import CLASSES
from weightloom.models import HyperNetwork, mlp

__all__ = ["INITS", "build", "generated_weights"]

INITS = ("default", "hyperfan_in", "ntk")


def generated_weights(config: Mapping[str, Any], inputs: int) -> int:
    """N_g, the numbers that f writes.

    >>> generated_weights({"depth": 3, "width": 100, "init": "ntk"}, 784)
    89600
    """
    width, hidden = config["width"], config["depth"] - 2
    weights: int = inputs * width + hidden * width**2 + width * CLASSES
    return weights + (0 if config["init"] == "ntk" else (hidden + 1) * width + CLASSES)


def build(config: Mapping[str, Any], inputs: int, seed: int) -> HyperNetwork:
    """The untrained hypernetwork of a configuration, called as model(z, x)."""
    init, bias = config["init"], config["init"] != "ntk"
    if init not in INITS:
        raise ConfigError(f"init={init!r} is unknown; choose one of {', '.join(INITS)}")
    if min(config["depth"], config["f_depth"]) < 2:
        raise ConfigError(
            f"depth={config['depth']} and f_depth={config['f_depth']} were given; both networks "
            "have at least two weight matrices"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        primary = mlp([inputs, *[config["width"]] * (config["depth"] - 1), CLASSES], bias=bias)
        hidden = [config["f_width"]] * (config["f_depth"] - 1)
        encoder = mlp([inputs, *hidden], last_activation=True, bias=bias)
        if init == "hyperfan_in":
            _he_normal(encoder)
        # Features are measured on standard normal conditions: pixels are standardised.
        return HyperNetwork(primary, encoder, init=init)


def _he_normal(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
