"""Architectures from state dicts: the same function comes back, and what is unclear is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.errors import CheckpointError, ConfigError, NonFiniteWeightsError
from weightloom.symmetry.files.architecture import assumable, infer


def mlp(*widths: int, activation: str = "relu", seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for given_, out in itertools.pairwise(widths):
        parts += [nn.Linear(given_, out), assumable()[activation]()]
    return nn.Sequential(*parts[:-1])


@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=14),
    activation=st.sampled_from(sorted(assumable())),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_mlps_come_back_from_any_order_of_tensors(widths, activation, order) -> None:
    """Bitwise: the weights are the same and so are the operations."""
    net = mlp(*widths, activation=activation)
    state = list(net.state_dict().items())
    order.shuffle(state)
    result = infer(dict(state), activation)
    x = torch.randn(5, widths[0])
    assert torch.equal(result.module(x), net(x))
    assert result.layers == tuple(str(2 * i) for i in range(len(widths) - 1))
    assert set(result.module.state_dict()) == set(net.state_dict())


@pytest.mark.parametrize(
    ("names", "widths"),
    [
        (["fc1", "fc2", "fc10"], [3, 4, 4, 2]),
        (["layers.0", "layers.1", "layers.2"], [3, 4, 4, 2]),
        (["net.body.0", "net.body.2", "net.head"], [3, 4, 4, 2]),
        (["input", "hidden", "output"], [3, 4, 5, 2]),
        (["zeta", "alpha"], [3, 7, 1]),
        (["pop", "forward"], [3, 7, 1]),  # names that nn.Sequential has itself
        ([".".join("a" * 40) + "1", ".".join("a" * 40) + "2"], [3, 7, 1]),
    ],
)
def test_names(names: list[str], widths: list[int]) -> None:
    net = mlp(*widths)
    linear = [part for part in net if isinstance(part, nn.Linear)]
    pairs = list(zip(names, linear, strict=True))
    state = {f"{n}.{k}": v for n, part in reversed(pairs) for k, v in part.state_dict().items()}
    result = infer(state)
    assert list(result.layers) == names
    x = torch.randn(5, 3)
    assert torch.equal(result.module(x), net(x))


def test_renamed_by_position() -> None:
    net = mlp(2, 3, 1)
    result = infer(net.state_dict(), names=["a.in", "a.out"])
    assert result.layers == ("0", "2")
    assert "a.in.weight" in result.module.state_dict()
    with pytest.raises(ConfigError, match="1 names were given for 2 layers"):
        infer(net.state_dict(), names=["a"])


def test_random_numbers_are_left_alone() -> None:
    state = mlp(2, 3, 1).state_dict()
    before = torch.get_rng_state()
    infer(state)
    assert torch.equal(before, torch.get_rng_state())


def test_assumptions_are_said() -> None:
    result = infer(mlp(2, 3, 1).state_dict())
    assumptions = "; ".join(result.assumptions)
    assert "no skip connections" in assumptions
    assert "relu after every layer but the last" in assumptions
    assert "the default; change it with --activation" in assumptions
    asked = "; ".join(infer(mlp(2, 3, 1).state_dict(), "gelu").assumptions)
    assert "gelu after" in asked
    assert "as asked for" in asked


def test_mixed_dtypes_are_widened() -> None:
    state = mlp(2, 3, 1).state_dict()
    state["2.bias"] = state["2.bias"].double()
    result = infer(state)
    assert {p.dtype for p in result.module.parameters()} == {torch.float64}
    assert "torch.float32 and torch.float64 weights as torch.float64" in result.assumptions


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 6, 2),
    )


def test_convolutions_keep_their_weights_and_symmetries() -> None:
    from weightloom.symmetry import equivalent, random_equivalent

    net = conv_net()
    result = infer(net.state_dict())
    assert result.convolutional
    assert "were made up" in result.assumptions[-1]
    own = net.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in result.module.state_dict().items())
    assert result.module(torch.randn(2, 1, 9, 9)).shape == (2, 2)
    # A symmetry of the real network is one of the inferred network.
    generator = torch.Generator().manual_seed(1)
    twin = infer(random_equivalent(net, generator=generator).state_dict())
    assert equivalent(result.module, twin.module)
    with torch.no_grad():
        twin.module.state_dict()["3.weight"][1, 2, 0, 0] += 0.01
    assert not equivalent(result.module, twin.module)


def test_signs_between_convolutions_are_not_guessed() -> None:
    for name in ("tanh", "sigmoid", "softsign"):
        with pytest.raises(CheckpointError, match=f"{name} allows sign flips .* --module"):
            infer(conv_net().state_dict(), name)
    assert infer(conv_net().state_dict(), "gelu").convolutional


def weights(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {name.replace("_", "."): torch.ones(shape) for name, shape in shapes.items()}


NAN = {"0.weight": torch.tensor([[1.0, float("nan")]])}
SEQUENTIAL = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({}, CheckpointError, "empty"),
        (
            weights(a_weight=(3, 3), b_weight=(3, 3)),
            CheckpointError,
            "not clear: a, b or b, a;.*--m",
        ),
        (weights(a1_weight=(3, 2), a2_weight=(1, 4)), CheckpointError, "'a1' .*writes 3 .*reads 4"),
        (nn.LayerNorm(3).state_dict(prefix="n."), CheckpointError, r"'n.weight' of shape \(3,\)"),
        (nn.LSTM(2, 2).state_dict(prefix="r."), CheckpointError, "'r.weight_ih_l0' .*--module"),
        (nn.BatchNorm1d(3).state_dict(prefix="n."), CheckpointError, "torch.int64"),
        (nn.Linear(2, 2).state_dict(), CheckpointError, "'weight' of shape"),
        (weights(a_bias=(3,)), CheckpointError, "'a.bias'"),
        (weights(a_weight=(3, 2), a_bias=(2,)), CheckpointError, r"needs \(3,\)"),
        (weights(a_weight=(0, 2)), CheckpointError, "holds no numbers"),
        ({"a\x1b[2J.weight": torch.ones(1, 1)}, CheckpointError, r"'a\\x1b\[2J.weight'"),
        (NAN, NonFiniteWeightsError, r"'0.weight' holds NaN or infinity \(1 of 2"),
        (SEQUENTIAL.state_dict(), CheckpointError, "'2' and '3' have no room"),
        (weights(**{f"{c}_weight": (1, 1) for c in "abcdefgh"}), CheckpointError, "8 families"),
    ],
)
def test_refusals(state: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        infer(state)


def test_unknown_activation() -> None:
    with pytest.raises(ConfigError, match="activation 'sine' is not known; wanted one of relu"):
        infer(mlp(1, 1).state_dict(), "sine")
