"""weightloom: networks whose weights are written by other networks.

>>> import weightloom as wl
>>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
>>> hyper.spec.size
65
"""

from weightloom import bounds, construct, errors, kernels, linalg, models, symmetry, weights
from weightloom.models import *  # noqa: F403
from weightloom.models import __all__ as _models
from weightloom.weights import WeightSpec, shared

__version__ = "0.1.0"

__all__ = [
    "WeightSpec",
    "__version__",
    "bounds",
    "construct",
    "errors",
    "kernels",
    "linalg",
    "models",
    "shared",
    "symmetry",
    "weights",
    *_models,
]
