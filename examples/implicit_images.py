"""An image as a network: a hypernetwork reads a small image and writes a function of the plane.

f reads a digit at half its resolution and writes the weights of a coordinate network g, which maps
a point (x, y) of the picture to its brightness. g can be evaluated at any resolution: here at the
full one, which f has not seen. Compared with rivals of equal primary size that have one g for all
images (a FiLM network, which scales and shifts its features for each image, and an embedding
network, which sees an embedding of the image beside the point), bicubic enlargement, and the mean
image. All errors are on held-out images.

    python examples/implicit_images.py [--smoke] [--out DIR] [--data-dir DIR] [--seed N]
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl
from weightloom.data import load_mnist_or_digits, pixel_centres
from weightloom.training import Member, Settings, Split, train


def network(waves, hidden):
    """A point in [-1, 1]^2 -> brightness in (0, 1), by random waves and a small MLP."""
    scale = (
        waves / 13 if waves > 8 else 1.0
    )  # periods for each unit of length; more for more pixels
    generator = torch.Generator().manual_seed(0)  # the same waves for every width
    layers = wl.coordinate_network(
        2,
        1,
        hidden,
        depth=3,
        frequencies=waves,
        scale=scale,
        activation="silu",
        generator=generator,
    )
    return nn.Sequential(*layers, nn.Sigmoid())


class Beside(nn.Module):
    """The same with a code of the image beside the waves of the point: what the rival has."""

    def __init__(self, waves, hidden, code):
        super().__init__()
        self.waves = network(waves, hidden)[0]
        self.layers = wl.mlp([2 * waves + code, hidden, hidden, 1], activation="silu")

    def forward(self, joined):
        points, code = joined[..., :2], joined[..., 2:]
        return self.layers(torch.cat([self.waves(points), code], dim=-1)).sigmoid()


def nearest(make, goal, widths):
    """The width that brings the primary of a model nearest to ``goal`` parameters."""
    return min(widths, key=lambda w: abs(wl.count_parameters(make(w))["primary"] - goal))


def build(pixels, waves, hidden, width, code=32):
    """The hypernetwork, and rivals with as large a primary."""
    hyper = wl.HyperNetwork(
        primary=network(waves, hidden),
        encoder=wl.mlp([pixels, width, width], activation="silu", last_activation=True),
    )

    def film(hidden):
        encoder = wl.mlp([pixels, 3 * width, 3 * width], activation="silu", last_activation=True)
        return wl.FiLMNetwork(network(waves, hidden), encoder)

    goal, widths = hyper.spec.size, range(hidden // 2, 2 * hidden)
    rival = wl.EmbeddingNetwork(
        predictor=Beside(waves, nearest(lambda w: Beside(waves, w, code), goal, widths), code),
        encoder=wl.mlp([pixels, 3 * width, 3 * width, code], activation="silu"),
    )
    return {
        "hypernetwork": hyper,
        "FiLM network": film(nearest(film, goal, widths)),
        "embedding network": rival,
    }


def halved(images, side):
    """Images [n, side^2] at half the resolution, each new pixel the mean of four."""
    return F.avg_pool2d(images.view(-1, 1, side, side), 2).flatten(1)


def some_pixels(inputs, target, generator, count, side):
    """What a training step sees: ``count`` random pixels of every image, not all of them."""
    (small,) = inputs
    chosen = torch.randint(side**2, (len(small), count), generator=generator)
    return (pixel_centres(side)[chosen], small), target.gather(1, chosen)


@torch.no_grad()
def draw(model, small, side):
    """The functions of these conditions [b, p], at side x side points: [b, side^2]."""
    return model(pixel_centres(side).expand(len(small), -1, -1), small).squeeze(-1)


def errors(drawn, images, side):
    """Mean squared errors: at the full resolution, and of the small image that f has read."""
    coarse = (halved(drawn, side) - halved(images, side)).square().mean().item()
    return (drawn - images).square().mean().item(), coarse


@torch.no_grad()
def between(hyper, first, last, side, frames):
    """Networks on the straight line between two generated ones, at side x side points."""
    ends = hyper.weights(torch.stack([first, last]))
    shares = torch.linspace(0, 1, frames)
    weights = {
        name: torch.stack([torch.lerp(w[0], w[1], share) for share in shares])
        for name, w in ends.items()
    }
    points = pixel_centres(side).expand(frames, -1, -1)
    return hyper.run(points, weights).squeeze(-1)


def picture(path, rows):
    """Rows of square images, each row with its name on the left."""
    count = max(len(images) for images in rows.values())
    figure, axes = plt.subplots(len(rows), count, figsize=(0.75 * count + 1.6, 0.75 * len(rows)))
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.axis("off")
        for axis, image in zip(line, images, strict=False):
            side = math.isqrt(len(image))
            axis.imshow(image.view(side, side).numpy(), cmap="gray_r", vmin=0, vmax=1)
        line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
    figure.subplots_adjust(left=1.75 / figure.get_figwidth(), right=1, top=1, bottom=0)
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

    counts = (500, 100) if args.smoke else (20_000, 1_000)
    data = load_mnist_or_digits(args.data_dir, train=counts[0], test=counts[1])
    side = data.side
    small, small_test = halved(data.train, side), halved(data.test, side)
    print(f"{data.source}\n{len(small):,} images to learn from, {len(small_test)} held out")

    large = side == 28
    sizes = (20, 32) if large else (8, 16)  # waves, hidden neurons
    models = build(small.shape[1], *sizes, 64 if args.smoke else 256)
    settings = Settings(
        epochs=20 if args.smoke else 12,  # with few images an epoch is short
        batch_size=50,
        optimiser="adam",
        learning_rate=3e-3,
        schedule="cosine",
    )

    def augment(inputs, target, generator):
        return some_pixels(inputs, target, generator, 128 if large else 64, side)

    table = {}
    for name, model in models.items():
        member = Member(model, Split((small,), data.train), seed=args.seed, augment=augment)
        train([member], settings, progress=name)
        size = wl.count_parameters(model)
        measured = errors(draw(model, small_test, side), data.test, side)
        table[name] = (*measured, size["primary"], size["trainable"])
    enlarged = F.interpolate(
        small_test.view(-1, 1, side // 2, side // 2), scale_factor=2, mode="bicubic"
    )
    bicubic = enlarged.flatten(1).clamp(0, 1)
    table["bicubic"] = (*errors(bicubic, data.test, side), 0, 0)
    mean = data.train.mean(0).expand_as(data.test)
    table["mean image"] = (*errors(mean, data.test, side), 0, 0)

    print(f"\nMean squared error on held-out images, read at {side // 2} x {side // 2}")
    print(
        f"{'':18} {f'{side} x {side}':>9} {f'{side // 2} x {side // 2}':>9} {'primary':>9} "
        f"{'learned':>9}"
    )
    for name, (fine, coarse, primary, learned) in table.items():
        print(f"{name:18} {fine:9.5f} {coarse:9.5f} {primary:9,} {learned:9,}")

    hyper = models["hypernetwork"]
    print("\nWhat the hypernetwork writes now, layer by layer")
    print(wl.diagnose(hyper, pixel_centres(side).expand(50, -1, -1), small_test[:50]))
    labels = data.test_labels.tolist()
    rows = [labels.index(digit) for digit in sorted(set(labels))]  # the first of each, not selected
    fine = 4 * side
    picture(
        args.out / "implicit_images.png",
        {
            f"read ({side // 2} x {side // 2})": small_test[rows],
            f"truth ({side} x {side})": data.test[rows],
            f"hyper at {side}": draw(hyper, small_test[rows], side),
            f"FiLM at {side}": draw(models["FiLM network"], small_test[rows], side),
            f"embedding at {side}": draw(models["embedding network"], small_test[rows], side),
            f"bicubic at {side}": bicubic[rows],
            f"hyper at {fine}": draw(hyper, small_test[rows], fine),
            "between weights": between(hyper, *small_test[rows[:2]], fine, len(rows)),
        },
    )
    network = hyper.materialize(small_test[rows[3]])  # an ordinary nn.Sequential
    wl.export(network, args.out / "digit.safetensors")
    print(
        f"\nwrote {args.out / 'implicit_images.png'} and one generated network, digit.safetensors"
    )


if __name__ == "__main__":
    main()
