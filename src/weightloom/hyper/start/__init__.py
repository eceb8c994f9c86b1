"""Where training starts, how far its steps go, and the NTK parametrisation."""

from weightloom.hyper.start.initialisation import (
    INITS,
    LayerGains,
    check_init,
    init_targets,
    layer_gains,
    varying_share,
)
from weightloom.hyper.start.ntk import ScaledLinear, apply_ntk
from weightloom.hyper.start.scaling import (
    FixedScaling,
    Normalisation,
    Scaling,
    multipliers,
    mup_targets,
    reach,
    restored,
    same_for_multiples,
    stored,
)

__all__ = [
    # initialisation
    "INITS",
    "check_init",
    "init_targets",
    "varying_share",
    # fans and gains of a network's layers
    "layer_gains",
    "LayerGains",
    # features of the size at which generated weights move as ordinary ones do
    "FixedScaling",
    "Normalisation",
    "Scaling",
    "multipliers",
    "mup_targets",
    "reach",
    "restored",
    "same_for_multiples",
    "stored",
    # NTK parametrisation
    "apply_ntk",
    "ScaledLinear",
]
