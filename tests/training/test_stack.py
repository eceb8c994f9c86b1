"""Training many members at once equals training them one by one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from tests.training.problems import (
    CLOSE,
    assert_same_weights,
    classes,
    classifier,
    copies,
    embedding,
    hyper,
    member,
    pairs,
    plain,
    points,
)
from weightloom.errors import SlowPathWarning
from weightloom.training import Member, Report, Settings, Split, train
from weightloom.training.batches import Batches
from weightloom.training.choices import OBJECTIVES
from weightloom.training.partition import LARGEST, difference, partition
from weightloom.training.stack import Stacked

KINDS = [(hyper, pairs), (embedding, pairs), (plain, points)]


def assert_equal_to_separate_runs(
    members: list[Member], settings: Settings, **tolerance: float
) -> list[Report]:
    """Train together and one by one; weights, curves and status have to agree."""
    assert partition(members, OBJECTIVES[settings.objective], settings.batch_size, None) == [
        list(range(len(members)))
    ]
    alone = copies(members)
    together = train(members, settings)
    for stacked, other, report in zip(members, alone, together, strict=True):
        separate = train([other], settings)[0]
        assert_same_weights(stacked.model, other.model, **(tolerance or CLOSE))
        assert (report.status, report.steps) == (separate.status, separate.steps)
        assert report.curves.keys() == separate.curves.keys()
        for name, (steps, values) in separate.curves.items():
            assert report.curves[name] == (steps, pytest.approx(values, rel=1e-7))
    return together


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize(("make", "data"), KINDS)
def test_seeds_with_their_own_data(make: Any, data: Any, optimiser: str) -> None:
    members = [member(make, data, seed) for seed in range(4)]
    assert_equal_to_separate_runs(
        members, Settings(epochs=4, batch_size=12, optimiser=optimiser, schedule="cosine")
    )


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize(("make", "data"), KINDS)
def test_different_learning_rates(make: Any, data: Any, optimiser: str) -> None:
    """A share of a step is a step at that share of the rate: for all optimisers, to rounding."""
    members = [member(make, data, 0, rate) for rate in (0.001, 0.03, 0.01)]
    settings = Settings(epochs=4, batch_size=12, optimiser=optimiser, clip_norm=1.0)
    assert_equal_to_separate_runs(members, settings)
    first, second, _ = (m.model for m in members)
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)])
@pytest.mark.parametrize(("make", "data"), KINDS)
def test_shared_data(make: Any, data: Any, seeds: tuple[int, ...]) -> None:
    """One data set for all: in the same order, and in orders of their own."""
    split, held_out = data(0), {"validation": data(1)}
    members = [
        Member(make(number), split, held_out, seed=seed) for number, seed in enumerate(seeds)
    ]
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=12, learning_rate=0.02))


def test_shared_inputs_and_different_targets() -> None:
    (x, condition), target = pairs(0).inputs, pairs(0).target
    members = [
        Member(hyper(k), Split((x, condition), target * (k + 1)), {}, seed=3) for k in range(3)
    ]
    batch = Batches(members, 12).take(0)
    assert batch.shared == (True, True, False)
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=12))


def test_shared_tensors_are_not_copied_for_each_member() -> None:
    split = pairs(0)
    same = [Member(hyper(k), split, seed=5) for k in range(3)]
    batch = Batches(same, 12).take(1)
    assert batch.shared == (True, True, True)
    assert batch.columns[0].shape == (12, 6)
    separate = [Member(hyper(k), split, seed=k) for k in range(3)]
    batch = Batches(separate, 12).take(1)
    assert batch.shared == (False, False, False)
    for k in range(3):
        alone = Batches([separate[k]], 12).take(1)
        for ours, theirs in zip(batch.columns, alone.columns, strict=True):
            assert torch.equal(ours[k], theirs)


def test_large_data_are_gathered_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data of many members are put together once; large ones are not, with one result."""
    members = [member(hyper, pairs, seed) for seed in range(3)]
    joined = Batches(members, 12)
    monkeypatch.setattr("weightloom.training.batches.SMALL", 0)
    apart = Batches(members, 12)
    assert joined._columns[0]._source is not None
    assert apart._columns[0]._source is None
    for step in (0, 3, 5):
        for a, b in zip(joined.take(step).columns, apart.take(step).columns, strict=True):
            assert torch.equal(a, b)


def test_every_epoch_is_a_new_order_of_all_samples() -> None:
    batches = Batches([member()], 12)
    epochs = []
    for epoch in range(2):
        rows = [batches.take(4 * epoch + i).columns[0].clone() for i in range(4)]
        epochs.append(torch.cat(rows))
    x = points(0).inputs[0]
    for seen in epochs:
        assert torch.equal(seen.sort(0).values, x.sort(0).values)
    assert not torch.equal(*epochs)


def test_cross_entropy() -> None:
    members = [member(classifier, classes, seed) for seed in range(3)]
    settings = Settings(epochs=4, batch_size=12, objective="cross_entropy", learning_rate=0.1)
    assert_equal_to_separate_runs(members, settings)


