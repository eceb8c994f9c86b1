"""Are two networks the same function? Decided from the weights, with a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.match_probes import output_deviation
from weightloom.symmetry.match_ties import Match, is_plain, match
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Element, Spec

__all__ = [
    "Equivalence",
    "architecture_mismatch",
    "default_tolerance",
    "equivalent",
    "find_element",
]


@dataclass(frozen=True)
class Equivalence:
    """The verdict of `equivalent`; true if the networks are the same.

    ``element``: the group element that brings b to a (``apply(element, b)`` has the weights of a);
    the nearest one found if the networks differ, or None. ``weight_deviation``: the largest
    |difference of two weights| relative to the 2-norm of the weight's row (with the bias), after
    the element was applied; infinite if units have no partner. ``output_deviation``: the largest
    difference of outputs on ``probes`` random inputs, relative to the largest output; None if the
    network could not be run. ``mismatch``: the first difference, in words. ``reduced``: clones or
    dead units had to be removed first; the element then belongs to ``reduce(b).module`` and
    ``reduce(a).module``.
    """

    same: bool
    element: Element | None
    weight_deviation: float
    output_deviation: float | None
    mismatch: str | None
    tolerance: float
    probes: int = 0
    reduced: bool = False

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        outputs = "not run" if self.output_deviation is None else f"{self.output_deviation:.3g}"
        verdict = "the same function" if self.same else f"different: {self.mismatch}"
        return (
            f"{verdict} (weights deviate by {self.weight_deviation:.3g}, tolerance "
            f"{self.tolerance:.3g}; outputs on {self.probes} probes by {outputs})"
        )


def equivalent(
    a: nn.Module,
    b: nn.Module,
    tolerance: float | None = None,
    probes: int | None = None,
    *,
    inputs: Tensor | None = None,
    reduce: bool = True,
) -> Equivalence:
    """Whether two networks compute the same function because a symmetry brings one to the other.

    Units are matched layer by layer by random projections of their incoming weights, up to the
    factors that the activation allows (002: exchanges, positive scales, signs; 000, Section 2.2:
    for normal networks with general activations there is nothing else). Then all entries are
    compared. If that fails and ``reduce`` is true, clones and dead units are removed and the rest
    is compared again. The outputs on probe inputs (``inputs``, or random ones) are a second,
    independent check: they must agree to the square root of the tolerance.

    ``tolerance`` is relative to the length of a row of weights, see `default_tolerance`.

    >>> from weightloom.symmetry import random_equivalent
    >>> net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    >>> bool(equivalent(net, random_equivalent(net)))
    True
    >>> bool(equivalent(net, nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))))
    False
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; a number in [0, 1) is wanted")
    a, b = _folded(a), _folded(b)
    limit = default_tolerance(a, b) if tolerance is None else float(tolerance)
    spec = read(a)
    found, reduced = find_element(a, b, limit, spec), False
    if not found.same and reduce:
        smaller = _reduced(a, b)
        if smaller is not None:
            again = find_element(*smaller, limit)
            reduced = again.same
            found = again if again.same else found
    outputs, count = output_deviation(a, b, spec, probes, inputs)
    if found.same and outputs is not None and outputs > max(limit, 1e-16) ** 0.5:
        text = (
            f"the weights agree, but outputs on probe inputs deviate by {outputs:.3g}: the "
            "networks differ in something that is not a weight"
        )
        found = replace(found, same=False, mismatch=text)
    return Equivalence(
        found.same, found.element, found.deviation, outputs, found.mismatch, limit, count, reduced
    )


def default_tolerance(*modules: nn.Module) -> float:
    """32 times the spacing of the coarsest dtype around 1: 3.8e-6 in float32, 7.1e-15 in float64.

    A disguised copy has two roundings in each weight (one product, one quotient), each at most
    half a spacing of the weight itself; the scales that undo them add about as much again. So one
    disguise stays below 3 spacings of a weight, which is below 3 spacings of its row's length;
    matrices with condition numbers up to 4 (heads) and a hundred disguises on top of each other
    (errors add like square roots) fit as well. Depth does not matter: scales are found layer by
    layer. Half precision has no room for this: 4 spacings, one disguise.
    """
    dtypes = {p.dtype for module in modules for p in module.parameters() if p.is_floating_point()}
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-52)
    return (4 if eps > 1e-4 else 32) * eps


def find_element(a: nn.Module, b: nn.Module, tolerance: float, spec: Spec | None = None) -> Match:
    """The search alone: no reduction, no probes."""
    spec = read(a) if spec is None else spec
    mismatch = architecture_mismatch(a, b, spec, read(b))
    if mismatch is not None:
        return Match(False, None, float("inf"), mismatch)
    first, second = tensors_of(a), tensors_of(b)
    second = {name: tensor.to(first[name].dtype) for name, tensor in second.items()}
    return match(spec, first, second, tolerance)


def architecture_mismatch(a: nn.Module, b: nn.Module, spec: Spec, other: Spec) -> str | None:
    """The first difference that is not a weight, or None."""
    shapes = [{n: tuple(t.shape) for n, t in tensors_of(one).items()} for one in (a, b)]
    for name in [*shapes[0], *shapes[1]]:
        if name not in shapes[0] or name not in shapes[1]:
            return f"tensor {name!r} is in one network only"
        if shapes[0][name] != shapes[1][name]:
            return f"tensor {name!r} has shapes {shapes[0][name]} and {shapes[1][name]}"
    for mine, theirs in zip(spec.layers, other.layers, strict=False):
        if mine.activation != theirs.activation:
            return (
                f"layer {mine.name!r} is followed by {mine.activation} in one network and by "
                f"{theirs.activation} in the other"
            )
        if mine != theirs:
            return f"layer {mine.name!r} differs: {mine} and {theirs}"
    if spec != other:
        return "the layers are connected or activated in different ways"
    parts = dict(b.named_modules())
    for name, part in a.named_modules():
        twin = parts.get(name)
        if twin is None or isinstance(part, (nn.Dropout, nn.Identity)) or _described(part) is None:
            continue
        if type(part) is type(twin) and _described(part) != _described(twin):
            return f"layer {name!r} is {part} in one network and {twin} in the other"
    return None


def _described(part: nn.Module) -> str | None:
    """The settings of a layer without children, as far as they matter for its function."""
    if next(part.children(), None) is not None:
        return None
    return part.extra_repr().replace(", inplace=True", "").replace("inplace=True", "")


def _folded(module: nn.Module) -> nn.Module:
    """BatchNorm taken into the layers before it, where there is any."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not any(isinstance(part, norms) for part in module.modules()):
        return module
    from weightloom.symmetry.fold import fold

    return fold(module)


def _reduced(a: nn.Module, b: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Both networks without clones and dead units; None if there are none, or nobody can tell."""
    if is_plain(read(a), tensors_of(a)) and is_plain(read(b), tensors_of(b)):
        return None  # a few passes over the weights; `reduce` takes much longer
    try:
        from weightloom.symmetry.reduce import reduce
    except ImportError:
        return None
    try:
        first, second = reduce(a), reduce(b)
    except UnsupportedModuleError:
        return None
    if not first.removed and not second.removed:
        return None
    return first.module, second.module
