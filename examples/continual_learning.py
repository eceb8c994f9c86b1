"""Learning one task after another without forgetting: task ids, chunked heads, one penalty.

Task t is handwritten digits with a permutation of the pixels of its own. A hypernetwork reads the
task id and writes, in chunks, the weights of the classifier for it. Tasks come one after the other,
and images of old tasks are never seen again. Instead, before a new task begins, the weights
generated for the old tasks are stored, and a penalty keeps them where they are:

    cross entropy of task t + beta / (t - 1) sum over old tasks s of |f(s) - weights stored for s|^2

("Continual learning with hypernetworks", von Oswald and others, 2020; without their look-ahead).
Compared with the same hypernetwork with beta = 0, and with one classifier that is fine-tuned.

    python examples/continual_learning.py [--smoke] [--out DIR] [--data-dir DIR] [--seed N]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import weightloom as wl
from weightloom.data import load_mnist_or_digits


class Tasks:
    """The same images for every task, with the pixels of task t in the order ``orders[t]``."""

    def __init__(self, data, count, seed):
        generator = torch.Generator().manual_seed(seed)
        pixels = data.train.shape[1]
        self.orders = [torch.randperm(pixels, generator=generator) for _ in range(count)]
        mean, deviation = data.train.mean(), data.train.std()
        self.train, self.train_labels = (data.train - mean) / deviation, data.train_labels
        self.test, self.test_labels = (data.test - mean) / deviation, data.test_labels

    def batch(self, task, size, generator):
        rows = torch.randint(len(self.train), (size,), generator=generator)
        return self.train[rows][:, self.orders[task]], self.train_labels[rows]

    @torch.no_grad()
    def accuracy(self, predict, task):
        guess = predict(self.test[:, self.orders[task]], task).argmax(1)
        return (guess == self.test_labels).float().mean().item()


class TaskHypernetwork:
    """Task ids -> classifiers, learned in sequence; ``beta`` weighs the penalty on old tasks."""

    def __init__(self, sizes, tasks, beta, chunk):
        encoder = nn.Embedding(tasks, 32)
        head = wl.ChunkedHead(size=chunk, embedding=32, hidden=64)
        self.hyper = wl.HyperNetwork(wl.mlp(sizes), encoder, head)
        self.beta = beta
        self.stored = {}  # name -> [tasks so far, ...]: what must not change

    def parameters(self):
        return self.hyper.parameters()

    def predict(self, x, task):
        return self.hyper(x, torch.tensor(task))  # one condition, many images

    def begin(self, task):
        with torch.no_grad():
            self.stored = self.hyper.weights(torch.arange(task)) if task else {}

    def penalty(self, task):
        if not task or not self.beta:
            return 0.0
        now = self.hyper.weights(torch.arange(task))
        moved = sum((now[name] - old).square().sum() for name, old in self.stored.items())
        return self.beta / task * moved


class OneClassifier:
    """No hypernetwork: one classifier for all tasks, fine-tuned on each in turn."""

    def __init__(self, sizes):
        self.network = wl.mlp(sizes)

    def parameters(self):
        return self.network.parameters()

    def predict(self, x, task):
        return self.network(x)

    def begin(self, task):
        pass

    def penalty(self, task):
        return 0.0


def learn_in_sequence(model, tasks, steps, rate, seed, name):
    """matrix[t][s]: accuracy on task s after learning task t."""
    generator = torch.Generator().manual_seed(seed)
    count = len(tasks.orders)
    matrix = torch.full((count, count), float("nan"))
    with tqdm(total=count * steps, desc=name, unit="step", mininterval=0.5) as bar:
        for task in range(count):
            model.begin(task)
            optimiser = torch.optim.Adam(model.parameters(), lr=rate)
            for _ in range(steps):
                x, labels = tasks.batch(task, 64, generator)
                loss = F.cross_entropy(model.predict(x, task), labels) + model.penalty(task)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                bar.update()
            for old in range(task + 1):
                matrix[task, old] = tasks.accuracy(model.predict, old)
    return matrix


def summary(matrix):
    """Mean accuracy right after learning, mean accuracy at the end, and the difference."""
    fresh, last = matrix.diagonal().mean().item(), matrix[-1].mean().item()
    return fresh, last, fresh - last


def picture(path, matrices):
    figure, axes = plt.subplots(1, len(matrices), figsize=(3.9 * len(matrices), 3.6))
    for axis, (name, matrix) in zip(axes, matrices.items(), strict=True):
        axis.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="viridis")
        for (after, task), value in zip(
            [divmod(i, len(matrix)) for i in range(matrix.numel())], matrix.flatten(), strict=True
        ):
            if task <= after:
                colour = "white" if value < 0.6 else "black"
                axis.text(task, after, f"{value:.0%}", ha="center", va="center", color=colour)
        ticks = range(len(matrix))
        axis.set_xticks(ticks, [t + 1 for t in ticks])
        axis.set_yticks(ticks, [t + 1 for t in ticks])
        axis.set(title=name, xlabel="accuracy on task", ylabel="after learning task")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("weightloom-examples"))
    parser.add_argument("--data-dir", type=Path, help="the folder that holds MNIST/raw")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)

    data = load_mnist_or_digits(args.data_dir, train=10_000, test=300 if args.smoke else 2_000)
    count, steps = (3, 60) if args.smoke else (5, 1_000)
    tasks = Tasks(data, count, args.seed)
    sizes = [data.side**2, 64, 10]
    chunk = 1024 if data.side == 28 else 256
    models = {
        "hypernetwork, held": TaskHypernetwork(sizes, count, 0.1, chunk),
        "hypernetwork, not held": TaskHypernetwork(sizes, count, 0.0, chunk),
        "one classifier": OneClassifier(sizes),
    }
    hyper = models["hypernetwork, held"].hyper
    learned = wl.count_parameters(hyper)["trainable"]
    print(f"{data.source}\n{count} tasks, each a new order of the pixels; chance is 10%")
    print(
        f"the hypernetwork learns {learned:,} numbers and writes {hyper.spec.size:,} for each task"
    )

    matrices = {
        name: learn_in_sequence(model, tasks, steps, 1e-3, args.seed, name)
        for name, model in models.items()
    }
    print(f"\n{'accuracy over tasks':24} {'just learned':>13} {'at the end':>11} {'forgotten':>10}")
    for name, matrix in matrices.items():
        fresh, last, lost = summary(matrix)
        print(f"{name:24} {fresh:13.1%} {last:11.1%} {lost:10.1%}")
    picture(args.out / "continual_learning.png", matrices)
    print(f"\nwrote {args.out / 'continual_learning.png'}")


if __name__ == "__main__":
    main()
