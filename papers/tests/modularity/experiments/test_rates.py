"""The experiment ``rates``: networks built and trained, and their slopes."""

from __future__ import annotations

import pickle

import pytest
import torch

from weightloom.construct import Grid, hypernetwork
from weightloom.construct.grid import Box
from weightloom.data import BumpTarget, FactoredTarget
from weightloom.errors import ConfigError
from weightloom.hyper import count_parameters
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom_papers.modularity.experiments.rates import networks
from weightloom_papers.modularity.experiments.rates.analysis import (
    constructive_series,
    total_series,
    trained_series,
)
from weightloom_papers.modularity.experiments.rates.calibration import calibrate
from weightloom_papers.modularity.experiments.rates.experiment import Rates

DIMS = [(1, 1), (1, 2), (2, 1), (2, 2)]


def built(part, target, m1, m2, network, sizes, seed=0):
    """Results of real runs, small enough for a test."""
    for size in sizes:
        config = {
            "part": part,
            "target": target,
            "m1": m1,
            "m2": m2,
            "network": network,
            "shape": "tent",
            "frequencies": 1,
            "selector": 2,
            "pieces": size // 2,
            "counts": size,
            "points": 2000,
        }
        run = Run("modularity/rates", config, seed)
        yield Result(run, networks.measure(run.config, run.seed))


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = Rates()
    runs = wanted(experiment, scale)
    parts = {run.config["part"] for run in runs}
    assert parts == {"constructive", "trained", "total"}
    assert all(experiment.cost(run) > 0 for run in runs)
    for run in runs:
        if run.config["part"] != "trained":
            networks.make_target(run.config, run.seed)  # nothing is missing in it
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_groups_can_be_stacked():
    """Trained runs of one group differ in target, rate and seed alone."""
    experiment = Rates()
    groups: dict[str, list[Run]] = {}
    for run in experiment.runs("laptop"):
        groups.setdefault(experiment.group(run), []).append(run)
    for runs in groups.values():
        if runs[0].config["part"] != "trained":
            continue
        fixed = [
            {k: v for k, v in run.config.items() if k not in ("pieces", "learning_rate")}
            for run in runs
        ]
        assert all(config == fixed[0] for config in fixed)


@pytest.mark.parametrize(("m1", "m2"), DIMS)
def test_constructive_slopes_are_the_theorems(m1, m2):
    """Numbers that depend on the target, against the error measured: m1 and m1 + m2."""
    sizes = {2: (4, 6, 8, 12), 3: (4, 6, 8), 4: (4, 6)}[m1 + m2]
    results = [
        result
        for network in ("hypernetwork", "plain")
        for result in built("constructive", "bump", m1, m2, network, sizes)
    ]
    written = [line for line in constructive_series(results) if line.counted == "written"]
    assert [(line.network, line.theory) for line in written] == [
        ("hypernetwork", m1),
        ("plain", m1 + m2),
    ]
    for line in written:
        # Two nodes per bump and axis: the error is half the height, or up to 9/16 where bumps
        # meet, so over a factor f in size the slope is off by at most m log(9/8) / log f.
        reach = (m1 + m2) * 0.118 / torch.tensor(sizes[-1] / sizes[0]).log().item()
        assert abs(line.slope.value - line.theory) <= reach


def test_constructive_slopes_on_a_line_are_exact():
    results = list(built("constructive", "bump", 1, 1, "hypernetwork", (4, 8, 16, 32)))
    results += built("constructive", "bump", 1, 1, "plain", (4, 8, 16))
    for line in constructive_series(results):
        if line.counted == "written":
            assert line.slope.low - 1e-6 <= line.theory <= line.slope.high + 1e-6
            assert line.slope.margin < 1e-6


def test_smooth_targets_follow_r_equal_2():
    results = [
        result
        for seed in range(3)
        for result in built("constructive", "smooth", 1, 1, "hypernetwork", (17, 25, 33, 49), seed)
    ]
    written = next(line for line in constructive_series(results) if line.counted == "written")
    assert written.theory == 0.5
    # n nodes have n - 1 cells: log n against log (n - 1) has slope below 1, by 6 percent at 17.
    assert 0.5 * 0.94 - written.slope.margin <= written.slope.value <= 0.5 + written.slope.margin


def test_total_is_smaller_with_a_selector():
    results = [
        result
        for network in ("hypernetwork", "plain")
        for result in built("total", "factored smooth", 1, 1, network, (8, 16, 32))
    ]
    hyper, plain = total_series(results)
    assert (hyper.theory, plain.theory) == (0.5, 1.0)
    assert hyper.slope.value < 0.6 < 0.8 < plain.slope.value
    assert hyper.points[0][1] < plain.points[0][1] / 10


def test_all_certificates_hold_and_errors_are_close_to_them():
    for result in built("constructive", "bump", 1, 2, "hypernetwork", (4, 8)):
        metrics = result.outcome.metrics
        assert 0.4 * metrics["bound"] <= metrics["sup"] <= metrics["bound"]
        assert metrics["sup"] == pytest.approx(metrics["height"] / 2, rel=0.13)
        assert metrics["written"] == result.run.config["counts"]


