"""How well digits are completed: the kernel and the hypernetwork on digits that neither has seen.

python -m weightloom.experiments.completion.measure [DIGITS] prints the table of docs/page.md.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from weightloom.errors import ConfigError
from weightloom.experiments.completion import kernel, network
from weightloom.experiments.completion.digits import PARTS, SIDE, digits, seen_pixels
from weightloom.lab.intervals import mean_of

__all__ = ["Completed", "measure", "table"]

EPOCHS = 60  # what the page trains for


@dataclass(frozen=True)
class Completed:
    """Squared errors where nothing is seen (for "all": anywhere), over the variance there."""

    part: str
    kernel: list[float]  # for each digit
    network: list[float]
    within: tuple[float, float]
    """share of pixels within one and two of the kernel's standard deviations, noise included"""


def measure(path: Path, count: int, part: str) -> Completed:
    """The first ``count`` held-out digits, seen in a part; ``path`` has the trained network."""
    there = len(digits().held_out)
    if not 2 <= count <= there:
        raise ConfigError(f"{count} digits were asked for; 2 to {there} can be had")
    images = digits().held_out[:count]
    mask = seen_pixels(part)
    asked = ~mask.bool() if part != "all" else mask.bool()
    variance = images[:, asked].var(correction=0).item()
    by_kernel, by_network, scores = [], [], []
    for image in images:
        seen = image * mask
        mean, deviation = kernel.complete(seen, part, SIDE)
        drawn = network.draw(path, seen, mask, SIDE)
        off, other = (mean - image)[asked], (drawn - image)[asked]
        by_kernel.append(off.square().mean().item() / variance)
        by_network.append(other.square().mean().item() / variance)
        scores.append(off.abs() / (deviation[asked].square() + kernel.RIDGE).sqrt())
    score = torch.cat(scores)
    one, two = ((score <= bound).double().mean().item() for bound in (1, 2))
    return Completed(part, by_kernel, by_network, (one, two))


def table(rows: list[Completed]) -> str:
    """As Markdown; means over digits with 95 percent intervals, the difference digit by digit."""
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
    mean = mean_of(values)
    return "-" if mean is None else f"{mean.value:{sign}.3f} ± {mean.margin:.3f}"


def main(count: int) -> None:
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
