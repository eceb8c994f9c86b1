"""Groups that leave the function of a network unchanged; canonical forms, alignment, reduction."""

from weightloom.symmetry.activations import Activation, classify, probe
from weightloom.symmetry.align import Alignment, align, interpolate
from weightloom.symmetry.barrier import Barrier, loss_barrier
from weightloom.symmetry.canonical import Canonical, canonicalize
from weightloom.symmetry.equivalent import Equivalence, equivalent
from weightloom.symmetry.examples import attention_pair, pooling_pair, residual_difference
from weightloom.symmetry.fingerprint import fingerprint
from weightloom.symmetry.fold import fold
from weightloom.symmetry.group import (
    apply,
    compose,
    identity,
    invert,
    random_element,
    random_equivalent,
)
from weightloom.symmetry.landscape import Theorem5, theorem5
from weightloom.symmetry.normal import Normality, is_normal
from weightloom.symmetry.normalize import Normal, normal_element, normalize
from weightloom.symmetry.orbit import distinct_permutations
from weightloom.symmetry.read import read
from weightloom.symmetry.reduce import Reduced, reduce
from weightloom.symmetry.spec import Attention, Axis, Element, Kind, Layer, Space, Spec

__all__ = [
    # Are two networks the same?
    "equivalent",
    "Equivalence",
    "fingerprint",
    # One form for all copies
    "canonicalize",
    "Canonical",
    "normalize",
    "normal_element",
    "Normal",
    "fold",
    # Close to another network
    "align",
    "Alignment",
    "interpolate",
    "loss_barrier",
    "Barrier",
    # Smaller, with the same outputs
    "reduce",
    "Reduced",
    "is_normal",
    "Normality",
    # Disguises: other weights, the same function
    "random_equivalent",
    "random_element",
    "apply",
    "compose",
    "invert",
    "identity",
    # Symmetries as data
    "read",
    "Spec",
    "Space",
    "Kind",
    "Axis",
    "Attention",
    "Layer",
    "Element",
    # Activations
    "classify",
    "probe",
    "Activation",
    # The examples and the theorem of the slides
    "pooling_pair",
    "residual_difference",
    "attention_pair",
    "distinct_permutations",
    "theorem5",
    "Theorem5",
]
