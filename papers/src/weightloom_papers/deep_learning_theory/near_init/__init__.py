"""Networks near their initialisation: the error of the Taylor model, and what it can express.

Chapter 3 of "Deep learning theory", for shallow networks of which only the first layer is trained.
`weightloom.construct.linearize` makes the Taylor model of any module. Further bounds and the types
that are returned are in the modules: `bounds`, `attacks`, `planting`, `limits`.
"""

from weightloom_papers.deep_learning_theory.near_init.attacks import (
    attack,
    relu_worst,
    taylor_errors,
)
from weightloom_papers.deep_learning_theory.near_init.bounds import (
    noise_bound,
    relu_bound,
    smooth_bound,
    uniform_noise_bound,
)
from weightloom_papers.deep_learning_theory.near_init.limits import (
    fit_kernel,
    infinite_width,
    layer_grams,
    least_squares,
    lift,
    limit_kernel,
    tangent_gram,
    transport,
)
from weightloom_papers.deep_learning_theory.near_init.planting import plant
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = [
    # The network
    "Shallow",
    # Bounds: distance to the Taylor model, size before training
    "smooth_bound",
    "relu_bound",
    "noise_bound",
    "uniform_noise_bound",
    # What networks reach of these bounds
    "attack",
    "relu_worst",
    "taylor_errors",
    # Planting a network near a random one
    "plant",
    # Infinite width: transport maps and the tangent kernel
    "transport",
    "infinite_width",
    "tangent_gram",
    "layer_grams",
    "limit_kernel",
    # Predicting with the kernel
    "least_squares",
    "fit_kernel",
    "lift",
]
