"""The experiment depth-separation/training, and verdicts that can come out either way."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from weightloom.construct.pieces import affine_pieces
from weightloom_papers.depth_separation.experiments.training import analysis as depth_numbers
from weightloom_papers.depth_separation.experiments.training.analysis import verdicts
from weightloom_papers.depth_separation.experiments.training.experiment import (
    DepthSeparation,
    execute_trained,
    measure_by_hand,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, PARTLY, UNCLEAR

NAME = "depth-separation/training"
SHAPES = {2: [342], 3: [48, 48], 5: [17] * 4}


def trained_run(task="sphere", d=2, level=1, depth=3, seed=0, rate=0.03, steps=150, hidden=None):
    config = {
        "part": "trained",
        "steps": steps,
        "batch_size": 64,
        "optimiser": "adam",
        "schedule": "cosine",
        "init": "he",
        "task": task,
        "d": d,
        "depth": depth,
        "hidden": hidden or SHAPES[depth],
        "level": level,
        "learning_rate": rate,
    }
    return Run(NAME, config, seed)


def faked(errors, depth=3, validation=None, status="done", l1=0.2, **where):
    """Stored results with these errors, one for each seed."""
    built_results = []
    for seed, error in enumerate(errors):
        run = trained_run(depth=depth, seed=seed, **where)
        metrics = {"relative": error, "validation": error if validation is None else validation}
        metrics |= {"parameters": 2737, "sup": 1.0, "steps": run.config["steps"]}
        if run.config["task"] == "sawtooth":
            metrics |= {"pieces": 9 + seed, "l1": l1, "l1_bound": 0.1}
        curves = {"validation": ([75, 150], [1.0, error])}
        built_results.append(Result(run, Outcome(status, metrics, curves)))
    return built_results


def hand(relative, fits=True, task="sphere", d=2, level=1, depth=3):
    config = {"part": "by hand", "task": task, "d": d, "level": level, "depth": depth}
    metrics = {"relative": relative, "fits": float(fits), "parameters": 1000}
    run = Run(NAME, {**config, "hidden": SHAPES[depth]}, 0)
    return [Result(run, Outcome("done", metrics))]


def word(results, start):
    """The verdict on the claim that starts like this."""
    (match,) = [each for each in verdicts(results) if each.claim.startswith(start)]
    return match.verdict


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = DepthSeparation()
    runs = wanted(experiment, scale)
    assert {run.config["part"] for run in runs} == {"by hand", "trained"}
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    sizes = {}
    for run in runs:
        if run.config["part"] == "trained":
            config = run.config
            inputs = 2 * config["d"] if config["task"] == "sphere" else 1
            size = depth_numbers_size(inputs, config["hidden"])
            sizes.setdefault(config["task"], []).append(size)
    for size in sizes.values():  # equal numbers of parameters, as near as whole widths allow
        assert max(size) / min(size) < 1.1


def depth_numbers_size(inputs, hidden):
    sizes = [inputs, *hidden, 1]
    return sum((sizes[i] + 1) * sizes[i + 1] for i in range(len(sizes) - 1))


def test_the_papers_frequency_is_among_them():
    runs = DepthSeparation().runs("laptop")
    for d in (2, 3, 4):
        levels = {
            r.config["level"] for r in runs if (r.config["task"], r.config["d"]) == ("sphere", d)
        }
        assert d**3 in levels


def test_groups_can_be_stacked():
    experiment = DepthSeparation()
    groups = {}
    for run in experiment.runs("laptop"):
        groups.setdefault(experiment.group(run), []).append(run)
    for runs in groups.values():
        fixed = [
            {k: v for k, v in run.config.items() if k not in ("level", "learning_rate")}
            for run in runs
        ]
        assert all(each == fixed[0] for each in fixed)


def test_training_learns_and_says_so(tmp_path):
    """A slow wave is learned, a fast one is not, in the same call."""
    runs = [trained_run(level=level, hidden=[16, 16]) for level in (1, 8)]
    done = dict(execute_trained(runs, Workspace(folder=tmp_path)))
    slow, fast = (done[run].metrics for run in runs)
    assert slow["relative"] < 0.5 < 0.8 < fast["relative"] < 1.2
    # 4,000 other points: the same error up to the spread of squares.
    assert slow["validation"] == pytest.approx(slow["relative"], rel=0.2)
    assert done[runs[0]].curves["validation"][1][-1] == pytest.approx(slow["validation"])
    assert slow["steps"] == 150


def test_training_a_sawtooth_counts_pieces():
    runs = [trained_run("sawtooth", 1, 1, 2, hidden=[12], steps=200)]
    ((_, outcome),) = execute_trained(runs, Workspace())
    metrics = outcome.metrics
    assert metrics["relative"] < 0.05
    assert 2 <= metrics["pieces"] <= 13
    # mean |error| <= root of the mean square; the variance of Delta^k is 1 / 12.
    assert 0 < metrics["l1"] <= math.sqrt(metrics["relative"] / 12) * 1.001
    assert metrics["l1"] >= metrics["l1_bound"]


@pytest.mark.parametrize(
    ("task", "d", "level", "depth"), [("sphere", 3, 4, 3), ("sawtooth", 1, 5, 5)]
)
def test_by_hand(task, d, level, depth):
    config = hand(0.0, task=task, d=d, level=level, depth=depth)[0].run.config
    metrics = measure_by_hand(config).metrics
    assert metrics["fits"] == 1
    assert metrics["sup"] <= metrics["bound"]
    assert metrics["relative"] < 0.1
    assert metrics["parameters"] <= metrics["allowed"]
    if task == "sawtooth":
        assert metrics["pieces"] == 2**level
        assert metrics["apart"] <= metrics["bound"]
        assert metrics["smallest"] < metrics["parameters"] / 10


def test_same_points_for_all():
    """Errors of different depths are compared on the very same test points."""
    from weightloom_papers.depth_separation.experiments.training.experiment import _points

    short = {"task": "sphere", "d": 3, "steps": 1, "batch_size": 1}
    assert torch.equal(_points(short)["test"], _points({**short, "steps": 7})["test"])


# -- points ----------------------------------------------------------------------------------------


def test_rates_are_chosen_without_the_test_error():
    results = faked([0.9, 0.9], rate=0.01, validation=0.1)
    results += faked([0.2, 0.2], rate=0.03, validation=0.3)
    (point,) = depth_numbers.points(results)
    assert (point.rate, point.estimate.mean) == (0.01, 0.9)


def test_a_rate_that_diverged_is_not_chosen():
    results = faked([math.nan, 0.1], rate=0.01, status="diverged")
    results += faked([0.4, 0.4], rate=0.03)
    (point,) = depth_numbers.points(results)
    assert point.rate == 0.03
    (point,) = depth_numbers.points(faked([math.nan, math.nan], status="diverged"))
    assert math.isnan(point.estimate.mean)


def test_intervals_by_hand():
    """Student's t with 3 degrees of freedom: 3.1824463 standard errors."""
    (point,) = depth_numbers.points(faked([0.1, 0.2, 0.3, 0.4]))
    error = math.sqrt(0.05 / 3) / 2
    assert point.estimate.mean == pytest.approx(0.25)
    assert point.estimate.high == pytest.approx(0.25 + 3.18244631 * error)


