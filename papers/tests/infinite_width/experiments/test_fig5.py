"""Figure 5: networks by formula, the rate sqrt(n), and verdicts in four settings."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
import torch.nn.functional as F

from weightloom.kernels import Tower
from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.fig5.analysis import in_setting, wide_verdicts
from weightloom_papers.infinite_width.experiments.fig5.experiment import (
    SETTINGS,
    WideShallow,
    shallow,
)
from weightloom_papers.infinite_width.experiments.rotations.task import load_images
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted

CONFIG = {"images": "mnist", "train_images": 60, "test_images": 40, "epochs": 2, "batch_size": 20,
          "pixels": "standardised"}  # fmt: skip


def fake(accuracy, seeds=3, digits=0.0):
    """``accuracy[setting](width)``; NaN is divergence."""
    results = []
    for setting in SETTINGS:
        form, objective, factor = setting
        for width in (100, 1000, 10_000):
            for seed in range(seeds):
                config = {**CONFIG, "parametrisation": form, "objective": objective, "width": width}
                config |= {"rate_factor": factor} if factor != 1 else {}
                value = accuracy[setting](width) + 0.001 * (seed + width % 7 % 2)
                lost = math.isnan(value)
                metrics = {"accuracy": value, "chance": 0.11, "digits": digits,
                           "test_loss": math.nan if lost else 1 - value,
                           "learning_rate": math.sqrt(width)}  # fmt: skip
                outcome = Outcome("diverged" if lost else "done", metrics)
                results.append(Result(Run("infinite-width/fig5", config, seed), outcome))
    return results


CE, MSE, SUM, STANDARD = SETTINGS
AS_EXPECTED = {
    CE: lambda width: 0.9 + 0.01 * math.log10(width),
    MSE: lambda width: 1.1 - 0.2 * math.log10(width),
    SUM: lambda width: 1.0 - 0.1 * math.log10(width),
    STANDARD: lambda width: math.nan,
}


def words(results):
    return [verdict.verdict for verdict in wide_verdicts(results)]


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["infinite-width/fig5"]
    runs = wanted(experiment, scale)
    by_setting = [
        in_setting([Result(run, Outcome("done", {})) for run in runs], s) for s in SETTINGS
    ]
    assert sum(map(len, by_setting)) == len(runs)
    assert len({len(each) for each in by_setting}) == 1
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    groups = {}
    for run in runs:
        groups.setdefault(experiment.group(run), []).append(run)
    for group in groups.values():
        assert len({str(sorted(run.config.items())) for run in group}) == 1
    widest = max(run.config["width"] for run in runs)
    if widest > 100_000:
        assert all(len(g) == 1 for g in groups.values() if g[0].config["width"] == widest)


def test_paper_widths():
    widths = {run.config["width"] for run in WideShallow().runs("paper")}
    assert widths == {100, 1_000, 10_000, 250_000}


def test_network_is_the_formula():
    net, x = shallow("ntk", 20, 300, seed=1), torch.randn(5, 20)
    first, second = net[0].weight, net[2].weight
    wanted = math.sqrt(2 / 300) * torch.relu(x @ first.T / math.sqrt(20)) @ second.T
    assert torch.allclose(net(x), wanted, atol=1e-5)
    assert float(first.detach().std()) == pytest.approx(1.0, abs=0.05)
    plain = shallow("standard", 20, 300, seed=1)
    assert torch.allclose(plain(x), torch.relu(x @ plain[0].weight.T) @ plain[2].weight.T)
    assert float(plain[0].weight.detach().abs().max()) <= 1 / math.sqrt(20)
    with pytest.raises(ValueError, match="parametrisation='mup' is unknown"):
        shallow("mup", 20, 30, seed=0)


def test_tangent_kernel_is_that_of_the_tower():
    """The paper's parametrisation: gradients have the size that the limit says, at any width."""
    net, x = shallow("ntk", 10, 20_000, seed=0), torch.randn(1, 10)
    for k in (0, 1):
        net.zero_grad()
        net(x)[0, k].backward()
        size = sum(float(p.grad.square().sum()) for p in net.parameters())
        kernel = float(Tower(depth=2, activation="relu")(x, kind="ntk")[0, 0])
        assert size == pytest.approx(kernel, rel=0.05)


def test_claims_on_expected_numbers():
    assert words(fake(AS_EXPECTED)) == [
        "holds",
        "holds",
        "fails",
        "fails",
        "holds",
        "fails",
        "fails",
        "fails",
    ]


def test_every_verdict_can_differ():
    good = dict.fromkeys(SETTINGS, AS_EXPECTED[CE])
    assert words(fake(good)) == ["holds"] * 8
    bad = dict.fromkeys(SETTINGS, AS_EXPECTED[MSE])
    assert words(fake(bad)) == ["fails"] * 8
    assert words(fake(good, seeds=1)) == ["holds", "unclear"] * 4
    assert words([]) == ["no data"] * 8


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = WideShallow()
    results = fake(AS_EXPECTED, digits=1.0)
    table = experiment.table(results)
    assert len(table.rows) == 12
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    assert (row["width"], row["rate"], row["diverged"], row["test loss"]) == (10_000, 100, 3, None)
    (figure,) = experiment.figures(results).values()
    assert len(figure.axes) == 2
    captions = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert "scikit-learn's digits (no MNIST was found)" in captions
    assert experiment.figures([]) == {}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_tiny_group_runs_on_digits(setting, tmp_path):
    form, objective, factor = setting
    config = {**CONFIG, "parametrisation": form, "objective": objective, "width": 16,
              "rate_factor": factor}  # fmt: skip
    runs = [Run("infinite-width/fig5", config, seed) for seed in range(2)]
    done = list(WideShallow().execute(runs, Workspace(data_dir=tmp_path)))
    assert [run for run, _ in done] == runs
    for _, outcome in done:
        assert outcome.metrics["learning_rate"] == 4.0
        assert outcome.metrics["digits"] == 1.0
        assert outcome.metrics["parameters"] == 16 * (64 + 10)
        assert outcome.metrics["steps"] == 6


@pytest.mark.parametrize("setting", [CE, MSE, SUM])
def test_the_rate_is_used(setting, tmp_path):
    """One step of one batch by hand, from the same start; a sum is a sum."""
    form, objective, factor = setting
    config = {**CONFIG, "train_images": 20, "epochs": 1, "parametrisation": form,
              "objective": objective, "width": 25, "rate_factor": factor}  # fmt: skip
    runs = [Run("infinite-width/fig5", config, 3)]
    ((_, outcome),) = WideShallow().execute(runs, Workspace(data_dir=tmp_path))
    images = load_images("mnist", 20, 40, tmp_path)
    mean, deviation = images.train.mean(), images.train.std()
    x, tested = (images.train - mean) / deviation, (images.test - mean) / deviation

    def loss(net, x, labels):
        if setting == CE:
            return F.cross_entropy(net(x), labels)
        gaps = (net(x) - F.one_hot(labels, 10)).square()
        return gaps.mean() if setting == MSE else gaps.sum(1).mean()

    net = shallow("ntk", 64, 25, 5_000_011 + 3)
    loss(net, x, images.train_labels).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 5.0 * p.grad
        right = (net(tested).argmax(1) == images.test_labels).float().mean().item()
        wanted = loss(net, tested, images.test_labels).item() / factor
    assert outcome.metrics["test_loss"] == pytest.approx(wanted, rel=1e-4)
    assert outcome.metrics["accuracy"] == pytest.approx(right, abs=1e-6)
