"""Pieces and constructions: what the page shows is what the networks do."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load

from weightloom.errors import ConfigError
from weightloom.symmetry.files.architecture import infer
from weightloom.web.tabs.constructions.catalogue import CATALOGUE, build, described
from weightloom.web.tabs.constructions.makers import LINE, SQUARE
from weightloom.web.tabs.constructions.view import safetensors_of, view

# Values below 10 with 7 digits are off by 5e-7 at most; a difference of two by 1e-6, and once more.
ROUNDED = 1.6e-6
CHEAP = {"sobolev": {"s": "3", "k": "2", "r": "2"}, "grid": {"counts": "4"}}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_construction(name):
    answer = view(name, CHEAP.get(name, {}))
    json.dumps(answer, allow_nan=False)
    assert answer["graph"]["widths"][-1] >= 1
    assert sum(answer["graph"]["widths"][1:-1]) == answer["nodes"]
    certificate = answer["certificate"]
    if certificate is None:
        assert name == "random"
        return
    assert certificate["holds"]
    if certificate["kind"] == "largest":
        assert max(answer["error"]) <= certificate["bound"] + ROUNDED
    columns = answer["output"], answer["target"]
    outputs = [columns[0]] if answer["dims"] == 2 else columns[0]
    targets = [columns[1]] if answer["dims"] == 2 else columns[1]
    apart = [
        max(abs(a - b) for a, b in zip(output, target, strict=True))
        for output, target in zip(outputs, targets, strict=True)
    ]
    assert max(apart) == pytest.approx(max(answer["error"]), abs=ROUNDED)


def test_shown_values_are_the_function():
    answer = view("square", {"i": "3"})
    assert all(math.isclose(y, x * x, abs_tol=2e-7) for x, y in _pairs(answer, "target"))
    assert max(answer["error"]) == pytest.approx(4.0**-4, rel=1e-5)
    answer = view("grid", {"target": "wave", "counts": "4"})
    side = answer["side"]
    x, y = (-1 + 2 * place / (side - 1) for place in (35, 10))
    value = answer["target"][10 * side + 35]  # row by row: y, then x
    assert value == pytest.approx(math.sin(math.pi * x) * math.cos(math.pi * y), abs=2e-7)


def _pairs(answer, which):
    return zip(answer["x"], answer[which][0], strict=True)


def test_pieces_are_exact():
    answer = view("delta", {"power": "6"})
    assert answer["pieces"]["count"] == 64
    assert answer["pieces"]["breakpoints"] == pytest.approx([k / 64 for k in range(1, 64)])
    assert answer["pieces"]["bound"] == 3**6


def test_pieces_of_a_random_network():
    """Straight between any two marks, and bent at every mark."""
    given = {"width": "8", "depth": "2", "seed": "3"}
    pieces = view("random", given)["pieces"]
    assert 2 <= pieces["count"] <= pieces["bound"] == 81
    assert len(pieces["breakpoints"]) == pieces["count"] - 1
    network = build("random", given).network
    ends = torch.tensor([-2.0, *pieces["breakpoints"], 2.0], dtype=torch.float64)[:, None]
    quarters = [torch.lerp(ends[:-1], ends[1:], t) for t in (0.25, 0.5, 0.75)]
    with torch.no_grad():
        low, middle, high = (network(places) for places in quarters)
    assert torch.allclose(low + high, 2 * middle, rtol=0, atol=1e-12)
    slopes = ((high - low) / (quarters[2] - quarters[0])).flatten()
    assert float((slopes[1:] - slopes[:-1]).abs().min()) > 1e-6


def test_the_drawn_network_is_the_network():
    network = build("best-square", {"n": "2", "form": "deep"}).network
    edges = view("best-square", {"n": "2", "form": "deep"})["graph"]["edges"]
    weights = [p.detach() for name, p in network.named_parameters() if name.endswith("weight")]
    assert len(edges) == sum(int((w != 0).sum()) for w in weights)
    for layer, into, out, value in edges:
        assert value == pytest.approx(float(weights[layer][out, into]), rel=1e-3)
    assert view("grid", {})["graph"]["edges"] is None  # too many to draw


@pytest.mark.parametrize("name", ["square", "grid"])
def test_the_file_holds_the_network(name):
    given = CHEAP.get(name, {})
    state = load(safetensors_of(name, given))
    again = infer(state, "relu").module
    built = build(name, given)
    places = built.certified.domain.grid(50)
    assert torch.equal(again(places), built.network(places))


def test_a_file_of_steps_says_so():
    content = safetensors_of("thresholds", {})
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"]["activation"] == "threshold"


@pytest.mark.parametrize("name", LINE)
def test_claims_about_functions_of_one_number(name):
    target = LINE[name]
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)[:, None].requires_grad_()
    (slope,) = torch.autograd.grad(target.function(x).sum(), x, create_graph=True)
    steepest = float(slope.detach().abs().max())
    assert 0.99 * target.lipschitz < steepest <= target.lipschitz  # no looser than it looks
    if target.curvature is not None:
        (bend,) = torch.autograd.grad(slope.sum(), x)
        assert 0.99 * target.curvature < float(bend.abs().max()) <= target.curvature


@pytest.mark.parametrize("name", SQUARE)
def test_claims_about_functions_of_two_numbers(name):
    target = SQUARE[name]
    axis = torch.linspace(-1, 1, 201, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis).requires_grad_()
    (slope,) = torch.autograd.grad(target.function(places).sum(), places)
    assert float(slope.abs().sum(1).max()) <= target.lipschitz
    assert float(slope.square().sum(1).sqrt().max()) <= target.euclidean
    if target.curvature is not None:
        hessian = torch.func.vmap(torch.func.hessian(lambda p: target.function(p[None])[0]))(
            places.detach()
        )
        corners = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        along = torch.einsum("ci,nij,cj->nc", corners, hessian, corners)
        assert float(along.abs().max()) <= target.curvature


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("cube", {}, "there is no construction 'cube'; there are square"),
        ("square", {"i": "99"}, "i='99' was given; a whole number from 1 to 10 is wanted"),
        ("square", {"i": "1e9"}, "i='1e9' was given"),
        ("square", {"i": "nan"}, "i='nan' was given"),
        ("square", {"j": "1"}, "square has no parameter 'j'; it has i"),
        ("polygon", {"eps": "nan"}, "eps='nan' was given; a number from 0.001 to 0.5"),
        ("polygon", {"eps": "0"}, "eps='0' was given"),
        ("polygon", {"target": "__import__('os')"}, "is unknown; choose one of sine, bend"),
    ],
)
def test_wrong_parameters(name, given, message):
    with pytest.raises(ConfigError) as reported:
        view(name, given)
    assert message in str(reported.value)


def test_defaults_can_be_reached():
    """Every default is a value that the page's control can have."""
    for construction in described():
        for p in construction["parameters"]:
            assert p["choices"] or p["low"] <= p["default"] <= p["high"], (
                construction["name"],
                p["name"],
            )


def test_through_the_server(client):
    names = [
        construction["name"]
        for construction in client.get("/api/constructions/catalogue").json()["constructions"]
    ]
    assert names == list(CATALOGUE)
    answer = client.get("/api/constructions/view/bump", params={"s": 2}).json()
    assert answer["nodes"] == 3
    file = client.get("/api/constructions/network/bump", params={"s": 2})
    assert file.headers["content-disposition"] == 'attachment; filename="bump.safetensors"'
    assert load(file.content)["0.weight"].shape == (3, 1)
    wrong = client.get("/api/constructions/network/..%2F..%2Fetc", params={})
    assert wrong.status_code in (404, 422)
    assert "error" in wrong.json()