def test_longer_training_stands_apart():
    results = faked([0.8, 0.8], level=8) + faked([0.3, 0.3], level=8, steps=600)
    every = depth_numbers.points(results)
    assert [p.steps for p in depth_numbers.usual(every, "sphere")] == [150]
    ((before, after),) = depth_numbers.longer(every)
    assert (before.steps, after.steps) == (150, 600)


# -- verdicts --------------------------------------------------------------------------------------

DEEP, FLAT = [0.10, 0.11, 0.09, 0.10], [0.80, 0.82, 0.79, 0.81]


@pytest.mark.parametrize(
    ("deep", "shallow", "verdict"),
    [
        (DEEP, FLAT, HOLDS),
        (FLAT, DEEP, FAILS),
        ([0.80, 0.79, 0.82, 0.81], FLAT, UNCLEAR),
        ([0.780, 0.801, 0.770, 0.79], FLAT, UNCLEAR),  # clearly lower, by 2 percent
    ],
)
def test_depth_is_better_or_not(deep, shallow, verdict):
    for task, start in (("sphere", "Depth 3 learns sin"), ("sawtooth", "Depth 3 learns Delta")):
        results = faked(deep, 3, task=task) + faked(shallow, 2, task=task)
        assert word(results, start) == verdict


def test_better_here_and_worse_there():
    results = faked(DEEP, 3) + faked(FLAT, 2)
    results += faked(FLAT, 3, level=2) + faked(DEEP, 2, level=2)
    assert word(results, "Depth 3 learns sin") == PARTLY
    evidence = next(v.evidence for v in verdicts(results) if v.verdict == PARTLY)
    assert evidence == "lower at d = 2, frequency 1 - higher at d = 2, frequency 2"


