"""Convolutions: against written-out matrices, attacks, and the bound of the same dense network."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.bounds import lipschitz, lipschitz_lower, read_chain
from weightloom.bounds.semidefinite import closed_form, tuned
from weightloom.bounds.semidefinite.images import explicit_matrix, filter_of
from weightloom.bounds.semidefinite.recursion import WorkLimits

# Rounding is added to the bound.
ROUNDING = 1e-6
# A difference quotient of step 1e-5 has relative errors of about eps |bias| / (slope * 1e-5).
ATTACK = 1e-6


def jacobian(net, shape):
    """The matrix of a linear network, one input pixel after the other."""
    size = math.prod(shape)
    with torch.no_grad():
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        return (net(basis) - net(torch.zeros_like(basis))).flatten(1).T


def norm_of(net, shape):
    return float(torch.linalg.matrix_norm(jacobian(net, shape), 2))


CONVOLUTIONS = {
    "plain": ((2, 6, 5), {"kernel_size": 3}),
    "padded": ((2, 6, 5), {"kernel_size": 3, "padding": 1}),
    "same, even": ((2, 6, 5), {"kernel_size": 4, "padding": "same"}),
    "stride": ((2, 7, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "stride, wide": ((2, 7, 8), {"kernel_size": 2, "stride": 3, "padding": 1}),
    "dilated": ((2, 8, 7), {"kernel_size": 3, "dilation": 2, "padding": 2}),
    "dilated and strided": (
        (2, 9, 9),
        {"kernel_size": 3, "dilation": 2, "stride": 2, "padding": 1},
    ),
    "groups": ((4, 5, 5), {"kernel_size": 3, "groups": 2, "padding": 1}),
    "depthwise": ((4, 5, 5), {"kernel_size": 3, "groups": 4, "padding": 1}),
    "long": ((2, 4, 9), {"kernel_size": (1, 5), "padding": (0, 2), "stride": (1, 2)}),
    "far padding": ((2, 3, 3), {"kernel_size": 3, "padding": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_one_convolution_has_its_norm(name):
    """At least the true norm; the torus adds only the edge, so it is close."""
    shape, options = CONVOLUTIONS[name]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(shape[0], 4, **options)).double()
    true = norm_of(net, shape)
    bound = closed_form(read_chain(net, shape))
    assert true * (1 - 1e-12) <= bound <= 1.35 * true
    stage = read_chain(net, shape).stages[0]
    assert bound <= stage.factor("2", shape).value * (1 + ROUNDING)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_two_convolutions_without_activation(name):
    """What the first writes beyond the edge must not reach the second one."""
    shape, options = CONVOLUTIONS[name]
    for padding in (0, 1):
        for seed in range(5):
            torch.manual_seed(seed)
            first = nn.Conv2d(shape[0], 4, **options)
            net = nn.Sequential(first, nn.Conv2d(4, 3, 2, padding=padding)).double()
            bound = closed_form(read_chain(net, shape))
            assert norm_of(net, shape) * (1 - 1e-12) <= bound
            assert bound <= lipschitz(net, 2, input_shape=shape, method="product") * (1 + ROUNDING)


def test_it_equals_the_norm_on_the_torus():
    """Circular padding computes what the torus holds, so that norm is reached exactly."""
    torch.manual_seed(0)
    zeros = nn.Conv2d(2, 3, 3, padding=1).double()
    circular = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular").double()
    circular.load_state_dict(zeros.state_dict())
    bound = closed_form(read_chain(nn.Sequential(zeros), (2, 6, 4)))
    assert bound == pytest.approx(norm_of(circular, (2, 8, 6)), rel=1e-8)


def test_written_out_matrices():
    for shape, options in CONVOLUTIONS.values():
        net = nn.Sequential(nn.Conv2d(shape[0], 4, **options)).double()
        stage = read_chain(net, shape).stages[0]
        out = tuple(net(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
        wanted = jacobian(net, shape)
        torch.testing.assert_close(explicit_matrix(stage, shape, out).flatten(1), wanted)
        assert filter_of(stage, shape) is not None


POOLS = [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2, 1, padding=1)]


def layers(draw):
    """A random network on images, and its input's shape."""
    channels, side = draw(st.integers(1, 3)), draw(st.integers(12, 14))
    shape, parts = (channels, side, side), []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["conv", "conv", "wide", "stride", "grouped", "pool"]))
        wanted = draw(st.integers(1, 4))
        if kind == "grouped":
            wanted = channels
        options = {
            "conv": {"kernel_size": 3, "padding": draw(st.integers(0, 2))},
            "wide": {"kernel_size": 2, "dilation": 2, "padding": 1},
            "stride": {"kernel_size": 3, "stride": 2, "padding": 2},
            "grouped": {"kernel_size": 3, "padding": 1, "groups": channels},
            "pool": {"kernel_size": 1},
        }[kind]
        parts.append(nn.Conv2d(channels, wanted, **options))
        channels = wanted
        if draw(st.booleans()):
            parts.append(nn.BatchNorm2d(channels))
        act = draw(st.sampled_from([nn.ReLU, nn.GELU, lambda: nn.LeakyReLU(0.4), None]))
        if act is not None:
            parts.append(act())
        if kind == "pool":
            pool = draw(
                st.sampled_from([nn.AvgPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2, 1, padding=1)])
            )
            parts.append(pool)
        if draw(st.booleans()):
            parts.append(nn.Dropout())
    return parts, shape, channels


