"""Run by an interpreter that has neural-tangents; reads cases as JSON, writes kernels as JSON.

Imports nothing of this project: its environment has no torch.
"""

import json
import sys

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from neural_tangents import stax  # noqa: E402

ACTIVATIONS = {
    "relu": stax.Relu,
    "leaky_relu": lambda: stax.LeakyRelu(0.2),
    "abs": stax.Abs,
    "identity": stax.Identity,
    "erf": stax.Erf,
    "sin": stax.Sin,
    "cos": stax.Cos,
    "exp": stax.Exp,
    "gelu": stax.Gelu,
    "tanh": lambda: stax.ElementwiseNumerical(jnp.tanh, deg=240),
}


def dense(tower, first):
    """The gain of the activation before it goes into the weights of this layer."""
    scale = tower["sigma_w"] * (1.0 if first else tower["gain"])
    return stax.Dense(1, W_std=scale, b_std=tower["sigma_b"], parameterization="ntk")


def tower_kernel(tower, x, x2):
    layers = [dense(tower, True)]
    for _ in range(tower["depth"] - 1):
        layers += [ACTIVATIONS[tower["activation"]](), dense(tower, False)]
    return stax.serial(*layers)[2](x, x2, get=("nngp", "ntk", "cov1", "cov2"))


def scaled(kernel, weights):
    """What weights written by f, with covariance S, make of a kernel: everything times S."""
    return kernel.replace(
        nngp=kernel.nngp * weights.nngp,
        ntk=kernel.ntk * weights.nngp,
        cov1=kernel.cov1 * weights.cov1,
        cov2=kernel.cov2 * weights.cov2,
    )


def hyper_kernel(f, g, x, x2, z, z2):
    """neural-tangents has no hypernetwork: its layers, and the factors of f between them."""
    weights = tower_kernel(f, x, x2)
    # A first dense layer gives a kernel object whose tangent part is that of its own weights.
    kernel = stax.serial(dense(g, True))[2](z, z2)
    for _ in range(g["depth"] - 1):
        kernel = scaled(kernel, weights)
        kernel = stax.serial(ACTIVATIONS[g["activation"]](), dense(g, False))[2](kernel)
    return kernel.nngp * weights.nngp, kernel.ntk * weights.ntk


def main():
    answers = []
    for case in json.load(sys.stdin):
        x, x2 = jnp.array(case["x"]), jnp.array(case["x2"])
        if "g" in case:
            z, z2 = jnp.array(case["z"]), jnp.array(case["z2"])
            nngp, ntk = hyper_kernel(case["f"], case["g"], x, x2, z, z2)
        else:
            kernel = tower_kernel(case["f"], x, x2)
            nngp, ntk = kernel.nngp, kernel.ntk
        answers.append({"nngp": nngp.tolist(), "ntk": ntk.tolist()})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
