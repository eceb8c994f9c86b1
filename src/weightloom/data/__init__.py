"""Image sets and what is done to images before a network sees them; functions to be learned."""

from weightloom.data.bumps import BumpTarget, CubeTarget, FactoredTarget, FourierTarget
from weightloom.data.digits import ImageSplit, load_digits
from weightloom.data.images import pixel_centres, shift
from weightloom.data.targets import (
    TARGET_INITS,
    TARGETS,
    InnerProductTarget,
    NetworkTarget,
    ProductTarget,
    Target,
    evaluate,
    make_target,
    sample_inputs,
    sample_pairs,
)

__all__ = [
    # Images
    "ImageSplit",
    "load_digits",
    "pixel_centres",
    "shift",
    # Random functions y(x, I)
    "Target",
    "NetworkTarget",
    "ProductTarget",
    "InnerProductTarget",
    "TARGETS",
    "TARGET_INITS",
    "make_target",
    "sample_pairs",
    "sample_inputs",
    "evaluate",
    # Functions on a cube with a known Lipschitz constant
    "CubeTarget",
    "BumpTarget",
    "FourierTarget",
    "FactoredTarget",
]