@st.composite
def networks(draw):
    parts, shape, channels = layers(draw)
    torch.manual_seed(draw(st.integers(0, 9999)))
    net = nn.Sequential(*parts).double().eval()
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.2, 2)
            nn.init.normal_(layer.weight)
        elif isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight)
    end = draw(st.sampled_from(["none", "flatten", "global", "four"]))
    out = net(torch.zeros(1, *shape, dtype=torch.float64)).shape
    if end == "global":
        net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)])
    elif end == "four":
        net.extend([nn.AdaptiveAvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * channels, 3)])
    elif end == "flatten":
        net.extend([nn.Flatten(), nn.ReLU(), nn.Linear(math.prod(out[1:]), 3)])
    return net.double().eval(), shape


@settings(max_examples=50, deadline=None, derandomize=True)
@given(networks())
def test_between_an_attack_and_the_product(case):
    net, shape = case
    chain = read_chain(net, shape)
    lower = lipschitz_lower(net, 2, input_shape=shape, starts=4, rounds=2).value
    product = lipschitz(net, 2, input_shape=shape, method="product")
    fast = closed_form(chain)
    assert lower <= fast * (1 + ATTACK)
    assert fast <= product * (1 + ROUNDING)
    assert lower <= tuned(chain, iterations=2) * (1 + ATTACK)
    # With limits that leave one part or another to its norm.
    for limits in (WorkLimits(units=4), WorkLimits(entries=300), WorkLimits(units=4, entries=100)):
        assert lower <= closed_form(chain, limits) * (1 + ATTACK)


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    pool = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
    torch.manual_seed(0)
    net = nn.Sequential(
        conv(2, 4, 3, padding=1), nn.ReLU(), pool(2), conv(4, 4, 3, stride=2, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(4 * 2**dims, 3),
    ).double()  # fmt: skip
    shape = (2, *[6] * dims)
    net(torch.zeros(1, *shape, dtype=torch.float64))
    fast = lipschitz(net, 2, input_shape=shape, method="sdp-fast")
    lower = lipschitz_lower(net, 2, input_shape=shape, starts=8, rounds=3).value
    assert lower <= fast < 0.9 * lipschitz(net, 2, input_shape=shape, method="product")


@pytest.mark.parametrize("pool", [True, False])
def test_images_that_are_flattened_in_steps(pool):
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 3, 3), nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]
    side = 3 if pool else 6
    ends = [
        [nn.Flatten(), nn.Flatten()],
        [nn.Flatten(), nn.Unflatten(1, (3, side * side)), nn.Flatten()],
        [nn.Flatten(2), nn.ReLU(), nn.Flatten()],
        [nn.Flatten(), nn.BatchNorm1d(3 * side * side)],
    ]
    for end in ends:
        net = nn.Sequential(*first, *end, nn.Linear(3 * side * side, 2)).double().eval()
        lower = lipschitz_lower(net, 2, input_shape=(1, 8, 8), starts=4, rounds=2).value
        fast = closed_form(read_chain(net, (1, 8, 8)))
        assert lower <= fast * (1 + ATTACK)
        assert fast <= lipschitz(net, 2, input_shape=(1, 8, 8), method="product") * (1 + ROUNDING)


def test_much_below_the_product():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 25, 10),
    ).eval()  # fmt: skip
    product, fast = (
        lipschitz(net, 2, input_shape=(1, 28, 28), method=m) for m in ("product", "sdp-fast")
    )
    assert fast < 0.6 * product


def dense(net, shape):
    """The same network as matrices over all pixels, with the same activations."""
    parts = []
    chain = read_chain(net, shape)
    for stage, size in zip(chain.stages, chain.shapes, strict=True):
        if isinstance(stage.module, nn.Conv2d):
            matrix = jacobian(nn.Sequential(stage.module), size)
            layer = nn.Linear(matrix.shape[1], len(matrix)).double()
            layer.weight.data = matrix
            parts.append(layer)
        elif not isinstance(stage.module, nn.Flatten):
            parts.append(stage.module)
    return nn.Sequential(*parts)


@pytest.mark.parametrize("seed", range(5))
def test_close_to_the_same_network_with_a_matrix_over_all_pixels(seed):
    """Two ways to one number; they differ by what happens at the edge of the image."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4, 3, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(48, 3),
    ).double()  # fmt: skip
    shape = (2, 8, 8)
    image, matrix = closed_form(read_chain(net, shape)), closed_form(read_chain(dense(net, shape)))
    assert matrix * (1 - 1e-6) <= image <= 1.15 * matrix
