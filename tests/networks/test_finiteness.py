"""Weights that are NaN or infinite are refused, by every function that would compare them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from weightloom import bounds, symmetry
from weightloom.errors import NonFiniteWeightsError, UnsupportedModuleError
from weightloom.networks.finiteness import require_finite

BAD = [math.nan, math.inf, -math.inf]

GOOD = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

REFUSE = {
    "is_normal": symmetry.is_normal,
    "reduce": symmetry.reduce,
    "fingerprint": symmetry.fingerprint,
    "canonicalize": symmetry.canonicalize,
    "normalize": symmetry.normalize,
    "fold": symmetry.fold,
    "distinct_permutations": symmetry.distinct_permutations,
    "align, first": lambda net: symmetry.align(net, GOOD),
    "align, second": lambda net: symmetry.align(GOOD, net),
    "equivalent, first": lambda net: symmetry.equivalent(net, GOOD),
    "equivalent, second": lambda net: symmetry.equivalent(GOOD, net),
    "equivalent, itself": lambda net: symmetry.equivalent(net, net),
    "lipschitz": bounds.lipschitz,
    "lipschitz_lower": bounds.lipschitz_lower,
    "report": bounds.report,
    "norms": bounds.norms,
    "path_norm": bounds.path_norm,
    "spectral_complexity": bounds.spectral_complexity,
    "read_chain": bounds.read_chain,
    "compare": bounds.compare,
}


def network(name, value):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net.get_parameter(name).reshape(-1)[1] = value
    return net


@pytest.mark.parametrize("function", REFUSE.values(), ids=REFUSE)
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_refused_by_name(function, name):
    with pytest.raises(NonFiniteWeightsError, match=rf"'{name}' holds NaN or infinity \(1 of"):
        function(network(name, BAD[len(name) % 2]))
    function(GOOD)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_kind_and_dtype(value, dtype):
    with pytest.raises(NonFiniteWeightsError, match=r"'2.weight'.*the first at \(0, 1\)"):
        require_finite(GOOD, network("2.weight", value).to(dtype))


def test_finite_is_finite_up_to_the_largest_number():
    """No sum or square may overflow on the way."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        net = nn.Linear(300, 300).to(dtype)
        with torch.no_grad():
            net.weight.fill_(torch.finfo(dtype).max)
        require_finite(net)


def test_a_mask_is_not_a_weight():
    net = nn.Linear(3, 3)
    net.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    require_finite(net)
    net.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    require_finite(net, nn.Sequential(nn.LazyLinear(3)), nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_statistics_of_batch_norm_are_weights(name):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    require_finite(net)
    net[1].get_buffer(name)[1] = math.nan
    with pytest.raises(NonFiniteWeightsError, match=rf"'1.{name}' holds NaN"):
        require_finite(net)
    for function in (symmetry.reduce, symmetry.is_normal, symmetry.fingerprint, bounds.lipschitz):
        with pytest.raises(NonFiniteWeightsError, match=rf"'1.{name}' holds NaN"):
            function(net)


@pytest.mark.parametrize(
    "function",
    [bounds.lipschitz, bounds.report, bounds.norms, symmetry.reduce, symmetry.is_normal],
    ids=lambda function: function.__name__,
)
def test_complex_weights_are_not_taken_for_their_real_parts(function):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(torch.complex64)
    with pytest.raises(UnsupportedModuleError, match=r"'0.weight' is torch.complex64; wanted real"):
        function(net)
