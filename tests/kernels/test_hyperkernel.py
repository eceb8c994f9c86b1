"""The kernels of hypernetworks against 60 digits; gradients, properties, objects, messages."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from tests.kernels.oracle import exact, hyper_kernel
from tests.kernels.test_tower import EPS, rows
from weightloom.errors import KernelError, ShapeError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower

MIXED = [
    ("erf", "relu"), ("relu", "sin"), ("gelu", "abs"), ("leaky_relu", "erf"), ("cos", "leaky_relu"),
]  # fmt: skip
BIASED = {"gain": 1.2, "sigma_w": 0.9, "sigma_b": 0.4}


def relative(value, wanted, size):
    """Difference relative to sqrt(K_ii K_jj)."""
    return abs(float((exact(value) - wanted) / size))


def sizes(kernel, x, z, x2, z2):
    return float((kernel.diagonal(x, z)[:, None] * kernel.diagonal(x2, z2)).sqrt().max())


@pytest.mark.parametrize(("depth_f", "depth_g"), list(itertools.product(range(1, 5), range(1, 5))))
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("options", [{}, BIASED])
def test_relu_against_60_digits(depth_f, depth_g, kind, options):
    kernel = HyperKernel(Tower(depth_f, **options), Tower(depth_g, **options), kind)
    x, z, x2, z2 = rows(2, 3), rows(2, 2, 1), rows(2, 3, 2), rows(2, 2, 3)
    matrix, size = kernel(x, z, x2, z2), sizes(kernel, x, z, x2, z2)
    for i, j in itertools.product(range(2), range(2)):
        wanted = hyper_kernel(kernel, x[i], z[i], x2[j], z2[j])
        assert relative(matrix[i, j], wanted, size) < 10 * (depth_f + depth_g) * EPS


@pytest.mark.parametrize(("first", "second"), MIXED)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_activations_mixed_against_60_digits(first, second, kind):
    kernel = HyperKernel(Tower(3, first, **BIASED), Tower(3, second), kind)
    x, z, x2, z2 = rows(2, 3), rows(2, 2, 1), rows(2, 3, 2), rows(2, 2, 3)
    matrix, size = kernel(x, z, x2, z2), sizes(kernel, x, z, x2, z2)
    for i, j in itertools.product(range(2), range(2)):
        wanted = hyper_kernel(kernel, x[i], z[i], x2[j], z2[j])
        assert relative(matrix[i, j], wanted, size) < 1e-14


def close_pair(gap, d, dtype=torch.float64):
    """Two rows at an angle with this gap, exactly representable however small it is."""
    first = torch.zeros(1, d, dtype=dtype)
    first[0, 0] = 1.25
    second = 1.5 * first
    second[0, 1] = 1.875 * math.sqrt(2 * gap)
    return first, second


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-8, 1e-12, 1e-16, 1e-20, 1e-25, 1e-30])
@pytest.mark.parametrize("options", [{}, BIASED])
@pytest.mark.parametrize("activations", [("relu", "relu"), ("erf", "relu"), ("abs", "leaky_relu")])
def test_near_coincidence_to_14_digits(gap, options, activations):
    """arccos would leave 8 digits here."""
    f, g = (Tower(3, name, **options) for name in activations)
    for d, kind in itertools.product((4, 30), ("ntk", "nngp")):
        kernel = HyperKernel(f, g, kind)
        (x, x2), (z, z2) = close_pair(gap, d), close_pair(gap / 3, 3)
        wanted = hyper_kernel(kernel, x[0], z[0], x2[0], z2[0])
        assert abs(float(exact(kernel(x, z, x2, z2)) / wanted - 1)) < 1e-14
        assert abs(float(exact(kernel.paired(x, z, x2, z2)) / wanted - 1)) < 1e-14


def test_arccos_is_not_enough():
    """The accuracy above is not for free: the textbook formula in float64 misses it."""
    (x, x2), (z, z2) = close_pair(1e-16, 4), close_pair(1e-16, 3)
    kernel = HyperKernel(Tower(2), Tower(1))
    s = torch.linalg.vecdot(x, x2) / 4
    size = x.norm() * x2.norm() / 4
    t = torch.arccos((s / size).clamp(-1, 1))
    s1 = size * (torch.sin(t) + (math.pi - t) * torch.cos(t)) / math.pi
    naive = (s1 + s * (math.pi - t) / math.pi) * torch.linalg.vecdot(z, z2) / 3
    wanted = hyper_kernel(kernel, x[0], z[0], x2[0], z2[0])
    assert abs(float(exact(naive) / wanted - 1)) > 1e-10
    assert abs(float(exact(kernel(x, z, x2, z2)) / wanted - 1)) < 1e-15


@pytest.mark.parametrize("gap", [1e-2, 1e-5, 1e-10, 1e-20])
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_float32_to_6_digits(gap, kind):
    kernel = HyperKernel(Tower(3), Tower(3, sigma_b=0.3), kind)
    (x, x2), (z, z2) = close_pair(gap, 30, torch.float32), close_pair(gap, 3, torch.float32)
    wanted = hyper_kernel(kernel, x[0], z[0], x2[0], z2[0])
    value = kernel(x, z, x2, z2)
    assert value.dtype == torch.float32
    assert abs(float(exact(value) / wanted - 1)) < 1e-6


def test_float32_anywhere():
    kernel = HyperKernel(Tower(4), Tower(3), features=FourierFeatures(3.0))
    x, z = rows(60, 100).float(), rows(60, 2, 1).float()
    x[1], z[1] = x[0] * 1.00001, z[0] + 1e-5
    single, double = kernel(x, z), kernel(x.double(), z.double())
    scale = double.diagonal().sqrt()
    assert float(((single - double) / (scale[:, None] * scale)).abs().max()) < 1e-6


@settings(max_examples=20)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_homogeneous_towers_scale(a, b, depth_f, depth_g, ntk):
    """h(a x, b z) = a^H b h(x, z) for ReLU without biases, so the kernel scales with the square."""
    kernel = HyperKernel(Tower(depth_f), Tower(depth_g), "ntk" if ntk else "nngp")
    x, z = rows(4, 3), rows(4, 2, 1)
    plain, scaled = kernel(x, z), kernel(a * x, b * z)
    torch.testing.assert_close(scaled, a ** (2 * depth_g) * b**2 * plain, rtol=1e-12, atol=0)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["relu", "erf", "sin", "abs"]))
def test_gram_matrices_are_kernels(seed, name):
    """Symmetric, positive, the same for rotated inputs, in the same order as the points."""
    x, z = rows(12, 4, seed), rows(12, 2, seed + 1)
    x[3] = x[2]
    z[5] = z[4]
    for kind in ("ntk", "nngp"):
        kernel = HyperKernel(Tower(2, name), Tower(3, name, sigma_b=0.1), kind)
        matrix = kernel(x, z)
        assert torch.equal(matrix, matrix.mT)
        values = torch.linalg.eigvalsh(matrix)
        assert values[0] > -1e-13 * values[-1]
        turn = torch.linalg.qr(rows(4, 4, seed + 2))[0]
        torch.testing.assert_close(kernel(x @ turn, z), matrix, rtol=1e-11, atol=1e-13)
        order = torch.randperm(12)
        wanted = matrix[order][:, order]
        torch.testing.assert_close(kernel(x[order], z[order]), wanted, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(kernel(x, z, x, z), matrix, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(kernel.diagonal(x, z), matrix.diagonal(), rtol=1e-14, atol=0)
        paired = kernel.paired(x, z, x.flip(0), z.flip(0))
        torch.testing.assert_close(paired, matrix.flip(1).diagonal(), rtol=1e-13, atol=1e-15)


def test_parts_join_to_the_kernel():
    """The parts broadcast: images [n, 1] against coordinates [1, P] is the grid's kernel."""
    features = FourierFeatures(2.0, period=4.0)
    for kind in ("ntk", "nngp"):
        kernel = HyperKernel(Tower(3), Tower(2, sigma_b=0.2), kind, features)
        images, coordinates = rows(3, 5), rows(4, 2, 1)
        condition, point = kernel.condition_part(images), kernel.point_part(coordinates)
        assert (condition.ntk is None) == (kind == "nngp")
        wide = type(condition)(
            type(point)(*(part[:, :, None, None] for part in vars(condition.covariance).values())),
            None if condition.ntk is None else condition.ntk[:, :, None, None],
        )
        grid = kernel.join(wide, point)
        assert grid.shape == (3, 3, 4, 4)
        x = images.repeat_interleave(4, 0)
        z = coordinates.repeat(3, 1)
        flat = grid.permute(0, 2, 1, 3).reshape(12, 12)
        torch.testing.assert_close(flat, kernel(x, z), rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("names", [("relu", "relu"), ("erf", "tanh"), ("sin", "gelu")])
def test_gradients_against_finite_differences(kind, names):
    x, z = rows(3, 3).requires_grad_(), rows(3, 2, 1).requires_grad_()
    x2, z2 = rows(2, 3, 2).requires_grad_(), rows(2, 2, 3).requires_grad_()
    numbers = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.1, 0.9, 0.4, 0.6)
    ]

    def matrices(x, z, x2, z2, gain, sigma_w, sigma_b, scale):
        f = Tower(2, names[0], gain=gain, sigma_w=sigma_w)
        g = Tower(3, names[1], sigma_b=sigma_b, gain=gain)
        kernel = HyperKernel(f, g, kind, FourierFeatures(scale))
        return kernel(x, z, x2, z2), kernel(x, z), kernel.diagonal(x, z)

    assert gradcheck(
        matrices, (x, z, x2, z2, *numbers), eps=1e-6, atol=1e-6, rtol=1e-5, fast_mode=True
    )


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize(
    "names", [("relu", "relu"), ("abs", "abs"), ("erf", "relu"), ("tanh", "erf")]
)
@pytest.mark.parametrize("sigma_b", [0.0, 0.5])
def test_gradients_are_finite_everywhere(kind, names, sigma_b):
    """Equal points, opposite ones, parallel ones and rows of zeros."""
    x, z = rows(6, 20), rows(6, 2, 1)
    x[1], z[1] = x[0], z[0]
    x[2], z[2] = -x[0], -z[0]
    x[3] = 2 * x[0]
    x[4], z[5] = 0, 0
    x.requires_grad_()
    z.requires_grad_()
    numbers = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.1, 0.9, sigma_b)
    ]
    f, g = (Tower(3, n, gain=numbers[0], sigma_w=numbers[1], sigma_b=numbers[2]) for n in names)
    kernel = HyperKernel(f, g, kind)
    weight = rows(6, 6, 2)
    for matrix in (kernel(x, z), kernel(x, z, x.detach(), z.detach())):
        assert matrix.isfinite().all()
        for gradient in torch.autograd.grad((matrix * weight).sum(), (x, z, *numbers)):
            assert gradient.isfinite().all()