def test_clipping_is_by_each_members_own_norm() -> None:
    """One member's gradient is a thousand times the others': theirs must not be scaled for it."""
    members = [member(plain, points, seed) for seed in range(3)]
    big = members[1].train
    members[1].train = Split(big.inputs, big.target * 1000)
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=12, clip_norm=2.0))


def test_patience_stops_members_one_by_one() -> None:
    members = [member(plain, points, 0, rate) for rate in (1e-9, 0.05, 0.02)]
    settings = Settings(
        epochs=40, batch_size=20, optimiser="adam", patience=2, min_improvement=0.02
    )
    reports = assert_equal_to_separate_runs(members, settings, rtol=1e-6, atol=1e-9)
    assert reports[0].status == "plateau"
    assert reports[0].steps == 6
    assert len({report.steps for report in reports}) > 1


def test_running_statistics_are_each_members_own() -> None:
    def normalised(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)]
        return nn.Sequential(*layers).double()

    members = [member(normalised, points, seed) for seed in range(3)]
    members[2].train.target[:] = float("nan")  # leaves in the first step: the others go on
    reports = assert_equal_to_separate_runs(members[:2], Settings(epochs=3, batch_size=12))
    assert int(members[0].model[1].num_batches_tracked) == 12
    fresh = [member(normalised, points, seed) for seed in range(3)]
    fresh[2].train.target[:] = float("nan")
    again = train(fresh, Settings(epochs=3, batch_size=12))
    assert [report.status for report in again] == ["done", "done", "diverged"]
    for stacked, separate in zip(fresh[:2], members[:2], strict=True):
        assert_same_weights(stacked.model, separate.model, **CLOSE)
    assert again[0].final == pytest.approx(reports[0].final)


def test_a_buffer_that_is_replaced_not_changed() -> None:
    class Average(nn.Module):
        """Divides by a running mean of absolute values, kept by assignment."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1).double()
            self.register_buffer("mean", torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.abs().mean()
            return self.layer(x / self.mean)

    torch.manual_seed(0)
    members = [Member(Average(), points(s), {"test": points(9)}, seed=s) for s in range(3)]
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=12))
    assert len({stacked.model.mean.item() for stacked in members}) == 3


def test_hypernetwork_with_batch_norm_in_its_primary() -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        primary = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 1))
        encoder = wl.mlp([5, 4], last_activation=True)
        return wl.HyperNetwork(primary, encoder).double()

    def several(seed: int) -> Split:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(20, 9, 6, generator=g, dtype=torch.float64)
        condition = torch.randn(20, 5, generator=g, dtype=torch.float64)
        return Split((x, condition), x[..., :1] * condition[:, None, :1])

    members = [Member(make(s), several(s), {"validation": several(9)}, seed=s) for s in range(3)]
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=10))


@pytest.mark.parametrize("head", ["full", "chunked", "per_layer"])
def test_heads(head: str) -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        options = {"chunked": wl.ChunkedHead(8), "per_layer": wl.PerLayerHead()}
        chosen = options.get(head, "full")
        encoder = wl.mlp([5, 4], last_activation=True)
        return wl.HyperNetwork(wl.mlp([6, 60, 1]), encoder, head=chosen).double()

    members = [member(make, pairs, seed) for seed in range(3)]
    assert_equal_to_separate_runs(members, Settings(epochs=2, batch_size=10))


def test_a_stack_with_a_contracted_layer() -> None:
    """Wide enough that the head's table is contracted with x, as in Figure 3 of modularity."""

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        encoder = wl.mlp([5, 4], last_activation=True)
        return wl.HyperNetwork(wl.mlp([300, 10, 1]), encoder).double()

    def wide(seed: int) -> Split:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(40, 300, generator=g, dtype=torch.float64)
        condition = torch.randn(40, 5, generator=g, dtype=torch.float64)
        return Split((x, condition), x[:, :5].mul(condition).sum(1, keepdim=True))

    model = make(0)
    split = wide(0)
    assert model.plan(*split.inputs).decisions[0].order == "contract"
    members = [Member(make(s), wide(s), {"validation": wide(7)}, seed=s) for s in range(3)]
    assert_equal_to_separate_runs(members, Settings(epochs=2, batch_size=10))


def test_dropout_draws_for_every_member_and_sample() -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x * self.scale)

    stack = Stacked.of([Noise(), Noise()], OBJECTIVES["mse"])
    stack.mode(train=True)
    out = stack.outputs([torch.ones(1000, 1)], [True])
    assert out.shape == (2, 1000, 1)
    kept = out > 0
    assert not torch.equal(kept[0], kept[1])
    # 1000 fair coins: six standard deviations are 95.
    assert (kept.sum((1, 2)) - 500).abs().max() < 95


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 3, batch_first=True)
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.unsqueeze(1))[0][:, 0])


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) if x.sum().item() > 0 else self.out(2 * x)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Recurrent, "LSTM 'lstm' has no batched form"),
        (Branching, r"torch.vmap refused it \(.*item\(\)"),
    ],
)
def test_what_vmap_cannot_do_is_trained_one_after_the_other(kind: Any, reason: str) -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return kind().double()

    members = [member(make, points, seed) for seed in range(3)]
    alone = copies(members)
    settings = Settings(epochs=2, batch_size=12)
    calls = []
    with pytest.warns(SlowPathWarning, match=reason):
        reports = train(members, settings, on_evaluation=lambda *now: calls.append(now))
    for stacked, copied, report in zip(members, alone, reports, strict=True):
        separate = train([copied], settings)[0]
        assert_same_weights(stacked.model, copied.model)
        assert report.curves == separate.curves
    assert [[bool(v) for v in values] for _, values in calls[:2]] == [[True, False, False]] * 2
    assert len(calls) == 6


