"""Independent computations of kernels and series, which the claims are compared with.

1. **Formulas**: kernels of ReLU hypernetworks as printed and as corrected, see `Form`.

2. **Sampled networks**: `SampledHypernetworks` samples outputs and kernels of ReLU hypernetworks of
   any width at two inputs exactly, without their matrices. A Gaussian matrix W that is only
   multiplied with a few vectors is not needed itself: W Q is normal with covariance Q^T Q, and
   given Y = W Q the product W^T D is

       Q (Q^T Q)^-1 Y^T D + (1 - Q (Q^T Q)^-1 Q^T) N (D^T D)^(1/2),   N standard normal,

   if D depends on W through Y alone. Outputs and tangent kernels have exactly the distribution of
   the network's, at a cost linear in its widths. A test compares with explicit weights.

3. **Series**: K^(r) of hypernetworks whose f has one wide layer, for many seeds at once. f has two
   matrices and H outputs, the weights of a g of width 1 (the paper's own reduction, D.3):

       y = W1 x / sqrt(n_0),  q = sqrt(2) s(y),  v = W2 q / sqrt(n),  h = v_H c p(... c p(v_1 z)),

   with c = sqrt(2) and p the activation of g. Along the step w + e grad h(u_j) everything is a
   power series in e, and K^(r) is r! times its r-th coefficient. Nothing is differentiated more
   than once. A test compares with `empirical.higher_order` on networks with explicit weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import FiniteHypernetwork, Tower

__all__ = [
    "Form",
    "LEAKY",
    "NarrowHypernetworks",
    "RELU",
    "SampledHypernetworks",
    "SeriesActivation",
    "TANH",
    "TOWERS",
    "covariances",
    "derivative",
    "dual",
    "finite_network",
    "gradients",
    "hyperkernel",
    "prior",
    "tangent_f",
]


def dual(cov: Tensor) -> Tensor:
    """2 E[s(u) s(v)] for ReLU and (u, v) ~ N(0, cov), as a matrix: [2, 2] -> [2, 2]."""
    a, b, c = float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])
    size = math.sqrt(a * b)
    t = math.acos(max(-1.0, min(1.0, c / size)))
    off = size * (math.sin(t) + (math.pi - t) * math.cos(t)) / math.pi
    return torch.tensor([[a, off], [off, b]], dtype=torch.float64)


def derivative(cov: Tensor) -> Tensor:
    """2 E[s'(u) s'(v)] as `dual`: [2, 2] -> [2, 2]."""
    a, b, c = float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])
    t = math.acos(max(-1.0, min(1.0, c / math.sqrt(a * b))))
    off = (math.pi - t) / math.pi
    return torch.tensor([[1.0, off], [off, 1.0]], dtype=torch.float64)


@dataclass(frozen=True)
class Form:
    """Options of the formulas; the defaults are the corrected form."""

    steps: int = -1
    """number of activations in S, minus L: -1 for S^(L-1), 0 for S^L"""
    factor: float = 1.0
    """factor of 2 E[s s] in g: 1, or 1 / sqrt(2) for Eq. 73"""
    backward: int | None = None
    """factors of S in each product over the layers of g; None: one for each layer, 0: none"""


def covariances(x: Tensor, steps: int) -> list[Tensor]:
    """S^0, ..., S^steps of x [2, n_0]."""
    s = [x @ x.T / x.shape[1]]
    for _ in range(steps):
        s.append(dual(s[-1]))
    return s


def tangent_f(x: Tensor, depth: int) -> Tensor:
    """Theta_f = sum_l S^(l-1) prod_(k >= l) Sdot^k."""
    s = covariances(x, depth - 1)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for first in range(depth):
        term = s[first].clone()
        for k in range(first, depth - 1):
            term = term * derivative(s[k])
        total = total + term
    return total


def _through_g(
    z: Tensor, s: Tensor, depth: int, factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Q^0 .. Q^(H-1) and Qdot^1 .. Qdot^(H-1)."""
    q, slopes = [z @ z.T / z.shape[1]], []
    for _ in range(depth - 1):
        lam = q[-1] * s
        slopes.append(derivative(lam))
        q.append(factor * dual(lam))
    return q, slopes


def prior(x: Tensor, z: Tensor, depths: tuple[int, int], form: Form | None = None) -> Tensor:
    """The covariance of the outputs, [2, 2]; depths (L, H)."""
    form = form or Form()
    s = covariances(x, depths[0] + form.steps)[-1]
    q, _ = _through_g(z, s, depths[1], form.factor)
    return q[-1] * s


def hyperkernel(x: Tensor, z: Tensor, depths: tuple[int, int], form: Form | None = None) -> Tensor:
    """Theta_f Theta_g, [2, 2]."""
    form = form or Form()
    s = covariances(x, depths[0] + form.steps)[-1]
    q, slopes = _through_g(z, s, depths[1], form.factor)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for first in range(depths[1]):
        term, layers = q[first].clone(), range(first, depths[1] - 1)
        for h in layers:
            term = term * slopes[h]
        count = len(layers) if form.backward is None else min(form.backward, len(layers))
        total = total + term * s**count
    return tangent_f(x, depths[0]) * total


