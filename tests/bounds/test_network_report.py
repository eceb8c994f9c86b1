"""One object with everything: consistent with the functions it is made of, readable, storable."""

from __future__ import annotations

import importlib
import json
import math

import pytest
import torch
from torch import nn

from weightloom.bounds import (
    compare,
    lipschitz,
    log_covering_number,
    norms,
    report,
    stochastic_error,
)


def network(activation=nn.Tanh):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), activation(), nn.Linear(4, 3), activation(), nn.Linear(3, 2)
    )


def test_the_network_of_the_slides():
    """The slides: (3, 4, 3, 2) has size 39, width 4, 7 neurons, 2 hidden layers."""
    result = report(network(), search=False)
    assert result.widths == (3, 4, 3, 2)
    assert (result.size, result.width, result.neurons, result.hidden_layers) == (39, 4, 7, 2)
    assert result.depth == 3
    assert math.exp(result.log_group_order) == pytest.approx(24 * 6)
    assert math.exp(result.log_group_order_signs) == pytest.approx(24 * 6 * 2**7)
    assert all(r.lower is None for r in result.lipschitz.values())


def test_it_agrees_with_its_parts():
    net = network()
    result = report(net, radius=2.0, epsilon=0.05, samples=[100])
    largest = max(float(p.detach().abs().max()) for p in net.parameters())
    case = {"bound": largest, "radius": 2.0, "lipschitz": 1.0}
    assert result.settings == {"radius": 2.0, "bound": largest, "epsilon": 0.05}
    assert result.norms == norms(net)
    assert result.comparison == compare(net, 2.0, 0.05)
    for rule in ("rigorous", "theorem4"):
        wanted = log_covering_number([3, 4, 3, 2], epsilon=0.05, rule=rule, **case)
        assert result.covering[rule] == wanted
    error = stochastic_error([3, 4, 3, 2], 100, **case)
    assert result.stochastic == ((100, error, error**2),)
    for p, range_ in result.lipschitz.items():
        assert range_.upper == lipschitz(net, p)
        assert 0 < range_.lower.value <= range_.upper
        assert range_.lower.check(net) == pytest.approx(range_.lower.value, rel=1e-6)
    assert any("Theorem 3 is about one hidden layer" in note for note in result.notes)


def test_theorem_3_where_it_applies_and_sigmoid():
    net = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1))
    result = report(net, bound=1.0, search=False)
    assert set(result.covering) == {"rigorous", "theorem3", "theorem4"}
    case = {"bound": 1.0, "radius": 1.0, "lipschitz": 0.25, "epsilon": 0.1, "at_zero": 0.5}
    assert result.covering["rigorous"] == log_covering_number([3, 4, 1], **case)
    twice = report(
        nn.Sequential(net[0], nn.Sigmoid(), nn.Sigmoid(), net[2]), bound=1.0, search=False
    )
    case |= {"lipschitz": 1 / 16, "at_zero": 0.5 + 0.25 * 0.5}
    assert twice.covering["rigorous"] == log_covering_number([3, 4, 1], **case)


def test_json_and_table():
    result = report(network(), search=True)
    kept = json.loads(result.json())
    assert kept["size"] == 39
    assert kept["lipschitz"]["2"]["upper"] == pytest.approx(float(result.lipschitz["2"].upper))
    assert kept["lipschitz"]["1"]["lower"] <= kept["lipschitz"]["1"]["upper"]
    assert kept["covering"]["rigorous"]["valid"] is True
    assert len(kept["comparison"]) == 5
    assert [line["samples"] for line in kept["stochastic"]] == [10**k for k in range(3, 8)]
    text = str(result)
    for word in ("parameters        39", "path norm", "spectral complexity", "Lipschitz constant",
                 "ln(d_1! ... d_L!)", "rigorous", "proven", "theorem4", "Shen 2024",
                 "stochastic error"):  # fmt: skip
        assert word in text, word
    assert max(map(len, text.splitlines())) < 130


def test_numbers_too_large_for_a_float():
    net = nn.Sequential(*[nn.Linear(30, 30) for _ in range(120)])
    for layer in net:
        nn.init.constant_(layer.weight, 1000.0)
    result = report(net, search=False)
    kept = json.loads(result.json())
    assert kept["norms"]["path norm"]["value"] is None
    assert kept["norms"]["path norm"]["log"] == pytest.approx(120 * math.log(30000), rel=0.01)
    assert "10^537" in str(result)


def test_convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(),
        nn.Conv2d(8, 4, 1), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    result = report(net, input_shape=(3, 5, 5))
    assert result.widths == (3, 8, 8, 4, 2)
    assert result.size == sum(p.numel() for p in net.parameters())
    assert math.exp(result.log_group_order) == pytest.approx(24)  # next to the groups: not counted
    assert math.exp(result.log_group_order_signs) == pytest.approx(24 * 16)
    assert result.covering == {}
    assert result.comparison is None
    assert any("grouped convolution 2" in note for note in result.notes)
    assert any("layer '0' (Conv2d) is not part" in note for note in result.notes)
    assert all(r.lower.value <= r.upper for r in result.lipschitz.values())
    json.loads(result.json())
    blind = report(net)
    assert any("no lower bound without input_shape" in note for note in blind.notes)
    assert "path norm" not in blind.norms
    assert "not searched" in str(blind)


class Wave(nn.Module):
    def forward(self, x):
        return torch.sin(2 * x)


def test_notes():
    def notes(net, **options):
        return " ".join(report(net, search=False, **options).notes)

    assert "slope measured on a grid" in notes(network(Wave))
    assert "below the largest weight" in notes(network(), bound=0.01)
    shared = nn.Linear(3, 3)
    assert "share weights" in notes(nn.Sequential(shared, nn.ReLU(), shared))
    assert "behind the last layer" in notes(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert notes(nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))) == ""


def test_large_networks_are_searched_only_when_asked(monkeypatch):
    monkeypatch.setattr(importlib.import_module("weightloom.bounds.network_report"), "HUGE", 10)
    result = report(network())
    assert all(r.lower is None for r in result.lipschitz.values())
    assert any("search=True" in note for note in result.notes)
    assert report(network(), search=True).lipschitz["1"].lower is not None


def test_a_single_layer():
    result = report(nn.Sequential(nn.Linear(3, 2)))
    assert (result.width, result.neurons, result.hidden_layers) == (0, 0, 0)
    assert result.comparison is None
    assert result.covering["rigorous"].valid
    assert str(result)


def test_how_far_from_sharp():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4))
    for constant in report(net).lipschitz.values():  # nothing is lost for one matrix
        assert constant.ratio == pytest.approx(1, rel=1e-5)
    nn.init.zeros_(net[0].weight)
    assert report(net).lipschitz["2"].ratio is None
    assert report(net, search=False).lipschitz["2"].ratio is None


def test_the_2_norm_is_the_best_that_needs_no_search():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))
    constant = report(net).lipschitz["2"]
    assert constant.upper == lipschitz(net, 2) == lipschitz(net, 2, method="sdp-fast")
    assert constant.upper < 0.8 * report(net).norms["product 2"]
    assert "ECLipsE-Fast" in str(report(net))
