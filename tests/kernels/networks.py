"""Small networks of many kinds, and the slow exact tangent kernel that judges the fast ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

LINEAR_SEED = 1


def jacobian_oracle(h, u):
    """The full Jacobian [n, c, P], one output of one row at a time, by plain autograd."""
    u = (u,) if isinstance(u, torch.Tensor) else u
    parameters = [p for p in h.parameters() if p.requires_grad]
    rows = []
    for i in range(len(u[0])):
        output = h(*(a[i : i + 1] for a in u)).reshape(-1)
        for value in output:
            grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            full = [0 * p if g is None else g for g, p in zip(grads, parameters, strict=True)]
            rows.append(torch.cat([g.detach().reshape(-1) for g in full]))
    return torch.stack(rows).view(len(u[0]), -1, rows[0].numel())


def ntk_oracle(h, u, u2=None):
    left = jacobian_oracle(h, u)
    right = left if u2 is None else jacobian_oracle(h, u2)
    kernel = torch.einsum("ncp,mdp->nmcd", left, right)
    return kernel[:, :, 0, 0] if kernel.shape[-1] == 1 else kernel


class Tokens(nn.Module):
    """Linear layers applied to several positions of a row, pooled."""

    def __init__(self, inputs=3, width=5, outputs=1):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)).mean(1))


class DeepTokens(Tokens):
    """With a layer between, so that outputs are not interchangeable in the first layer's part."""

    def __init__(self, inputs, width, outputs):
        super().__init__(inputs, width, outputs)
        self.middle = nn.Linear(width, width)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))).mean(1))


class Joined(Tokens):
    """The same, with tokens and rows joined into one dimension for the layer."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x.flatten(0, 1)))
        return self.last(hidden.unflatten(0, x.shape[:2]).mean(1))


class Recurrent(nn.Module):
    """One layer called three times."""

    def __init__(self):
        super().__init__()
        self.step, self.last = nn.Linear(3, 3), nn.Linear(3, 1, bias=False)

    def forward(self, x):
        for _ in range(3):
            x = torch.sin(self.step(x))
        return self.last(x)


class Behind(nn.Module):
    """Uses a layer's weight behind the layer's back, and the layer as well."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) + F.linear(x, self.first.weight))


class Centred(nn.Module):
    """Rows that depend on each other, without a layer that would say so."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 1)

    def forward(self, x):
        y = self.first(x)
        return y - y.mean(0)


class Branches(nn.Module):
    """Control flow that looks at values: torch.vmap refuses it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0], dtype=torch.float64))

    def forward(self, x):
        picked = self.scale[0] if float(x.sum()) > 0 else self.scale[1]
        return (picked * x).sum(-1)


class Product(nn.Module):
    """h(x, z) with two arguments and a scalar for each row."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x, z):
        return (torch.tanh(self.left(x)) * self.right(z)).sum(-1)


def linear_networks():
    """(name, module, inputs) whose trainable parameters all sit in linear layers."""
    x = torch.randn(5, 3)
    tokens = torch.randn(5, 4, 3)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    tied[2].weight, tied[2].bias = tied[0].weight, tied[0].bias
    frozen = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
    frozen[0].weight.requires_grad_(False)
    frozen[2].bias.requires_grad_(False)
    inplace = nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    yield "mlp", nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1)), x
    yield "several outputs", nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 3)), x
    yield "in place", inplace, x
    yield "tied", tied, x
    yield "frozen", frozen, x
    yield "tokens", Tokens(outputs=2), tokens
    # Wide enough that pairs of positions cost less than forming the gradient of the weights.
    yield "wide tokens", DeepTokens(20, 30, 2), torch.randn(5, 2, 20)
    yield "joined", Joined(), tokens
    yield "recurrent", Recurrent(), x
    yield "two arguments", Product(), (x, torch.randn(5, 2))


def other_networks():
    """(name, module, inputs) that need a general method."""
    x = torch.randn(5, 3)
    norm = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2))
    convolution = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2, bias=False)
    )
    evaluated = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    yield "layer norm", norm, x
    yield "convolution", convolution, torch.randn(5, 1, 4, 4)
    yield "evaluated", evaluated.eval(), x
    yield "behind", Behind(), x


def named(networks):
    """In double precision, by name; sampled with one seed."""
    torch.manual_seed(LINEAR_SEED)
    return {name: (h.double(), _double(u)) for name, h, u in networks()}


def _double(u):
    return u.double() if isinstance(u, torch.Tensor) else tuple(a.double() for a in u)
