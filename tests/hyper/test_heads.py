"""Every head against the contract, and what is special about each."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightloom as wl
from tests.hyper.head_contract import HeadContract
from tests.oracle import close, loop
from weightloom.errors import HeadError
from weightloom.networks import WeightSpec


class TestFull(HeadContract):
    def make(self):
        return wl.FullHead()

    def test_is_one_linear_layer(self):
        head, spec, _ = self.build()
        features = torch.randn(4, 5).double()
        flat = spec.flatten({n: v.dense() for n, v in head.generate(features).items()})
        basis = torch.cat([torch.zeros(1, 5), torch.eye(5)]).double()
        rows = spec.flatten({n: v.dense() for n, v in head.generate(basis).items()})
        close(flat, rows[0] + features @ (rows[1:] - rows[0]))
        assert sum(p.numel() for p in head.parameters()) == spec.size * (5 + 1)


class TestLowRank(HeadContract):
    def make(self):
        return wl.LowRankHead(rank=2)

    def test_matrices_have_that_rank(self):
        head, _, _ = self.build()
        self.draw(head)
        value = head.generate(torch.randn(4, 5).double())["0.weight"]
        values = torch.linalg.svdvals(value.dense() - value.offset)
        assert (values[:, 2:] < 1e-12 * values[:, :1]).all()
        assert (values[:, 1] > 1e-6 * values[:, 0]).all()

    def test_bad_rank(self):
        with pytest.raises(HeadError, match="rank=0 was given"):
            wl.LowRankHead(0)


class TestChunked(HeadContract):
    def make(self):
        return wl.ChunkedHead(size=37, embedding=4, hidden=64)

    def test_size_hardly_depends_on_the_primary(self):
        small, spec, _ = self.build((12, 20, 3))
        large, more, _ = self.build((12, 200, 3))
        grown = sum(p.numel() for p in large.parameters()) - sum(
            p.numel() for p in small.parameters()
        )
        assert grown == 4 * (-(-more.size // 37) - -(-spec.size // 37))

    @pytest.mark.parametrize("option", ["size", "embedding", "hidden"])
    def test_bad_options(self, option):
        with pytest.raises(HeadError, match=f"{option}=0 was given"):
            wl.ChunkedHead(**{option: 0})


class TestPerLayer(HeadContract):
    def make(self):
        return wl.PerLayerHead()


class TestPerLayerMixed(HeadContract):
    def make(self):
        heads = {"0": wl.LowRankHead(2), "*": wl.FullHead()}
        return wl.PerLayerHead(heads)

    def test_patterns_choose_heads(self):
        head, _, _ = self.build()
        assert isinstance(head.heads["0"], wl.LowRankHead)
        assert isinstance(head.heads["2"], wl.FullHead)

    def test_layers_share_nothing(self):
        head, _, _ = self.build()
        features = torch.randn(2, 5).double()
        before = head.generate(features)["0.weight"].dense()
        for parameter in head.heads["2"].parameters():
            torch.nn.init.zeros_(parameter)
        assert torch.equal(head.generate(features)["0.weight"].dense(), before)

    def test_a_layer_without_a_head(self):
        with pytest.raises(HeadError, match="no head is given for layer '2'"):
            wl.HyperNetwork(
                wl.mlp([3, 4, 1]), wl.mlp([4, 6]), wl.PerLayerHead({"0": wl.FullHead()})
            )


class Delta(HeadContract):
    def constant(self, primary):
        return {name: p.detach() for name, p in primary.named_parameters()}

    def draw(self, head):
        super().draw(head.change)

    def test_starts_at_the_given_primary(self):
        primary = wl.mlp([3, 40, 40, 2])
        hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]), self.make())
        x, condition = torch.randn(4, 5, 3), torch.randn(4, 4)
        close(hyper(x, condition), primary(x))
        before = hyper(x, condition)
        optimiser = torch.optim.SGD(hyper.parameters(), 0.1)
        for _ in range(2):
            optimiser.zero_grad()
            hyper(x, condition).square().mean().backward()
            optimiser.step()
        after = hyper(x, condition)
        assert not torch.allclose(after, before)
        close(after, loop(hyper, x, condition), 10)
        assert not torch.allclose(hyper.weights(condition)["2.weight"][0],
                                  hyper.weights(condition)["2.weight"][1])  # fmt: skip

    def test_base_is_frozen_unless_asked(self):
        for train_base in (False, True):
            head = type(self.make())(train_base=train_base)
            hyper = wl.HyperNetwork(wl.mlp([3, 4, 1]), wl.mlp([4, 6]), head)
            assert {p.requires_grad for p in hyper.head.base.values()} == {train_base}

    def test_takes_no_init(self):
        with pytest.raises(HeadError, match="delta head, which starts at the given primary"):
            wl.HyperNetwork(wl.mlp([3, 4, 1]), wl.mlp([4, 6]), self.make(), init="hyperfan_in")


class TestDelta(Delta):
    def make(self):
        return wl.DeltaHead()


class TestLoRA(Delta):
    def make(self):
        return wl.DeltaHead(rank=2)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    b=st.integers(1, 4),
    points=st.integers(1, 3),
    features=st.integers(1, 8),
    kind=st.sampled_from(["full", "low_rank", "chunked", "per_layer", "delta"]),
    order=st.sampled_from(["auto", "write", "contract", "factor"]),
)
def test_any_shape_in_any_order(sizes, b, points, features, kind, order):
    hyper = wl.HyperNetwork(wl.mlp(sizes, "tanh"), None, kind, features=features).double()
    hyper.order = order
    x = torch.randn(b, points, sizes[0]).double()
    condition = torch.randn(b, features).double()
    close(hyper(x, condition), loop(hyper, x, condition), 10)


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4), b=st.integers(0, 3))
def test_flatten_undoes_split(sizes, b):
    spec = WeightSpec.from_module(wl.mlp(sizes))
    flat = torch.randn(*((b,) if b else ()), spec.size)
    assert torch.equal(spec.flatten(spec.split(flat)), flat)
