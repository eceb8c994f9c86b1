"""`train` of one member against a loop written by hand: results, reports, the progress bar."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.problems import (
    CLOSE,
    assert_same_weights,
    by_hand,
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
from weightloom.errors import MissingDependencyError, ShapeError, TrainingError
from weightloom.training import Member, Settings, Split, train


def constant(step: int) -> float:
    return 1.0


def cosine_of_20(step: int) -> float:
    """20 steps: 10 of warm-up (half of all), then half a wave."""
    return (step + 1) / 10 if step < 10 else 0.5 * (1 + math.cos(math.pi * (step - 10) / 10))


def step_of_4(step: int) -> float:
    """Ten times slower after every two epochs of four steps."""
    return 0.1 ** (step // 8)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize(("make", "data"), [(hyper, pairs), (embedding, pairs), (plain, points)])
def test_equals_a_loop_written_by_hand(optimiser: str, make: Any, data: Any) -> None:
    settings = Settings(epochs=5, batch_size=12, optimiser=optimiser, learning_rate=0.02)
    ours, theirs = copies([member(make, data)] * 2)
    losses = by_hand(theirs, settings, constant)
    report = train([ours], settings)[0]
    assert_same_weights(ours.model, theirs.model, **CLOSE)
    means = [sum(losses[i : i + 4]) / 4 for i in range(0, 20, 4)]
    assert report.curves["train"] == ([4, 8, 12, 16, 20], pytest.approx(means, rel=1e-9))


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"schedule": "cosine"}, cosine_of_20),
        ({"schedule": "step", "schedule_options": {"every": 2}}, step_of_4),
        ({"clip_norm": 0.3}, constant),
        ({"clip_norm": 0.3, "schedule": "cosine", "optimiser": "adam"}, cosine_of_20),
    ],
)
def test_schedules_and_clipping_equal_the_hand_written_ones(changes: Any, factor: Any) -> None:
    settings = Settings(epochs=5, batch_size=12, learning_rate=0.05, **changes)
    ours, theirs = copies([member(hyper, pairs)] * 2)
    by_hand(theirs, settings, factor)
    train([ours], settings)
    assert_same_weights(ours.model, theirs.model, rtol=1e-8, atol=1e-10)


def test_cross_entropy_equals_the_hand_written_one() -> None:
    settings = Settings(epochs=3, batch_size=12, objective="cross_entropy", learning_rate=0.1)
    ours, theirs = copies([member(classifier, classes)] * 2)
    by_hand(theirs, settings, constant)
    report = train([ours], settings)[0]
    assert_same_weights(ours.model, theirs.model, **CLOSE)
    held_out = ours.held_out["validation"]
    value = F.cross_entropy(ours.model(*held_out.inputs), held_out.target).item()
    assert report.final["validation"] == pytest.approx(value, rel=1e-12)


def test_training_learns_and_reports_it() -> None:
    truth = torch.tensor([[1.0, -2.0, 0.5]])
    x = torch.randn(64, 3)
    trained = Member(nn.Linear(3, 1), Split((x,), x @ truth.T + 0.3))
    report = train([trained], Settings(epochs=100, batch_size=16, learning_rate=0.1))[0]
    assert (report.status, report.message, report.steps) == ("done", "", 400)
    steps, losses = report.curves["train"]
    assert steps == list(range(4, 401, 4))
    assert losses[-1] < 1e-6 < 0.1 < losses[0]
    assert report.final == {"train": losses[-1]}
    assert report.seconds > 0
    torch.testing.assert_close(trained.model.weight, truth, atol=1e-3, rtol=1e-3)


def test_held_out_values_are_the_objective_on_all_of_it() -> None:
    trained = member(hyper, pairs)
    big = pairs(5, n=2500)  # more than one piece
    trained.held_out = {"validation": big, "test": pairs(6, n=7)}
    report = train([trained], Settings(epochs=2, batch_size=16))[0]
    for name, split in trained.held_out.items():
        with torch.no_grad():
            value = F.mse_loss(trained.model(*split.inputs), split.target).item()
        assert report.final[name] == pytest.approx(value, rel=1e-12)
        assert len(report.curves[name][1]) == 2


def test_evaluation_sees_evaluation_mode_and_changes_nothing() -> None:
    seen = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.5)).double()

        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return self.layer(x)

    trained = Member(Watched(), points(0), {"test": points(1)})
    other = copies([trained])[0]
    other.held_out = {}
    settings = Settings(epochs=2, batch_size=20)
    watched = train([trained], settings)[0]
    assert seen == [(True, True), (True, True), (False, False)] * 2
    assert train([other], settings)[0].curves["train"] == watched.curves["train"]
    assert_same_weights(trained.model, other.model)


def test_evaluate_every_counts_steps_and_ends_with_the_last() -> None:
    evaluations = []
    settings = Settings(epochs=3, batch_size=10, evaluate_every=5)
    report = train([member()], settings, on_evaluation=lambda *now: evaluations.append(now))[0]
    assert report.curves["train"][0] == [5, 10, 12]
    assert [step for step, _ in evaluations] == [5, 10, 12]
    assert [values[0]["test"] for _, values in evaluations] == report.curves["test"][1]


def test_the_last_batch_may_be_smaller() -> None:
    report = train([member()], Settings(epochs=2, batch_size=39))[0]
    assert report.steps == 4
    assert train([member()], Settings(epochs=2, batch_size=1000))[0].steps == 2


def test_random_state_and_modes_are_restored() -> None:
    trained = member(hyper, pairs)
    trained.model.eval()
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    train([trained], Settings(epochs=1, batch_size=8))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert not trained.model.training
    assert trained.model.check_finite


def test_the_result_does_not_depend_on_the_random_state_around() -> None:
    def noisy(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.3), nn.Linear(9, 1)).double()

    first, second = member(noisy), member(noisy)
    train([first], Settings(epochs=2, batch_size=8))
    torch.manual_seed(77)
    train([second], Settings(epochs=2, batch_size=8))
    assert_same_weights(first.model, second.model)
    third = member(noisy)
    third.seed = 1
    train([third], Settings(epochs=2, batch_size=8))
    assert not torch.equal(third.model[0].weight, first.model[0].weight)


def test_frozen_and_tied_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()
            self.b.weight = self.a.weight
            self.out = nn.Linear(6, 1).double().requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))

    torch.manual_seed(0)
    members = [Member(Tied(), points(s), seed=s) for s in range(2)]
    alone = copies(members)
    frozen = members[0].model.out.weight.clone()
    settings = Settings(epochs=2, batch_size=10, optimiser="adam")
    train(members, settings)
    for trained, other in zip(members, alone, strict=True):
        by_hand(other, settings, constant)
        assert_same_weights(trained.model, other.model, **CLOSE)
        assert trained.model.b.weight is trained.model.a.weight
    assert torch.equal(members[0].model.out.weight, frozen)


def test_plateau_keeps_the_weights_it_had() -> None:
    """With a rate this small nothing improves by a tenth, so patience ends after 1 + 3."""
    settings = Settings(
        epochs=20, batch_size=40, learning_rate=1e-9, patience=3, min_improvement=0.1
    )
    trained = member()
    report = train([trained], settings)[0]
    assert (report.status, report.steps) == ("plateau", 4)
    assert "step 4: the validation value has not improved by 0.1 of itself in 3" in report.message
    assert report.final["validation"] == report.curves["validation"][1][-1]
    split = trained.held_out["validation"]
    value = F.mse_loss(trained.model(*split.inputs), split.target).item()
    assert report.final["validation"] == pytest.approx(value, rel=1e-12)


def test_augmentation_depends_on_seed_and_step_alone() -> None:
    seen: list[Tensor] = []

    def augment(
        inputs: tuple[Tensor, ...], target: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        noise = torch.rand(inputs[0].shape, generator=generator, dtype=torch.float64)
        seen.append(noise[0, 0])
        return (inputs[0] + noise,), target

    trained, other = member(), member()
    trained.augment = other.augment = augment
    settings = Settings(epochs=2, batch_size=20)
    train([trained], settings)
    first = list(seen)
    torch.rand(7)
    train([other], settings)
    assert first == seen[4:]
    assert len(set(map(float, first))) == 4
    assert_same_weights(trained.model, other.model)
    assert not torch.equal(trained.model[0].weight, _trained(member(), settings)[0].weight)


def _trained(trained: Member, settings: Settings) -> Any:
    train([trained], settings)
    return trained.model


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.zeros(40), None),  # [n, 1] against [n]: the trailing 1 is dropped
        (torch.zeros(40, 2), r"output has shape \(8, 1\) but the target of the same batch has"),
        (torch.zeros(40, 1, 1), "give it a target of the output's shape"),
    ],
)
def test_shapes_of_output_and_target(target: Tensor, message: str | None) -> None:
    trained = Member(plain(0), Split(points(0).inputs, target.double()))
    settings = Settings(epochs=1, batch_size=8)
    if message is None:
        whole = Member(plain(0), Split(points(0).inputs, target.double()[:, None]))
        assert train([trained], settings)[0].curves == train([whole], settings)[0].curves
    else:
        with pytest.raises(ShapeError, match=message):
            train([trained], settings)


def test_cross_entropy_wants_whole_numbers() -> None:
    with pytest.raises(ShapeError, match=r"it wants the number of the class"):
        train([member()], Settings(epochs=1, batch_size=8, objective="cross_entropy"))


def test_a_model_that_returns_no_tensor() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1).double()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(ShapeError, match=r"the model returned tuple; training needs one tensor"):
        train([Member(Two(), points(0))], Settings(epochs=1, batch_size=8))


def test_one_error_lists_all_problems_of_the_members() -> None:
    good = member()
    same = Member(good.model, good.train, name="twin")
    short = Member(plain(1), Split(points(0).inputs, torch.zeros(3, 1)), {"train": points(1)})
    frozen = Member(plain(2).requires_grad_(False), points(0), learning_rate=-1.0)
    with pytest.raises(TrainingError) as raised:
        train([good, same, short, frozen], Settings(epochs=1, batch_size=8, patience=2))
    text = str(raised.value)
    assert "'twin' and member 0 share parameters" in text
    assert "member 2, train: inputs have [40] rows and the target 3" in text
    assert "no held-out set may be called 'train'" in text
    assert "member 3: learning_rate=-1.0 must be positive" in text
    assert "no parameter that requires a gradient" in text
    assert "'twin': patience looks at held_out['validation'], which is not there" in text


def test_no_members() -> None:
    with pytest.raises(TrainingError, match="there are no members to train"):
        train([], Settings(epochs=1, batch_size=8))


def test_missing_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom\[train\]'"):
        train([member()], Settings(epochs=1, batch_size=8))


def test_import_stays_light() -> None:
    code = "import sys, weightloom.training; assert 'lightning_fabric' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_bar_shows_progress_rate_and_loss(capsys: pytest.CaptureFixture[str]) -> None:
    members = [member(plain, points, seed) for seed in range(3)]
    train(members, Settings(epochs=3, batch_size=10), progress="fig3a")
    last = capsys.readouterr().err.split("\r")[-1]
    assert re.search(r"fig3a: 100%\|.*\| 12/12 \[\d\d:\d\d<00:00, .*(step/s|s/step)", last), last
    assert re.search(r"loss \d", last)


def test_no_bar_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    train([member()], Settings(epochs=1, batch_size=10))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")


def test_steps_that_are_not_made_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(epochs=20, batch_size=40, learning_rate=1e-9, patience=2)
    assert train([member()], settings, progress=True)[0].steps == 3
    last = capsys.readouterr().err.split("\r")[-1]
    assert "training: 100%" in last
    assert " 3/3 " in last
