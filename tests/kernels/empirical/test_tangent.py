"""Tangent kernels of finite networks: every method against the full Jacobian, and errors."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import weightloom as wl
from tests.kernels.networks import (
    Behind,
    Branches,
    Centred,
    Tokens,
    linear_networks,
    named,
    ntk_oracle,
    other_networks,
)
from weightloom.errors import (
    ConfigError,
    KernelError,
    MemoryLimitError,
    ShapeError,
    SlowPathWarning,
)
from weightloom.kernels import empirical

LINEAR = named(linear_networks)
OTHER = named(other_networks)
METHODS = ["structured", "jacobian", "products"]

# The kernels here are sums of at most a few hundred products, each rounded a few times.
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


def part(u, rows):
    return u[rows] if isinstance(u, torch.Tensor) else tuple(a[rows] for a in u)


def pytest_generate_tests(metafunc):
    if hasattr(metafunc.cls, "cases"):
        cases = metafunc.cls.cases
        metafunc.parametrize("case", cases.values(), ids=cases.keys())


class TangentContract:
    """Subclasses name a method; every one of them must give the oracle's numbers."""

    method: str
    cases: dict

    def test_gram_matrix(self, case):
        h, u = case
        kernel = empirical.ntk(h, u, method=self.method)
        torch.testing.assert_close(kernel, ntk_oracle(h, u), **CLOSE)
        mirrored = kernel.T if kernel.dim() == 2 else kernel.permute(1, 0, 3, 2)
        assert torch.equal(kernel, mirrored)

    def test_rectangle(self, case):
        h, u = case
        left, right = part(u, slice(0, 2)), part(u, slice(1, 5))
        kernel = empirical.ntk(h, left, right, method=self.method)
        torch.testing.assert_close(kernel, ntk_oracle(h, left, right), **CLOSE)

    def test_little_memory_gives_the_same(self, case):
        h, u = case
        needed = empirical.plan(h, part(u, slice(0, 1)), method=self.method).bytes
        plan = empirical.plan(h, u, method=self.method, memory=4 * needed)
        assert plan.rows < 5 or plan.columns < 5
        kernel = empirical.ntk(h, u, method=self.method, memory=4 * needed)
        torch.testing.assert_close(kernel, ntk_oracle(h, u), **CLOSE)

    def test_the_network_is_left_alone(self, case):
        h, u = case
        before = {name: value.clone() for name, value in h.state_dict().items()}
        kernel = empirical.ntk(h, u, method=self.method)
        assert not kernel.requires_grad
        assert all(p.grad is None for p in h.parameters())
        assert not any(m._forward_hooks for m in h.modules())
        for name, value in h.state_dict().items():
            assert torch.equal(value, before[name])

    def test_inside_no_grad(self, case):
        h, u = case
        with torch.no_grad():
            kernel = empirical.ntk(h, u, method=self.method)
        torch.testing.assert_close(kernel, ntk_oracle(h, u), **CLOSE)


class TestStructured(TangentContract):
    method, cases = "structured", {**LINEAR, **{k: v for k, v in OTHER.items() if k != "behind"}}


class TestJacobian(TangentContract):
    method, cases = "jacobian", {**LINEAR, **OTHER}


class TestProducts(TangentContract):
    method, cases = "products", {**LINEAR, **OTHER}


@settings(max_examples=30)
@given(
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    rows=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_roads_agree_for_any_mlp(widths, rows, bias, seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]
    h = nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())]).double()
    u, u2 = (torch.randn(n, widths[0], dtype=torch.float64) for n in rows)
    truth = ntk_oracle(h, u, u2)
    for method in METHODS:
        torch.testing.assert_close(empirical.ntk(h, u, u2, method=method), truth, **CLOSE)


def test_float32_stays_float32():
    h, u = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 1)), torch.randn(6, 3)
    truth = ntk_oracle(h.double(), u.double())
    h.float()
    for method in METHODS:
        kernel = empirical.ntk(h, u, method=method)
        assert kernel.dtype == torch.float32
        assert (kernel - truth).abs().max() < 50 * torch.finfo(torch.float32).eps * truth.max()