def test_an_error_in_the_model_is_raised_unchanged() -> None:
    members = [
        Member(plain(s), Split((torch.zeros(9, 4).double(),), torch.zeros(9, 1))) for s in (0, 1)
    ]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        train(members, Settings(epochs=1, batch_size=3))


def test_different_architectures_are_trained_in_turn() -> None:
    def wider(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return wl.mlp([6, 11, 1], activation="tanh").double()

    members = [member(plain, points, 0), member(wider, points, 1), member(plain, points, 2)]
    settings = Settings(epochs=2, batch_size=12)
    assert partition(members, OBJECTIVES["mse"], 12, None) == [[0, 2], [1]]
    alone = copies(members)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(members, settings)
    for stacked, separate in zip(members, alone, strict=True):
        train([separate], settings)
        assert_same_weights(stacked.model, separate.model, **CLOSE)


def test_a_hidden_difference_is_found_and_named() -> None:
    def leaky(slope: float) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(slope), nn.Linear(8, 1)).double()

    assert difference(leaky(0.1), leaky(0.1)) is None
    assert difference(leaky(0.1), leaky(0.2)) == "1.negative_slope (0.1 and 0.2)"
    members = [Member(leaky(slope), points(0), seed=1) for slope in (0.1, 0.2)]
    alone = copies(members)
    settings = Settings(epochs=2, batch_size=12)
    with pytest.warns(SlowPathWarning, match=r"differs from that of member 0 in 1.negative_slope"):
        train(members, settings)
    for stacked, separate in zip(members, alone, strict=True):
        train([separate], settings)
        assert_same_weights(stacked.model, separate.model)


class Odd(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"k": (1, [2, {"z": 3.0}])}, {"k": (1, [2, {"z": 3.0}])}, True),
        ({"k": (1, [2, {"z": 3.0}])}, {"k": (1, [2, {"z": 4.0}])}, False),
        ({"t": torch.ones(2)}, {"t": torch.ones(2)}, True),
        ({"t": torch.ones(2)}, {"t": torch.zeros(2)}, False),
        ({"f": torch.relu}, {"f": torch.relu}, True),
        ({"f": torch.relu}, {"f": torch.tanh}, False),
        ({"f": lambda x: x}, {"f": lambda x: x}, False),
        ({"k": 1}, {}, False),
    ],
)
def test_attributes_that_are_no_parameters_are_compared(a: Any, b: Any, same: bool) -> None:
    assert (difference(Odd(**a), Odd(**b)) is None) is same


def test_different_seeds_of_a_hypernetwork_are_no_difference() -> None:
    a, b = hyper(0), hyper(1)
    assert a.initialisation != b.initialisation  # measured on the encoder, so by seed
    assert difference(a, b) is None


def test_stacks_are_cut_where_tensors_get_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [member(plain, points, seed) for seed in range(5)]
    assert LARGEST == 2**25
    monkeypatch.setattr("weightloom.training.partition.LARGEST", 2 * 9 * 6 * 8)  # two first layers
    assert partition(members, OBJECTIVES["mse"], 12, None) == [[0], [1, 2], [3, 4]]
    alone = copies(members)
    settings = Settings(epochs=2, batch_size=12)
    train(members, settings)
    for stacked, separate in zip(members, alone, strict=True):
        train([separate], settings)
        assert_same_weights(stacked.model, separate.model, **CLOSE)


def test_augmented_members_at_once() -> None:
    def augment(
        inputs: tuple[Tensor, ...], target: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        noise = torch.rand(inputs[0].shape, generator=generator, dtype=torch.float64)
        return (inputs[0] + noise,), target

    members = [member(plain, points, seed) for seed in range(3)]
    for stacked in members:
        stacked.augment = augment
    assert_equal_to_separate_runs(members, Settings(epochs=3, batch_size=12))


def test_one_step_of_a_stack_is_one_batched_computation() -> None:
    """Not a loop in disguise: the number of operations does not depend on that of members."""

    def count(members: int) -> int:
        stack = Stacked.of([hyper(s) for s in range(members)], OBJECTIVES["mse"])
        data = [member(hyper, pairs, s) for s in range(members)]
        batch = Batches(data, 12).take(0)
        with torch.profiler.profile() as profile:
            stack(batch.columns, batch.shared, 1.0).sum().backward()
        return len([event for event in profile.events() if event.name.startswith("aten::")])

    assert count(2) == count(12)
