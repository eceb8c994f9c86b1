"""The Gram matrix of a hyperkernel: who takes part, one process for each, and the comparison.

Every contender gets the points as a user has them: an image for each point [N, 784], and
coordinates [N, 2]; all but weightloom get the features of the coordinates [N, 256] ready made, and
those written by hand know which points share an image. Each runs in a process of its own
(worker.py), so that its peak memory can be read: one untimed call, for compilers and because
virtual machines may hand out memory slowly the first time, then the timed ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from timing import Times, median_ratio
from tqdm import tqdm
from workers import run_module

from hyperkernel.measure import ROWS
from weightloom.kernels import FourierFeatures

__all__ = ["CONTENDERS", "gram", "images_of"]

OURS = "weightloom"
PEER = "neural-tangents"
SPEEDUP, MEMORY, DIGITS = 30, 1 / 5, 15
"""bars: times as fast as the peer, share of its memory, correct digits"""

CONTENDERS = {
    OURS: "kernel(x, z)",
    "weightloom, no numba": "the same where numba is missing",
    "plain torch": "by hand: once per image, then blocks of rows",
    "plain numpy": "by hand: once per image, then blocks of rows",
    PEER: "stax on all points, Relu on S * Q0, times Theta_f",
    "neural-tangents, jit": "the same inside one jax.jit",
    "neural-tangents, by image": "stax once per image, by hand, and jit",
}


@dataclass(frozen=True)
class Result:
    """What one process reported."""

    seconds: float  # median of its timed calls
    cpu: float  # of the same call, all threads
    peak: int  # bytes, largest resident set of the process
    fill: float  # seconds to write as many numbers with as many threads, nothing else
    sample: np.ndarray  # [rows, N], some rows of the matrix


def gram(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns all numbers."""
    images, pixels, rounds = (100, 20, 2) if options.quick else (1000, 20, options.rounds)
    N = images * pixels
    names = _present(options)
    order = random.Random(0)
    results: dict[str, list[Result]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        source = write_points(Path(folder), images, pixels, options.data)
        print(f"\ngram: N = {N:,} ({images:,} images x {pixels} pixels), {source}, float64")
        for _ in tqdm(range(rounds), desc="rounds", leave=False):
            for name in order.sample(names, len(names)):
                results[name].append(_run(name, Path(folder), options))
        digits = _all_digits(results, Truth(Path(folder)))
    print(_table(results, digits))
    bars = [] if OURS not in results else _bars(results, digits)
    print("\n".join(bars))
    return {
        "points": N,
        "images": source,
        "bars": bars,
        "digits": digits,
        **{name: [_plain(run) for run in runs] for name, runs in results.items()},
    }


def write_points(folder: Path, images: int, pixels: int, data: Path) -> str:
    """Save the points to folder/points.npz; says where the images came from."""
    pictures, source = images_of(images, data)
    generator = np.random.default_rng(0)
    side = 28
    places = np.concatenate(
        [generator.choice(side * side, pixels, replace=False) for _ in range(images)]
    )
    z = np.stack([places % side, places // side], 1).astype(np.float64)
    features = FourierFeatures(scale=10 / side, count=256)
    np.savez(
        folder / "points.npz",
        images=pictures,
        index=np.repeat(np.arange(images), pixels),
        z=z,
        features=features.transform(torch.from_numpy(z)).numpy(),
    )
    return source


def images_of(count: int, data: Path) -> tuple[np.ndarray, str]:
    """The first images of MNIST in [0, 1], [count, 784], or random ones; and which."""
    path = data / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    if path.exists():
        with gzip.open(path) as stream:
            stream.read(16)  # magic number, count, rows, columns
            raw = np.frombuffer(stream.read(count * 784), dtype=np.uint8)
        return raw.reshape(count, 784) / 255.0, "MNIST"
    return np.random.default_rng(1).random((count, 784)), f"random images ({path} is missing)"


def _present(options: argparse.Namespace) -> list[str]:
    names = list(options.only or CONTENDERS)
    if options.neural_tangents:
        return names
    print("neural-tangents is left out: no interpreter was given (--neural-tangents PYTHON)")
    return [name for name in names if not name.startswith(PEER)]


def _run(name: str, folder: Path, options: argparse.Namespace) -> Result:
    peer = name.startswith(PEER)
    python = options.neural_tangents if peer else sys.executable
    module = "hyperkernel.peer" if peer else "hyperkernel.worker"
    # jax has no option for its threads: it takes as many as the process may use cores.
    threads = str(options.threads)
    environment = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    arguments = (name, folder, threads)
    done = run_module(module, *arguments, python=python, environment=environment)
    if done.returncode:
        killed = " (killed: was there too little memory?)" if done.returncode < 0 else ""
        raise SystemExit(f"{name} failed{killed}:\n{done.stderr[-2000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    return Result(**report, sample=np.load(folder / "sample.npy"))


def _plain(result: Result) -> dict[str, float]:
    return {key: value for key, value in vars(result).items() if key != "sample"}


def _times(results: Sequence[Result]) -> Times:
    return Times(tuple(result.seconds for result in results))


def _digits(results: Sequence[Result], others: Sequence[Result], truth: Truth) -> float:
    """Correct digits of the worst entry looked at: random ones, and where others disagree most."""
    sample, other = results[0].sample, others[0].sample
    apart = np.where(truth.same_image(sample), 0, np.abs(sample / other - 1))
    worst = np.argsort(apart, axis=None)[-20:]
    drawn = np.random.default_rng(2).integers(0, sample.size, 60)
    errors = [
        abs(sample[i, j] / truth.entry(i, j) - 1)
        for i, j in zip(
            *np.unravel_index(np.concatenate([worst, drawn]), sample.shape), strict=True
        )
        if not truth.same_image(sample)[i, j]
    ]
    return float(-np.log10(max(*map(float, errors), 2.0**-53)))


class Truth:
    """Entries in 40 digits, straight from the recursion.

    Pairs that share an image are left out: there whoever takes the arccos of a correlation near 1
    has lost half of the digits, and the comparison of the rest would not be seen.
    """

    def __init__(self, folder: Path) -> None:
        points = np.load(folder / "points.npz")
        self.images, self.index = points["images"], points["index"]
        self.features = points["features"]

    def same_image(self, sample: np.ndarray) -> np.ndarray:
        return self.index[self._rows(sample)][:, None] == self.index[None, :]

    def entry(self, i: int, j: int) -> mpmath.mpf:
        """Of row i of the sample and column j."""
        row = i * max(1, len(self.index) // ROWS)
        with mpmath.workdps(40):
            left, right, S = self._second_moments(self.images[self.index[[row, j]]])
            theta = S
            for _ in range(2):
                S, slope = self._relu(left, right, S)
                theta = S + slope * theta
            q_left, q_right, Q = self._second_moments(self.features[[row, j]])
            value, slope = self._relu(left * q_left, right * q_right, S * Q)
            return theta * (value + slope * S * Q)

    def _rows(self, sample: np.ndarray) -> np.ndarray:
        return np.arange(len(sample)) * max(1, len(self.index) // ROWS)

    @staticmethod
    def _second_moments(pair: np.ndarray) -> list[mpmath.mpf]:
        first, second = (list(map(mpmath.mpf, row)) for row in pair)
        sides = ((first, first), (second, second), (first, second))
        return [mpmath.fdot(a, b) / len(first) for a, b in sides]

    @staticmethod
    def _relu(left: mpmath.mpf, right: mpmath.mpf, c: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
        scale = mpmath.sqrt(left * right)
        t = mpmath.acos(c / scale)
        value = scale * (mpmath.sin(t) + (mpmath.pi - t) * mpmath.cos(t)) / mpmath.pi
        return value, 1 - t / mpmath.pi


def _all_digits(results: dict[str, list[Result]], truth: Truth) -> dict[str, float]:
    first = next(iter(results.values()))
    last = list(results.values())[-1]
    return {
        name: _digits(runs, last if runs is first else first, truth)
        for name, runs in results.items()
    }


def _table(results: dict[str, list[Result]], digits: dict[str, float]) -> str:
    base = results.get(OURS) or next(iter(results.values()))
    lines = [
        f"{'':<28}{'seconds':>9}{'[quartiles]':>20}{'CPU s':>8}{'ratio':>8}{'[quartiles]':>18}"
        f"{'peak GB':>9}{'digits':>8}"
    ]
    for name, runs in results.items():
        times = _times(runs)
        low, high = times.quartiles
        ratio = median_ratio(times, _times(base))
        cpu = float(np.median([run.cpu for run in runs]))
        peak = max(run.peak for run in runs) / 1e9
        lines.append(
            f"  {name:<26}{times.median:9.2f}{f'[{low:.2f} .. {high:.2f}]':>20}{cpu:8.1f}"
            f"{ratio[0]:8.1f}{f'[{ratio[1]:.1f} .. {ratio[2]:.1f}]':>18}{peak:9.2f}"
            f"{digits[name]:8.1f}  {CONTENDERS[name]}"
        )
    share = Times(tuple(result.fill / result.seconds for result in base))
    lines.append(
        f"writing the matrix and nothing else takes {share.median:.0%} of the first one's time "
        f"[{share.quartiles[0]:.0%} .. {share.quartiles[1]:.0%}]"
    )
    return "\n".join(lines)


def _bars(results: dict[str, list[Result]], digits: dict[str, float]) -> list[str]:
    if PEER not in results:
        return [f"not measured: the bars against {PEER}, which took no part"]
    ours, peer = results[OURS], results[PEER]
    ratio, low, high = median_ratio(_times(peer), _times(ours))
    memory = max(r.peak for r in ours) / max(r.peak for r in peer)
    return [
        f"{_verdict(ratio >= SPEEDUP)} times as fast as {PEER}: {ratio:.1f} "
        f"[{low:.1f} .. {high:.1f}], wanted >= {SPEEDUP}",
        f"{_verdict(memory <= MEMORY)} peak memory against {PEER}: {memory:.3f}, "
        f"wanted <= {MEMORY:.3f}",
        f"{_verdict(digits[OURS] >= DIGITS)} correct digits: {digits[OURS]:.1f}, "
        f"wanted >= {DIGITS} ({PEER}: {digits[PEER]:.1f})",
    ]


def _verdict(met: bool) -> str:
    return "met    " if met else "NOT MET"
