"""Kinds of modules with settings, and the probe against functions made to order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ACTIVATIONS
from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import Kind, classify, is_elementwise, probe_kind

MODULES = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.GELU: "gelu", nn.SiLU: "silu",
    nn.Mish: "mish", nn.SELU: "selu", nn.Hardswish: "hardswish", nn.LogSigmoid: "logsigmoid",
    nn.ReLU6: "relu6", nn.Hardsigmoid: "hardsigmoid", nn.Softsign: "softsign",
    nn.Tanhshrink: "tanhshrink",
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_found_in_the_table(module):
    activation = classify(module())
    assert activation.name == MODULES[module]
    assert (activation.kind, activation.constant) == probe_kind(module())


SETTINGS = [
    (nn.LeakyReLU(0.1), Kind.SCALE), (nn.LeakyReLU(1.0), Kind.FREE),
    (nn.LeakyReLU(-1.0), Kind.ABSOLUTE), (nn.Hardtanh(), Kind.SIGN), (nn.Hardtanh(-1, 2),
    Kind.PERMUTE), (nn.Hardtanh(0, 1), Kind.PERMUTE), (nn.ELU(), Kind.PERMUTE),
    (nn.Softplus(), Kind.PERMUTE), (nn.Softshrink(), Kind.SIGN), (nn.Hardshrink(), Kind.SIGN),
    (nn.Threshold(0.0, 0.0), Kind.SCALE), (nn.Threshold(0.1, 0.0), Kind.PERMUTE),
    (nn.RReLU().eval(), Kind.SCALE), (nn.GELU("tanh"), Kind.PERMUTE),
]  # fmt: skip


@pytest.mark.parametrize(("module", "kind"), SETTINGS, ids=lambda value: str(value))
def test_settings_decide(module, kind):
    assert classify(module).kind is kind


def test_settings_are_part_of_the_name():
    assert classify(nn.LeakyReLU(0.1)).name != classify(nn.LeakyReLU(0.2)).name


CUSTOM = {
    "cube": (lambda t: t**3, Kind.SIGN, 0.0),
    "square": (lambda t: t * t, Kind.EVEN, 0.0),
    "shifted tanh": (lambda t: torch.tanh(t) - 0.25, Kind.FLIP, -0.5),
    "two slopes": (lambda t: torch.where(t > 0, 2 * t, -0.3 * t), Kind.SCALE, 0.0),
    "twice": (lambda t: 2 * t, Kind.FREE, 0.0),
    "plus one": (lambda t: t + 1, Kind.FLIP, 2.0),
    "constant": (lambda t: torch.full_like(t, 3.0), Kind.EVEN, 0.0),
    "flat far away": (lambda t: t.clamp(-1000, 2000), Kind.PERMUTE, 0.0),
    "almost odd": (lambda t: torch.tanh(t) + 1e-6 * torch.cos(t), Kind.PERMUTE, 0.0),
    "almost the same slopes": (lambda t: t * (1 + 1e-6 * (t > 0)) + t**3, Kind.PERMUTE, 0.0),
    "in place": (lambda t: t.relu_(), Kind.SCALE, 0.0),
    "only float32": (lambda t: (t @ torch.eye(t.shape[-1])).tanh(), Kind.SIGN, 0.0),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_functions_are_probed(name):
    s, kind, constant = CUSTOM[name]
    probed, shift = probe_kind(s)
    assert probed is kind
    assert shift == pytest.approx(constant, abs=1e-12)


def allowed(kind, f):
    """Whether s(f t) is f s(t), up to what the kind says."""
    return {
        Kind.SCALE: f > 0, Kind.SIGN: abs(f) == 1, Kind.FLIP: abs(f) == 1, Kind.EVEN: abs(f) == 1,
        Kind.ABSOLUTE: True, Kind.FREE: True, Kind.PERMUTE: f == 1,
    }[kind]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(set(ACTIVATIONS) - {"prelu"})),
    t=st.floats(-8, 8),
    size=st.floats(0.25, 4),
    sign=st.sampled_from([-1.0, 1.0]),
    unit=st.booleans(),
)
def test_the_law_of_the_kind_holds_at_any_point(name, t, size, sign, unit):
    activation = ACTIVATIONS[name]()
    classified = classify(activation)
    f = torch.tensor(sign * (1.0 if unit else size), dtype=torch.float64)
    if not allowed(classified.kind, float(f)):
        return
    point = torch.tensor([t], dtype=torch.float64)
    wanted = classified.kind.outgoing(f) * activation(point)
    if classified.kind is Kind.FLIP and f < 0:
        wanted = classified.constant + wanted
    torch.testing.assert_close(activation(f * point), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "bad",
    [nn.Softmax(-1), nn.RReLU(), torch.flatten, torch.squeeze, lambda t: t.cumsum(-1), torch.sum,
     lambda t: t[..., :4], lambda t: t.flip(0), nn.GLU(), lambda t: t + torch.rand_like(t)],
)  # fmt: skip
def test_what_is_not_elementwise_is_refused(bad):
    assert not is_elementwise(bad)
    with pytest.raises(UnsupportedModuleError, match="named is not an elementwise function"):
        probe_kind(bad, "named")
