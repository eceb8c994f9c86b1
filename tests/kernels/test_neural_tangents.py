"""Towers, and hypernetworks put together by hand, against neural-tangents.

neural-tangents 0.6.5 imports only with jax 0.5.3 and tf2jax 0.3.6, so it lives in an environment
of its own, whose interpreter is named by WEIGHTLOOM_NEURAL_TANGENTS_PYTHON:

    WEIGHTLOOM_NEURAL_TANGENTS_PYTHON=... pytest tests/kernels -k neural_tangents

benchmarks/README.md says how to make one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

from weightloom.kernels import HyperKernel, Tower

PYTHON = os.environ.get("WEIGHTLOOM_NEURAL_TANGENTS_PYTHON")
SCRIPT = Path(__file__).with_name("neural_tangents_script.py")

pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason="neural-tangents needs jax 0.5.3, in an environment of its own: set "
    "WEIGHTLOOM_NEURAL_TANGENTS_PYTHON to its interpreter",
)

X, X2, Z, Z2 = (
    torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for seed, (n, d) in enumerate([(4, 3), (5, 3), (4, 2), (5, 2)])
)
BIASED = {"gain": 1.2, "sigma_w": 0.9, "sigma_b": 0.3}
CLOSED = ["relu", "leaky_relu", "abs", "identity", "erf", "sin", "cos", "gelu"]
TOWERS = {
    f"{name} {depth} {'biased' if options else 'plain'}": {
        "depth": depth, "activation": name, "gain": math.sqrt(2), "sigma_w": 1.0, "sigma_b": 0.0,
        **options,
    }
    for name in [*CLOSED, "tanh"]
    for depth, options in ((1, BIASED), (2, {}), (4, BIASED))
}  # fmt: skip
HYPER = {
    f"{f} with {g}": (TOWERS[f], TOWERS[g])
    for f, g in [
        ("relu 2 plain", "relu 2 plain"),
        ("relu 4 biased", "relu 4 biased"),
        ("erf 2 plain", "gelu 4 biased"),
        ("leaky_relu 4 biased", "sin 2 plain"),
        ("gelu 1 biased", "erf 4 biased"),
        ("cos 2 plain", "relu 1 biased"),
    ]
}


def case(f, g=None):
    kernel = {"f": f, "x": X.tolist(), "x2": X2.tolist()}
    return kernel if g is None else {**kernel, "g": g, "z": Z.tolist(), "z2": Z2.tolist()}


@pytest.fixture(scope="module")
def answers():
    """All cases in one process: importing jax takes longer than the rest."""
    cases = [case(tower) for tower in TOWERS.values()] + [case(f, g) for f, g in HYPER.values()]
    run = subprocess.run(
        [PYTHON, str(SCRIPT)], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    if run.returncode:
        pytest.fail(f"neural-tangents did not run:\n{run.stderr[-2000:]}")
    return dict(zip([*TOWERS, *HYPER], json.loads(run.stdout), strict=True))


def tower(options):
    name = options["activation"]
    named = {"name": name, "slope": 0.2} if name == "leaky_relu" else name
    return Tower(**{**options, "activation": named})


def tolerance(name):
    """Rounding, or what 240 nodes of Gauss-Hermite quadrature leave over in neural-tangents.

    Measured for tanh: 6e-6 with 60 nodes, 1.4e-8 with 120, 2e-12 with 240, 1e-14 with 480: it is
    neural-tangents that comes closer, the library is the same each time.
    """
    return 2e-11 if "tanh" in name else 1e-12


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", TOWERS)
def test_tower(answers, name, kind):
    truth = torch.tensor(answers[name][kind], dtype=torch.float64)
    kernel = tower(TOWERS[name])(X, X2, kind=kind)
    assert (kernel - truth).abs().max() < tolerance(name) * truth.abs().max()


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", HYPER)
def test_hypernetwork(answers, name, kind):
    truth = torch.tensor(answers[name][kind], dtype=torch.float64)
    kernel = HyperKernel(*map(tower, HYPER[name]), kind=kind)(X, Z, X2, Z2)
    assert (kernel - truth).abs().max() < tolerance(name) * truth.abs().max()