#: f and g of `finite_network`.
TOWERS = Tower(depth=2), Tower(depth=2)


def finite_network(n: int, m: int) -> FiniteHypernetwork:
    """A random hypernetwork with n hidden neurons in f and m in g, from the global generator."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    return FiniteHypernetwork(*TOWERS, [3, n], [3, m, 1], generator=generator, dtype=torch.float64)


def gradients(outputs: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Gradients of each output by the tensors ``of``: [outputs, numbers]."""
    rows = []
    for output in outputs.flatten():
        parts = torch.autograd.grad(output, list(of), retain_graph=True)
        rows.append(torch.cat([p.flatten() for p in parts]))
    return torch.stack(rows)


class SampledHypernetworks:
    """``draws`` hypernetworks of depths (L, H) and widths (n, m) at x [2, n_0] and z [2, m_0].

    Activations have the shape [draws, width, 2].
    """

    def __init__(
        self, x: Tensor, z: Tensor, depths: tuple[int, int], widths: tuple[int, int], draws: int
    ) -> None:
        self.draws = draws
        self._depth_g = depths[1]
        self._width_g = widths[1]
        self._z = (z.T / math.sqrt(z.shape[1])).expand(draws, -1, -1)
        self._inputs_f = [(x.T / math.sqrt(x.shape[1])).expand(draws, -1, -1)]
        self._slopes_f: list[Tensor] = []
        self._before_f: list[Tensor] = []
        for _ in range(depths[0] - 1):
            y = self._times(self._inputs_f[-1], widths[0])
            self._before_f.append(y)
            self._slopes_f.append((y > 0) * math.sqrt(2 / widths[0]))
            self._inputs_f.append(y * self._slopes_f[-1])
        self.weight_covariance = self._inputs_f[-1].mT @ self._inputs_f[-1]
        """of the generated weights at x and x', given the hidden layers of f: [draws, 2, 2]"""
        self._mix = _root(self.weight_covariance).mT
        self._run_g()

    def prior(self) -> Tensor:
        """Covariance of the outputs given all but the last layer of g: [draws, 2, 2]."""
        last = self._inputs_g[-1]
        return self.weight_covariance * (last.mT @ last)

    def outputs(self) -> Tensor:
        """h(u), h(u'): [draws, 2]."""
        return self._top[:, 0]

    def tangent(self) -> Tensor:
        """The tangent kernel of h: [draws, 2, 2]."""
        squares, known = self._back_through_g()
        q = self._inputs_f[-1]
        kernel = (q.mT @ q) * squares
        for layer in reversed(range(len(self._before_f))):
            d = self._transposed(q, known, squares) * self._slopes_f[layer]
            q = self._inputs_f[layer]
            squares, known = d.mT @ d, self._before_f[layer].mT @ d
            kernel = kernel + (q.mT @ q) * squares
        return kernel

    def backward(self) -> Tensor:
        """Inner products of the gradients of h by the first pre-activations of g: [draws, 2, 2]."""
        self._back_through_g()
        return self._first.mT @ self._first

    def _run_g(self) -> None:
        self._inputs_g, self._slopes_g, self._parts = [self._z], [], []
        for width in [self._width_g] * (self._depth_g - 1) + [1]:
            parts = [self._times(self._inputs_g[-1], width) for _ in (0, 1)]
            self._parts.append(parts)
            self._top = self._mixed(parts)
            if len(self._parts) < self._depth_g:
                self._slopes_g.append((self._top > 0) * math.sqrt(2 / width))
                self._inputs_g.append(self._top * self._slopes_g[-1])

    def _back_through_g(self) -> tuple[Tensor, Tensor]:
        """Inner products of the gradients by the weights: with each other, and with the weights."""
        d = torch.ones(self.draws, 1, 2, dtype=torch.float64)
        squares = known = torch.zeros(self.draws, 2, 2, dtype=torch.float64)
        for layer in reversed(range(self._depth_g)):
            a, parts = self._inputs_g[layer], self._parts[layer]
            squares = squares + (d.mT @ d) * (a.mT @ a)
            projected = torch.stack([(d * part).sum(1) for part in parts], 1)
            known = known + self._mix @ projected
            if layer:
                back = [self._transposed(a, part.mT @ d, d.mT @ d) for part in parts]
                d = self._mixed(back) * self._slopes_g[layer - 1]
        self._first = d
        return squares, known

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        """Weights at x_i are sum_p mix[i, p] Z_p, Z_p standard normal."""
        first, second = (self._mix[:, None, :, p] * parts[p] for p in (0, 1))
        return first + second

    def _normal(self, rows: int) -> Tensor:
        return torch.randn(self.draws, rows, 2, dtype=torch.float64)

    def _times(self, q: Tensor, rows: int) -> Tensor:
        return self._normal(rows) @ _root(q.mT @ q)

    def _transposed(self, q: Tensor, known: Tensor, squares: Tensor) -> Tensor:
        noise = self._normal(q.shape[1]) @ _root(squares)
        inverse = torch.linalg.pinv(q.mT @ q, hermitian=True)  # narrow networks have dead layers
        return noise + q @ (inverse @ (known - q.mT @ noise))