def test_a_gram_matrix_has_no_negative_eigenvalues():
    h, u = LINEAR["mlp"]
    values = torch.linalg.eigvalsh(empirical.ntk(h, u))
    assert values.min() > -1e-12 * values.max()


class TestPlan:
    def test_structured_where_layers_are_wide(self):
        h = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 1))
        plan = empirical.plan(h, torch.randn(50, 10))
        assert plan.method == "structured"
        assert re.search(r"structured: the fewest operations .*jacobian .*products", plan.reason)

    def test_general_road_says_why_not_structured(self):
        plan = empirical.plan(nn.Conv2d(1, 2, 3), torch.randn(5, 1, 4, 4))
        assert plan.method in ("jacobian", "products")
        assert "not structured, because no trained parameter belongs to a linear" in plan.reason

    def test_some_parameters_outside_linear_layers(self):
        h = nn.Sequential(nn.Linear(30, 60), nn.LayerNorm(60), nn.Linear(60, 1))
        assert empirical.plan(h, torch.randn(20, 30)).method == "structured"

    def test_jacobian_where_parameters_are_few_and_work_is_much(self):
        h = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 8))
        assert empirical.plan(h, torch.randn(20, 1, 8, 8)).method == "jacobian"

    def test_products_where_outputs_are_many(self):
        h = nn.Sequential(nn.Conv1d(30, 60, 1), nn.ReLU(), nn.Conv1d(60, 40, 1))
        assert empirical.plan(h, torch.randn(20, 30, 1)).method == "products"

    def test_memory_makes_blocks(self):
        h, u = nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 1)), torch.randn(200, 30)
        large, small = (empirical.plan(h, u, memory=m) for m in ("1 GB", "200 kB"))
        assert large.rows == 200
        assert small.rows < 100
        assert small.bytes <= 200_000
        assert large.flops < small.flops < 20 * large.flops  # gradients are computed again

    def test_structured_needs_less_operations_than_it_takes_to_form_jacobians(self):
        h = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 1))
        structured, jacobian = (
            empirical.plan(h, torch.randn(300, 100), method=m).flops for m in METHODS[:2]
        )
        assert structured < jacobian / 10

    def test_not_enough_memory(self):
        h, u = LINEAR["mlp"]
        with pytest.raises(MemoryLimitError, match=r"needs about .* at a time .*allow more"):
            empirical.ntk(h, u, memory=100)

    def test_unknown_method(self):
        h, u = LINEAR["mlp"]
        with pytest.raises(ConfigError, match=r"method is 'fast'; there are 'auto', 'structured'"):
            empirical.ntk(h, u, method="fast")


