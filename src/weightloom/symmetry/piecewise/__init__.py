"""Piecewise affine networks: the same function? how far apart? Exact answers, without probes."""

from weightloom.symmetry.piecewise.answers import SameFunction, same_function
from weightloom.symmetry.piecewise.distances import LargestDistance, largest_distance
from weightloom.symmetry.piecewise.forms import NormalForm, normal_form

__all__ = [
    # One hidden layer, on all of R^n
    "same_function",
    "SameFunction",
    "normal_form",
    "NormalForm",
    # Any depth, on a box
    "largest_distance",
    "LargestDistance",
]
