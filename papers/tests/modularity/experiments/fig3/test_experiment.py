"""Figure 3's runs, executed small by the real engine, and its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from papers.tests.modularity.experiments.fig3.fakes import fakes, paper_like
from weightloom.data import make_target, sample_inputs
from weightloom.errors import ConfigError
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import Outcome, Run, Store, Workspace, draw, make_engine, run_experiments
from weightloom_papers.modularity.experiments.fig3.experiment import (
    Fig3a,
    Fig3b,
    Fig3c,
    Fig3d,
    Fig3e,
    Fig3f,
)
from weightloom_papers.modularity.experiments.fig3.models import (
    EMBEDDING,
    HYPER,
    build,
    role_seed,
    splits,
)

ALL = (Fig3a, Fig3b, Fig3c, Fig3d, Fig3e, Fig3f)


def tiny(model: str = HYPER, seed: int = 0, **changes: Any) -> Run:
    """One of the smoke runs, changed."""
    config = next(r.config for r in Fig3a().runs("smoke") if r.config["model"] == model)
    return Run("modularity/fig3a", {**config, "epochs": 1, **changes}, seed)


def execute(runs: Sequence[Run]) -> dict[Run, Outcome]:
    return dict(Fig3a().execute(runs, Workspace()))


# -- what is run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("scale", "repetitions"), [("laptop", 3), ("paper", 100)])
def test_the_printed_numbers(kind: type[Fig3a], scale: str, repetitions: int) -> None:
    runs = kind().runs(scale)
    # 2 target initialisations, 8 points, 2 models
    assert len(runs) == len({run.key for run in runs}) == 2 * 8 * 2 * repetitions
    for name, value in {
        "d": 1000,
        "train_pairs": 30_000,
        "batch_size": 200,
        "learning_rate": 0.01,
        "optimiser": "sgd",
        "primary_hidden": 10,
        "hidden": 100,
        "model_init": "default",
        "patience": None,
    }.items():
        assert {run.config[name] for run in runs} == {value}
    points = {(run.config["depth"], run.config["width"]) for run in runs}
    if kind in (Fig3a, Fig3b, Fig3c):
        assert points == {(depth, 100) for depth in range(2, 10)}
    else:
        assert points == {(3, 100 * i) for i in range(1, 9)}


def test_families_and_places() -> None:
    wanted = ["network", "product", "inner_product"] * 2
    for kind, family, letter in zip(ALL, wanted, "abcdef", strict=True):
        assert {run.config["family"] for run in kind().runs("smoke")} == {family}
        assert kind.name == f"modularity/fig3{letter}"
        assert kind.paper == f"modularity, Figure 3 ({letter})"
        assert isinstance(all_experiments()[kind.name], kind)


def test_groups_differ_in_seed_alone() -> None:
    experiment = Fig3d()
    groups: dict[str, list[Run]] = {}
    for run in experiment.runs("laptop"):
        groups.setdefault(experiment.group(run), []).append(run)
    assert len(groups) == 2 * 8 * 2
    for runs in groups.values():
        assert [run.seed for run in runs] == [0, 1, 2]
        assert all(run.config == runs[0].config for run in runs)


def test_open_choices_can_be_made() -> None:
    runs = Fig3a(optimiser="adam", epochs=50, target_init="pytorch").runs("laptop")
    assert {r.config["optimiser"] for r in runs} == {"adam"}
    assert {r.config["epochs"] for r in runs} == {50}
    assert {r.config["target_init"] for r in runs} == {"pytorch"}
    assert not set(runs) & set(Fig3a().runs("laptop"))
    with pytest.raises(ConfigError, match=r"fig3a was given depths; what can be chosen is target_"):
        Fig3a(depths=[2])


def test_cost_grows_with_width_and_model() -> None:
    cost = Fig3d().cost
    runs = {(r.config["model"], r.config["width"]): r for r in Fig3d().runs("laptop")}
    assert cost(runs[HYPER, 800]) > 4 * cost(runs[HYPER, 100]) > 8 * cost(runs[EMBEDDING, 100])


# -- data ----------------------------------------------------------------------------------------


def test_models_of_a_repetition_see_the_same_data() -> None:
    hyper, emb = tiny(HYPER, depth=2), tiny(EMBEDDING, depth=4, width=16)
    ours, theirs = splits(hyper.config, 3), splits(emb.config, 3)
    for role in ("train", "validation", "test"):
        assert torch.equal(ours[role].target, theirs[role].target)
        # Sampled once and shared by all groups: the same memory.
        assert ours[role].inputs[0] is theirs[role].inputs[0]
    other = splits(hyper.config, 4)
    assert not torch.equal(ours["train"].target, other["train"].target)
    assert not torch.equal(ours["train"].inputs[0][:100], ours["test"].inputs[0][:100])


def test_splits_hold_the_values_of_the_target() -> None:
    run = tiny(seed=5)
    config = run.config
    target = make_target(
        "network",
        30,
        seed=role_seed(5, "target"),
        init=config["target_init"],
        hidden=config["target_hidden"],
    )
    x, c = sample_inputs(200, role_seed(5, "test"), 30)
    split = splits(config, 5)["test"]
    assert len(split) == config["test_pairs"] == 200
    assert torch.equal(split.inputs[0], x)
    assert torch.equal(split.inputs[1], c)
    torch.testing.assert_close(split.target, target(x, c))


def test_roles_have_different_seeds() -> None:
    roles = ("target", "train", "validation", "test", "model", "batches")
    assert len({role_seed(seed, role) for seed in range(100) for role in roles}) == 600


# -- execution -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [HYPER, EMBEDDING])
def test_numbers_of_an_untrained_model_by_hand(model: str) -> None:
    """With hardly any learning rate, everything can be computed without the engine."""
    state = torch.random.get_rng_state()
    run = tiny(model, learning_rate=1e-12)
    outcome = execute([run])[run]
    assert torch.equal(torch.random.get_rng_state(), state)
    net, data = build(run.config, role_seed(0, "model")), splits(run.config, 0)
    with torch.no_grad():
        y = data["test"].target.double()
        mse = (net(*data["test"].inputs).double() - y).square().mean().item()
        other = (net(*data["validation"].inputs) - data["validation"].target).square().mean().item()
    variance = (y - y.mean()).square().mean().item()
    metrics = outcome.metrics
    for name in ("test_mse", "initial_test_mse", "selected_test_mse"):
        assert metrics[name] == pytest.approx(mse, rel=1e-4)
        assert metrics[f"{name}_over_variance"] == pytest.approx(mse / variance, rel=1e-4)
    assert metrics["target_variance"] == pytest.approx(variance, rel=1e-6)
    assert metrics["validation_mse"] == pytest.approx(other, rel=1e-4)
    assert metrics["steps"] == 4
    assert outcome.status == "done"


@pytest.mark.parametrize("model", [HYPER, EMBEDDING])
def test_a_group_is_its_members_one_by_one(model: str) -> None:
    runs = [tiny(model, seed, epochs=2) for seed in (0, 1)]
    together = execute(runs)
    assert list(together) == runs
    for run in runs:
        alone = execute([run])[run]
        # Eight steps in single precision, summed in another order.
        for name, value in alone.metrics.items():
            assert together[run].metrics[name] == pytest.approx(value, rel=1e-3), name
        assert together[run].curves["test"][0] == [4, 8]
    assert together[runs[0]].metrics["test_mse"] != together[runs[1]].metrics["test_mse"]


def test_training_lowers_the_error() -> None:
    run = tiny(EMBEDDING, epochs=30, target_init="he_uniform", optimiser="adam")
    outcome = execute([run])[run]
    assert outcome.metrics["test_mse"] < 0.8 * outcome.metrics["initial_test_mse"]
    assert outcome.metrics["train_mse"] < outcome.metrics["initial_test_mse"]


def test_selected_error_is_that_of_the_best_validation() -> None:
    run = tiny(EMBEDDING, epochs=40, target_init="he_uniform", optimiser="adam", learning_rate=0.03)
    outcome = execute([run])[run]
    steps, validation = outcome.curves["validation"]
    best = validation.index(min(validation))
    assert best < len(validation) - 1  # it overfits: last and best evaluation differ
    assert outcome.metrics["selected_test_mse"] == outcome.curves["test"][1][best]
    assert outcome.metrics["selected_step"] == steps[best]
    assert outcome.metrics["best_validation_mse"] == validation[best]
    assert outcome.metrics["test_mse"] == outcome.curves["test"][1][-1]


def test_divergence_is_a_result() -> None:
    lost, fine = tiny(learning_rate=1e4), tiny(learning_rate=1e-3)
    outcomes = execute([lost, fine])
    assert outcomes[lost].status == "diverged"
    assert "step" in outcomes[lost].message
    for name in ("test_mse", "test_mse_over_variance", "selected_test_mse", "best_validation_mse"):
        assert math.isnan(outcomes[lost].metrics[name])
        assert math.isfinite(outcomes[fine].metrics[name])
    assert math.isfinite(outcomes[lost].metrics["target_variance"])


def test_killed_after_training_before_storing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs and folder again: the checkpoint answers, nothing is trained twice."""
    from weightloom.training.engine import TrainingEngine

    runs, workspace = [tiny(seed=0), tiny(seed=1)], Workspace(folder=tmp_path)
    first = dict(Fig3a().execute(runs, workspace))
    assert list(tmp_path.iterdir())

    def refuse(self: TrainingEngine) -> None:
        raise AssertionError("a step was made")

    monkeypatch.setattr(TrainingEngine, "advance", refuse)
    again = dict(Fig3a().execute(runs, workspace))
    for run in runs:
        assert again[run].metrics == first[run].metrics
        assert again[run].curves == first[run].curves


