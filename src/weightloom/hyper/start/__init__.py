"""Where training starts: the scale of generated weights, and the NTK parametrisation."""

from weightloom.hyper.start.initialisation import (
    INITS,
    LayerGains,
    check_init,
    init_targets,
    layer_gains,
    varying_share,
)
from weightloom.hyper.start.ntk import ScaledLinear, apply_ntk

__all__ = [
    # initialisation
    "INITS",
    "check_init",
    "init_targets",
    "varying_share",
    # fans and gains of a network's layers
    "layer_gains",
    "LayerGains",
    # NTK parametrisation
    "apply_ntk",
    "ScaledLinear",
]
