"""Are two networks the same function? Symmetries, canonical forms, alignment, merging, reduction.

A symmetry changes the weights of a network and not its function: permutations of hidden units,
scales and signs that the activations allow, heads of attention. `read` finds the symmetries of a
module; everything else works on what it returns.
"""

from weightloom.symmetry.aligning.alignment import Alignment, align
from weightloom.symmetry.aligning.averaging import interpolate
from weightloom.symmetry.aligning.barriers import Barrier, loss_barrier
from weightloom.symmetry.aligning.merging import Merged, merge
from weightloom.symmetry.aligning.repairing import repair
from weightloom.symmetry.canonical import Canonical, Normal, canonicalize, normal_element, normalize
from weightloom.symmetry.differences.comparison import diff
from weightloom.symmetry.differences.result import CheckpointDiff, TensorDiff
from weightloom.symmetry.equivalence import Equivalence, equivalent
from weightloom.symmetry.fingerprints import fingerprint
from weightloom.symmetry.folding import fold
from weightloom.symmetry.group import (
    apply,
    compose,
    identity,
    invert,
    random_element,
    random_equivalent,
)
from weightloom.symmetry.orbits import Copies, distinct_permutations
from weightloom.symmetry.piecewise import (
    LargestDistance,
    NormalForm,
    SameFunction,
    largest_distance,
    normal_form,
    same_function,
)
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.reduction.reducer import Reduced, reduce
from weightloom.symmetry.reduction.removable import Normality, is_normal
from weightloom.symmetry.spec import (
    Attention,
    Axis,
    Element,
    Gain,
    Kind,
    Layer,
    Projection,
    Space,
    Spec,
)

__all__ = [
    # Are two networks the same?
    "equivalent",
    "Equivalence",
    "fingerprint",
    # Piecewise affine networks: exact answers
    "same_function",
    "SameFunction",
    "normal_form",
    "NormalForm",
    "largest_distance",
    "LargestDistance",
    # What differs, tensor by tensor, in any two checkpoints?
    "diff",
    "CheckpointDiff",
    "TensorDiff",
    # One form for all equivalent networks
    "canonicalize",
    "Canonical",
    "normalize",
    "normal_element",
    "Normal",
    "fold",
    # Close to another network, and averages of several
    "align",
    "Alignment",
    "merge",
    "Merged",
    "repair",
    "interpolate",
    "loss_barrier",
    "Barrier",
    # Smaller, with the same outputs
    "reduce",
    "Reduced",
    "is_normal",
    "Normality",
    # Other weights, the same function
    "random_equivalent",
    "random_element",
    "apply",
    "compose",
    "invert",
    "identity",
    "distinct_permutations",
    "Copies",
    # Symmetries as data
    "read",
    "Spec",
    "Space",
    "Kind",
    "Axis",
    "Attention",
    "Projection",
    "Gain",
    "Layer",
    "Element",
]
