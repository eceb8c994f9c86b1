"""The experiment maurey: what it draws, what it finds, and that its verdicts can differ."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
import torch

from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.experiments.maurey.analysis import (
    laws,
    pooled_slope,
    verdicts,
    walk_above,
)
from weightloom_papers.deep_learning_theory.experiments.maurey.experiment import (
    TARGETS,
    Maurey,
    _stream,
    make_case,
    measure,
)
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted


def config(target, width=20, trials=40):
    return {"target": target, "width": width, "trials": trials}


def fake(target="sine", width=10, error=0.1, seed=0, **changes):
    """A stored result with these numbers; E|V|^2 is 1, so the bound is 1 / width."""
    metrics = {
        "error": error,
        "standard_error": 0.01,
        "bound": 1 / width,
        "expected": 1 / width,
        "above_bound": 0.25,
        "printed": 1 / width,
        "above_printed": 0.1,
        **changes,
    }
    return Result(
        Run("deep-learning-theory/maurey", config(target, width), seed), Outcome("done", metrics)
    )


def law(level=1.0, power=-1.0, wobble=0.02, **changes):
    """Errors level * k^power for several widths and seeds, with a little noise."""
    return [
        fake(
            target,
            width,
            level * width**power * (1 + wobble * (-1) ** (seed + number)),
            seed,
            **changes,
        )
        for target in ("sine", "step")
        for number, width in enumerate((5, 10, 20, 40))
        for seed in range(3)
    ]


def verdict_words(results):
    return [verdict.verdict for verdict in verdicts(laws(results))]


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["deep-learning-theory/maurey"]
    runs = wanted(experiment, scale)
    assert {run.config["target"] for run in runs} == set(TARGETS)
    assert all(experiment.cost(run) > 0 for run in runs)
    # A square would let the walk at x = 1 end on the bound, and rounding decide.
    assert all(math.isqrt(run.config["width"]) ** 2 != run.config["width"] for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


@pytest.mark.parametrize("target", TARGETS)
def test_forms_are_the_functions_they_stand_for(target):
    """The function has its own formula; the form is an integral over neurons, or a network."""
    case = make_case(target, 3)
    points = case.points[:7]
    assert torch.allclose(case.form.evaluate(points), case.function(points), atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_measured_errors_are_the_expected_ones(target):
    numbers = measure(config(target, width=30, trials=60), 0).metrics
    assert abs(numbers["error"] - numbers["expected"]) < 4.5 * numbers["standard_error"]
    assert numbers["expected"] <= numbers["bound"] * (1 + 1e-9)
    assert ("printed" in numbers) == (target != "network")
    if "printed" in numbers:
        assert numbers["bound"] <= numbers["printed"] * (1 + 1e-9)
        assert numbers["above_printed"] <= numbers["above_bound"]


def test_a_run_is_the_same_each_time_and_unlike_others():
    first, again = (measure(config("sine"), 0).metrics for _ in range(2))
    assert first == again
    others = [
        measure(config("sine"), 1),
        measure(config("sine", width=21), 0),
        measure(config("step"), 0),
    ]
    assert all(other.metrics["error"] != first["error"] for other in others)


def test_no_two_runs_share_their_draws():
    runs = Maurey().runs("laptop")
    assert len({_stream(run.config, run.seed) for run in runs}) == len(runs)


def test_printed_bound_is_the_mass_squared():
    """sin 2 pi x has total variation 4; half of its neurons are on at a uniform point."""
    numbers = measure(config("sine", width=10, trials=2), 0).metrics
    assert numbers["printed"] == pytest.approx(16 / 10)
    assert numbers["bound"] == pytest.approx(8 / 10)


def test_a_group_has_one_measure():
    """`execute` makes it once: a group may hold one target and one seed only."""
    experiment = Maurey()
    groups = {}
    for run in experiment.runs("laptop"):
        groups.setdefault(experiment.group(run), set()).add((run.config["target"], run.seed))
    assert all(len(kinds) == 1 for kinds in groups.values())


def test_unknown_target():
    with pytest.raises(ConfigError, match="'cliff' is unknown to the experiment maurey; there are"):
        make_case("cliff", 0)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 9])
def test_walk_by_enumeration(width):
    ends = [sum(steps) for steps in itertools.product((-1, 1), repeat=width)]
    share = sum(end**2 > width for end in ends) / len(ends)
    assert walk_above(width) == pytest.approx(share, rel=1e-12)


def test_walk_has_its_limit():
    assert walk_above(10_001) == pytest.approx(math.erfc(math.sqrt(0.5)), abs=0.01)


def test_share_at_one_is_that_of_the_walk():
    """Two methods: sampled networks, and binomial coefficients."""
    numbers = measure(config("sine at 1", width=10, trials=400), 0).metrics
    share = walk_above(10)
    spread = math.sqrt(share * (1 - share) / 400)
    assert abs(numbers["above_printed"] - share) < 4 * spread
    assert numbers["above_bound"] == numbers["above_printed"]


def test_the_lemma_holds_and_the_example_fails():
    assert verdict_words(law()) == ["holds", "holds", "holds", "fails", "holds"]


def test_every_verdict_can_differ():
    assert verdict_words(law(power=-0.5))[0] == "fails"
    assert verdict_words(law(power=-1.3))[0] == "fails"
    assert verdict_words(law(expected=0.001))[1] == "fails"
    assert verdict_words(law(level=1.5))[2] == "fails"
    assert verdict_words(law(above_printed=0.0))[3] == "holds"
    assert verdict_words(law(above_bound=1.0))[4] == "unclear"
    assert verdict_words([]) == ["no data"] * 5


def test_the_example_is_about_thresholds():
    """Draws of cosines above their bound are no evidence against it."""
    results = [fake("bell", above_printed=0.5), fake("sine", above_printed=0.0)]
    assert verdict_words(results)[3] == "holds"


def test_slopes_pool_targets_of_different_levels():
    results = [
        fake(target, width, level / width, seed)
        for target, level in (("sine", 1.0), ("step", 0.01))
        for width in (5, 10, 20)
        for seed in (0, 1)
    ]
    slope = pooled_slope(laws(results))
    assert slope.value == pytest.approx(-1.0)
    assert slope.margin < 1e-6


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Maurey()
    results = [
        *law(),
        Result(Run("deep-learning-theory/maurey", config("bell"), 0), Outcome("failed", {})),
    ]
    table = experiment.table(results)
    assert [row[1] for row in table.rows] == [5, 10, 20, 40] * 2
    assert "Example 2.18 (1), as printed): FAILS (96 of 960 draws" in table.text()
    (figure,) = experiment.figures(results).values()
    assert len(figure.axes) == 4
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0] == "bound 1/k"
    assert "slope -1.00" in labels[1]
    assert experiment.figures([]) == {}
    assert "NO DATA" in experiment.table([]).text()


def test_a_network_alone_can_be_drawn():
    """Nothing printed about it: no share, and no gap in the figure."""
    pytest.importorskip("matplotlib")
    result = fake("network")
    for name in ("printed", "above_printed"):
        del result.outcome.metrics[name]
    assert Maurey().table([result]).rows[0][-1] is None
    assert set(Maurey().figures([result])) == {""}


def test_a_group_of_the_smoke_scale_runs():
    experiment = Maurey()
    runs = [run for run in experiment.runs("smoke") if run.config["target"] == "sine at 1"]
    group = [run for run in runs if experiment.group(run) == experiment.group(runs[0])]
    assert len(group) <= experiment.size_limit()
    done = list(experiment.execute(group, Workspace()))
    assert [run for run, _ in done] == group
    # The group shares its measure; each run alone gives the same numbers.
    assert done[1][1].metrics == measure(group[1].config, group[1].seed).metrics
