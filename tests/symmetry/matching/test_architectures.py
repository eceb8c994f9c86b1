"""The search on whole networks: Hugging Face models, gated units, gains, half precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.networks.models import MODELS, make_model
from tests.symmetry.matching.blocks import commuting, moderate, pairs_of
from tests.symmetry.nets import Net, encoder, mlp
from weightloom.symmetry import read
from weightloom.symmetry.folding import fold
from weightloom.symmetry.group import apply, random_element, random_equivalent, tensors_of
from weightloom.symmetry.matching.search import match
from weightloom.symmetry.spec import Axis, Kind, Layer, Space, Spec


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def tolerance(dtype):
    eps = torch.finfo(dtype).eps
    return (4 if eps > 1e-4 else 32) * eps


def rounded(net, dtype):
    tensors = tensors_of(net) if isinstance(net, nn.Module) else net
    return {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}


def with_change(tensors, name, flat, times, dtype):
    """One weight moved by so many tolerances of its size, or of what is typical in its tensor.

    Folding leaves shifts of norms that are all zero: there 1 is the size.
    """
    values = tensors[name].double().flatten().clone()
    size = max(float(values[flat].abs()), float(values.square().mean().sqrt())) or 1.0
    values[flat] += times * tolerance(dtype) * size
    return {**tensors, name: values.reshape(tensors[name].shape).to(dtype)}


def counted(name, flat, tensors):
    """Whether an entry has an effect: the bias of keys has none without rotary embeddings."""
    fused = name.endswith(("c_attn.bias", "in_proj_bias"))
    third = 3 * flat // tensors[name].numel()
    return not ("key.bias" in name or "k_proj.bias" in name or (fused and third == 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in MODELS if "eager" not in name])
def test_models_of_transformers(name, dtype):
    net = fold(make_model(name))
    spec = read(net)
    a = rounded(net, dtype)
    for seed in range(2):
        twin = apply(random_element(spec, seeded(seed)), net, spec)
        b = rounded(twin, dtype)
        result = match(spec, a, b, tolerance(dtype))
        assert result.same, result.mismatch
        assert result.undecided is None
        names = [k for k, t in b.items() if t.is_floating_point()]
        generator = seeded(seed)
        for times in (6, 20, 100, 1e4):
            key = names[int(torch.randint(len(names), (), generator=generator))]
            flat = int(torch.randint(b[key].numel(), (), generator=generator))
            if counted(key, flat, b):
                other = with_change(b, key, flat, times, dtype)
                assert not match(spec, a, other, tolerance(dtype)).same, (key, flat, times)
    moved = tensors_of(apply(match(spec, a, b, tolerance(dtype)).element, twin, spec))
    for key, tensor in tensors_of(net).items():
        if counted(key, 0, a) and not key.endswith("attn.bias"):
            largest = float((moved[key] - tensor).abs().max() / (1 + tensor.abs().max()))
            assert largest < 4 * tolerance(dtype), key


def disguised_llama(tensors, generator):
    """Every symmetry of a Llama block, written out: 4 heads in 2 groups of d = 4, E = 16."""
    t = {k: v.clone() for k, v in tensors.items()}

    def uniform(n):
        sizes = 2 ** (2 * torch.rand(n, generator=generator).double() - 1)
        return sizes * (1 - 2 * torch.randint(0, 2, (n,), generator=generator))

    rotary = pairs_of(4, 4, False)
    for layer in ("model.layers.0.", "model.layers.1."):
        q, k, v, o = (f"{layer}self_attn.{x}_proj.weight" for x in "qkvo")
        groups = torch.randperm(2, generator=generator)
        heads = torch.cat([2 * g + torch.randperm(2, generator=generator) for g in groups])
        query, output = t[q].reshape(4, 4, 16)[heads], t[o].reshape(16, 4, 4)[:, heads]
        key, value = t[k].reshape(2, 4, 16)[groups], t[v].reshape(2, 4, 16)[groups]
        for g in range(2):
            A, B = commuting(4, rotary, generator), moderate(4, generator)
            key[g], value[g] = torch.linalg.inv(A).T @ key[g], B @ value[g]
            for h in (2 * g, 2 * g + 1):
                query[h], output[:, h] = A @ query[h], output[:, h] @ torch.linalg.inv(B)
        t[q], t[k], t[v], t[o] = (
            query.reshape(16, 16), key.reshape(8, 16), value.reshape(8, 16), output.reshape(16, 16)
        )  # fmt: skip
        gate, up, down = (f"{layer}mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
        order, factor = torch.randperm(24, generator=generator), uniform(24)
        t[gate], t[up] = t[gate][order], factor[:, None] * t[up][order]
        t[down] = t[down][:, order] / factor
        for norm, readers in (
            ("input_layernorm", (q, k, v)),
            ("post_attention_layernorm", (gate, up)),
        ):
            factor = uniform(16)
            t[f"{layer}{norm}.weight"] *= factor
            for reader in readers:
                t[reader] = t[reader] / factor
    stream = torch.randperm(16, generator=generator)
    for name, tensor in t.items():
        rows = any(part in name for part in ("o_proj", "down_proj", "norm"))
        if tensor.dim() == 2 and not rows:
            t[name] = tensor[:, stream]
        elif rows:
            t[name] = tensor[stream]
    return t


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_llama_disguised_by_hand(dtype):
    net = make_model("llama")
    spec, ids = read(net), torch.arange(14).reshape(2, 7)
    for seed in range(4):
        twin = make_model("llama", 1)
        hidden = disguised_llama(tensors_of(net), seeded(seed))
        twin.load_state_dict({k: v for k, v in hidden.items() if k in twin.state_dict()})
        # Its own rotary tables are in float32.
        with torch.no_grad():
            gap = (net(input_ids=ids).logits - twin(input_ids=ids).logits).abs().max()
        assert float(gap) < 1e-5
        a, b = rounded(net, dtype), rounded(twin, dtype)
        result = match(spec, a, b, tolerance(dtype))
        assert result.same, result.mismatch
        for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm"):
            other = with_change(b, f"model.layers.1.{name}.weight", 5, 30, dtype)
            assert not match(spec, a, other, tolerance(dtype)).same, name


class Gated(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(5, 12), nn.Linear(5, 12)
        self.down = nn.Linear(12, 3)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


GATED = Spec(
    {"up": Space("up", 12, Kind.FREE)},
    (
        Axis("gate.weight", 0, "up", "fixed"), Axis("gate.bias", 0, "up", "fixed"),
        Axis("up.weight", 0, "up", "out"), Axis("up.bias", 0, "up", "out"),
        Axis("down.weight", 1, "up", "in"),
    ),
    layers=(
        Layer("gate", "linear", "gate.weight", "gate.bias", None, "up"),
        Layer("up", "linear", "up.weight", "up.bias", None, "up"),
        Layer("down", "linear", "down.weight", "down.bias", "up", None),
    ),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_two_branches_of_gated_units(dtype):
    """Factors and signs move between up and down, never through the gate."""
    net = Net(Gated, (5,)).make()
    spec, x = GATED, torch.randn(4, 5, generator=seeded(0)).double()
    for seed in range(10):
        generator = seeded(seed)
        order = torch.randperm(12, generator=generator)
        factor = 3 * torch.randn(12, generator=generator).double()
        t = {k: v.clone() for k, v in tensors_of(net).items()}
        t["gate.weight"], t["gate.bias"] = t["gate.weight"][order], t["gate.bias"][order]
        t["up.weight"] = factor[:, None] * t["up.weight"][order]
        t["up.bias"] = factor * t["up.bias"][order]
        t["down.weight"] = t["down.weight"][:, order] / factor
        torch.testing.assert_close(torch.func.functional_call(net, t, x), net(x))
        a, b = rounded(net, dtype), rounded(t, dtype)
        assert match(spec, a, b, tolerance(dtype)).same
        b["gate.weight"][3] *= 1.5
        b["gate.bias"][3] *= 1.5
        assert not match(spec, a, b, tolerance(dtype)).same


class TestOwnScale:
    """What the length of a row hid."""

    def test_noise_in_half_precision(self):
        """Two percent in the last layer of an MLP in bfloat16."""
        net = Net(lambda: mlp("relu", 16, 256, 256, 8), (16,)).make(torch.bfloat16)
        spec, a = read(net), tensors_of(net)
        twin = random_equivalent(net, seeded(0))
        assert match(spec, a, tensors_of(twin), tolerance(torch.bfloat16)).same
        for layer in ("0", "2", "4"):
            b = dict(tensors_of(twin))
            noise = 1 + 0.02 * torch.randn(b[f"{layer}.weight"].shape, generator=seeded(1))
            b[f"{layer}.weight"] = (b[f"{layer}.weight"].float() * noise).bfloat16()
            assert not match(spec, a, b, tolerance(torch.bfloat16)).same

    @pytest.mark.parametrize("width", [16, 256, 1024])
    @pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
    def test_one_weight_of_a_wide_layer(self, activation, width):
        """Moved by five tolerances of its own scale, whatever the width; so are biases."""
        net = Net(lambda: mlp(activation, width, 64, 8), (width,)).make(torch.float32)
        spec, a = read(net), tensors_of(net)
        for seed in range(5):
            twin = random_equivalent(net, seeded(seed))
            b = tensors_of(twin)
            assert match(spec, a, b, tolerance(torch.float32)).same
            generator = seeded(seed)
            for name, times in (("0.weight", 5), ("2.weight", 5), ("0.bias", 8), ("2.bias", 8)):
                flat = int(torch.randint(b[name].numel(), (), generator=generator))
                other = with_change(b, name, flat, times, torch.float32)
                result = match(spec, a, other, tolerance(torch.float32))
                assert not result.same, (name, flat)
                assert "of the weight's own scale" in result.mismatch

    def test_columns_of_small_weights(self):
        """A factor of a thousand between inputs: small columns are not measured by large ones."""
        net = Net(lambda: mlp("relu", 8, 32, 4), (8,)).make(torch.float32)
        with torch.no_grad():
            net[0].weight[:, 3] *= 1e-6
        spec, a = read(net), tensors_of(net)
        b = tensors_of(random_equivalent(net, seeded(0), (1e-3, 1e3)))
        assert match(spec, a, b, tolerance(torch.float32)).same
        for row in range(32):
            other = {**b, "0.weight": b["0.weight"].clone()}
            typical = b["0.weight"][row, :3].square().mean().sqrt()
            other["0.weight"][row, 3] += 1e-6 * 1e-3 * typical
            assert not match(spec, a, other, tolerance(torch.float32)).same, row

    def test_biases_that_something_was_added_to(self):
        """With ``sums`` the scale of a bias is the length of its row, and not otherwise."""
        net = Net(lambda: mlp("gelu", 64, 32, 4), (64,)).make(torch.float32)
        net[0].bias.data.mul_(0.01)
        spec, a = read(net), tensors_of(net)
        b = {**a, "0.bias": a["0.bias"].clone()}
        b["0.bias"][2] += 2 * tolerance(torch.float32) * float(a["0.weight"][2].norm())
        assert not match(spec, a, b, tolerance(torch.float32)).same
        assert not match(spec, a, b, tolerance(torch.float32), sums=True).same
        b["0.bias"][2] = a["0.bias"][2] + 0.9 * tolerance(torch.float32) * a["0.weight"][2].norm()
        assert not match(spec, a, b, tolerance(torch.float32)).same
        assert match(spec, a, b, tolerance(torch.float32), sums=True).same

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_a_layer_without_queries_and_keys(self, dtype):
        """All keys and queries zero on one side only."""
        net = Net(encoder, (4, 3)).make()
        spec = read(net)
        a = rounded(net, dtype)
        zeroed = {k: v.clone() for k, v in a.items()}
        zeroed["1.self_attn.in_proj_weight"][:12] = 0
        zeroed["1.self_attn.in_proj_bias"][:12] = 0
        assert not match(spec, a, zeroed, tolerance(dtype)).same
        assert not match(spec, zeroed, a, tolerance(dtype)).same
        assert match(spec, zeroed, zeroed, tolerance(dtype)).same
