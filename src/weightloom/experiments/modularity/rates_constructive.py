"""Parts (i) and (iii): networks built by hand, measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weightloom import construct
from weightloom.construct import Certified, CertifiedHypernetwork
from weightloom.data import BumpTarget, CubeTarget, FactoredTarget, FourierTarget
from weightloom.errors import ConfigError
from weightloom.lab import Outcome
from weightloom.models import FullHead, HyperNetwork

__all__ = ["as_hypernetwork", "build", "make_target", "measure"]

# Places that are suspected of a large error, looked at besides the grid.
SUSPECTS = 2_000


def make_target(config: Mapping[str, Any], seed: int) -> CubeTarget:
    """The function that a run's networks are to approximate."""
    m1, m2, kind = config["m1"], config["m2"], config["target"]
    if kind == "bump":
        return BumpTarget(m1, m2, config["pieces"], config["shape"], seed)
    if kind == "smooth":
        return FourierTarget(m1, m2, config["frequencies"], seed)
    if kind in ("factored bump", "factored smooth"):
        pieces = config["pieces"] if kind == "factored bump" else None
        return FactoredTarget(m1, m2, config["selector"], pieces, config["frequencies"], seed)
    raise ConfigError(f"target {kind!r} is unknown to the experiment rates")


def build(config: Mapping[str, Any], target: CubeTarget) -> Certified:
    """The network a run asks for: "plain" or "hypernetwork", on a grid of ``counts`` per axis.

    Smooth targets are interpolated with the corners of the domain among the nodes, which makes the
    error quadratic in the spacing; for the others that would gain nothing.
    """
    curvature = getattr(target, "curvature", None)
    m1, m2 = config["m1"], config["m2"]
    options: dict[str, Any] = {
        "counts": config["counts"],
        "corners": curvature is not None,
        "lipschitz": target.lipschitz,
        "curvature": curvature,
    }
    if config["network"] == "plain":
        return construct.interpolate(target.at, m1 + m2, **options)
    if isinstance(target, FactoredTarget):
        return construct.factored_hypernetwork(target.basis, target.coefficients, m1, m2, **options)
    return construct.hypernetwork(target, m1, m2, **options)


def measure(config: Mapping[str, Any], seed: int) -> Outcome:
    """Build, verify the certificate, count.

    ``sup`` and ``rms`` are errors; ``written`` the numbers that depend on the target and sit in the
    network that sees x (N_g generated weights; for a plain network its output weights); ``primary``
    the nonzeros of that network, fixed layers included; ``total`` those of everything; ``sobolev``
    a bound on the target's norm in W_{r,m}, for r = 2 if it is smooth and else r = 1.
    """
    started = time.perf_counter()
    target = make_target(config, seed)
    network = build(config, target)
    dims = config["m1"] + config["m2"]
    found = network.verify(points=config["points"], seed=seed, extra=_suspects(target, dims))
    if isinstance(network, CertifiedHypernetwork):
        written, primary = network.primary_size, network.primary_nonzeros
    else:
        written, primary = config["counts"] ** dims, network.nonzeros
    metrics: dict[str, float] = {
        "sup": found.error,
        "rms": found.rms,
        "bound": found.bound,
        "height": target.height,
        "sobolev": target.sobolev(2 if "smooth" in config["target"] else 1),
        "written": written,
        "primary": primary,
        "total": network.nonzeros,
        "depth": network.layers,
        "points": found.points,
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _suspects(target: CubeTarget, dims: int) -> Tensor:
    """Where the error is likely to be largest: tops of bumps, and corners where bumps meet."""
    generator = torch.Generator().manual_seed(1)
    if not isinstance(target, BumpTarget):
        return 2 * torch.rand(SUSPECTS, dims, generator=generator, dtype=torch.float64) - 1
    centres = target.centres()
    places = torch.cat([centres, (centres + 1 / target.pieces).clamp(-1, 1)])
    return places[torch.randperm(len(places), generator=generator)[:SUSPECTS]]


def as_hypernetwork(made: CertifiedHypernetwork) -> HyperNetwork:
    """The pair as a real `HyperNetwork`: hats of I are the features, f's last layer is the head.

    Only the output weights are generated, the fixed layers of g stay as they are.
    """
    *hats, last = made.encoder
    table = last.get_parameter("weight").T[:, None, :]  # [features, 1, N_g]
    head = FullHead(offset=False)
    hyper = HyperNetwork(
        made.primary,
        torch.nn.Sequential(*hats),
        head=head,
        init="default",
        generate=made.generated,
        features=len(table),
        freeze_rest=True,
        condition_dims=1,
        feature_moment=1.0,
    )
    with torch.no_grad():
        head.table(made.generated).copy_(table)
    return hyper
