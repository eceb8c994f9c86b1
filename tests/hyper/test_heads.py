"""Every head against the contract, and what is special about each."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import weightloom as wl
from tests.hyper.head_contract import HeadContract
from tests.oracle import close, loop
from weightloom.errors import HeadError
from weightloom.hyper.heads import InitTarget
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


class Relative(HeadContract):
    """Heads that write a change; the given weights stay in the primary."""

    def test_initialise_keeps_offsets(self):
        """The given weights are the offset: a target's own is not used."""
        head, spec, primary = self.build()
        values = {n: p.detach() for n, p in primary.named_parameters()}
        head.initialise({name: InitTarget(0.0, values[name]) for name in spec}, 1.0)
        for value in head.generate(torch.randn(3, 5).double()).values():
            assert not value.dense().any()

    def test_starts_at_the_given_primary(self):
        primary = wl.mlp([3, 40, 40, 2])
        hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]), self.make())
        x, condition = torch.randn(4, 5, 3), torch.randn(4, 4)
        close(hyper(x, condition), primary(x))
        assert all(torch.equal(value[0], value[1]) for value in hyper.weights(condition).values())
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

    def test_the_given_weights_are_not_copied(self):
        primary = wl.mlp([3, 40, 40, 2])
        hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]), self.make())
        shapes = [tuple(p.shape) for p in hyper.head.parameters()]
        shapes += [tuple(b.shape) for b in hyper.head.buffers()]
        assert (40, 40) not in shapes
        assert hyper.head.bases() == dict.fromkeys(hyper.spec, False)

    @pytest.mark.parametrize("init", ["hyperfan_out", "primary", "ntk", "default"])
    def test_takes_no_other_start(self, init):
        with pytest.raises(HeadError, match="starts at the given primary; leave init out"):
            wl.HyperNetwork(wl.mlp([3, 4, 1]), wl.mlp([4, 6]), self.make(), init=init)

    def test_hyperfan_in_uses_features_as_they_are(self):
        primary, encoder = wl.mlp([3, 4, 1]), wl.mlp([4, 16], last_activation=True)
        hyper = wl.HyperNetwork(primary, encoder, self.make(), init="hyperfan_in")
        assert hyper.scaling is None
        assert "features as they are" in hyper.initialisation
        features, _ = hyper._encode(torch.randn(5, 4))
        for name, change in hyper.head.generate(features).items():
            assert torch.equal(change.dense(), hyper._changes(features)[name].dense())
        x = torch.randn(5, 3)
        assert torch.equal(hyper(x, torch.randn(4)), primary(x))


class Delta(Relative):
    def test_base_is_frozen_unless_asked(self):
        for train_base in (False, True):
            head = wl.DeltaHead(train_base=train_base)
            hyper = wl.HyperNetwork(wl.mlp([3, 4, 1]), wl.mlp([4, 6]), head)
            assert set(hyper.head.bases().values()) == {train_base}
            assert {p.requires_grad for p in hyper.primary.parameters()} == {train_base}


class TestDelta(Delta):
    def make(self):
        return wl.DeltaHead()


class TestLoRA(Delta):
    def make(self):
        return wl.DeltaHead(rank=2)


class TestDeltaOfChunks(Delta):
    def make(self):
        return wl.DeltaHead(change=wl.ChunkedHead(size=37, embedding=4, hidden=64))


class TestDeltaPerLayer(Delta):
    def make(self):
        change = wl.PerLayerHead({"0": wl.LowRankHead(2, offset=False), "*": wl.FullHead(False)})
        return wl.DeltaHead(change=change)


class TestDeltaOptions:
    def test_rank_or_change(self):
        with pytest.raises(HeadError, match="rank=2 and change=LowRankHead were both given"):
            wl.DeltaHead(2, change=wl.LowRankHead(3, offset=False))

    @pytest.mark.parametrize("change", [wl.AdapterHead(2), wl.DeltaHead(2)])
    def test_a_change_that_is_already_relative(self, change):
        name = type(change).__name__
        with pytest.raises(HeadError, match=f"{name} writes a change of the given .* by itself"):
            wl.DeltaHead(change=change)
        with pytest.raises(HeadError, match=f"{name} writes a change"):
            wl.DeltaHead(change=wl.PerLayerHead({"0": wl.FullHead(False), "*": change}))

    @pytest.mark.parametrize("change", [wl.LowRankHead(2), wl.FullHead()])
    def test_a_change_with_a_constant(self, change):
        name = type(change).__name__
        with pytest.raises(HeadError, match=rf"pass {name}\(.*offset=False\)"):
            wl.DeltaHead(change=change)

    def test_a_change_that_is_no_head(self):
        with pytest.raises(HeadError, match="change='chunked' was given; pass a Head"):
            wl.DeltaHead(change="chunked")