def test_gradients_of_the_differentiable_road_and_blocks_agree():
    x, z = rows(30, 20), rows(30, 2, 1)
    x[7], z[7] = x[3], z[3]
    kernel = HyperKernel(Tower(3), Tower(2, sigma_b=0.1))
    plain, other = kernel(x, z), kernel(x, z, x[:5], z[:5])
    assert not plain.requires_grad
    x.requires_grad_()
    matrix = kernel(x, z)
    assert matrix.requires_grad
    assert torch.equal(matrix, matrix.mT)
    torch.testing.assert_close(matrix.detach(), plain, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(kernel(x, z, x[:5], z[:5]).detach(), other, rtol=1e-13, atol=1e-15)
    with torch.no_grad():
        assert not kernel(x, z).requires_grad


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 5e-8), (torch.float32, 1e-3)])
@pytest.mark.parametrize("name", ["relu", "abs"])
def test_almost_opposite_inputs_keep_half_of_the_digits(dtype, limit, name):
    """The stated exception; limits are a few sqrt(eps)."""
    kernel = HyperKernel(Tower(3, name), Tower(2, name))
    x, z, noise = (rows(1, 6, seed).to(dtype) for seed in (1, 2, 3))
    for size in (1e-2, 3e-4, 1e-6, 1e-8, 1e-10):
        x2, z2 = -1.3 * x + size * noise, z + 0.3 * noise
        wanted = hyper_kernel(kernel, x[0], z[0], x2[0], z2[0])
        scale = sizes(kernel, x, z, x2, z2)
        assert relative(kernel(x, z, x2, z2), wanted, scale) < limit