@pytest.mark.parametrize(("m1", "m2"), DIMS)
@pytest.mark.parametrize("factored", [False, True])
def test_built_pair_as_a_hypernetwork(m1, m2, factored):
    """HyperNetwork(primary, ...) with f's last layer as head gives the same outputs."""
    target = FactoredTarget(m1, m2) if factored else BumpTarget(m1, m2, 2)
    config = {"m1": m1, "m2": m2, "network": "hypernetwork", "counts": 5}
    pair = networks.build(config, target)
    hyper = networks.as_hypernetwork(pair)
    points = 2 * torch.rand(40, m1 + m2, dtype=torch.float64) - 1
    x, condition = points[:, :m1], points[:, m1:]
    with torch.no_grad():
        expected = pair.network(points)
        assert torch.allclose(hyper(x, condition)[:, 0], expected, atol=1e-13)
        single = hyper.materialize(condition[3])
        assert torch.allclose(single(x[3]), expected[3], atol=1e-13)
    assert hyper.spec.size == pair.primary_size == 5**m1
    assert count_parameters(hyper)["generated"] == 5**m1


def test_unknown_target():
    with pytest.raises(ConfigError, match="target 'cliff' is unknown"):
        networks.make_target({"m1": 1, "m2": 1, "target": "cliff"}, 0)


# -- trained ---------------------------------------------------------------------------------------


def trained_config(**changes):
    config = {
        "part": "trained",
        "target": "bump",
        "shape": "tent",
        "m1": 1,
        "m2": 1,
        "encoder": [16],
        "optimiser": "adam",
        "schedule": "cosine",
        "batch_size": 64,
        "epochs": 40,
        "samples": 512,
        "features": 9,
        "model": "hypernetwork",
        "embedding": 0,
        "hidden": [8],
        "pieces": 1,
        "learning_rate": 0.03,
    }
    return {**config, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"m1": 2, "hidden": [5, 7]},
        {"model": "embedding", "embedding": 3, "hidden": [6, 6], "m2": 2},
    ],
)
def test_primary_size_without_building(changes):
    config = trained_config(**changes)
    model = networks.build_model(config, 0)
    assert networks.primary_size(config) == count_parameters(model)["primary"]


def test_features_distinguish_conditions():
    config = trained_config(m2=2, features=5)
    nodes = Grid(Box.cube(2), (5, 5), corners=True).nodes()
    features = networks.condition_features(config, nodes)
    assert torch.allclose(features, torch.eye(25), atol=1e-6)


def test_fine_grid_contains_the_centres():
    for pieces in (1, 3, 4):
        target = BumpTarget(1, 1, pieces)
        grid = networks.fine_grid(2, target, points=2000)
        assert target.at(grid).abs().max().item() == pytest.approx(target.height)
        assert 1000 < len(grid) < 2500


def test_training_beats_the_zero_function():
    """On one bump both methods reach half of the zero function's error."""
    for changes in ({}, {"model": "embedding", "embedding": 2, "hidden": [8, 8]}):
        runs = [
            Run("modularity/rates", trained_config(**changes, pieces=p), seed=0) for p in (1, 2)
        ]
        done = dict(networks.execute_trained(runs, Workspace()))
        assert set(done) == set(runs)
        easy, hard = (done[run].metrics for run in runs)
        assert easy["relative_rms"] < 0.5
        assert easy["height"] == 2 * hard["height"] == 1.0
        for metrics in (easy, hard):
            assert metrics["mse"] == pytest.approx(metrics["rms"] ** 2)
            ratio = metrics["rms"] / metrics["target_rms"]
            assert metrics["relative_rms"] == pytest.approx(ratio)
            assert metrics["sup"] >= metrics["rms"]
            assert metrics["primary"] == networks.primary_size(runs[0].config)


def fake(model, embedding, pieces, primary, error, seed=0, rate=0.01, status="done"):
    """A stored result with these numbers."""
    config = trained_config(
        model=model, embedding=embedding, pieces=pieces, hidden=[primary], learning_rate=rate
    )
    metrics = {"relative_rms": error, "primary": primary, "target_rms": 0.4 / pieces}
    return Result(Run("modularity/rates", config, seed), Outcome(status, metrics))


def test_trained_slopes_by_hand():
    """error = 0.1 d^p / size reaches 0.5 at size = d^p / 5 for p = 1 and 2: slopes 1 and 2."""
    results = []
    for pieces in (2, 4, 8):
        for size in (0.1, 1, 10, 100):
            for model, k, power in (("hypernetwork", 0, 1), ("embedding", 4, 2)):
                best = 0.1 * pieces**power / size
                results.append(fake(model, k, pieces, size, best))
                results.append(fake(model, k, pieces, size, 2 * best, rate=0.03))
    hyper, embedding = trained_series(results, 0.5)
    assert hyper.slope.value == pytest.approx(1.0)
    assert embedding.slope.value == pytest.approx(2.0)
    assert (hyper.theory, embedding.theory) == (1, 2)
    assert hyper.points[0][:2] == pytest.approx((0.5 * 0.4 / 8, 8 / 5))


