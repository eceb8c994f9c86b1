"""Where training starts: how large generated weights should be.

A head that is initialised like an ordinary layer writes weights of a scale that has nothing to do
with the primary: in the setting of "On the Modularity of Hypernetworks", Section 6, training is
NaN within an epoch. ``hyperfan_in`` and ``hyperfan_out`` follow Chang, Flokas and Lipson,
"Principled weight initialization for hypernetworks" (2020): with phi_k the features and
W = sum_k table_k phi_k,

    Var[table] = Var[W] / (k E[phi^2]),   Var[W] = gain / fan,

where half of the variance goes to the bias if the bias is generated too. The convention for the
gain is that *activations* keep a second moment of 1: gain = 1 / E[s(u)^2] of the activation that
follows the layer, 2 for ReLU, 1 for the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.models.gains import Layer, layers
from weightloom.models.heads import Target
from weightloom.weights import WeightSpec

__all__ = ["INITS", "check_init", "targets"]

INITS = ("hyperfan_in", "hyperfan_out", "primary", "ntk", "default")

# `primary`: the condition-dependent part has this fraction of the size of the constant part.
SMALL_PART = 0.1


def check_init(init: str) -> str:
    if init not in INITS:
        raise HeadError(f"init={init!r} is unknown; choose one of {', '.join(INITS)}")
    return init


def targets(
    primary: nn.Module, spec: WeightSpec, values: Mapping[str, Tensor], init: str
) -> dict[str, Target]:
    """What every generated tensor should look like at the start, under ``init``.

    Tensors that belong to no Linear or convolution layer (norms, embeddings, attention) follow
    ``primary`` under every init: they have an initialisation of their own that should be kept.
    """
    known = layers(primary)
    found = {}
    for name in spec:
        layer = known.get(name.rpartition(".")[0])
        value = values[name]
        if init in ("hyperfan_in", "hyperfan_out") and layer is not None:
            found[name] = Target(_hyperfan(name, layer, spec, init))
        else:
            found[name] = Target(_small_part(value, layer), value)
    return found


def _hyperfan(name: str, layer: Layer, spec: WeightSpec, init: str) -> float:
    bias_too = f"{layer.name}.bias".lstrip(".") in spec
    if init == "hyperfan_in":
        share = 0.5 if bias_too else 1.0
        weight, bias = share * layer.gain / layer.fan_in, 0.5 * layer.gain
    else:
        weight = layer.backward_gain / layer.fan_out
        # What the weights leave of the forward variance, if they leave anything.
        bias = max(0.0, layer.gain - weight * layer.fan_in)
    return bias if name.endswith("bias") else weight


def _small_part(value: Tensor, layer: Layer | None) -> float:
    size = value.double().square().mean().item()
    if size == 0.0:
        size = 1.0 / layer.fan_in if layer is not None else 1.0
    return SMALL_PART**2 * size
