"""Symmetric matrices for the tests, from numpy alone: they share no code with linalg."""

from __future__ import annotations

import numpy as np
import torch

from weightloom.linalg import Blocked


def gaussian(size, width=0.3, seed=0):
    """exp(-|s - t|^2 / 2 width^2) at random points of a square: smooth, so badly conditioned."""
    points = np.random.default_rng(seed).uniform(size=(size, 2))
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * width**2))


def laplace(size, seed=0):
    """exp(-|s - t|): rough, so its eigenvalues fall slowly."""
    points = np.random.default_rng(seed).uniform(0, 4, size=(size, 2))
    return np.exp(-np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1)))


def spectrum(values, seed=0):
    """A matrix with exactly these eigenvalues, up to rounding."""
    values = np.asarray(values, dtype=float)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))[0]
    matrix = (turn * values) @ turn.T
    return (matrix + matrix.T) / 2


def shifted(matrix, shift):
    return matrix + np.diag(np.broadcast_to(np.asarray(shift, dtype=float), len(matrix)))


def tensor(array, dtype=torch.float64):
    """A copy."""
    return torch.tensor(np.asarray(array), dtype=dtype)


def blocked(array, dtype=torch.float64, side=7, **options):
    """The matrix behind a block function that counts what it is asked for."""
    whole = tensor(array, dtype)
    asked = []

    def block(rows, columns):
        asked.append((rows, columns))
        return whole[rows, columns].clone()

    item = torch.finfo(dtype).bits // 8
    operator = Blocked(len(whole), block, dtype=dtype, memory=2 * item * side**2, **options)
    return operator, asked
