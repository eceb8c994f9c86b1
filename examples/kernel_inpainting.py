"""Half an image to the whole image, by a hypernetwork of infinite width, with uncertainty.

In the limit of infinite width a hypernetwork is a Gaussian process over (condition, point), and
fitting it is one linear system. The condition is the upper half of a digit, the points are all
pixels. There is nothing to train, and every prediction comes with a standard deviation. Is that
deviation calibrated? The share of hidden pixels inside the 50, 80 and 95 percent intervals is
counted three times: with the deviation as it is, rescaled at every pixel on validation images, and
with interval widths from validation images too (conformal). Compared with the mean image, and the
lower half of the nearest neighbour.

    python examples/kernel_inpainting.py [--smoke] [--out DIR] [--data-dir DIR] [--seed N]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from weightloom.data import load_mnist_or_digits
from weightloom.kernels import FourierFeatures, HyperKernel, HyperKernelRegressor, Tower

LEVELS = (0.50, 0.80, 0.95)
GAUSSIAN = (0.674, 1.282, 1.960)  # half-widths of those intervals, in standard deviations


def upper_half(images, side):
    """What f sees, scaled to length sqrt(d): the kernel divides by the number of inputs d."""
    seen = images[:, : side * (side // 2)]
    return seen * seen.shape[1] ** 0.5 / seen.norm(dim=1, keepdim=True).clamp(min=1e-6)


def fit(images, side, scales, ridges):
    """The regressor on every pixel of these images, around their mean; and the mean.

    The prior has mean 0, so the mean image is taken off before and put back after. The length
    scale and the ridge are chosen by marginal likelihood, on up to 100 of the images.
    """
    mean = images.mean(0)
    axis = torch.arange(side, dtype=images.dtype)
    places = torch.cartesian_prod(axis, axis)  # (row, column) of every pixel
    features = FourierFeatures(scale=scales[0], period=float(side))  # a torus: the fastest solver
    kernel = HyperKernel(Tower(depth=3), Tower(depth=2), kind="nngp", features=features)
    model = HyperKernelRegressor(kernel, ridge=ridges[0])
    seen = upper_half(images, side)
    model.tune(
        (seen[:100], places),
        (images - mean)[:100],
        objective="marginal_likelihood",
        search={"kernel__features__scale": scales, "ridge": ridges},
        refine=False,
    )
    model.fit((seen, places), images - mean)
    return model, places, mean


def complete(model, places, mean, images, side):
    """(whole images, standard deviations [n, side^2]) from the upper halves."""
    drawn, deviation = model.predict((upper_half(images, side), places), return_std=True)
    return drawn + mean, deviation


def nearest(train, images, side):
    """For each image the training image whose upper half looks most like its own."""
    seen = side * (side // 2)
    return train[torch.cdist(images[:, :seen], train[:, :seen]).argmin(1)]


def calibrate(error, deviation):
    """From validation errors [n, p]: one factor per pixel, and a half-width for each level.

    The half-widths are quantiles of |error| / deviation; a deviation then holds the share of new
    pixels that it says, whatever their distribution, as long as images are drawn alike.
    """
    factor = (error / deviation).square().mean(0).sqrt().clamp(min=1e-3)
    ratios = (error / (factor * deviation)).abs().flatten()
    return factor, [torch.quantile(ratios, level).item() for level in LEVELS]


def coverage(error, deviation, half_widths):
    """The share of pixels within each interval, and the intervals' mean widths."""
    inside = [(error.abs() <= h * deviation).double().mean().item() for h in half_widths]
    return inside, [2 * h * deviation.mean().item() for h in half_widths]


def picture(path, rows, side, reliability):
    """Digits and their completions, and how many pixels the intervals hold."""
    count = len(next(iter(rows.values())))
    figure = plt.figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2.4, 1))
    for line, (name, images) in zip(left.subplots(len(rows), count), rows.items(), strict=True):
        for axis, image in zip(line, images, strict=True):
            grey = "magma" if name.startswith("deviation") else "gray_r"
            top = 0.5 if grey == "magma" else 1.0
            axis.imshow(image.view(side, side).numpy(), cmap=grey, vmin=0, vmax=top)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    axis = right.subplots()
    axis.plot([0, 1], [0, 1], "k:", lw=1)
    for name, inside in reliability.items():
        axis.plot(LEVELS, inside, "o-", label=name)
    axis.set(xlabel="interval says", ylabel="holds, of hidden pixels", xlim=(0.4, 1), ylim=(0.4, 1))
    axis.legend(frameon=False, fontsize=9, loc="lower right")
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

    count, checks = (60, 40) if args.smoke else (600, 200)
    data = load_mnist_or_digits(args.data_dir, train=10_000, test=300)
    side = data.side
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(args.seed))
    images = data.train[order].double()
    train, validation = images[:count], images[count : count + checks]
    test, labels = data.test[:checks].double(), data.test_labels[:checks].tolist()
    print(
        f"{data.source}\n{count} images to learn from, {checks} to calibrate on, {checks} to test"
    )

    scales = (0.5,) if args.smoke else (0.35, 0.5, 0.7)
    model, places, mean = fit(train, side, scales, (1e-3,) if args.smoke else (1e-3, 1e-2))
    print(model.report_)
    drawn, deviation = complete(model, places, mean, test, side)
    hidden = torch.arange(side**2) >= side * (side // 2)

    print("\nMean squared error on test images")
    print(f"{'':20} {'hidden half':>12} {'whole image':>12}")
    guesses = {
        "kernel": drawn,
        "nearest neighbour": nearest(train, test, side),
        "mean image": mean.expand_as(test),
    }
    for name, guess in guesses.items():
        squared = (guess - test).square()
        print(f"{name:20} {squared[:, hidden].mean():12.4f} {squared.mean():12.4f}")

    known, spread = complete(model, places, mean, validation, side)
    factor, widths = calibrate((known - validation)[:, hidden], spread[:, hidden])
    error, raw = (drawn - test)[:, hidden], deviation[:, hidden]
    rows = {
        "as it is": coverage(error, raw, GAUSSIAN),
        "scaled per pixel": coverage(error, factor * raw, GAUSSIAN),
        "conformal": coverage(error, factor * raw, widths),
    }
    print("\nHidden pixels inside the intervals (mean width of the interval)")
    print(f"{'':20}" + "".join(f"{level:>16.0%}" for level in LEVELS))
    for name, (inside, wide) in rows.items():
        pairs = zip(inside, wide, strict=True)
        print(f"{name:20}" + "".join(f"{share:8.1%} ({width:.3f})" for share, width in pairs))

    first = [labels.index(digit) for digit in sorted(set(labels))]  # of each digit, unchosen
    scaled = torch.zeros_like(drawn)
    scaled[:, hidden] = factor * raw
    picture(
        args.out / "kernel_inpainting.png",
        {
            "seen": (test * ~hidden)[first],
            "kernel": drawn[first],
            "deviation, scaled": scaled[first],
            "truth": test[first],
            "nearest": guesses["nearest neighbour"][first],
        },
        side,
        {name: inside for name, (inside, _) in rows.items()},
    )
    print(f"\nwrote {args.out / 'kernel_inpainting.png'}")


if __name__ == "__main__":
    main()
