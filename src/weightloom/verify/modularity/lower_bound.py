"""Theorem 2 against networks that read digits: fewer parameters than it says any class can have."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.data import FourierTarget
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.modularity.digits import Function, write
from weightloom.verify.sampling import slope

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Written:
    """By K: parameters, the same for every y; the largest error over all targets and points."""

    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    targets: int


def _targets(k: int, count: int) -> list[Function]:
    """Functions on [0, 1] of slope 1: smooth, with a kink, and bumps as narrow as two cells."""
    found: list[Function] = [lambda t: (t - 0.37).abs() - 0.3, lambda t: torch.sin(5 * t) / 5]
    for seed in range(count):
        wave = FourierTarget(1, 0, frequencies=6, seed=seed)
        found.append(functools.partial(_wave, wave=wave))
        signs = 2.0 * torch.randint(0, 2, (k * k // 2,)) - 1
        found.append(functools.partial(_bumps, signs=signs))
    return found


def _wave(t: Tensor, wave: FourierTarget) -> Tensor:
    return wave.at((2 * t - 1)[..., None]) / 2


def _bumps(t: Tensor, signs: Tensor) -> Tensor:
    scaled = t * len(signs)
    cell = scaled.floor().clamp(0, len(signs) - 1)
    height = 1 - (2 * (scaled - cell) - 1).abs()
    return signs[cell.long()].to(t) * height / (2 * len(signs))


def _measure_written(size: Size) -> Written:
    groups = (4, 8, 16)
    count, points = (1, 2**8) if size == "quick" else (3, 2**11)
    t = torch.cat([torch.linspace(0, 1, points + 1), torch.rand(points)]).double()
    sizes, errors = [], []
    for k in groups:
        worst, same = 0.0, set()
        for y in _targets(k, count):
            net = write(y, k, 1.0)
            same.add(net.parameters_in_all())
            with torch.no_grad():
                worst = max(worst, float((net(t[:, None]) - y(t)).abs().max()))
        sizes.append(max(same))
        errors.append(worst)
    return Written(groups, tuple(sizes), tuple(errors), 2 + 2 * count)


def _exponent(seen: Written) -> float:
    return slope([1 / e for e in seen.errors], seen.sizes)


def _said(seen: Written) -> str:
    rows = ", ".join(f"{n} for {e:.2g}" for n, e in zip(seen.sizes, seen.errors, strict=True))
    return (
        f"{seen.targets} functions of slope 1 on a line (smooth, kinks, bumps), clipped ReLU "
        f"networks of one architecture for each error: parameters {rows}, that is eps^-"
        f"{_exponent(seen):.3f}"
    )


THEOREM_2 = Claim(
    name="000/theorem-2",
    place="Theorem 2",
    items=(22,),
    measure=_measure_written,
    printed=Statement(
        "a class of networks that comes within eps of all of W_{r,m} has at least c eps^(-m/r) "
        "parameters, also if they depend on y in a way that is not continuous (r = m = 1: eps^-1)",
        lambda seen: Evidence(1.0, _exponent(seen) + 0.15, _said(seen)),
    ),
    corrected=Statement(
        "deep networks do with order eps^(-m/(2r)), by reading digits of their weights; the bound "
        "eps^(-m/r) is for parameters that depend on y continuously (Lemma 14)",
        lambda seen: Evidence(abs(_exponent(seen) - 0.5), 0.1, _said(seen)),
    ),
    wrong=Statement(
        "they do with order eps^(-m/(3r)), by the same construction",
        lambda seen: Evidence(abs(_exponent(seen) - 1 / 3), 0.1, _said(seen)),
    ),
)

CLAIMS = (THEOREM_2,)
