"""Image sets, transformations of images, and functions to learn."""

from weightloom.data.bumps import BumpTarget, CubeTarget, FactoredTarget, FourierTarget
from weightloom.data.cifar import load_cifar10
from weightloom.data.digits import (
    ImageSplit,
    has_images,
    load_digits,
    load_mnist,
    load_mnist_or_digits,
)
from weightloom.data.image_sets import DataError, ImageSet, MissingDataError
from weightloom.data.images import angle_class, pixel_centres, rotate, shift
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
    "ImageSet",
    "load_mnist",
    "load_cifar10",
    "load_mnist_or_digits",
    "has_images",
    "DataError",
    "MissingDataError",
    "pixel_centres",
    "shift",
    "rotate",
    "angle_class",
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