class TestRefusals:
    def test_weight_used_behind_the_layer(self):
        h, u = Behind().double(), torch.randn(4, 3, dtype=torch.float64)
        with pytest.raises(KernelError, match=r"acts in another way than through the layer's call"):
            empirical.ntk(h, u, method="structured")
        # "auto" goes round it.
        torch.testing.assert_close(empirical.ntk(h, u), ntk_oracle(h, u), **CLOSE)

    def test_no_linear_layer(self):
        with pytest.raises(KernelError, match=r"no trained parameter belongs to a linear layer"):
            empirical.ntk(nn.Conv2d(1, 1, 3), torch.randn(5, 1, 3, 3), method="structured")

    def test_layer_that_is_never_called(self):
        h = Tokens().double()
        h.unused = nn.Linear(2, 2).double()
        with pytest.raises(KernelError, match=r"did not call it at all; use method='jacobian'"):
            empirical.ntk(h, torch.randn(3, 2, 3, dtype=torch.float64), method="structured")

    @pytest.mark.parametrize("method", ["auto", *METHODS])
    def test_rows_that_depend_on_each_other(self, method):
        with pytest.raises(KernelError, match=r"changes when another row is in the batch .*indep"):
            empirical.ntk(Centred(), torch.randn(4, 3), method=method)

    def test_batch_norm_in_training(self):
        h = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        with pytest.raises(
            KernelError, match=r"BatchNorm1d \(1\) takes its statistics from the ba"
        ):
            empirical.ntk(h, torch.randn(4, 3))

    def test_batch_norm_without_running_statistics(self):
        h = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
        with pytest.raises(KernelError, match=r"rows are not independent; call \.eval\(\)"):
            empirical.ntk(h, torch.randn(4, 3))

    def test_dropout_in_training(self):
        h = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        with pytest.raises(KernelError, match=r"Dropout \(1\) in training mode makes .*random"):
            empirical.ntk(h, torch.randn(4, 3))

    def test_nothing_to_train(self):
        h = nn.Linear(3, 1).requires_grad_(False)
        with pytest.raises(KernelError, match=r"no parameter of the network requires a gradient"):
            empirical.ntk(h, torch.randn(4, 3))

    def test_nan(self):
        u = (torch.randn(4, 3), torch.full((4, 2), torch.nan))
        with pytest.raises(KernelError, match=r"tensor 1 of u holds NaN"):
            empirical.ntk(LINEAR["two arguments"][0], u)

    def test_unpaired_rows(self):
        u = (torch.randn(4, 3), torch.randn(5, 2))
        with pytest.raises(ShapeError, match=r"the tensors of u have \[4, 5\] rows"):
            empirical.ntk(LINEAR["two arguments"][0], u)

    def test_unlike_arguments(self):
        x, z = torch.randn(4, 3), torch.randn(4, 2)
        with pytest.raises(ShapeError, match=r"u holds 2 tensors but u2 1"):
            empirical.ntk(LINEAR["two arguments"][0], (x, z), x)

    def test_wrong_width(self):
        with pytest.raises(KernelError, match=r"cannot be called with tensors of shapes \[2, 5\]"):
            empirical.ntk(nn.Linear(3, 1), torch.randn(4, 5))

    def test_output_without_rows(self):
        h = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
        assert empirical.ntk(h, torch.randn(4, 3)).shape == (4, 4)  # [n] is one output
        h = nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))
        with pytest.raises(ShapeError, match=r"returned shape \[2\] for 1 rows"):
            empirical.ntk(h, torch.randn(4, 3))

    def test_what_vmap_refuses_runs_one_by_one(self):
        h, u = Branches(), torch.randn(5, 3, dtype=torch.float64)
        with pytest.warns(SlowPathWarning, match=r"gradients of rows were computed one by one"):
            kernel = empirical.ntk(h, u, method="jacobian")
        torch.testing.assert_close(kernel, ntk_oracle(h, u), **CLOSE)


class TestHypernetworksOfThisLibrary:
    """`wl.HyperNetwork`, called as hyper(x, condition): u = (points, conditions)."""

    @pytest.fixture
    def case(self):
        torch.manual_seed(3)
        encoder = wl.mlp([3, 6], last_activation=True)
        hyper = wl.HyperNetwork(wl.mlp([2, 5, 1]), encoder).double()
        return hyper, (torch.randn(6, 2).double(), torch.randn(6, 3).double())

    @pytest.mark.parametrize("method", ["auto", "jacobian"])
    def test_tangent_kernel(self, case, method):
        hyper, u = case
        kernel = empirical.ntk(hyper, u, method=method)
        torch.testing.assert_close(kernel, ntk_oracle(hyper, u), **CLOSE)

    def test_one_row_of_second_order(self, case):
        hyper, u = case
        rows = tuple(a[:1] for a in u)
        first, second = empirical.higher_order(hyper, rows, rows, order=(1, 2))
        torch.testing.assert_close(first, ntk_oracle(hyper, rows)[0], **CLOSE)
        assert torch.isfinite(second).all()


class TestCovarianceOfOutputs:
    def test_products_of_outputs(self):
        h, u = LINEAR["several outputs"]
        left, right = part(u, slice(0, 2)), part(u, slice(2, 5))
        outputs = h(u).detach()
        truth = torch.stack([torch.outer(outputs[:2, o], outputs[2:, o]) for o in range(3)])
        torch.testing.assert_close(empirical.nngp(h, left, right), truth.mean(0), **CLOSE)
        torch.testing.assert_close(empirical.nngp(h, u)[:2, 2:], truth.mean(0), **CLOSE)

    def test_needs_no_gradients(self):
        h, u = nn.Linear(3, 2).requires_grad_(False), torch.randn(4, 3)
        assert empirical.nngp(h, u).shape == (4, 4)
