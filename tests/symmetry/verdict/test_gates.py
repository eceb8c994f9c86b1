"""Gated units: up times f, down over f, in modules that are read layer by layer."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom import symmetry


class Gated(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 24, bias)
        self.up = nn.Linear(16, 24, bias)
        self.down = nn.Linear(24, 16, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def disguised(net: Gated, on_the_gate: bool = False) -> Gated:
    """By hand: units permuted, the up branch (or, wrongly, the gate) times f, down over f."""
    twin = copy.deepcopy(net)
    f, order = torch.randn(24).exp(), torch.randperm(24)
    scales = {"gate": f if on_the_gate else 1 + 0 * f, "up": 1 + 0 * f if on_the_gate else f}
    with torch.no_grad():
        for name, scale in scales.items():
            own, given = twin.get_submodule(name), net.get_submodule(name)
            own.weight.copy_((given.weight * scale[:, None])[order])
            if given.bias is not None:
                own.bias.copy_((given.bias * scale)[order])
        twin.down.weight.copy_((net.down.weight / f)[:, order])
    return twin


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_scales_of_the_up_branch_are_found(bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    net = Gated(bias)
    verdict = symmetry.equivalent(net, disguised(net))
    assert verdict.answer == "same"
    changed = disguised(net)
    with torch.no_grad():
        changed.up.weight[3, 5] *= 1.01
    assert symmetry.equivalent(net, changed).answer == "different"


def test_the_gate_has_no_scales() -> None:
    torch.manual_seed(0)
    net = Gated(bias=True)
    assert symmetry.equivalent(net, disguised(net, on_the_gate=True)).answer == "different"
