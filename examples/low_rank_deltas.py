"""Low-rank changes of a pretrained network, written for each condition.

A classifier trained on upright digits reads rotated digits badly. The condition is the angle. A
hypernetwork with a delta head writes, for every angle, a change of rank 8 to each layer of the
pretrained network, which is frozen. At the start the change is exactly zero. The usual method is
to fine-tune a copy of all weights for every angle. Both see the same few labelled images at the
same eight angles; only the hypernetwork can be used at angles in between.

    python examples/low_rank_deltas.py [--smoke] [--out DIR] [--data-dir DIR] [--seed N]
"""

import argparse
import copy
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import weightloom as wl
from weightloom.data import load_mnist_or_digits, rotate
from weightloom.training import Member, Settings, Split, train


def conditions(degrees):
    """What f sees of angles [b]: cosine and sine, so that 360 equals 0, [b, 2]."""
    radians = torch.deg2rad(degrees)
    return math.sqrt(2) * torch.stack([radians.cos(), radians.sin()], dim=1)


def turned(images, labels, degrees, count, generator):
    """``count`` random images rotated by one angle, with their labels."""
    rows = torch.randperm(len(images), generator=generator)[:count]
    return rotate(images[rows], torch.full((len(rows),), float(degrees))), labels[rows]


def pretrain(data, hidden, epochs, seed):
    """An ordinary classifier of upright digits."""
    network = wl.mlp([data.side**2, hidden, hidden, 10])
    settings = Settings(
        epochs=epochs,
        batch_size=64,
        objective="cross_entropy",
        optimiser="adam",
        learning_rate=2e-3,
        schedule="cosine",
    )
    member = Member(network, Split((data.train,), data.train_labels), seed=seed)
    train([member], settings, progress="pretraining")
    return network


def adapter(network, rank):
    """Angles -> the pretrained network plus a change of this rank, zero at the start."""
    return wl.HyperNetwork(
        primary=network,
        encoder=wl.mlp([2, 32, 16], activation="silu", last_activation=True),
        head=wl.DeltaHead(rank=rank),
    )


def largest_change(hyper, network, degrees):
    """The largest change of any weight between the pretrained network and that of this angle."""
    written = hyper.materialize(conditions(torch.tensor([float(degrees)]))[0]).state_dict()
    given = network.state_dict()
    return max((written[name] - given[name]).abs().max().item() for name in given)


def fine_tuned(network, tasks, epochs, seed):
    """A copy of all weights for every angle, each trained on its own images; all at once."""
    settings = Settings(
        epochs=epochs,
        batch_size=32,
        objective="cross_entropy",
        optimiser="adam",
        learning_rate=1e-3,
        schedule="cosine",
    )
    copies = [copy.deepcopy(network) for _ in tasks]
    members = [
        Member(model, Split((images,), labels), seed=seed)
        for model, (images, labels) in zip(copies, tasks.values(), strict=True)
    ]
    train(members, settings, progress="fine-tuning copies")
    return dict(zip(tasks, copies, strict=True))


def adapt(hyper, tasks, epochs, seed):
    """One hypernetwork for all angles: every row is an image with the angle of its rotation."""
    settings = Settings(
        epochs=epochs,
        batch_size=64,
        objective="cross_entropy",
        optimiser="adam",
        learning_rate=3e-3,
        schedule="cosine",
    )
    images = torch.cat([images for images, _ in tasks.values()])
    labels = torch.cat([labels for _, labels in tasks.values()])
    degrees = torch.cat([torch.full((len(y),), float(a)) for a, (_, y) in tasks.items()])
    member = Member(hyper, Split((images, conditions(degrees)), labels), seed=seed)
    train([member], settings, progress="low-rank deltas")
    return hyper


@torch.no_grad()
def accuracy(network, images, labels):
    return (network(images).argmax(1) == labels).float().mean().item()


def picture(path, angles, curves, seen):
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, values in curves.items():
        style = "o" if len(values) == len(seen) else "-"
        axis.plot(seen if style == "o" else angles, values, style, label=name)
    for angle in seen:
        axis.axvline(angle, color="0.85", lw=0.8, zorder=0)
    axis.axhline(0.1, color="0.6", lw=0.8, ls=":")
    axis.set(xlabel="degrees turned (lines: angles trained at)", ylabel="accuracy", ylim=(0, 1))
    axis.set_xticks(range(0, 361, 45))
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
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
    generator = torch.Generator().manual_seed(args.seed)

    counts = (1_000, 200) if args.smoke else (10_000, 1_000)
    data = load_mnist_or_digits(args.data_dir, train=counts[0], test=counts[1])
    per_angle, epochs = (50, 15) if args.smoke else (200, 30)
    seen = list(range(0, 360, 45))
    tasks = {a: turned(data.train, data.train_labels, a, per_angle, generator) for a in seen}
    angles = list(range(0, 361, 45 if args.smoke else 15))
    tests = {a: rotate(data.test, torch.full((len(data.test),), float(a))) for a in angles}
    print(f"{data.source}\n{per_angle} labelled images at each of {len(seen)} angles")

    network = pretrain(data, 32 if args.smoke else 128, 15 if args.smoke else 5, args.seed)
    hyper = adapter(network, rank=8)
    print(f"\nbefore training, largest change of any weight: {largest_change(hyper, network, 45)}")
    copies = fine_tuned(network, tasks, epochs, args.seed)
    adapt(hyper, tasks, epochs, args.seed)

    curves = {
        "low-rank deltas, one hypernetwork": [
            accuracy(hyper.materialize(c), tests[a], data.test_labels)
            for a, c in zip(angles, conditions(torch.tensor(angles).float()), strict=True)
        ],
        "a fine-tuned copy per angle": [
            accuracy(copies[a], tests[a], data.test_labels) for a in seen
        ],
        "pretrained": [accuracy(network, tests[a], data.test_labels) for a in angles],
    }
    here = [i for i, a in enumerate(angles[:-1]) if a in seen]
    between = [i for i, a in enumerate(angles[:-1]) if a not in seen]
    size = sum(p.numel() for p in network.parameters())
    learned = {
        "low-rank deltas, one hypernetwork": wl.count_parameters(hyper)["trainable"],
        "a fine-tuned copy per angle": size * len(seen),
        "pretrained": 0,
    }
    print(
        f"\n{'mean accuracy (chance 10%)':34} {'trained angles':>14} {'between':>8} {'learned':>9}"
    )
    for name, values in curves.items():
        everywhere = len(values) == len(angles)
        at = [values[i] for i in here] if everywhere else values
        off = [values[i] for i in between] if everywhere else []
        other = f"{sum(off) / len(off):8.1%}" if off else f"{'-':>8}"
        print(f"{name:34} {sum(at) / len(at):14.1%} {other} {learned[name]:9,}")
    picture(args.out / "low_rank_deltas.png", angles, curves, seen)
    print(f"\nwrote {args.out / 'low_rank_deltas.png'}")


if __name__ == "__main__":
    main()