def _root(squares: Tensor) -> Tensor:
    """R with R^T R = squares, also for a matrix of rank 1."""
    values, vectors = torch.linalg.eigh(squares)
    return values.clamp_min(0).sqrt()[..., None] * vectors.mT


Series = list[Tensor]


@dataclass(frozen=True)
class SeriesActivation:
    """An activation, its derivative, and its action on a power series."""

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    series: Callable[[Series], Series]


def _piecewise(name: str, leak: float) -> SeriesActivation:
    def slope(t: Tensor) -> Tensor:
        return torch.where(t > 0, torch.ones_like(t), torch.full_like(t, leak))

    return SeriesActivation(
        name, lambda t: t * slope(t), slope, lambda u: [slope(u[0]) * c for c in u]
    )


def _tanh(u: Series) -> Series:
    """From y' = (1 - y^2) u'."""
    y, rest = [u[0].tanh()], []
    for k in range(1, len(u)):
        product = torch.stack([y[i] * y[k - 1 - i] for i in range(k)]).sum(0)
        rest.append((1.0 if k == 1 else 0.0) - product)
        y.append(torch.stack([j * u[j] * rest[k - j] for j in range(1, k + 1)]).sum(0) / k)
    return y


RELU = _piecewise("ReLU", 0.0)


LEAKY = _piecewise("leaky ReLU", 0.2)


TANH = SeriesActivation("tanh", torch.tanh, lambda t: 1 - t.tanh().square(), _tanh)


def _times(a: Series, b: Series) -> Series:
    return [torch.stack([a[i] * b[k - i] for i in range(k + 1)]).sum(0) for k in range(len(a))]


class NarrowHypernetworks:
    """``seeds`` hypernetworks with f of width n and g of depth H and width 1."""

    def __init__(
        self,
        seeds: int,
        width: int,
        depth: int,
        f: SeriesActivation = RELU,
        g: SeriesActivation = RELU,
    ) -> None:
        self.f, self.g, self.depth, self.width = f, g, depth, width
        self.w1 = torch.randn(seeds, width, 2, dtype=torch.float64)
        self.w2 = torch.randn(seeds, depth, width, dtype=torch.float64)

    def hidden(self, x: Tensor) -> Tensor:
        return self.w1 @ x / math.sqrt(2)

    def generated(self, x: Tensor) -> Tensor:
        """The weights v of g: [seeds, H]."""
        q = math.sqrt(2) * self.f.value(self.hidden(x))
        return (self.w2 @ q[..., None])[..., 0] / math.sqrt(self.width)

    def output(self, v: Tensor, z: float) -> Tensor:
        a = torch.full_like(v[..., 0], z)
        for d in range(self.depth):
            a = v[..., d] * a
            if d < self.depth - 1:
                a = math.sqrt(2) * self.g.value(a)
        return a

    def output_gradient(self, x: Tensor, z: float) -> Tensor:
        """dh / dv, by automatic differentiation: [seeds, H]."""
        v = self.generated(x).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.output(v, z).sum(), v)
        return gradient

    def gradient(self, x: Tensor, z: float) -> tuple[Tensor, Tensor]:
        """Gradients of h by W1 and by W2."""
        c, y = self.output_gradient(x, z), self.hidden(x)
        q = math.sqrt(2) * self.f.value(y)
        d2 = c[..., None] * q[:, None] / math.sqrt(self.width)
        back = (c[:, None] @ self.w2)[:, 0] * math.sqrt(2 / self.width) * self.f.slope(y)
        return back[..., None] * x / math.sqrt(2), d2

    def generated_series(self, x: Tensor, step: tuple[Tensor, Tensor], order: int) -> Series:
        """v(e) at x along w + e step: each [seeds, H]."""
        y = [self.hidden(x), step[0] @ x / math.sqrt(2)]
        y += [torch.zeros_like(y[0])] * (order - 1)
        q = [math.sqrt(2) * c for c in self.f.series(y[: order + 1])]
        columns = torch.stack(q, -1)  # [seeds, n, order + 1]
        still, moved = self.w2 @ columns, step[1] @ columns
        still[..., 1:] += moved[..., :-1]
        return list((still / math.sqrt(self.width)).unbind(-1))

    def terms(self, i: tuple[Tensor, float], j: tuple[Tensor, float], order: int) -> Tensor:
        """K^(0) .. K^(order) of inputs i and j = (x, z): [order + 1, seeds]."""
        v = self.generated_series(i[0], self.gradient(*j), order)
        zero = torch.zeros_like(v[0][..., 0])
        a = [zero + i[1], *[zero] * order]
        for d in range(self.depth):
            a = _times([c[..., d] for c in v], a)
            if d < self.depth - 1:
                a = [math.sqrt(2) * c for c in self.g.series(a)]
        return torch.stack([math.factorial(r) * c for r, c in enumerate(a)])
