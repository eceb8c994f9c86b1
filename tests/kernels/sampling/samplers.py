"""Finite hypernetworks of any width, sampled exactly, at two points, without writing them down.

A Gaussian matrix W that is only ever multiplied with a few vectors need not be sampled. W Q
is normal with covariance Q^T Q, and given W Q = Y the product W^T D is

    Q (Q^T Q)^-1 Y^T D + (1 - Q (Q^T Q)^-1 Q^T) N (D^T D)^(1/2),   N standard normal,

whatever D is as long as it depends on W through Y alone. So outputs and tangent kernels of a
network have exactly the distribution that the network itself would give, at a cost that is linear
in its widths: the limits can be approached with widths in the thousands, many draws at once.
`test_networks.py` checks this against real networks.

Shapes: [draws, width, 2]; a last row of "ones" carries the bias.
"""

from __future__ import annotations

import math

import torch

FUNCTIONS = {
    "relu": torch.relu,
    "leaky_relu": lambda t: torch.nn.functional.leaky_relu(t, 0.2),
    "abs": torch.abs,
    "identity": lambda t: 1.0 * t,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
}


class Sampler:
    """One batch of hypernetworks f, g (as `sampled_oracle.Plain`) at the points (x, z), [2, d]."""

    def __init__(self, f, g, x, z, widths, draws, seed=0):
        self.f, self.g, self.draws = f, g, draws
        self.width_f, self.width_g = widths
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.z = (
            torch.as_tensor(a, dtype=torch.float64).T.expand(draws, -1, -1) for a in (x, z)
        )

    def normal(self, rows):
        return torch.randn(self.draws, rows, 2, generator=self.generator, dtype=torch.float64)

    def forward(self, q, rows):
        """W q for W [rows, len(q)]."""
        return self.normal(rows) @ _root(q.mT @ q)

    def backward(self, q, known, squares):
        """W^T d given known = (W q)^T d and squares = d^T d."""
        noise = self.normal(q.shape[1]) @ _root(squares)
        inverse = torch.linalg.pinv(q.mT @ q, hermitian=True)  # narrow networks have dead layers
        return noise + q @ (inverse @ (known - q.mT @ noise))

    def nngp(self, outputs):
        """Products of outputs, averaged over them: [draws, 2, 2]."""
        self._run_f()
        top = self._run_g(outputs)
        return top.mT @ top / outputs

    def ntk(self):
        """The tangent kernel of a network with one output: [draws, 2, 2]."""
        self._run_f()
        self._run_g(1)
        squares, known = self._back_through_g()
        return self._back_through_f(squares, known)

    def _run_f(self):
        self.inputs_f, self.slopes_f, self.before_f = [_augment(self.f, self.x)], [], []
        for _ in range(self.f.depth - 1):
            y = self.forward(self.inputs_f[-1], self.width_f)
            value, slope = _activate(self.f, y)
            self.before_f.append(y)
            self.slopes_f.append(slope)
            self.inputs_f.append(_augment(self.f, value))
        gram = self.inputs_f[-1].mT @ self.inputs_f[-1]
        self.mix = _root(gram).mT  # weights(x_i) = sum_p mix[i, p] Z_p

    def _run_g(self, outputs):
        self.inputs_g, self.slopes_g, self.parts_g = [_augment(self.g, self.z)], [], []
        widths = [self.width_g] * (self.g.depth - 1) + [outputs]
        for layer, width in enumerate(widths):
            parts = [self.forward(self.inputs_g[-1], width) for _ in (0, 1)]  # Z_p a
            y = sum(self.mix[:, None, :, p] * parts[p] for p in (0, 1))
            self.parts_g.append(parts)
            if layer < len(widths) - 1:
                value, slope = _activate(self.g, y)
                self.slopes_g.append(slope)
                self.inputs_g.append(_augment(self.g, value))
        return y

    def _back_through_g(self):
        """Gradients with respect to all that f writes: inner products, and with what it wrote."""
        d = torch.ones(self.draws, 1, 2, dtype=torch.float64)
        squares, known = 0.0, 0.0
        for layer in reversed(range(self.g.depth)):
            a, parts = self.inputs_g[layer], self.parts_g[layer]
            squares = squares + (d.mT @ d) * (a.mT @ a)
            # weights(x_i) . gradient_j = d_j^T weights(x_i) a_j
            projected = torch.stack([(d * part).sum(1) for part in parts], 1)  # [draws, p, j]
            known = known + self.mix @ projected
            if layer == 0:
                return squares, known
            back = [self.backward(a, part.mT @ d, d.mT @ d) for part in parts]
            total = sum(self.mix[:, None, :, p] * back[p] for p in (0, 1))
            d = _strip(self.g, total) * self.slopes_g[layer - 1]
        raise AssertionError

    def _back_through_f(self, squares, known):
        q = self.inputs_f[-1]
        kernel = (q.mT @ q) * squares
        for layer in reversed(range(self.f.depth - 1)):
            d = _strip(self.f, self.backward(q, known, squares)) * self.slopes_f[layer]
            q = self.inputs_f[layer]
            squares, known = d.mT @ d, self.before_f[layer].mT @ d
            kernel = kernel + (q.mT @ q) * squares
        return kernel


def mean_and_error(samples):
    """Mean over draws and its standard error."""
    return samples.mean(0), samples.std(0) / math.sqrt(len(samples))


def _augment(tower, q):
    ones = torch.full_like(q[:, :1], tower.sigma_b)
    return torch.cat([q * (tower.sigma_w / math.sqrt(q.shape[1])), ones], 1)


def _strip(tower, gradient):
    inputs = gradient[:, :-1]
    return inputs * (tower.sigma_w / math.sqrt(inputs.shape[1]))


def _activate(tower, y):
    y = y.detach().requires_grad_(True)
    value = tower.gain * FUNCTIONS[tower.activation](y)
    (slope,) = torch.autograd.grad(value.sum(), y)
    return value.detach(), slope


def _root(squares):
    """R with R^T R = squares, also of a matrix of rank 1."""
    values, vectors = torch.linalg.eigh(squares)
    return values.clamp_min(0).sqrt()[..., None] * vectors.mT