def test_rows_of_zeros():
    kernel = HyperKernel(Tower(3), Tower(2))
    x, z = rows(3, 4), rows(3, 2, 1)
    x[1] = 0
    matrix = kernel(x, z)
    assert (matrix[1] == 0).all()
    biased = HyperKernel(Tower(2, sigma_b=0.5), Tower(2, sigma_b=0.5))(x, z)
    assert torch.linalg.eigvalsh(biased)[0] > 0


def test_empty():
    kernel = HyperKernel(Tower(2), Tower(2))
    x, z = rows(3, 4), rows(3, 2)
    assert kernel(x, z, x[:0], z[:0]).shape == (3, 0)
    assert kernel(x[:0], z[:0]).shape == (0, 0)


def test_scikit_learns_conventions():
    base = pytest.importorskip("sklearn.base")
    kernel = HyperKernel(Tower(3), Tower(2, "erf"), "nngp", FourierFeatures(3.0, 16))
    copy = base.clone(kernel)
    assert copy == kernel
    assert copy.f is not kernel.f
    params = kernel.get_params()
    assert params["f__depth"] == 3
    assert params["g__activation"] == "erf"
    assert params["features__scale"] == 3.0
    copy.set_params(f__depth=5, g__activation="relu", features__scale=0.5, kind="ntk")
    assert copy == HyperKernel(Tower(5), Tower(2), "ntk", FourierFeatures(0.5, 16))
    assert kernel.f.depth == 3
    assert repr(copy) == (
        "HyperKernel(f=Tower(depth=5), g=Tower(depth=2), "
        "features=FourierFeatures(scale=0.5, count=16))"
    )


