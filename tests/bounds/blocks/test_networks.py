"""Bounds of residual networks, gates and transformers: attacks, known answers, refusals."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.bounds import lipschitz, lipschitz_lower, norms, path_norm, read_chain, report
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError

# Rounding is added to the bounds.
ROUNDING = 1e-6
# A difference quotient of step 1e-5 has relative errors of about eps |bias| / (slope * 1e-5).
ATTACK = 1e-6


class Residual(nn.Module):
    """skip(x) + f(x), or the difference."""

    def __init__(self, f, skip=None, minus=False):
        super().__init__()
        self.f, self.skip, self.minus = f, skip, minus

    def forward(self, x):
        kept = x if self.skip is None else self.skip(x)
        return kept - self.f(x) if self.minus else kept + self.f(x)


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


@st.composite
def residual_networks(draw):
    torch.manual_seed(draw(st.integers(0, 9999)))
    width, act = draw(st.integers(1, 6)), draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU]))
    parts = [nn.Linear(draw(st.integers(1, 4)), width)]
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["plain", "skip", "nested", "minus", "norm", "wide"]))
        f = mlp(width, draw(st.integers(1, 8)), width, act=act)
        if kind == "skip":
            parts.append(Residual(f, nn.Linear(width, width)))
        elif kind == "nested":
            parts.append(Residual(nn.Sequential(f, Residual(mlp(width, 3, width, act=act)))))
        elif kind == "norm":
            parts.append(Residual(nn.Sequential(nn.LayerNorm(width, eps=0.5), f)))
        elif kind == "wide":
            parts.append(nn.Sequential(Residual(f), act()))
        else:
            parts.append(Residual(f, minus=kind == "minus"))
    parts.append(nn.Linear(width, draw(st.integers(1, 3))))
    return nn.Sequential(*parts).double()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(residual_networks(), st.sampled_from([1, 2, math.inf]))
def test_residual_networks(net, norm):
    lower = lipschitz_lower(net, norm, starts=4, rounds=2).value
    product = lipschitz(net, norm, method="product")
    for method in ("paths", "best", *(("sdp-fast",) if norm == 2 else ())):
        assert lower <= lipschitz(net, norm, method=method) * (1 + ATTACK)
    assert lower <= product * (1 + ATTACK)
    if norm == 2:
        assert lipschitz(net, 2, method="sdp-fast") <= product * (1 + ROUNDING)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_known_answers(norm):
    """x + c x is exact; x - x is 0, for which the rule says 2."""
    for factor in (1.0, 0.5, 3.0):
        f = nn.Linear(3, 3, bias=False).double()
        with torch.no_grad():
            f.weight.copy_(factor * torch.eye(3))
        bound = lipschitz(nn.Sequential(Residual(f)), norm)
        assert 1 + factor - 1e-12 <= bound <= (1 + factor) * (1 + ROUNDING)
    assert lipschitz(
        nn.Sequential(Residual(nn.Identity(), minus=True)), norm, input_shape=(3,)
    ) == (pytest.approx(2, rel=ROUNDING))


def test_ellipsoids_add_up():
    """Tighter than 1 + L(f), where the long axes of x and f(x) are not the same."""
    torch.manual_seed(0)
    net = nn.Sequential(mlp(6, 20), Residual(mlp(20, 40, 20)), mlp(20, 3)).double()
    product, fast = (lipschitz(net, 2, method=m) for m in ("product", "sdp-fast"))
    assert lipschitz_lower(net, 2, starts=8, rounds=3).value <= fast < 0.7 * product
    assert lipschitz(net, 2, method="sdp") < 0.9 * fast


def conv_block(channels, wanted, stride=1):
    f = nn.Sequential(
        nn.Conv2d(channels, wanted, 3, stride=stride, padding=1), nn.BatchNorm2d(wanted), nn.ReLU(),
        nn.Conv2d(wanted, wanted, 3, padding=1), nn.BatchNorm2d(wanted),
    )  # fmt: skip
    skip = nn.Conv2d(channels, wanted, 1, stride=stride) if stride > 1 else None
    return Residual(f, skip)


@pytest.mark.parametrize("seed", range(6))
def test_a_small_resnet(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), conv_block(4, 4), nn.ReLU(),
        conv_block(4, 6, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 3),
    ).double().eval()  # fmt: skip
    shape = (1, 8, 8)
    lower = lipschitz_lower(net, 2, input_shape=shape, starts=6, rounds=3).value
    product = lipschitz(net, 2, input_shape=shape, method="product")
    fast = lipschitz(net, 2, input_shape=shape, method="sdp-fast")
    assert lower <= fast < 0.7 * product


class SwiGLU(nn.Module):
    def __init__(self, size, hidden, norm=True):
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=0.1) if norm else nn.Identity()
        self.gate, self.up = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.down = nn.Linear(hidden, size)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pytest.mark.parametrize("seed", range(5))
def test_gated_blocks(seed):
    torch.manual_seed(seed)
    net = SwiGLU(4, 6).double()
    lower = lipschitz_lower(net, 2, starts=16, rounds=6).value
    assert lower <= lipschitz(net, 2) < 100 * lower
    bare = SwiGLU(4, 6, norm=False).double()
    with pytest.raises(UnsupportedModuleError, match=r"'mul' multiplies two branches.*radius="):
        lipschitz(bare, 2)
    for radius in (0.5, 2.0):
        side = radius / 2  # the corners of this box are at the radius
        lower = lipschitz_lower(bare, 2, low=-side, high=side, starts=16, rounds=6).value
        assert lower <= lipschitz(bare, 2, radius=radius) < 20 * lower


class Square(nn.Module):
    def forward(self, x):
        return x * x


def test_a_square_on_an_interval():
    """2 r, which is attained at the end."""
    net = nn.Sequential(Square())
    for radius in (0.5, 3.0):
        bound = lipschitz(net, 2, input_shape=(1,), radius=radius)
        assert bound == pytest.approx(2 * radius, rel=ROUNDING)
        lower = lipschitz_lower(net, 2, input_shape=(1,), low=-radius, high=radius).value
        assert lower == pytest.approx(2 * radius, rel=1e-3)


class Attention(nn.Module):
    """Positions, attention with a residual sum, scaled."""

    def __init__(self, size, tokens, norm=True, eps=0.1):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, tokens, size))
        self.scale = nn.Parameter(torch.full((size,), 0.5))
        self.norm = nn.LayerNorm(size, eps=eps) if norm else nn.Identity()
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)

    def forward(self, x):
        x = x + self.positions
        h = self.norm(x)
        y, _ = self.attention(h, h, h, need_weights=False)
        return x + self.scale * y


@pytest.mark.parametrize("seed", range(5))
def test_attention_blocks(seed):
    torch.manual_seed(seed)
    net = Attention(4, 3).double().eval()
    lower = lipschitz_lower(net, 2, input_shape=(3, 4), starts=16, rounds=6).value
    assert lower <= lipschitz(net, 2, input_shape=(3, 4))
    bare = Attention(4, 3, norm=False).double().eval()
    with pytest.raises(UnsupportedModuleError, match=r"'attention' \(attention\) has no Lipschitz"):
        lipschitz(bare, 2, input_shape=(3, 4))
    # The positions count: they make tokens longer than the radius of the input.
    lower = lipschitz_lower(bare, 2, input_shape=(3, 4), low=-0.1, high=0.1, starts=16).value
    bound = lipschitz(bare, 2, input_shape=(3, 4), radius=0.2)
    assert lower <= bound
    with torch.no_grad():
        bare.positions.mul_(10)
    assert lipschitz(bare, 2, input_shape=(3, 4), radius=0.2) > 10 * bound


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_transformer_encoders(norm_first, seed):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(
        4, 2, 8, dropout=0.0, batch_first=True, norm_first=norm_first, layer_norm_eps=0.5
    )
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4, eps=0.5), enable_nested_tensor=False)
    net = nn.Sequential(nn.Linear(3, 4), stack, nn.Flatten(), nn.Linear(12, 2)).double().eval()
    given = {"input_shape": (3, 3)}
    lower = lipschitz_lower(net, 2, low=-1, high=1, starts=8, rounds=3, **given).value
    assert 0 < lower <= lipschitz(net, 2, radius=math.sqrt(3), **given)
    if norm_first:
        assert lower <= lipschitz(net, 2, **given) < math.inf
    else:  # only the first attention has nothing in front
        with pytest.raises(UnsupportedModuleError, match=r"1.layers.0.self_attn.*radius="):
            lipschitz(net, 2, **given)


def test_the_table_of_a_transformer_names_its_parts():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, layer_norm_eps=0.5).eval()
    bound = lipschitz(nn.Sequential(layer), 2, input_shape=(3, 4), radius=1.0, method="product")
    assert [name for name, _ in bound.layers] == [
        "0, sum before norm1", "0.norm1", "0, sum before norm2", "0.norm2",
    ]  # fmt: skip
    assert bound == pytest.approx(math.prod(factor.value for _, factor in bound.layers))
    # Where nothing is gained, the bound that can show its factors is returned.
    bound = lipschitz(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), 2)
    assert [name for name, _ in bound.layers] == ["0", "1"]


def test_layer_norm_reaches_its_constant():
    net = nn.Sequential(nn.LayerNorm(5, eps=0.01)).double()
    assert lipschitz(net, 2) == pytest.approx(10)
    x = 1 + 1e-5 * torch.tensor([[1.0, -1, 0, 0, 0]], dtype=torch.float64)
    with torch.no_grad():
        moved = (net(x) - net(torch.ones_like(x))).norm() / (x - 1).norm()
    assert float(moved) == pytest.approx(10, rel=1e-4)
    lower = lipschitz_lower(net, 1, starts=16, rounds=4).value
    assert lower <= lipschitz(net, 1)


def test_the_default_epsilon_of_rms_norm_is_that_of_the_weights():
    """In double precision it would be a steeper function, which is not the network."""
    net = nn.Sequential(nn.RMSNorm(3))
    bound = lipschitz(net, 2)
    assert bound == pytest.approx(1 / math.sqrt(torch.finfo(torch.float32).eps))
    for start in range(3):
        lower = lipschitz_lower(net, 2, low=-1e-4, high=1e-4, starts=16, seed=start)
        assert lower.value <= bound * (1 + ATTACK)
    assert lower.value > 0.5 * bound


class Joined(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.join = nn.Linear(3, 4), nn.Linear(3, 4), join

    def forward(self, x):
        return self.join(self.a(x), self.b(x))


class Broadcast(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_what_is_not_known_is_refused():
    for join in (lambda a, b: torch.cat([a, b], 1), torch.maximum, lambda a, b: a / b,
                 lambda a, b: torch.add(a, b, alpha=3)):  # fmt: skip
        with pytest.raises(UnsupportedModuleError, match=r"'Joined' .* cannot be bounded: at '"):
            lipschitz(Joined(join), 2)
    # Repeating one number four times is twice as long: no silent broadcasting.
    with pytest.raises(ShapeError, match=r"branches of shapes \[\(1,\), \(4,\)\] are joined"):
        lipschitz(Broadcast(nn.Linear(3, 1), nn.Linear(3, 4)), 2)
    images = Broadcast(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 4, 1))
    with pytest.raises(ConfigError, match=r"input_shape"):
        lipschitz(images, 2)
    with pytest.raises(ShapeError, match=r"are joined"):
        lipschitz(images, 2, input_shape=(1, 4, 4))
    attention = Attention(4, 3).eval()
    with pytest.raises(ConfigError, match=r"pass input_shape=.*or \(tokens, size\)"):
        lipschitz(attention, 2)
    for norm in (1, math.inf):
        with pytest.raises(UnsupportedModuleError, match=r"2-norm only; give norm=2"):
            lipschitz(attention, norm, input_shape=(3, 4))
    with pytest.raises(UnsupportedModuleError, match=r"no bound entry by entry"):
        lipschitz(attention, 2, method="paths", input_shape=(3, 4))
    with pytest.raises(ConfigError, match=r"radius=-1 was given"):
        lipschitz(attention, 2, input_shape=(3, 4), radius=-1)
    with pytest.raises(UnsupportedModuleError, match=r"with eps=0"):
        lipschitz(nn.Sequential(nn.LayerNorm(3, eps=0)), 2)


class Overwriting(nn.Module):
    """x + f(x), where f writes into x: what is added is no longer x."""

    def __init__(self, way):
        super().__init__()
        self.f, self.way, self.steep = nn.Linear(3, 3), way, nn.LeakyReLU(2.0, inplace=True)

    def forward(self, x):
        if self.way == "module":
            return x + self.f(self.steep(x))
        if self.way == "function":
            return x + self.f(F.leaky_relu(x, 2.0, inplace=True))
        if self.way == "method":
            return x + self.f(x.mul_(x))
        return x + self.f(self.steep(x.flatten(1)))


@pytest.mark.parametrize("way", ["module", "function", "method", "view"])
def test_values_that_are_overwritten_are_refused(way):
    with pytest.raises(UnsupportedModuleError, match=r"overwritten \(inplace\) and read again"):
        lipschitz(Overwriting(way), 2, input_shape=(3,))


def test_what_is_overwritten_and_not_read_again_is_fine():
    class Usual(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.relu = mlp(3, 5, 3), nn.ReLU(inplace=True)

        def forward(self, x):
            out = self.f(x)
            out += x
            return self.relu(out)

    torch.manual_seed(0)
    net = Usual()
    apart = nn.Sequential(Residual(net.f), nn.ReLU())
    assert lipschitz(net, 2) == pytest.approx(lipschitz(apart, 2), rel=1e-9)


def test_what_is_about_chains_still_refuses_blocks():
    net = nn.Sequential(nn.Linear(3, 4), Residual(mlp(4, 5, 4)))
    for function in (report, norms, path_norm, read_chain):
        with pytest.raises(UnsupportedModuleError, match=r"is not a chain of layers"):
            function(net)


def test_an_unknown_branch_tensor_must_be_finite():
    net = Attention(4, 3).eval()
    del net.positions
    net.register_buffer("positions", torch.full((1, 3, 4), -math.inf))
    with pytest.raises(UnsupportedModuleError, match=r"'positions' is not a tensor of finite"):
        lipschitz(net, 2, input_shape=(3, 4))
