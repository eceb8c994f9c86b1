"""Certificates about the mean error instead of the largest one.

Theorem 2.3 bounds the integral of |f - g| over the unit cube: near the walls of its boxes f may be
far off, on a set of small volume. `Certified` speaks of the largest error, so such networks come as
`CertifiedL1`, whose ``error_bound`` is about the mean (on the unit cube: the integral), and whose
`verify` estimates the mean by sampling and says how sure it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.certified import Certified, Function, Verification
from weightloom.errors import CertificateError, ConfigError

__all__ = ["CertifiedL1", "VerificationL1"]

# A mean above the bound is a refutation only if it is so by this many standard errors.
SURE = 4.0


@dataclass(frozen=True)
class VerificationL1(Verification):
    """What was measured: ``error`` is the mean of |network - target| over random points.

    ``worst`` and ``rms`` describe the same points; the largest error is not bounded.
    """

    standard_error: float = 0.0

    @property
    def holds(self) -> bool:
        return self.error - SURE * self.standard_error <= self.bound  # false for NaN


@dataclass(frozen=True)
class CertifiedL1(Certified):
    """A network with a proven bound on the mean of |network - target| over ``domain``.

    On the unit cube that is the L1 distance.
    """

    norm: str = "L1"

    def verify(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> VerificationL1:
        """Estimate the mean error; raise `CertificateError` if it is surely above the bound.

        ``points`` independent uniform points in each of ``rounds`` rounds. "Surely": by more than
        4 standard errors.
        """
        found = self.measure(target, points=points, rounds=rounds, seed=seed, extra=extra)
        if not found.holds:
            raise CertificateError(
                f"the mean error is {found.error:.6g} +- {found.standard_error:.2g}, but at most "
                f"{found.bound:.6g} was certified: the network, the target or the constant claimed "
                f"for it (Lipschitz) is not the one the bound was proven for"
            )
        return found

    def measure(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> VerificationL1:
        """What `verify` finds, without complaint."""
        target = self.target if target is None else target
        if target is None:
            raise ConfigError("no target to compare with; pass one: verify(target)")
        if extra is not None:
            raise ConfigError("extra places have no weight in a mean error; leave extra out")
        if points * rounds < 2:
            raise ConfigError(f"points={points}, rounds={rounds}: at least 2 points are wanted")
        generator = torch.Generator().manual_seed(seed)
        places, errors = [], []
        for _ in range(rounds):
            drawn = self.domain.sample(points, generator)
            places.append(drawn)
            errors.append(self._errors(target, drawn))
        wrong = torch.cat(errors)
        worst = int(torch.nan_to_num(wrong, nan=math.inf).argmax())
        return VerificationL1(
            error=float(wrong.mean()),
            bound=self.error_bound,
            worst=tuple(float(c) for c in torch.cat(places)[worst]),
            rms=float(wrong.square().mean().sqrt()),
            points=len(wrong),
            standard_error=float(wrong.std()) / math.sqrt(len(wrong)),
        )