@pytest.mark.parametrize(
    ("errors", "verdict"), [(DEEP, HOLDS), (FLAT, FAILS), ([0.2, 0.8, 0.4, 0.6], UNCLEAR)]
)
def test_learned_or_not(errors, verdict):
    assert word(faked(errors, level=8), "The paper's frequency") == verdict
    assert word(faked(errors, level=4), "The paper's frequency") == NO_DATA
    longer = faked(FLAT, level=4) + faked(errors, level=4, steps=600)
    assert word(longer, "4 times as many steps are enough to learn d = 2, frequency 4") == verdict


@pytest.mark.parametrize(
    ("errors", "written", "verdict"),
    [
        (DEEP, 0.2, HOLDS),
        (DEEP, 0.01, FAILS),
        ([0.01, 0.02, 0.01, 0.02], 0.001, HOLDS),  # good enough, if not as good
        ([0.01, 0.2, 0.3, 0.02], 0.05, UNCLEAR),
    ],
)
def test_found_or_not(errors, written, verdict):
    for task, start in (
        ("sphere", "Gradient descent finds sin"),
        ("sawtooth", "Gradient descent finds D"),
    ):
        results = faked(errors, task=task) + hand(written, task=task)
        assert word(results, start) == verdict
        larger = faked(errors, task=task) + hand(written, fits=False, task=task)
        assert word(larger, start) == NO_DATA


def test_pieces_bound_distances():
    start = "No network is nearer"
    assert word(faked(DEEP, task="sawtooth", d=1, l1=0.11), start) == HOLDS
    assert word(faked(DEEP, task="sawtooth", d=1, l1=0.09), start) == FAILS
    assert word(faked(DEEP), start) == NO_DATA


def test_everything_diverged():
    lost = [math.nan] * 3
    results = faked(lost, level=8, status="diverged") + faked(FLAT, 2, level=8)
    assert word(results, "The paper's frequency") == FAILS
    assert word(results, "Depth 3 learns sin") == NO_DATA
    assert "nan" in DepthSeparation().table(results).text()


# -- what is shown ---------------------------------------------------------------------------------


def test_figure_and_table_from_results_alone():
    pytest.importorskip("matplotlib")
    results = [
        *faked(DEEP, 3), *faked(FLAT, 2), *hand(0.01), *hand(0.02, False, level=4),
        *faked(FLAT, 3, level=4), *faked(FLAT, 2, level=4), *faked(DEEP, 3, level=4, steps=600),
        *faked(DEEP, 5, task="sawtooth", d=1), *faked(FLAT, 2, task="sawtooth", d=1),
        *hand(0.0, task="sawtooth", d=1, depth=5), *faked([0.5], 3, d=3),
    ]  # fmt: skip
    (figure,) = DepthSeparation().figures(results).values()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == [
        "sin(π w ⟨x, x'⟩), d = 2",
        "sin(π w ⟨x, x'⟩), d = 3",
        "Sawtooth Δᵏ on [0, 1]",
    ]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == [
        "depth 3, by hand", "depth 3, by hand, larger", "depth 2, trained", "depth 3, trained",
    ]  # fmt: skip
    text = DepthSeparation().table(results).text()
    assert "Depth 3 learns sin(pi w <x, x'>) to a lower error" in text
    assert DepthSeparation().figures([]) == {}
    assert "NO DATA" in DepthSeparation().table([]).text()


def test_pieces_are_counted_on_the_unit_interval():
    from weightloom_papers.depth_separation.experiments.training.experiment import on_unit_interval
    from weightloom_papers.depth_separation.experiments.training.networks import sawtooth_by_hand

    pieces = affine_pieces(on_unit_interval(sawtooth_by_hand(3, [8])), 0, 1)
    assert pieces.count == 8
    assert float(pieces(torch.tensor([0.125], dtype=torch.float64))) == pytest.approx(1.0)
