"""The NTK parametrisation of "On Infinite-Width Hypernetworks", Eqs. 2 and 3, exactly.

    f:  y^l = sqrt(1/n_{l-1}) W^l q^{l-1},   q^l = sqrt(2) s(y^l),   W^l standard normal, trainable
    g:  the same with generated V^l,          (V^1, ..., V^H) = y^L

No biases. The factor sqrt(2) after an activation is moved into the next layer, where it multiplies
sqrt(1/n). The function of the parameters is the same, and so are the kernels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads import FullHead, Head
from weightloom.hyper.start.initialisation import first_activation

__all__ = ["ScaledLinear", "apply_ntk"]


class ScaledLinear(nn.Linear):
    """``scale * W x`` with W standard normal: a linear layer in NTK parametrisation."""

    def __init__(self, inner: int, out: int, scale: float, like: Tensor) -> None:
        self.scale = scale
        super().__init__(inner, out, bias=False, device=like.device, dtype=like.dtype)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input * self.scale, self.weight)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:.4g}"


def apply_ntk(primary: nn.Module, encoder: nn.Module, head: Head) -> None:
    """Put encoder and head in NTK parametrisation; the encoder's layers are replaced in place."""
    if not isinstance(head, FullHead) or head.has_offset:
        raise HeadError(
            'init="ntk" needs a linear head without biases; leave head="full" as it is, or pass '
            "FullHead(offset=False)"
        )
    scales = _scales(primary, "primary")
    head.scales = {}
    ends_active = _parametrise(encoder)
    for layer, scale in scales.items():
        head.scales[f"{layer}.weight".lstrip(".")] = scale * math.sqrt(
            (2.0 if ends_active else 1.0) / head.features
        )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()


def _scales(network: nn.Module, role: str) -> dict[str, float]:
    """sqrt(c / fan_in) for every layer; c is 2 behind an activation, else 1."""
    scales, after_activation = {}, False
    for name, module in _chain(network, role):
        if isinstance(module, nn.Linear):
            scales[name] = math.sqrt((2.0 if after_activation else 1.0) / module.in_features)
            after_activation = False
        else:
            after_activation = True
    return scales


def _chain(network: nn.Module, role: str) -> list[tuple[str, nn.Module]]:
    """Linear layers and activations in order, or an error that names what else there is."""
    chain = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Sequential | nn.Identity):
            continue
        linear = isinstance(module, nn.Linear) and module.bias is None
        if not linear and first_activation([module]) is None:
            what = "has a bias" if isinstance(module, nn.Linear) else type(module).__name__
            raise HeadError(
                f'init="ntk" is defined for bias-free fully connected networks, but layer {name!r} '
                f"of the {role} is not one ({what}); build it with wl.mlp(sizes, bias=False)"
            )
        chain.append((name, module))
    return chain


def _parametrise(encoder: nn.Module) -> bool:
    """Replace every Linear of the encoder; return whether it ends with an activation."""
    chain = _chain(encoder, "encoder")
    if isinstance(encoder, nn.Linear):
        raise HeadError('init="ntk" needs an encoder that is an nn.Sequential, such as wl.mlp(...)')
    scales = _scales(encoder, "encoder")
    for name, module in chain:
        if isinstance(module, nn.Linear):
            parent, _, leaf = name.rpartition(".")
            scaled = ScaledLinear(
                module.in_features, module.out_features, scales[name], module.weight
            )
            setattr(encoder.get_submodule(parent), leaf, scaled)
    return bool(chain) and not isinstance(chain[-1][1], nn.Linear)