def test_trained_counts_what_it_leaves_out():
    results = [
        fake("hypernetwork", 0, 2, 10, 0.4),  # the smallest width is good enough
        fake("hypernetwork", 0, 4, 10, 0.9),  # no width is
        fake("hypernetwork", 0, 8, 10, float("nan"), status="diverged"),
    ]
    (series,) = trained_series(results, 0.5)
    assert (series.points, series.censored, series.missed) == ([], 1, 2)
    assert series.slope is None
    table = Rates().table(results)
    assert "2 targets that no width reached and 1 that the smallest width" in table.text()


def test_larger_embeddings_have_their_own_theorem():
    results = []
    for k in (4, 32):
        config = trained_config(model="embedding", embedding=k, m2=2, hidden=[4])
        metrics = {"relative_rms": 0.4, "primary": 9, "target_rms": 0.1}
        results.append(Result(Run("modularity/rates", config, 0), Outcome("done", metrics)))
    theory = {line.network: line.theory for line in trained_series(results, 0.5)}
    assert theory == {"embedding, k = 4": 3, "embedding, k = 32": 2}


# -- what is shown ---------------------------------------------------------------------------------


def test_figures_and_table_from_results_alone():
    pytest.importorskip("matplotlib")
    results = [
        result
        for network in ("hypernetwork", "plain")
        for result in [
            *built("constructive", "bump", 1, 1, network, (4, 8)),
            *built("total", "factored bump", 1, 1, network, (4, 8)),
        ]
    ]
    results += [fake("hypernetwork", 0, p, n, p / n) for p in (2, 3, 4) for n in (1, 4, 16)]
    results.append(
        Result(Run("modularity/rates", {"part": "constructive"}, 0), Outcome("failed", {}))
    )
    figures = Rates().figures(results)
    assert set(figures) == {"", "-total", "-trained"}
    legend = figures[""].axes[0].get_legend().get_texts()
    assert "slope 1.00 (2 points), theorem 1" in legend[0].get_text()
    assert len(figures["-trained"].axes) == 3
    text = Rates().table(results).text()
    assert "8 networks built, none above its bound" in text
    assert Rates().figures([]) == {}
    assert "slope" in Rates().table([]).text()


def test_calibration_reproduces_the_sizes():
    """N = C eps^-exponent at the error of the networks that it was fitted to."""
    results = [
        result
        for network in ("hypernetwork", "plain")
        for result in built("constructive", "bump", 1, 1, network, (16, 16))
    ]
    results += built("total", "factored bump", 1, 1, "hypernetwork", (16,))
    calibration = calibrate(results, 1, 1, 1)
    hyper, plain = results[0].outcome.metrics, results[2].outcome.metrics
    eps = hyper["sup"] / hyper["sobolev"]
    assert calibration.constants["primary"] / eps == pytest.approx(hyper["primary"])
    assert calibration.constants["plain"] / eps**2 == pytest.approx(plain["primary"])
    assert calibration.constants["embedding"] == calibration.constants["plain"]
    assert "embedding_any" not in calibration.constants
    assert calibration.constants["total"] > 0


def test_calibration_names_what_is_missing():
    with pytest.raises(ConfigError, match="reproduce modularity/rates --scale laptop` first"):
        calibrate([], 1, 1, 1)
    results = list(built("constructive", "bump", 1, 1, "plain", (4,)))
    with pytest.raises(ConfigError, match="for m1=2 m2=1 r=1, only for m1=1 m2=1 r=1"):
        calibrate(results, 2, 1, 1)
    with pytest.raises(ConfigError, match="only a part of the networks for m1=1 m2=1 r=1"):
        calibrate(results, 1, 1, 1)


def test_smaller_primary_at_equal_error():
    """The paper's point, on two networks: equal grid, equal error, g smaller than q."""
    target = BumpTarget(1, 2, 3)
    pair = hypernetwork(target, 1, 2, counts=6)
    plain = networks.build({"m1": 1, "m2": 2, "network": "plain", "counts": 6}, target)
    errors = [net.verify(points=4000, extra=target.centres()).error for net in (pair, plain)]
    assert errors[0] == pytest.approx(errors[1], rel=0.13)
    assert pair.primary_nonzeros < plain.nonzeros / 40


@pytest.mark.parametrize("part", ["constructive", "trained", "total"])
def test_a_group_of_the_smoke_scale_runs(part, tmp_path):
    """As the engine does it: a whole group, with a folder for checkpoints."""
    experiment = Rates()
    runs = [run for run in experiment.runs("smoke") if run.config["part"] == part]
    group = [run for run in runs if experiment.group(run) == experiment.group(runs[0])]
    assert len(group) <= experiment.size_limit()
    done = list(experiment.execute(group, Workspace(folder=tmp_path)))
    assert [run for run, _ in done] == group
    assert all(outcome.status == "done" for _, outcome in done)
    assert all(outcome.metrics["primary"] > 0 for _, outcome in done)
