"""Image sets and what is done to images before a network sees them."""

from weightloom.data.digits import ImageSplit, load_digits
from weightloom.data.images import pixel_centres, shift

__all__ = ["ImageSplit", "load_digits", "pixel_centres", "shift"]
