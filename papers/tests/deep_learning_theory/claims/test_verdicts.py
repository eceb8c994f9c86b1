"""What was found about the lecture notes stays found, and faults in the library are noticed."""

import dataclasses
import functools

import pytest
import torch

from weightloom.construct import square
from weightloom_papers.claims import FAILS, HOLDS, HOLDS_AS_CORRECTED, check, measure
from weightloom_papers.deep_learning_theory.claims import CLAIMS

CORRECTED = {
    "box-network", "exponentials-separate", "cosines-as-thresholds", "gaussian-transform",
    "sampling-sketch", "maurey-for-a-sample", "smooth-near-initialisation", "row-norms",
    "planting", "planting-rescaled", "transport", "least-squares", "gram-matrix",
    "kernel-on-the-sphere", "fractal", "parity", "square-differences", "product-zeros",
    "signed-products", "pieces-of-sums", "regular-teeth", "accuracy-to-width", "long-products",
    "long-product-size", "monomials", "bump", "partition-of-unity", "taylor-at-a-grid",
}  # fmt: skip
BY_NAME = {claim.name.partition("/")[2]: claim for claim in CLAIMS}


@functools.cache
def measured(function):
    """Claims that share a measurement are judged by one."""
    claim = next(claim for claim in CLAIMS if claim.measure is function)
    return measure(claim, "quick")


@pytest.mark.parametrize("name", BY_NAME)
def test_verdict(name):
    claim = BY_NAME[name]
    numbers = measured(claim.measure)
    printed = claim.printed.judge(numbers)
    corrected = claim.corrected.judge(numbers) if claim.corrected else None
    expected = HOLDS_AS_CORRECTED if name in CORRECTED else HOLDS
    assert claim.verdict(printed, corrected) == expected, (printed, corrected)
    # A correction is made where the printed statement fails, and only there.
    assert (corrected is not None) == (name in CORRECTED)


def test_texts_are_plain_and_different():
    for claim in CLAIMS:
        texts = [each.text for each in (claim.printed, claim.corrected, claim.wrong) if each]
        assert len(set(texts)) == len(texts), claim.name
        for text in texts:
            assert text.endswith("."), (claim.name, text)
            assert text.isascii(), (claim.name, text)
            assert len(text) < 420, (claim.name, text)
        assert claim.place


def scaled(factor):
    """A function whose tensor results are off by a factor."""
    return lambda function: lambda *args, **kwargs: function(*args, **kwargs) * factor


def coarser(function):
    """Squares of one level less than was asked for."""
    return lambda i, *args, **kwargs: function(i - 1, *args, **kwargs) if i > 1 else function(i)


def heavier(function):
    """A Certified network with its last bias moved."""

    def changed(*args, **kwargs):
        certified = function(*args, **kwargs)
        with torch.no_grad():
            list(certified.network)[-1].bias += 0.3
        return certified

    return changed


def more_nodes(function):
    def changed(*args, **kwargs):
        certified = function(*args, **kwargs)
        return dataclasses.replace(certified, nodes=10 * certified.nodes)

    return changed


def biased(function):
    """A sampled mean that is off by a tenth."""

    def changed(*args, **kwargs):
        mean = function(*args, **kwargs)
        return dataclasses.replace(mean, mean=1.1 * mean.mean)

    return changed


FAULTS = [
    ("threshold-steps", "cube.threshold_interpolant", heavier),
    ("box-network", "cube.box_network", heavier),
    ("box-indicator", "cube.box_indicator", more_nodes),
    ("exponentials-replaced", "exponentials.reduce_exponentials", heavier),
    (
        "barron-mass",
        "barron.barron_norm",
        lambda f: lambda *a: dataclasses.replace(f(*a), value=0.5),
    ),
    ("kernel-coordinates", "tangent.empirical.ntk", scaled(1.01)),
    ("layers-add-up", "tangent.empirical.ntk", scaled(1.01)),
    ("tangent-limit", "limits.limit_kernel", scaled(1.1)),
    ("arc-cosine", "limits.sampled_kernel", biased),
    ("kernel-predictor", "limits.infinite_width", biased),
    ("transport", "planting.transport", lambda f: lambda net, move: f(net, move, printed=True)),
    ("square-error", "squares.square", coarser),
    ("square-size", "squares.square", more_nodes),
    ("product-zeros", "squares.product", heavier),
    ("bits", "fractal.bits", heavier),
    ("square-distance-by-pieces", "separation.square_distance", scaled(0.9)),
    ("partition-of-unity", "smooth.partition_of_unity", heavier),
    ("smooth-functions", "smooth.sobolev", heavier),
]


@pytest.mark.parametrize(("name", "where", "fault"), FAULTS, ids=[f"{a}-{b}" for a, b, _ in FAULTS])
def test_faults_are_noticed(name, where, fault, monkeypatch):
    """The library is made wrong in one place: no form of the claim holds any more."""
    module, _, attribute = where.rpartition(".")
    place = f"weightloom_papers.deep_learning_theory.claims.{module}"
    owner = functools.reduce(
        getattr, place.split(".")[1:], __import__("weightloom_papers.catalogue")
    )
    monkeypatch.setattr(owner, attribute, fault(getattr(owner, attribute)))
    result = check(BY_NAME[name], "quick")
    assert result.verdict == FAILS, result


def test_an_undamaged_library_passes_the_same_check():
    assert square(3).nodes == 8
    assert check(BY_NAME["square-error"], "quick").verdict == HOLDS
