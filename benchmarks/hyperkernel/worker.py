"""One contender of gram.py, in a process of its own: NAME FOLDER THREADS."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hyperkernel.measure import report

BLOCK = 200
"""rows at once, by hand: a few arrays of 32 MB; larger and smaller blocks were no faster"""


def weightloom(points: Any) -> Callable[[], np.ndarray]:
    import torch

    from weightloom.kernels import FourierFeatures, HyperKernel, Tower

    features = FourierFeatures(scale=10 / 28, count=256)
    kernel = HyperKernel(Tower(depth=3), Tower(depth=2), kind="ntk", features=features)
    x = torch.from_numpy(points["images"][points["index"]])
    z = torch.from_numpy(points["z"])
    return lambda: kernel(x, z).numpy()


def without_numba(points: Any) -> Callable[[], np.ndarray]:
    sys.modules["numba"] = None  # type: ignore[assignment]
    return weightloom(points)


def plain_numpy(points: Any) -> Callable[[], np.ndarray]:
    x, index, p = points["images"], points["index"], points["features"]

    def expectations(c: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """2 E[s s] and 2 E[s' s'] of ReLU, from the covariance and its largest possible value."""
        r = np.clip(c / scale, -1, 1)
        t = np.arccos(r)
        return scale * (np.sqrt(1 - r * r) + (np.pi - t) * r) / np.pi, 1 - t / np.pi

    def call() -> np.ndarray:
        S = x @ x.T / x.shape[1]
        root = np.sqrt(np.diag(S))
        theta = S
        for _ in range(2):
            S, slope = expectations(S, np.outer(root, root))
            theta = S + slope * theta
        size = np.sqrt((p * p).mean(1)) * root[index]
        K = np.empty((len(index), len(index)))
        for start in range(0, len(index), BLOCK):
            rows = slice(start, start + BLOCK)
            i = index[rows]
            Lam = S[i][:, index] * (p[rows] @ p.T / p.shape[1])
            value, slope = expectations(Lam, np.outer(size[rows], size))
            K[rows] = theta[i][:, index] * (value + slope * Lam)
        return K

    return call


def plain_torch(points: Any) -> Callable[[], np.ndarray]:
    import torch
    from torch import Tensor

    x, index, p = (torch.from_numpy(points[name]) for name in ("images", "index", "features"))

    def expectations(c: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        r = (c / scale).clamp(-1, 1)
        t = r.acos()
        return scale * ((1 - r * r).sqrt() + (math.pi - t) * r) / math.pi, 1 - t / math.pi

    def call() -> np.ndarray:
        S = x @ x.T / x.shape[1]
        root = S.diagonal().sqrt()
        theta = S
        for _ in range(2):
            S, slope = expectations(S, torch.outer(root, root))
            theta = S + slope * theta
        size = (p * p).mean(1).sqrt() * root[index]
        K = torch.empty(len(index), len(index), dtype=x.dtype)
        for start in range(0, len(index), BLOCK):
            rows = slice(start, start + BLOCK)
            i = index[rows]
            Lam = S[i][:, index] * (p[rows] @ p.T / p.shape[1])
            value, slope = expectations(Lam, torch.outer(size[rows], size))
            K[rows] = theta[i][:, index] * (value + slope * Lam)
        return K.numpy()

    return call


CALLS: dict[str, Callable[[Any], Callable[[], np.ndarray]]] = {
    "weightloom": weightloom,
    "weightloom, no numba": without_numba,
    "plain numpy": plain_numpy,
    "plain torch": plain_torch,
}


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if name != "plain numpy":
        import torch

        torch.set_num_threads(threads)
    report(CALLS[name](np.load(folder / "points.npz")), folder, threads)


if __name__ == "__main__":
    main()
