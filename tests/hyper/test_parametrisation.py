"""The default start: steps move a generated network as far, whatever its features and its width.

Coordinate checks, as those of muP: how far the outputs are from where they were after 1, 2 and 10
steps, over numbers of features, widths, depths and heads. docs/initialisation.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.hyper.start import layer_gains

AFTER = (1, 2, 10)
HEADS: dict[str, Callable[[], wl.Head]] = {
    "full": wl.FullHead,
    "low rank": lambda: wl.LowRankHead(4),
    "chunked": wl.ChunkedHead,
    "per layer": wl.PerLayerHead,
    "delta": wl.DeltaHead,
    "delta, rank 4": lambda: wl.DeltaHead(4),
}


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """16 conditions, 32 points of each, and targets that depend on both."""
    random = torch.Generator().manual_seed(3)
    condition = torch.randn(16, 8, generator=random)
    x = 2 * torch.rand(16, 32, 2, generator=random) - 1
    phase, height, slope = (condition[:, None, i : i + 1] for i in range(3))
    return x, condition, torch.sin(3 * x[..., :1] + phase) * height + x[..., 1:] * slope


def built(
    width: int = 32, depth: int = 3, k: int = 64, head: str = "full", init: str | None = None
) -> wl.HyperNetwork:
    primary = wl.mlp([2, *[width] * (depth - 1), 1])
    encoder = wl.mlp([8, 64, k], last_activation=True)
    return wl.HyperNetwork(primary, encoder, (HEADS | ADAPTERS)[head](), init)


def moved(
    forward: Callable[[], Tensor], parameters: Iterable[nn.Parameter], optimiser: str
) -> list[float]:
    """How far the outputs are from the start, rms, after some steps."""
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    adam = optimiser == "adam"
    steps = torch.optim.Adam(learned, 1e-3) if adam else torch.optim.SGD(learned, 1e-2)
    target = problem()[2]
    start, distances = forward().detach(), []
    for step in range(1, AFTER[-1] + 1):
        steps.zero_grad()
        (forward() - target).square().mean().backward()
        steps.step()
        if step in AFTER:
            distances.append((forward().detach() - start).square().mean().sqrt().item())
    return distances


def distances(optimiser: str = "adam", seeds: int = 3, **options: object) -> list[float]:
    """Of the hypernetwork: means over seeds."""
    x, condition, _ = problem()
    runs = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        hyper = built(**options)  # type: ignore[arg-type]
        runs.append(moved(lambda h=hyper: h(x, condition), hyper.parameters(), optimiser))
    return torch.tensor(runs).mean(0).tolist()


def distances_alone(optimiser: str = "adam", seeds: int = 3, **options: int) -> list[float]:
    """Of its primary, trained by itself on all conditions."""
    x = problem()[0]
    runs = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        primary = wl.mlp([2, *[options["width"]] * (options["depth"] - 1), 1])
        runs.append(moved(lambda p=primary: p(x), primary.parameters(), optimiser))
    return torch.tensor(runs).mean(0).tolist()


def spread(rows: list[list[float]]) -> float:
    """The largest ratio between settings, at any number of steps."""
    return max(max(column) / min(column) for column in zip(*rows, strict=True))


def ratios(first: list[float], second: list[float]) -> list[float]:
    return [a / b for a, b in zip(first, second, strict=True)]


# -- coordinate checks -----------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_steps_do_not_depend_on_the_number_of_features(optimiser: str) -> None:
    rows = [distances(optimiser, k=k) for k in (16, 64, 256, 1024, 4096)]
    assert spread(rows) < 2.5


def test_steps_of_the_earlier_default_do() -> None:
    """So the check can fail: with hyperfan_in a step of Adam goes further with each feature."""
    rows = [distances(seeds=1, k=k, init="hyperfan_in") for k in (16, 4096)]
    assert rows[1][0] > 10 * rows[0][0]


def test_steps_of_adam_do_not_depend_on_the_width() -> None:
    """Of a primary by itself they do: 0.004 at width 16, 0.37 at width 512. Here 0.04 to 0.16.

    Below width 16 the factor in front of the weights grows no more (`LARGEST_MULTIPLIER`).
    """
    widths = (16, 32, 128, 512)
    rows = [distances(seeds=2, width=width, k=16) for width in widths]
    assert spread(rows) < 6.0
    alone = [distances_alone(seeds=2, width=width, depth=3) for width in widths]
    assert alone[-1][0] > 30 * alone[0][0]


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_steps_of_deep_and_shallow_primaries_are_those_of_an_ordinary_one(optimiser: str) -> None:
    """Width 64, where an ordinary network has the steps of maximal updates."""
    for depth in (2, 4, 8, 12):
        ordinary = distances_alone(optimiser, width=64, depth=depth)
        ours = distances(optimiser, width=64, depth=depth)
        # Adam: the constant moves as an ordinary network, and the part for each condition by up to
        # reach = 8 times that. SGD: by reach^2 / k = 1 times that.
        low, high = (1.0, 9.0) if optimiser == "adam" else (0.5, 2.0)
        assert all(low < ratio < high for ratio in ratios(ours, ordinary)), depth


@pytest.mark.parametrize("head", HEADS)
def test_steps_of_every_head(head: str) -> None:
    ordinary = distances_alone(width=64, depth=3)
    few, many = (distances(width=64, head=head, k=k) for k in (16, 1024))
    assert spread([few, many]) < 3.5
    for row in (few, many):
        assert all(0.25 < ratio < 9.0 for ratio in ratios(row, ordinary))


ADAPTERS = {f"adapter, width {width}": lambda w=width: wl.AdapterHead(4, w) for width in (64, 512)}


@pytest.mark.parametrize(
    ("head", "low", "high"), zip(ADAPTERS, (9.0, 100.0), (20.0, 300.0), strict=True)
)
def test_first_steps_of_an_adapter_head_are_long(head: str, low: float, high: float) -> None:
    """A known limit: its trunk has features of size one, so a step grows with their number."""
    ordinary = distances_alone(width=64, depth=3)
    row = distances(width=64, head=head, k=16)
    assert low < row[0] / ordinary[0] < high


# -- the best learning rate ------------------------------------------------------------------------

RATES = [1e-3 * 2.0**power for power in range(5)]


def final_loss(rate: float, seed: int, **options: object) -> float:
    """Of training with Adam on conditions and points that are sampled anew in each step."""
    torch.manual_seed(seed)
    hyper = built(**options)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(hyper.parameters(), rate)
    losses = []
    for _ in range(150):
        condition = torch.randn(16, 8, generator=random)
        x = 2 * torch.rand(16, 16, 2, generator=random) - 1
        phase, height, slope = (condition[:, None, i : i + 1] for i in range(3))
        target = torch.sin(3 * x[..., :1] + phase) * height + x[..., 1:] * slope
        loss = (hyper(x, condition) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses[-40:]) / 40


def best_rate(seeds: int, **options: object) -> float:
    """Where a parabola through the best of `RATES` and its neighbours has its minimum."""
    losses = [
        sum(math.log(final_loss(rate, seed, **options)) for seed in range(seeds)) for rate in RATES
    ]
    at = min(range(1, len(RATES) - 1), key=losses.__getitem__)
    left, middle, right = losses[at - 1 : at + 2]
    moved_by = max(-1.0, min(1.0, 0.5 * (left - right) / (left - 2 * middle + right)))
    return RATES[at] * 2.0**moved_by


def test_the_best_learning_rate_stays_while_the_width_grows_64_fold() -> None:
    narrow, wide = best_rate(3, width=8, k=16), best_rate(1, width=512, k=16)
    assert 0.5 < narrow / wide < 2.0


def test_the_best_learning_rate_stays_while_features_grow_64_fold() -> None:
    few, many = (best_rate(3, k=k) for k in (16, 1024))
    assert 0.5 < few / many < 2.0


# -- the start -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_encoder_does_not_matter(scale: float) -> None:
    """Not at the start, and not in the steps of the head."""
    x, condition, target = problem()
    outputs = []
    for factor in (1.0, scale):
        torch.manual_seed(0)
        hyper = built()
        with torch.no_grad():
            last = hyper.encoder[-2]
            last.weight *= factor
            last.bias *= factor
        optimiser = torch.optim.Adam(hyper.head.parameters(), 1e-3)
        for _ in range(3):
            optimiser.zero_grad()
            (hyper(x, condition) - target).square().mean().backward()
            optimiser.step()
        outputs.append(hyper(x, condition).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head", ["full", "low rank", "per layer", "chunked"])
@pytest.mark.parametrize(("width", "k"), [(8, 16), (128, 64), (32, 256)])
def test_weights_start_as_the_primary_plus_a_share(head: str, width: int, k: int) -> None:
    torch.manual_seed(0)
    hyper = built(width=width, k=k, head=head)
    torch.manual_seed(0)
    primary = wl.mlp([2, width, width, 1])
    weights = hyper.weights(torch.randn(512, 8))
    own = primary.get_parameter("2.weight").detach()
    written = weights["2.weight"].detach()
    change = written - own
    direct = head != "chunked"
    share = 0.5 * (min(1.0, math.sqrt(16 / k)) if direct else 1.0)
    # Both factors of a low-rank change are random, and so is the small network of chunks.
    factor = change.square().mean().sqrt().item() / own.std().item() / share
    assert (0.8 < factor < 1.25) if head in ("full", "per layer") else (0.4 < factor < 2.5)


def test_multipliers_of_wide_narrow_and_steep_layers() -> None:
    hyper = built(width=128)
    assert hyper.multipliers == {"2.weight": 0.5, "4.weight": 0.5}
    siren = wl.coordinate_network(2, 3, width=64, depth=3, features="siren")
    steep = wl.HyperNetwork(siren, wl.mlp([8, 16])).multipliers
    slope = 1 / (30 * math.sqrt((1 + math.exp(-2 * 30**2)) / 2))  # 1 / rms of 30 cos(30 u)
    assert set(steep) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert list(steep.values()) == pytest.approx([slope] * 4, rel=1e-2)
    assert wl.HyperNetwork(wl.mlp([500, 64, 1]), wl.mlp([8, 16])).multipliers == {}
    assert wl.HyperNetwork(siren, wl.mlp([8, 16]), "delta").multipliers == {}
    assert wl.HyperNetwork(siren, wl.mlp([8, 16]), init="hyperfan_in").multipliers == {}


def test_a_transformer_has_no_input_layer_but_its_embedding() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 128)
            self.layer = nn.Linear(128, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.layer(self.embed(tokens))

    assert wl.HyperNetwork(Reader(), wl.mlp([8, 16])).multipliers == {"layer.weight": 0.5}


@pytest.mark.parametrize("head", [wl.FullHead(offset=False), wl.LowRankHead(4, offset=False)])
def test_heads_without_a_constant_start_at_the_primarys_scale(head: wl.Head) -> None:
    torch.manual_seed(0)
    primary = wl.mlp([64] * 6)
    hyper = wl.HyperNetwork(primary, wl.mlp([8, 64], last_activation=True), head)
    weights = hyper.weights(torch.randn(64, 8))
    for name, value in primary.named_parameters():
        ratio = weights[name].square().mean().sqrt() / value.square().mean().sqrt()
        assert 0.7 < ratio.item() < 1.4, name


def test_times_is_the_product() -> None:
    for name in ("full", "low rank", "chunked"):
        hyper = built(width=64, k=16, head=name)
        for value in hyper.generated(torch.randn(3, 16)).values():
            torch.testing.assert_close(value.times(0.25).dense(), 0.25 * value.dense())


def test_a_start_under_no_grad_is_the_same() -> None:
    plain = built(init="hyperfan_in")
    with torch.no_grad():
        quiet = layer_gains(plain.primary)
    assert quiet == layer_gains(plain.primary)
    assert quiet["0"].gain == pytest.approx(2.0, rel=1e-3)
