"""The Gram matrix assembled from neural-tangents, for gram.py: NAME FOLDER THREADS.

Run by an interpreter of its own: neural-tangents 0.6.5 needs jax 0.5.3 and tf2jax 0.3.6 (it does
not import with jax 0.6 or newer). It has no hypernetworks. By hand: the kernels S and Theta_f of f;
for g set nngp = ntk = S * Q0, apply Relu, and multiply the sum of both by Theta_f.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hyperkernel.measure import report


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    report(assembly(name, np.load(folder / "points.npz")), folder, threads)


def assembly(name: str, points: Any) -> Callable[[], np.ndarray]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from neural_tangents import stax

    def dense(w_std: float) -> Any:
        return stax.Dense(1, W_std=w_std, b_std=None)

    root = 2**0.5  # our gain, which neural-tangents puts into the next layer's weights
    layers = (dense(1.0), stax.Relu(), dense(root), stax.Relu(), dense(root))
    _, _, tower = stax.serial(*layers)
    _, _, relu = stax.Relu()

    def on_all_points(x: Any, p: Any) -> Any:
        k = tower(x, None)
        Q = p @ p.T / p.shape[1]
        Lam = k.nngp * Q
        g = relu(k.replace(nngp=Lam, ntk=Lam, cov1=k.cov1 * jnp.diag(Q)))
        return 2 * (g.nngp + g.ntk) * k.ntk

    def by_image(x: Any, index: Any, p: Any) -> Any:
        k = tower(x, None)
        Q = p @ p.T / p.shape[1]
        Lam = k.nngp[index][:, index] * Q
        g = relu(k.replace(nngp=Lam, ntk=Lam, cov1=k.cov1[index] * jnp.diag(Q)))
        return 2 * (g.nngp + g.ntk) * k.ntk[index][:, index]

    images, index, p = (jnp.asarray(points[key]) for key in ("images", "index", "features"))
    if name == "neural-tangents, by image":
        fast = jax.jit(by_image)
        return lambda: np.asarray(fast(images, index, p))
    x = images[index]
    whole = jax.jit(on_all_points) if name == "neural-tangents, jit" else on_all_points
    return lambda: np.asarray(whole(x, p))


if __name__ == "__main__":
    main()
