"""``square-error``: networks for x^2 against their formulas, and verdicts that go both ways."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import nn

from weightloom.construct import measure
from weightloom.construct.deep import best_square, square_bound, square_distance
from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.experiments.square_error import (
    analysis as square_claims,
)
from weightloom_papers.deep_learning_theory.experiments.square_error import (
    analysis as square_numbers,
)
from weightloom_papers.deep_learning_theory.experiments.square_error import (
    experiment as square_build,
)
from weightloom_papers.deep_learning_theory.experiments.square_error import (
    experiment as square_train,
)
from weightloom_papers.deep_learning_theory.experiments.square_error.experiment import (
    PLANS,
    SquareError,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted

# -- what is built ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 5, 40])
def test_shallow_networks_have_the_errors_of_their_formulas(nodes):
    """And the nearest is nearer than `best_square`, which spends a unit on x itself."""
    h = 1 / (nodes + 0.5)
    for best, sup, l2 in (("sup", h * h / 8, math.inf), ("l2", h * h / 6, h**4 / 180)):
        net = square_build.shallow_square(nodes, best)
        measured = square_build.errors(net)
        assert measure(net).nodes == nodes
        assert measured[2] == nodes + 1
        assert measured[0] == pytest.approx(sup, rel=1e-9)
        if best == "l2":
            assert measured[1] ** 2 == pytest.approx(l2, rel=1e-9)
            below = square_distance(best_square(nodes).network)
            assert square_bound(nodes + 1) < measured[1] ** 2 < below


def test_shallow_networks_cannot_be_moved_to_less():
    """Small changes of any weight make both kinds worse: they are the best, by another method."""
    generator = torch.Generator().manual_seed(0)
    for best, which in (("sup", 0), ("l2", 1)):
        before = square_build.errors(square_build.shallow_square(4, best))[which]
        for _ in range(60):
            net = square_build.shallow_square(4, best)
            with torch.no_grad():
                for weight in net.parameters():
                    normal = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                    weight.add_(1e-4 * normal)
            assert square_build.errors(net)[which] > before * (1 - 1e-9)


def test_largest_error_against_a_fine_grid():
    x = torch.linspace(0, 1, 100_001, dtype=torch.float64)[:, None]
    for seed in range(4):
        net = square_build.started("narrow", 3, "spread", 0.0, seed)
        with torch.no_grad():
            wrong = net(x) - x.square()
        sup, l2, _ = square_build.errors(net)
        # Between neighbours on the grid the error moves by at most its slope times 1e-5.
        assert float(wrong.abs().max()) <= sup + 1e-12
        assert sup == pytest.approx(float(wrong.abs().max()), abs=1e-4)
        assert l2 == pytest.approx(float(wrong.square().mean().sqrt()), rel=1e-3)


def test_deep_networks():
    for i in (1, 4):
        assert square_build.errors(square_build.deep_square(i))[0] == 4.0 ** -(i + 1)
        l2 = square_build.errors(square_build.deep_square(i, "l2"))[1]
        assert l2**2 == pytest.approx(square_bound(2**i))


@pytest.mark.parametrize("i", [2, 3, 5])
def test_all_shapes_have_as_many_nodes(i):
    for kind in ("shallow", "narrow", "three"):
        widths = square_build.shape(kind, i)
        assert sum(widths) == 3 * i - 1 == measure(square_build.deep_square(i)).nodes
        net = square_build.started(kind, i, "default", 0.0, 0)
        assert [layer.out_features for layer in net if isinstance(layer, nn.Linear)] == [*widths, 1]


def test_starts():
    spread = square_build.started("shallow", 6, "spread", 0.0, 3)
    bends = (-spread[0].bias / spread[0].weight[:, 0]).detach()
    assert ((bends >= 0) & (bends <= 1)).all()
    exact = square_build.started("narrow", 3, "built", 0.0, 0)
    assert square_build.errors(exact)[1] ** 2 == pytest.approx(square_bound(8))
    off = square_build.started("narrow", 3, "built", 0.1, 0)
    assert square_build.errors(off)[1] > 2 * square_build.errors(exact)[1]
    assert all(weight.requires_grad for weight in off.parameters())
    before = torch.random.get_rng_state()
    square_build.started("three", 3, "default", 0.0, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_messages():
    with pytest.raises(ConfigError, match="network 'wide' is unknown; wanted deep or shallow"):
        square_train.measure({"network": "wide", "size": 1, "best": ""})
    with pytest.raises(ConfigError, match="kind of network 'round' is unknown"):
        square_build.shape("round", 2)
    with pytest.raises(ConfigError, match="start='far' is unknown"):
        square_build.started("narrow", 2, "far", 0.0, 0)
    with pytest.raises(ConfigError, match="no built network of three layers"):
        square_build.started("three", 2, "built", 0.1, 0)
    with pytest.raises(ConfigError, match="best='sup' was given"):
        square_build.deep_square(2, "sup")
    with pytest.raises(ConfigError, match="nodes=0"):
        square_build.shallow_square(0, "sup")


# -- runs ------------------------------------------------------------------------------------------


def trained_config(**changes):
    config = {"part": "trained", "kind": "shallow", "start": "default", "noise": 0.0, "i": 2}
    return {**config, "learning_rate": 0.01, "steps": 60, "points": 33, **changes}


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete(scale):
    experiment = SquareError()
    runs = wanted(experiment, scale)
    assert {run.config["part"] for run in runs} == {"built", "trained"}
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    kinds = [run.config["i"] for run in runs if run.config["part"] == "trained"]
    assert set(kinds) == set(PLANS[scale].trained)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(experiment.group(run), []).append(run)
    for group in groups.values():  # what is stacked has one shape
        assert (
            len({(r.config["part"], r.config.get("kind"), r.config.get("i")) for r in group}) == 1
        )


def test_training_lowers_the_error_and_measures_it():
    runs = [
        Run(
            "deep-learning-theory/square-error",
            trained_config(start=start, noise=0.1, kind=kind),
            seed,
        )
        for kind, start in (("shallow", "default"), ("shallow", "built"))
        for seed in (0, 1)
    ]
    done = dict(SquareError().execute(runs, Workspace()))
    for run in runs:
        metrics = done[run].metrics
        start = square_build.started("shallow", 2, run.config["start"], 0.1, run.seed)
        assert metrics["l2"] < square_build.errors(start)[1]
        assert metrics["nodes"] == 5
        assert metrics["sup"] >= metrics["l2"]
        assert metrics["l2"] ** 2 >= square_bound(int(metrics["pieces"]))
        assert metrics["train_mse"] == pytest.approx(metrics["l2"] ** 2, rel=0.5)


# -- verdicts --------------------------------------------------------------------------------------


def fake_built(network, best, size, **metrics):
    config = {"part": "built", "network": network, "size": size, "best": best}
    return Result(Run("deep-learning-theory/square-error", config, 0), Outcome("done", metrics))


def fake_trained(kind, start, i, l2, seed=0, rate=0.01, status="done"):
    config = trained_config(kind=kind, start=start, i=i, learning_rate=rate)
    metrics = {"nodes": 3 * i - 1, "layers": 2, "sup": 2 * l2, "l2": l2, "pieces": 400}
    return Result(Run("deep-learning-theory/square-error", config, seed), Outcome(status, metrics))


def deep_line(base=4.0, **changes):
    return [
        fake_built("deep", "", i, **{"nodes": 3 * i - 1, "sup": base ** -(i + 1), "l2": 0.1,
                                     "pieces": 2**i, **changes})
        for i in range(1, 6)
    ]  # fmt: skip


def wide_line(power=2.0):
    return [
        fake_built("shallow", "sup", n, nodes=n, sup=n**-power, l2=0.1, pieces=n + 1)
        for n in (8, 16, 32)
    ]


def verdict(results, words):
    (match,) = [each for each in square_claims.verdicts(results) if words in each.claim]
    return match.verdict


def test_verdicts_on_the_theorems_go_both_ways():
    assert verdict(deep_line(), "largest error of h_i") == "holds"
    assert verdict(deep_line(base=3.9), "largest error of h_i") == "fails"
    assert verdict(deep_line(nodes=7), "largest error of h_i") == "fails"
    assert verdict(deep_line() + wide_line(), "exponentially") == "holds"
    assert verdict(deep_line() + wide_line(1.5), "exponentially") == "fails"
    assert verdict(deep_line(base=3.0) + wide_line(), "exponentially") == "fails"
    low = math.sqrt(square_bound(400))
    for factor, word in ((1.01, "holds"), (0.9, "fails")):
        results = [fake_trained("narrow", "default", 3, factor * low)]
        assert verdict(results, "no network with N pieces") == word
    assert all(each.verdict == "no data" for each in square_claims.verdicts([]))


def test_verdicts_on_training_go_both_ways():
    goal = [fake_built("deep", "l2", 3, nodes=8, sup=0.1, l2=0.001, pieces=8)]
    words = "training finds the narrow deep network that was built (PyTorch's start)"
    for errors, word in (
        ((0.0011, 0.0012, 0.0015), "holds"),
        ((0.003, 0.004, 0.005), "fails"),
        ((0.0011, 0.004, 0.005), "unclear"),
    ):
        fakes = [fake_trained("narrow", "default", 3, e, seed) for seed, e in enumerate(errors)]
        assert verdict(goal + fakes, words) == word
        # A worse learning rate changes nothing.
        fakes += [fake_trained("narrow", "default", 3, 1.0, seed, 0.03) for seed in range(3)]
        assert verdict(goal + fakes, words) == word
    words = "trained narrow deep networks are ahead of shallow ones of their size (PyTorch's start)"
    for ratio, word in ((0.1, "holds"), (10, "fails")):
        fakes = [
            fake_trained(kind, "default", i, 0.01 * (1 + 0.1 * seed) * factor, seed)
            for i in (3, 4)
            for kind, factor in (("shallow", 1), ("narrow", ratio * (1 + 0.01 * i)))
            for seed in range(4)
        ]
        fakes[-1].outcome.metrics["l2"] *= 1.05
        assert verdict(fakes, words) == word
    noisy = [
        fake_trained(kind, "default", 3, 0.01 * (1 + 5 * ((seed + shift) % 2)), seed)
        for kind, shift in (("shallow", 0), ("narrow", 1))
        for seed in range(4)
    ]
    assert verdict(noisy, words) == "unclear"
    limit = math.sqrt(square_bound(9))
    for factor, word in ((0.9, "holds"), (1.1, "fails")):
        fakes = [fake_trained("three", "spread", 3, factor * limit)]
        assert verdict(fakes, "below every shallow one") == word
        # What began at the built network, and what is shallow, does not count.
        fakes += [fake_trained("narrow", "built", 3, limit / 9)]
        fakes += [fake_trained("shallow", "spread", 3, limit / 9)]
        assert verdict(fakes, "below every shallow one") == word


def test_diverged_runs_are_left_out():
    results = [
        fake_trained("narrow", "default", 3, math.nan, status="diverged"),
        fake_trained("narrow", "default", 3, 0.5, rate=0.03),
    ]
    (seeds,) = square_numbers.best_rates(results).values()
    assert seeds[0].outcome.metrics["l2"] == 0.5


def test_figure_and_table_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = SquareError()
    built = [run for run in experiment.runs("smoke") if run.config["part"] == "built"]
    results = [Result(run, outcome) for run, outcome in experiment.execute(built, Workspace())]
    results += [
        fake_trained(kind, start, i, 0.01 * (seed + 1), seed)
        for kind in ("shallow", "narrow", "three")
        for start in ("default", "spread", "built")
        for i in (2, 3)
        for seed in (0, 1)
    ]
    figure = experiment.figures(results)[""]
    assert len(figure.axes) == 6
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["deep: h_i, 4^-(i+1)"].get_ydata()[2] == 4.0**-4
    text = experiment.table(results).text()
    assert "the largest error of h_i is 4^-(i+1): HOLDS" in text
    assert "trained narrow deep, spread start" in text
    assert experiment.figures([]) == {}
    assert "NO DATA" in experiment.table([]).text()
    assert set(experiment.figures(results[:5])) == {""}  # unfinished