def test_interruption_leaves_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    from weightloom_papers.lab import experiment

    real = experiment.train

    def stopped(*args: Any, **kwargs: Any) -> Any:
        return [replace(report, status="interrupted") for report in real(*args, **kwargs)]

    monkeypatch.setattr(experiment, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        execute([tiny()])


@pytest.mark.parametrize("kind", [Fig3a, Fig3f])
def test_smoke_through_the_lab(kind: type[Fig3a], tmp_path: Path) -> None:
    experiment = kind()
    store = Store(tmp_path / "results.sqlite")
    engine = make_engine("local", threads=1)
    summary = run_experiments([experiment], "smoke", store, engine)
    assert not summary.failed
    assert len(store.of(experiment.runs("smoke"))) == 16
    again = run_experiments([experiment], "smoke", store, engine)
    assert again.stored == 16
    assert not again.statuses
    figures = draw(experiment, store, tmp_path / "figures", "smoke")
    assert figures.stored == figures.wanted == 16
    names = {path.name for path in figures.files}
    stem = f"{experiment.name.removeprefix('modularity/')}-smoke"
    assert {f"{stem}.png", f"{stem}.svg", f"{stem}-epochs.png", f"{stem}.csv"} <= names
    assert len(figures.table.rows) == 2 * 2 * 2


# -- table ---------------------------------------------------------------------------------------


def test_table_has_the_means_and_the_diverged() -> None:
    results = fakes(Fig3a().runs("laptop"), paper_like)
    table = Fig3a().table(results)
    rows = {tuple(row[:3]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len(rows) == 2 * 2 * 8
    lost = rows["he_uniform", HYPER, 2]
    assert (lost["runs"], lost["diverged"], lost["test MSE"]) == (3, 3, None)
    partly = rows["he_uniform", HYPER, 3]
    assert (partly["runs"], partly["diverged"]) == (3, 1)
    group = [
        r.outcome.metrics
        for r in results
        if (r.run.config["target_init"], r.run.config["model"], r.run.config["depth"])
        == ("pytorch", HYPER, 5)
    ]
    row = rows["pytorch", HYPER, 5]
    raw = [m["test_mse"] for m in group]
    assert row["test MSE"] == pytest.approx(sum(raw) / 3)
    mean = sum(m["test_mse"] / m["target_variance"] for m in group) / 3
    assert row["MSE/variance"] == pytest.approx(mean)
    spread = math.sqrt(sum((v - sum(raw) / 3) ** 2 for v in raw) / 2)
    assert row["+-"] == pytest.approx(spread)
    text = table.text()
    assert "1.0 predicts the mean" in text
    assert "pytorch: hypernetwork improves with the depth of f: holds" in text
    assert "pytorch: the hypernetwork has learned anything (below 1.0): fails; best 1.4" in text


def test_table_of_one_protocol_only() -> None:
    small = fakes(Fig3a().runs("smoke"), paper_like)
    large = fakes(Fig3a().runs("laptop"), paper_like)
    table = Fig3a().table([*small, *large])
    assert table.rows == Fig3a().table(large).rows
    assert "16 results of a smaller or another protocol are not shown" in table.text()


def test_table_without_results() -> None:
    assert Fig3a().table([]).rows == []
