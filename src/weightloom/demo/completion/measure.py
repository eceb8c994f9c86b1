"""How well digits are completed: the kernel and the hypernetwork on held-out digits.

python -m weightloom.demo.completion.measure [DIGITS] prints the table of docs/page.md.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from weightloom.demo.completion import kernel, network
from weightloom.demo.completion.kernel import PARTS, SIDE, digits, seen_pixels
from weightloom.errors import ConfigError

__all__ = ["Completed", "measure", "table"]

EPOCHS = 60  # what the page trains for


@dataclass(frozen=True)
class Completed:
    """Squared errors at the hidden pixels (for "all": at all pixels), over their variance."""

    part: str
    kernel: list[float]  # for each digit
    network: list[float]
    within: tuple[float, float]
    """share of pixels within one and two of the kernel's standard deviations, noise included"""


def measure(path: Path, count: int, part: str) -> Completed:
    """Complete the first ``count`` held-out digits; ``path`` is the trained network's file."""
    available = len(digits().held_out)
    if not 2 <= count <= available:
        raise ConfigError(f"{count} digits were asked for; choose 2 to {available}")
    images = digits().held_out[:count]
    mask = seen_pixels(part)
    compared = ~mask.bool() if part != "all" else mask.bool()
    variance = images[:, compared].var(correction=0).item()
    by_kernel, by_network, scores = [], [], []
    for image in images:
        seen = image * mask
        mean, deviation = kernel.complete(seen, part, SIDE)
        drawn = network.draw(path, seen, mask, SIDE)
        kernel_error, network_error = (mean - image)[compared], (drawn - image)[compared]
        by_kernel.append(kernel_error.square().mean().item() / variance)
        by_network.append(network_error.square().mean().item() / variance)
        scores.append(kernel_error.abs() / (deviation[compared].square() + kernel.RIDGE).sqrt())
    score = torch.cat(scores)
    within_one, within_two = ((score <= bound).double().mean().item() for bound in (1, 2))
    return Completed(part, by_kernel, by_network, (within_one, within_two))


def table(rows: list[Completed]) -> str:
    """As Markdown: means over digits with 95 percent intervals; differences are paired."""
    lines = [
        "| seen | kernel | hypernetwork | kernel - hypernetwork | within one | within two |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        part = row.part if row.part == "all" else f"{row.part} half"
        difference = [k - n for k, n in zip(row.kernel, row.network, strict=True)]
        cells = [_mean(row.kernel), _mean(row.network), _mean(difference, "+")]
        cells += [f"{share:.2f}" for share in row.within]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: list[float], sign: str = "") -> str:
    """Mean and half of Student's 95 percent interval, of at least two values."""
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    margin = stats.t.ppf(0.975, len(values) - 1) * error
    return f"{statistics.fmean(values):{sign}.3f} ± {margin:.3f}"


def main(count: int) -> None:
    """Train the network in a temporary folder and print the table of ``count`` digits."""
    from tqdm import tqdm

    with tempfile.TemporaryDirectory(prefix="weightloom-completion-") as folder:
        path = Path(folder) / "network.safetensors"
        with tqdm(total=EPOCHS, desc="training", leave=False) as bar:
            network.prepare(path, EPOCHS, lambda _: bar.update())
        parts = tqdm([*PARTS[1:], PARTS[0]], desc="completing", leave=False)
        rows = [measure(path, count, part) for part in parts]
    print(table(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else len(digits().held_out))
