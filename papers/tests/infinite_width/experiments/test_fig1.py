"""Figure 1: kernels sampled in two ways, their limits, and verdicts."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import functional_call, jacrev, vmap

from weightloom.errors import ConfigError
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower
from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.fig1.analysis import (
    bands,
    cells,
    cuts,
    fig1a_verdicts,
    fig1b_verdicts,
    printed_ratio,
)
from weightloom_papers.infinite_width.experiments.fig1.experiment import (
    Fig1a,
    Fig1b,
    angles_of,
    measure_entry,
)
from weightloom_papers.infinite_width.experiments.fig1.kernels import (
    _gram,
    _points,
    _primary,
    limit,
    printed_limit,
    sample_in_parts,
    sample_whole,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted

ANGLES = [0.0, 0.7]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def explicit(f, g, draws, generator):
    """Kernels of many whole hypernetworks at once, from their Jacobians: an independent method."""
    tower = Tower(depth=4, activation="relu")
    net = FiniteHypernetwork(tower, tower, [2, f, f, f], [2, g, g, g, 1], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64)
    z = _points(ANGLES)
    weights = {
        name: torch.randn(draws, *p.shape, generator=generator, dtype=torch.float64)
        for name, p in net.named_parameters()
    }

    def kernel(values):
        jacobian = jacrev(lambda v: functional_call(net, v, (x, z))[:, 0])(values)
        return sum(j.flatten(1) @ j.flatten(1).T for j in jacobian.values())

    with torch.no_grad():
        return vmap(kernel, chunk_size=500)(weights)


@pytest.mark.parametrize(("f", "g"), [(6, 3), (16, 4)])
def test_parts_have_the_distribution_of_whole_networks(f, g):
    full, parts = explicit(f, g, 4000, seeded(1)), sample_in_parts(f, g, ANGLES, 8000, seeded(2))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert stats.ks_2samp(full[:, i, j].numpy(), parts[:, i, j].numpy()).pvalue > 1e-3


def test_parts_of_the_narrowest_f():
    """One neuron: W^T J lies along q, where it is H h / |q|, and there is no independent part."""
    full, parts = explicit(1, 4, 30000, seeded(1)), sample_in_parts(1, 4, ANGLES, 60000, seeded(2))
    for i, j in ((0, 0), (0, 1)):
        first, second = (k[:, i, j][k[:, i, j] != 0].numpy() for k in (full, parts))
        assert 1000 < len(first) < 6000
        assert stats.ks_2samp(first, second).pvalue > 1e-3


def test_whole_networks_against_jacobians():
    full, whole = explicit(6, 3, 2000, seeded(3)), sample_whole(6, 3, ANGLES, 80, seeded(4))
    assert stats.ks_2samp(full[:, 0, 1].numpy(), whole[:, 0, 1].numpy()).pvalue > 1e-3


def test_gram_is_the_tangent_kernel():
    tower = FiniteTower(
        Tower(depth=3, activation="relu"), [2, 7, 5, 1], seed=3, dtype=torch.float64
    )
    z = _points([0.0, 0.4, 2.0])
    weights = [layer.weight.detach()[None] for layer in tower.layers]
    inputs, q = [], z[None]
    for number, weight in enumerate(weights):
        inputs.append(q)
        q = q @ weight.mT / math.sqrt(weight.shape[-1])
        q = q if number == 2 else math.sqrt(2) * q.relu()
    gram = _gram(weights, inputs, torch.ones_like(q))[0]
    torch.testing.assert_close(gram, empirical.ntk(tower, z), rtol=1e-12, atol=1e-12)


def test_infinite_widths_are_what_large_ones_tend_to():
    """Quartiles of narrow-wide pairs; both infinite is the limit itself."""
    both = sample_in_parts(None, None, ANGLES, 2, seeded())
    assert both[0, 0].tolist() == pytest.approx(limit(ANGLES), rel=1e-10)
    for infinite, finite in (((8, None), (8, 80)), ((None, 6), (150, 6))):
        limiting = sample_in_parts(*infinite, ANGLES, 3000, seeded(1))[:, 0, 1]
        wide = sample_in_parts(*finite, ANGLES, 300, seeded(2))[:, 0, 1]
        assert stats.ks_2samp(limiting.numpy(), wide.numpy()).statistic < 0.13


def test_an_infinite_g_has_the_prior_of_wide_ones():
    """Outputs have the variance s^(2H) times that of the NNGP at the diagonal, 1/2."""
    variance = torch.full((4000, 1, 1), 0.5, dtype=torch.float64)
    generator = seeded(5)

    def normal(*shape):
        return torch.randn(4000, *shape, generator=generator, dtype=torch.float64)

    outputs, gram = _primary(None, variance, ANGLES, normal)
    error = 5 * math.sqrt(2 / 4000)
    assert float(outputs[:, 0, 0].var()) == pytest.approx(0.5**5, rel=error)
    finite, _ = _primary(20, variance, ANGLES, normal)  # this mean is exact at every width
    assert float(finite[:, 0, 0].square().mean()) == pytest.approx(0.5**5, rel=3 * error)
    assert float(gram[0, 0, 0]) == pytest.approx(limit([0.0])[0] / (4 * 0.5))


def test_the_mean_tends_to_the_corrected_limit_not_to_the_printed_one():
    """f alone is finite, so the excess is of order 1/n: about a third at n = 200."""
    kernels = sample_in_parts(200, None, ANGLES, 300, seeded(6))[:, 0, 1]
    error = float(kernels.std()) / math.sqrt(300)
    right, wrong = limit(ANGLES)[1], printed_limit(ANGLES)[1]
    assert right - 3 * error < float(kernels.mean()) < 2 * right
    assert wrong > 2.5 * right


def test_the_other_condition_cannot_tell_the_formulas_apart():
    assert printed_limit(ANGLES, (1.0, -1.0)) == pytest.approx(limit(ANGLES, (1.0, -1.0)))


def test_dead_networks_have_kernel_zero():
    kernels = sample_in_parts(1, 1, ANGLES, 200, seeded())
    assert torch.isfinite(kernels).all()
    assert (kernels == 0).any()
    assert (kernels != 0).any()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["infinite-width/fig1a", "infinite-width/fig1b"])
def test_runs_are_complete_and_unique(name, scale):
    experiment = all_experiments()[name]
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert all(run.config["f"] or run.config["g"] for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def fake_a(f, g, deviation, seed=0, sampler="parts", centre=0.3, draws=40):
    values = [centre + deviation * math.sin(2.4 * k + seed) for k in range(draws)]
    config = {
        "f": f, "g": g, "sampler": sampler, "draws": draws, "angle": 0.5, "condition": [1.0, 0.0]
    }  # fmt: skip
    outcome = Outcome("done", {}, {"entry": (list(range(draws)), values)})
    return Result(Run("infinite-width/fig1a", config, seed), outcome)


def plane(rule):
    """Results whose deviation is rule(1/f, 1/g)."""
    widths = (10, 50, 250, None)
    return [
        fake_a(f, g, math.sqrt(rule(1 / (f or math.inf), 1 / (g or math.inf))), seed)
        for f in widths
        for g in widths
        for seed in range(3)
        if f or g
    ]


def words_a(results):
    return [verdict.verdict for verdict in fig1a_verdicts(results)]


def test_every_verdict_of_fig1a_can_differ():
    assert words_a(plane(lambda a, b: a + b))[:3] == ["holds", "holds", "holds"]
    assert words_a(plane(lambda a, b: a + 1e-9 * b))[0] == "fails"
    assert words_a(plane(lambda a, b: 1e-9 * a + b))[1] == "fails"
    assert words_a(plane(lambda a, b: 1.0))[2] == "fails"
    assert words_a([]) == ["no data"] * 4
    same = [fake_a(10, 10, 0.1), fake_a(10, 10, 0.1, sampler="whole")]
    assert words_a(same)[3] == "holds"
    shifted = [fake_a(10, 10, 0.1), fake_a(10, 10, 0.1, sampler="whole", centre=0.9)]
    assert words_a(shifted)[3] == "fails"


def test_slopes_along_cuts():
    by_label = {c.label: c for c in cuts(cells(plane(lambda a, b: a + b)))}
    assert by_label["f and g both"].slope.value == pytest.approx(-1.0)
    assert by_label["f alone, infinite g"].slope.value == pytest.approx(-1.0)
    assert by_label["f alone, narrow g"].slope.value > -0.3
    assert by_label["f alone, narrow g"].end.g == 10


def test_fig1a_measures_and_draws():
    run = Fig1a().runs("smoke")[0]
    ((_, outcome),) = Fig1a().execute([run], Workspace())
    assert outcome.metrics["variance"] == pytest.approx(np.var(outcome.curves["entry"][1], ddof=1))
    assert measure_entry(run).curves == outcome.curves
    wrong = Run("infinite-width/fig1a", {**run.config, "sampler": "scenic"}, 0)
    with pytest.raises(ConfigError, match="sampler is 'scenic'; there are: whole, parts"):
        measure_entry(wrong)
    pytest.importorskip("matplotlib")
    results = plane(lambda a, b: a + b)
    table = Fig1a().table(results)
    assert len(table.rows) == 15
    assert "however wide f is: HOLDS" in table.text()
    (figure,) = Fig1a().figures(results).values()
    assert "∞" in [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert Fig1a().figures([]) == {}
    assert "NO DATA" in Fig1a().table([]).text()


def fake_b(part, f, g, level=1.0, deviation=0.1, seed=0, count=5, draws=40):
    angles = angles_of(count)
    exact = limit(angles)
    ratios = [level + deviation * math.sin(2.4 * k + seed) for k in range(draws)]
    curves = {
        "mean": (list(range(count)), [level * value for value in exact]),
        "deviation": (list(range(count)), [deviation * value for value in exact]),
        "ratio": (list(range(draws)), ratios),
    }
    config = {
        "part": part, "f": f, "g": g, "angles": count, "draws": draws, "condition": [1.0, 0.0]
    }  # fmt: skip
    spread = deviation * (1 + 0.01 * seed)
    return Result(
        Run("infinite-width/fig1b", config, seed), Outcome("done", {"deviation": spread}, curves)
    )


def case_b(narrow=1.0, wide=1.0, first=1.0, infinite=1.0, spreads=(0.5, 0.1)):
    return [
        result
        for seed in range(2)
        for result in (
            fake_b("figure", 500, 10, narrow, spreads[0], seed),
            fake_b("figure", 500, 800, wide, spreads[1], seed),
            fake_b("means", 32, 10, first, 0.1, seed),
            fake_b("means", None, 10, infinite, 0.1, seed),
        )
    ]


def words_b(results):
    return [verdict.verdict for verdict in fig1b_verdicts(results)]


def test_every_verdict_of_fig1b_can_differ():
    assert words_b(case_b()) == ["holds"] * 5 + ["fails"]
    assert words_b(case_b(spreads=(0.1, 0.5)))[0] == "fails"
    assert words_b(case_b(narrow=1.5))[1] == "fails"
    assert words_b(case_b(wide=1.5))[2] == "fails"
    assert words_b(case_b(first=2.0))[3] == "fails"
    assert words_b(case_b(infinite=0.5))[4] == "fails"
    printed = printed_ratio(angles_of(5))
    assert words_b(case_b(wide=printed))[-1] == "holds"
    assert words_b([]) == ["no data"] * 4


def test_fig1b_measures_and_draws():
    experiment = Fig1b()
    run = experiment.runs("smoke")[0]
    ((_, outcome),) = experiment.execute([run], Workspace())
    angles = angles_of(run.config["angles"])
    # The mean over draws and angles, by two orders of averaging.
    mean = np.mean(outcome.curves["mean"][1]) / np.mean(limit(angles))
    assert outcome.metrics["ratio"] == pytest.approx(mean)
    pytest.importorskip("matplotlib")
    table = experiment.table(case_b())
    assert [row[2] for row in table.rows] == ["10", "800", "10", "10"]
    assert "as printed it would be" in table.text()
    (figure,) = experiment.figures(case_b()).values()
    assert len(figure.axes) == 2
    assert experiment.figures([]) == {}


def test_bands_pool_runs():
    """Deviation over all draws: within runs and between their means."""
    results = [fake_b("figure", 5, 5, level, 0.0, seed) for seed, level in enumerate((1.0, 3.0))]
    (band,) = bands(results, "figure")
    exact = limit(band.angles)
    assert band.mean == pytest.approx([2 * value for value in exact])
    assert band.deviation == pytest.approx(exact)
    assert band.ratio.value == pytest.approx(2.0)