class TestAdapter(Relative):
    def make(self):
        return wl.AdapterHead(rank=2, width=64, depth_embedding=3, kind_embedding=5)

    def test_factors_have_that_rank(self):
        head, _, _ = self.build()
        self.draw(head)
        value = head.generate(torch.randn(4, 5).double())["0.weight"]
        assert (value.left.shape, value.right.shape) == ((4, 20, 2), (4, 2, 12))

    def test_rows_against_a_plain_network_on_joined_inputs(self):
        """The trunk in parts is a network on [features, depth, kind], one layer at a time."""
        head, _, _ = stack(self.make(), layers=3)
        self.draw(head)
        features = torch.randn(2, 5)
        generated = head.generate(features)
        first = [head.from_features.weight, head.from_depth.weight, head.from_kind.weight]
        for depth, name in enumerate(f"blocks.{i}.up.weight" for i in range(3)):
            place = torch.cat([head.depths[depth], head.kind_vectors[0]])
            joined = torch.cat([features, place.expand(2, -1)], 1)
            hidden = F.silu(F.linear(joined, torch.cat(first, 1), head.from_features.bias))
            inner = F.silu(head.inner(F.layer_norm(hidden, (64,))))
            hidden = F.layer_norm(hidden + head.outer(inner), (64,))
            stored = "blocks/*/up/weight/24x16"
            left = head.left[stored](hidden).reshape(2, 2, 24).transpose(1, 2)
            right = head.right[stored](hidden).reshape(2, 2, 16)
            close(generated[name].dense(), left @ right, 10)

    def test_size_does_not_depend_on_depth_but_for_its_embedding(self):
        shallow, _, _ = stack(self.make(), layers=2)
        deep, _, _ = stack(self.make(), layers=20)
        assert size(deep) - size(shallow) == 18 * 3

    def test_kinds_and_depths(self):
        head, spec, _ = stack(self.make(), layers=3, experts=2)
        assert [kind.stored for kind in head.kinds] == [
            "blocks/*/up/weight/24x16",
            "blocks/*/experts/*/weight/24x24",
            "last/weight/16x24",
        ]
        assert [len(kind.names) for kind in head.kinds] == [3, 6, 1]
        assert len(head.depths) == 3 + 6 + 1  # (0,), (0, 0), (0, 1), ..., and no number at all
        assert list(head.generate(torch.randn(1, 5))) == list(spec)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_is_single_precision_on_a_primary_in_half_precision(self, dtype):
        head, _, _ = stack(self.make(), dtype=dtype)
        assert {p.dtype for p in head.parameters()} == {torch.float32}
        value = head.generate(torch.randn(2, 5).to(dtype))["blocks.0.up.weight"]
        assert value.left.dtype == torch.float32

    def test_autocast_keeps_the_type_of_the_factors(self):
        head, _, _ = stack(self.make())
        with torch.autocast("cpu", torch.bfloat16):
            value = head.generate(torch.randn(2, 5))["blocks.0.up.weight"]
        assert (value.left.dtype, value.right.dtype) == (torch.float32, torch.float32)

    def test_alpha(self):
        torch.manual_seed(0)
        plain, _, _ = stack(wl.AdapterHead(2, 64))
        scaled, _, _ = stack(wl.AdapterHead(2, 64, alpha=6.0))
        for head in (plain, scaled):
            torch.manual_seed(1)
            self.draw(head)
        features = torch.randn(2, 5)
        once, thrice = (h.generate(features)["last.weight"].dense() for h in (plain, scaled))
        close(thrice, 3.0 * once)

    def test_right_starts_as_lora_does(self):
        """Kaiming: uniform on +-1 / sqrt(in), the same for all conditions, even at phi = 0."""
        head, _, _ = stack(wl.AdapterHead(8, 64))
        value = head.generate(torch.cat([torch.zeros(1, 5), torch.randn(2, 5)]))["last.weight"]
        assert not value.left.any()
        assert torch.equal(value.right[0], value.right[1])
        bound = 24**-0.5
        assert value.right.abs().max() <= bound
        assert value.right.std().item() == pytest.approx(bound / 3**0.5, rel=0.2)

    def test_the_first_gradient_reaches_all_layers_of_a_kind(self):
        head, _, _ = stack(self.make(), layers=3)
        values = head.generate(torch.randn(2, 5))
        for layer in range(3):
            (grad,) = torch.autograd.grad(
                values[f"blocks.{layer}.up.weight"].dense().sum(),
                head.left["blocks/*/up/weight/24x16"].weight,
                retain_graph=True,
            )
            assert grad.abs().max() > 0

    @pytest.mark.parametrize("option", ["rank", "width", "depth_embedding", "kind_embedding"])
    def test_bad_options(self, option):
        with pytest.raises(HeadError, match=f"{option}=0 was given"):
            wl.AdapterHead(**{option: 0})

    def test_bad_alpha(self):
        with pytest.raises(HeadError, match=r"alpha=-1.0 was given"):
            wl.AdapterHead(alpha=-1.0)

    def test_learned_numbers_for_llama_8b(self):
        """q and v of Llama-3-8B at rank 8, from shapes alone (meta tensors)."""
        shapes = {}
        for layer in range(32):
            stem = f"model.layers.{layer}.self_attn"
            shapes[f"{stem}.q_proj.weight"] = (4096, 4096)
            shapes[f"{stem}.v_proj.weight"] = (1024, 4096)
        spec = WeightSpec(shapes, {})
        values = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        adapter, delta = wl.AdapterHead(8), wl.DeltaHead(8)
        for head in (adapter, delta):
            head.build(spec, 512, values)
        outputs = 8 * (4096 + 4096) + 8 * (4096 + 1024)
        assert size(adapter.left) + size(adapter.right) == outputs * (512 + 1)
        assert 54e6 < size(adapter) < 56e6
        assert size(delta) == 512 * 32 * outputs == 1_744_830_464


def stack(head, layers=2, experts=0, dtype=torch.float32):
    """The head, built for blocks of matrices; the spec; the values."""
    shapes = {}
    for layer in range(layers):
        shapes[f"blocks.{layer}.up.weight"] = (24, 16)
        for expert in range(experts):
            shapes[f"blocks.{layer}.experts.{expert}.weight"] = (24, 24)
    shapes["last.weight"] = (16, 24)
    spec = WeightSpec(shapes, {})
    values = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    head.build(spec, 5, values)
    return head, spec, values


def size(module):
    return sum(p.numel() for p in module.parameters())


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    b=st.integers(1, 4),
    points=st.integers(1, 3),
    features=st.integers(1, 8),
    kind=st.sampled_from(["full", "low_rank", "chunked", "per_layer", "delta", "adapter"]),
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