def test_config_through_json():
    x, z = rows(4, 3), rows(4, 2, 1)
    for features in (None, FourierFeatures([1.0, 2.0], period=4.0)):
        f = Tower(3, {"name": "leaky_relu", "slope": 0.3}, gain=torch.tensor(1.25))
        kernel = HyperKernel(f, Tower(2, "sin"), "nngp", features)
        again = HyperKernel.from_config(json.loads(json.dumps(kernel.config())))
        assert torch.equal(again(x, z), kernel(x, z))
        assert again.config() == kernel.config()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k, x, z: k(x, z[:2]), ShapeError, "x has 3 rows but z has 2; a point is one"),
        (lambda k, x, z: k(x, z, x), ShapeError, "x2 was given without z2; pass both, or neither"),
        (lambda k, x, z: k(x, z, z2=z), ShapeError, "z2 was given without x2"),
        (lambda k, x, z: k(x, z, x, z[:, :1]), ShapeError, "z has 2 columns but z2 has 1"),
        (lambda k, x, z: k(x, z, x[:, :1], z), ShapeError, "x has 4 columns but x2 has 1"),
        (lambda k, x, z: k(x, z, x[:2], z), ShapeError, "x2 has 2 rows but z2 has 3"),
        (lambda k, x, z: k(x, z.float()), KernelError, "x is torch.float64 .* z is torch.float32"),
        (lambda k, x, z: k(x.float(), z.float(), x, z), KernelError, "x is torch.float32 .* x2 is"),
        (lambda k, x, z: k(x, z * math.nan), KernelError, "z has NaN or infinity in 3 of 3 rows"),
        (lambda k, x, z: k(x, z, x / 0, z), KernelError, "x2 has NaN or infinity"),
        (lambda k, x, z: k.blocks(x, z, x), ShapeError, "x2 was given without z2"),
        (lambda k, x, z: k.paired(x, z, x[:2], z[:2]), ShapeError, "x has 3 rows but x2 has 2"),
        (lambda k, x, z: k.condition_part(x[0]), ShapeError, r"x has shape \[4\]"),
        (lambda k, x, z: k.point_part(z, x), ShapeError, "z has 2 columns but z2 has 4"),
        (lambda k, x, z: HyperKernel(k.f, k.g, "prior"), KernelError, "kind is 'prior'"),
        (lambda k, x, z: HyperKernel(k.f, "relu"), KernelError, "g is 'relu'; pass a Tower"),
        (lambda k, x, z: HyperKernel(k.f, k.g, features=3), KernelError, "features are 3; pass"),
        (lambda k, x, z: k.set_params(features__scale=1.0), KernelError, "features is None"),
    ],
)  # fmt: skip
def test_refusals(call, error, message):
    kernel = HyperKernel(Tower(2), Tower(2))
    with pytest.raises(error, match=message):
        call(kernel, rows(3, 4), rows(3, 2, 1))


def test_import_is_light():
    code = """
import sys, torch, numpy
before = set(sys.modules)
import weightloom.kernels
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
allowed = {"weightloom", "torch", "numpy"} | set(sys.stdlib_module_names)
assert tops <= allowed, tops - allowed
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
