"""One network for every strength of regularisation: the condition is a hyperparameter.

f reads log10 of the strength s and writes the network that minimises

    mean squared error on the training rows + s |weights|^2

so one training run gives the whole path of solutions, at every s, also between those seen in
training. First for a linear network, where ridge regression gives every solution in closed form;
then for a network with a hidden layer, compared with networks trained one by one. The data are the
442 patients of scikit-learn's diabetes set; s is chosen on validation rows and tested on test rows.

    python examples/hyperparameter_conditioned.py [--smoke] [--out DIR] [--seed N]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from tqdm import tqdm

import weightloom as wl

LOW, HIGH = -3.0, 1.0  # log10 of the strength


def load(seed, squares):
    """Train, validation and test rows: standardised (features, disease a year later).

    ``squares`` adds all products of two features: 65 of them, enough to overfit 100 rows.
    """
    raw = load_diabetes(return_X_y=True)
    x, y = (torch.as_tensor(array, dtype=torch.float32) for array in raw)
    if squares:
        x = x / x.std(0)
        i, j = torch.triu_indices(x.shape[1], x.shape[1])
        x = torch.cat([x, x[:, i] * x[:, j]], dim=1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = order[:100], order[100:271], order[271:]
    x = (x - x[parts[0]].mean(0)) / x[parts[0]].std(0)
    y = (y - y[parts[0]].mean()) / y[parts[0]].std()
    return [(x[rows], y[rows]) for rows in parts]


def conditions(exponents):
    """What f sees: exponents [k] scaled to numbers of order 1, [k, 1]."""
    return (exponents - (LOW + HIGH) / 2)[:, None]


def penalised(output, y, weights, strength):
    """The loss of each condition: outputs [b, n, 1], weights {name: [b, ...]}, strength [b]."""
    fit = (output.squeeze(-1) - y).square().mean(-1)
    return fit + strength * sum(w.square().flatten(1).sum(1) for w in weights.values())


def learn_path(primary, x, y, steps, name):
    """A hypernetwork from log10 strength to the network that is best at that strength."""
    hyper = wl.HyperNetwork(
        primary,
        encoder=wl.mlp([1, 64, 64], activation="silu", last_activation=True),
        calibration=conditions(torch.linspace(LOW, HIGH, 200)),
    )
    optimiser = torch.optim.Adam(hyper.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=steps)
    for _ in tqdm(range(steps), desc=name, unit="step", mininterval=0.5):
        exponents = LOW + (HIGH - LOW) * torch.rand(16)
        weights = hyper.weights(
            conditions(exponents)
        )  # {name: [16, ...]}: written once, used twice
        output = hyper.run(x.expand(16, -1, -1), weights)
        loss = penalised(output, y, weights, 10**exponents).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return hyper


def learn_one(network, x, y, strength, steps):
    """The ordinary way: one network, trained for one strength."""
    optimiser = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=steps)
    for _ in range(steps):
        size = sum(p.square().sum() for p in network.parameters())
        loss = (network(x).squeeze(-1) - y).square().mean() + strength * size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return network


def ridge(x, y, strength):
    """The minimiser for a linear network without bias, in closed form: [d]."""
    x, y = x.double(), y.double()
    gram = x.T @ x / len(x) + strength * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.T @ y / len(x)).float()


@torch.no_grad()
def curve(hyper, x, y, exponents):
    """Mean squared error on these rows, at every strength: [k]."""
    output = hyper(x.expand(len(exponents), -1, -1), conditions(exponents))
    return (output.squeeze(-1) - y).square().mean(-1)


@torch.no_grad()
def mse(network, x, y):
    return (network(x).squeeze(-1) - y).square().mean().item()


def linear_path(seed, steps, exponents):
    """The path of a linear network against the closed form: two validation curves, and the gap."""
    (x, y), (vx, vy), _ = load(seed, squares=True)
    hyper = learn_path(torch.nn.Linear(x.shape[1], 1, bias=False), x, y, steps, "linear")
    truth = torch.stack([ridge(x, y, 10**e) for e in exponents.tolist()])
    with torch.no_grad():
        learned = hyper.weights(conditions(exponents))["weight"].squeeze(1)
    gap = ((learned - truth).square().sum(1) / truth.square().sum(1)).sqrt()
    return curve(hyper, vx, vy, exponents), (vx @ truth.T - vy[:, None]).square().mean(0), gap


def picture(path, exponents, linear, mlp_curve, best, alone):
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    axes[0].plot(exponents, linear[1], "k--", label="closed form, one solve each")
    axes[0].plot(exponents, linear[0], label="one hypernetwork")
    axes[0].set(title="linear, 65 features", ylabel="validation error")
    axes[1].plot(exponents, mlp_curve, label="one hypernetwork")
    axes[1].plot(list(alone), list(alone.values()), "ko", label="trained one by one")
    axes[1].axvline(best, color="C0", lw=0.8, ls=":", label="chosen")
    axes[1].set(title="10 features, 32 hidden neurons")
    for axis in axes:
        axis.axhline(1.0, color="0.6", lw=0.8)
        axis.set(xlabel="log10 of the strength")
        axis.legend(frameon=False, fontsize=8)
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
    steps, steps_alone = (150, 100) if args.smoke else (6_000, 1_000)
    exponents = torch.linspace(LOW, HIGH, 101)

    linear = linear_path(args.seed, steps, exponents)
    print(
        "Linear network, 65 features, 100 training rows: validation error (predicting 0: about 1)"
    )
    print(f"{'log10 strength':>14} {'hypernetwork':>13} {'closed form':>12} {'weights off by':>15}")
    for i in range(0, 101, 25):
        values = " ".join(f"{v[i]:{w}.4f}" for v, w in zip(linear[:2], (13, 12), strict=True))
        print(f"{exponents[i]:14.1f} {values} {linear[2][i]:15.1%}")

    (x, y), (vx, vy), (tx, ty) = load(args.seed, squares=False)
    started = time.process_time()
    hyper = learn_path(wl.mlp([10, 32, 1], activation="tanh"), x, y, steps // 2, "hidden layer")
    seconds = time.process_time() - started
    along = curve(hyper, vx, vy, exponents)
    best = exponents[along.argmin()]
    chosen = hyper.materialize(conditions(best[None])[0])  # an ordinary nn.Sequential

    print("\nNetwork 10-32-1: one hypernetwork against networks trained one by one")
    print(f"{'log10 strength':>14} {'hypernetwork':>13} {'one by one':>11} {'CPU s':>8}")
    alone, networks, total = {}, {}, 0.0
    for exponent in range(int(LOW), int(HIGH) + 1):
        started = time.process_time()
        network = learn_one(wl.mlp([10, 32, 1], activation="tanh"), x, y, 10**exponent, steps_alone)
        took = time.process_time() - started
        alone[exponent], networks[exponent] = mse(network, vx, vy), network
        total += took
        here = curve(hyper, vx, vy, torch.tensor([float(exponent)])).item()
        print(f"{exponent:14.1f} {here:13.4f} {alone[exponent]:11.4f} {took:8.1f}")
    print(f"{'in all':>14} {f'{seconds:.1f} CPU s':>13} {f'{total:.1f} CPU s':>11}")
    grid = min(alone, key=alone.get)
    print(
        f"\ntest error: {mse(chosen, tx, ty):.4f} at 10^{best:.2f}, found on the path; "
        f"{mse(networks[grid], tx, ty):.4f} at 10^{grid}, the best of {len(alone)}; "
        f"{ty.square().mean():.4f} by predicting the mean"
    )
    path = args.out / "hyperparameter_conditioned.png"
    picture(path, exponents, linear, along, best, alone)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
