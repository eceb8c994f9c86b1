"""Few-shot regression: from a handful of points to the function, in one pass and without training.

Every task is a function sampled from a Gaussian process, observed at a few noisy points. A
hypernetwork reads the set of points and writes a network. A conditional neural process (CNP)
averages embeddings of the points and passes them to one network for all tasks. Both have equally
many parameters. The lower reference is exact regression with the kernel of the process, which no
method beats on average; the upper one is to predict 0, the mean of all tasks.

    python examples/few_shot_regression.py [--smoke] [--out DIR] [--seed N]
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from tqdm import tqdm

import weightloom as wl

LENGTH, NOISE = 0.5, 0.1  # of the Gaussian process; points are in [-2, 2]
SHOTS = (1, 2, 5, 10, 20)


def covariance(a, b):
    """exp(-(a - b)^2 / (2 LENGTH^2)) for all pairs of points [t, n] and [t, m]: [t, n, m]."""
    return (-0.5 * ((a[:, :, None] - b[:, None, :]) / LENGTH).square()).exp()


def draw_tasks(count, shots, queries, generator):
    """New tasks: observed points [t, shots, 2], where to predict [t, queries, 1], the truth."""
    x = 4 * torch.rand(count, shots + queries, generator=generator, dtype=torch.float64) - 2
    factor = torch.linalg.cholesky(covariance(x, x) + 1e-8 * torch.eye(shots + queries))
    white = torch.randn(count, shots + queries, 1, generator=generator, dtype=torch.float64)
    y = (factor @ white).squeeze(-1)
    noise = NOISE * torch.randn(count, shots, generator=generator, dtype=torch.float64)
    seen = torch.stack([x[:, :shots], y[:, :shots] + noise], dim=-1)
    return seen.float(), x[:, shots:, None].float(), y[:, shots:].float()


def exact(seen, x):
    """The posterior mean of the process that the tasks were sampled from: the best possible."""
    places, values = seen.double().unbind(-1)
    gram = covariance(places, places) + NOISE**2 * torch.eye(places.shape[1])
    return covariance(x.squeeze(-1).double(), places) @ torch.linalg.solve(gram, values[..., None])


class Waves(nn.Module):
    """(x, rest) -> sines and cosines of x, then the rest. Both models see places in this way.

    Without it both are far worse: networks on a bare coordinate learn slow functions first.
    """

    def __init__(self, count=6, period=5.0):
        super().__init__()
        self.register_buffer("rates", 2 * math.pi / period * torch.arange(1, count + 1))
        self.size = 2 * count

    def forward(self, points):
        angles = points[..., :1] * self.rates
        waves = math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=-1)
        return torch.cat([waves, points[..., 1:]], dim=-1)


def on_waves(sizes, extra=0, last_activation=False):
    """An MLP that sees the waves of x, and ``extra`` numbers beside them."""
    waves = Waves()
    layers = wl.mlp([waves.size + extra, *sizes], "silu", last_activation=last_activation)
    return nn.Sequential(waves, *layers)


def build(width):
    """A hypernetwork that reads sets, and a CNP that learns as many numbers."""
    hyper = wl.HyperNetwork(
        primary=on_waves([32, 1]),
        encoder=nn.Sequential(
            wl.SetEncoder(on_waves([width, width], extra=1)),  # every point (x, y), then the mean
            *wl.mlp([width, width, width], "silu", last_activation=True),
        ),
    )

    def cnp(width):
        predictor = on_waves([width, width, 1], extra=width)
        each = on_waves([width, width, width], extra=1)
        return wl.ConditionalNeuralProcess(predictor, each)

    goal = wl.count_parameters(hyper)["trainable"]
    sizes = [
        (abs(wl.count_parameters(cnp(w))["trainable"] - goal), w)
        for w in range(width // 2, 5 * width)
    ]
    return {"hypernetwork": hyper, "CNP": cnp(min(sizes)[1])}


def learn(model, steps, tasks, generator, name):
    """A plain PyTorch loop: new tasks in every step, each with a random number of shots."""
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    for _ in tqdm(range(steps), desc=name, unit="step", mininterval=0.5):
        shots = int(torch.randint(1, max(SHOTS) + 1, (), generator=generator))
        seen, x, y = draw_tasks(tasks, shots, 32, generator)
        loss = (model(x, seen).squeeze(-1) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


@torch.no_grad()
def measure(predictors, tasks, seed):
    """Mean squared error of each predictor, and its standard error, by number of shots."""
    table = {name: [] for name in predictors}
    for shots in SHOTS:
        generator = torch.Generator().manual_seed(1_000_000 + seed)  # the same for every predictor
        seen, x, y = draw_tasks(tasks, shots, 64, generator)
        for name, predict in predictors.items():
            each = (predict(x, seen).reshape_as(y) - y).square().mean(1)
            table[name].append((each.mean().item(), each.std().item() / tasks**0.5))
    return table


def picture(path, table, predictors, seed):
    """Error against shots, and three tasks as each predictor sees them."""
    styles = {"0": ":", "exact kernel": "--"}
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.1), layout="constrained")
    for name, values in table.items():
        mean, error = zip(*values, strict=True)
        axes[0].errorbar(SHOTS, mean, [2 * e for e in error], ls=styles.get(name, "-"), label=name)
    axes[0].set(xlabel="shots", ylabel="mean squared error", xscale="log", yscale="log")
    axes[0].set_xticks(SHOTS, SHOTS)
    axes[0].minorticks_off()
    axes[0].legend(frameon=False, fontsize=8)
    grid = torch.linspace(-2, 2, 200).view(1, -1, 1)
    for axis, shots in zip(axes[1:], (2, 5, 20), strict=True):
        seen, _, _ = draw_tasks(1, shots, 1, torch.Generator().manual_seed(seed + shots))
        for name, predict in predictors.items():
            with torch.no_grad():
                drawn = predict(grid, seen).flatten()
            axis.plot(grid.flatten(), drawn, styles.get(name, "-"))
        axis.plot(seen[0, :, 0], seen[0, :, 1], "ko", ms=4)
        axis.set(title=f"{shots} shots", xlabel="x", ylim=(-3, 3))
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("weightloom-examples"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)

    steps, tasks, tests = (30, 16, 200) if args.smoke else (4_000, 32, 2_000)
    models = build(32 if args.smoke else 96)
    for name, model in models.items():
        size = wl.count_parameters(model)
        print(f"{name}: {size['trainable']:,} learned numbers, primary of {size['primary']:,}")
        learn(model, steps, tasks, torch.Generator().manual_seed(args.seed), name)

    predictors = {
        **models,
        "exact kernel": lambda x, seen: exact(seen, x),
        "0": lambda x, seen: torch.zeros_like(x),
    }
    table = measure(predictors, tests, args.seed)
    print(f"\nMean squared error on {tests:,} new tasks (standard error), by number of shots")
    print(f"{'':13}" + "".join(f"{shots:>17}" for shots in SHOTS))
    for name, values in table.items():
        print(f"{name:13}" + "".join(f"{mean:9.4f} ({error:.4f})" for mean, error in values))
    picture(args.out / "few_shot_regression.png", table, predictors, args.seed)
    print(f"\nwrote {args.out / 'few_shot_regression.png'}")


if __name__ == "__main__":
    main()
