"""Networks near their initialisation: the Taylor model, its error, and what it can express."""

from weightloom.construct.near_init.bounds import (
    near_zero_bound,
    noise_bound,
    relu_bound,
    row_norm_bound,
    smooth_bound,
    uniform_noise_bound,
)
from weightloom.construct.near_init.plant import Planted, PlantingBounds, plant, planting_bounds
from weightloom.construct.near_init.predict import (
    KernelPredictor,
    ball_kernel,
    fit_kernel,
    least_squares,
    lift,
)
from weightloom.construct.near_init.search import attack, near_zero_quantile
from weightloom.construct.near_init.shallow import Nonlinearity, Shallow, nonlinearity
from weightloom.construct.near_init.study import TaylorError, taylor_errors
from weightloom.construct.near_init.tangent import (
    layer_grams,
    limit_kernel,
    sampled_kernel,
    tangent_gram,
)
from weightloom.construct.near_init.taylor import TaylorModel, linearize
from weightloom.construct.near_init.transport import (
    Sampled,
    infinite_width,
    temperature,
    transport,
)
from weightloom.construct.near_init.worst import (
    Attack,
    largest_output,
    relu_worst,
    relu_worst_pair,
)

__all__ = [
    # The Taylor model of any module
    "TaylorModel",
    "linearize",
    # Shallow networks at initialisation
    "Shallow",
    "Nonlinearity",
    "nonlinearity",
    # How far they are from their Taylor model, and how large before training
    "smooth_bound",
    "relu_bound",
    "near_zero_bound",
    "row_norm_bound",
    "noise_bound",
    "uniform_noise_bound",
    # Trying to break the bounds
    "attack",
    "Attack",
    "relu_worst",
    "relu_worst_pair",
    "largest_output",
    "near_zero_quantile",
    "taylor_errors",
    "TaylorError",
    # Planting a network near a random one
    "plant",
    "Planted",
    "planting_bounds",
    "PlantingBounds",
    # Infinite width
    "transport",
    "temperature",
    "infinite_width",
    "Sampled",
    # The tangent kernel
    "tangent_gram",
    "limit_kernel",
    "sampled_kernel",
    "layer_grams",
    # Predicting with it
    "least_squares",
    "KernelPredictor",
    "fit_kernel",
    "lift",
    "ball_kernel",
]
