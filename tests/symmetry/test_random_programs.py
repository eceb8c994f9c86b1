"""Random programs: whatever is claimed about them must be true.

Each program is a random sequence of operations on a few values, with weights that may be used more
than once. A random element of the symmetries that were read must leave its outputs as they are.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weightloom.networks import operations_of
from weightloom.symmetry import apply, random_element
from weightloom.symmetry.reading.labels.result import read_operations

WIDTHS = (4, 6, 8)


class Program(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.seed, self.weights = seed, nn.ParameterDict()

    def weight(self, name, *shape):
        if name not in self.weights:
            generator = torch.Generator().manual_seed(1000 * self.seed + len(self.weights))
            scale = max(1, shape[-1]) ** -0.5
            self.weights[name] = nn.Parameter(scale * torch.randn(*shape, generator=generator))
        return self.weights[name]

    def linear(self, value, out, name):
        bias = self.weight(f"{name}_bias", out) if len(name) % 2 else None
        return F.linear(
            value, self.weight(f"{name}_{out}_{value.shape[-1]}", out, value.shape[-1]), bias
        )

    def attention(self, choice, a, b, name):
        heads, size = choice.choice([1, 2, 4]), choice.choice([2, 4])
        rows, length, _ = a.shape
        q, k, v = (
            self.linear(x, heads * size, f"{name}{part}").view(rows, length, heads, size)
            for x, part in zip((a, b, b), "qkv", strict=True)
        )
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        inside = choice.randrange(8)
        if inside == 0:
            q = torch.tanh(q)
        elif inside == 1:
            k = k * self.weight(f"{name}gain{size}", size)
        elif inside == 2:
            q = (q.transpose(1, 3) @ self.weight(f"{name}mix{heads}", heads, heads)).transpose(1, 3)
        elif inside == 3:
            v = v + k
        y = (q @ k.mT).softmax(-1) @ v if inside % 2 else F.scaled_dot_product_attention(q, k, v)
        if inside == 4:
            y = y * self.weight(f"{name}heads{heads}", heads, 1, 1)
        return y.transpose(1, 2).reshape(rows, length, heads * size)

    def step(self, choice, values, name):
        a, b = choice.choice(values), choice.choice(values)
        a = torch.cat([a, a], -1) if a.shape[-1] % 2 else a
        width, half = a.shape[-1], a.shape[-1] // 2
        same = b if b.shape == a.shape else a
        operations = [
            lambda: self.linear(a, choice.choice(WIDTHS), name),
            lambda: self.linear(a, choice.choice(WIDTHS), "shared"),
            lambda: self.attention(choice, a, b, name),
            lambda: self.linear(self.attention(choice, a, b, name), choice.choice(WIDTHS), name),
            lambda: F.relu(a),
            lambda: torch.tanh(a),
            lambda: F.gelu(a) * same,
            lambda: a + same,
            lambda: a - same,
            lambda: a * self.weight(f"{name}gain{width}", width),
            lambda: a * self.weight(f"gain{width}", width) + same,
            lambda: a + self.weight(f"gain{width}", width),
            lambda: F.layer_norm(a, (width,), self.weight(f"{name}norm{width}", width)),
            lambda: F.rms_norm(a, (width,), self.weight(f"{name}norm{width}", width)),
            lambda: torch.cat([a, b], -1),
            lambda: a[..., :half],
            lambda: a[..., :half] * torch.sigmoid(a[..., half : 2 * half]),
            lambda: a.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),
            lambda: a.softmax(-1),
            lambda: a / (a.norm(dim=-1, keepdim=True) + 1),
            lambda: a @ self.weight(f"square{width}", width, width),
            lambda: a * b.mean(-1, keepdim=True),
            lambda: a.flip(-1),
            lambda: torch.maximum(a, same),
            lambda: F.conv1d(a.mT, self.weight(f"{name}deep{width}", width, 1, 1), groups=width).mT,
            lambda: F.conv1d(a.mT, self.weight(f"{name}two{width}", 8, half, 1), groups=2).mT,
            lambda: F.group_norm(a.mT, 2, self.weight(f"{name}group{width}", width)).mT,
        ]
        operations += [operations[3]] * 6  # attention is rare otherwise
        return choice.choice(operations)()

    def forward(self, x):
        choice = random.Random(self.seed)
        values = [self.linear(x, choice.choice(WIDTHS), f"in{i}") for i in range(3)]
        for place in range(choice.randint(3, 8)):
            values.append(self.step(choice, values, f"step{place}"))
        return sum(self.linear(v, 2, f"out{i}") for i, v in enumerate(values[-3:]))


@pytest.mark.parametrize("seed", range(60))
@torch.no_grad()
def test_random_elements_leave_random_programs_as_they_are(seed):
    net, x = Program(seed), torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(seed))
    net(x)  # makes the weights
    net, x = net.double(), x.double()
    wanted = net(x)
    spec = read_operations(operations_of(net, x))
    for number in range(2):
        element = random_element(spec, torch.Generator().manual_seed(number))
        gap = (apply(element, net, spec)(x) - wanted).abs().max()
        assert float(gap) <= 1e-9 * float(wanted.abs().max())


def test_the_programs_have_symmetries():
    """So that the test above is not about nothing."""
    counts = [0, 0, 0]
    for seed in range(30):
        net, x = Program(seed), torch.randn(2, 5, 3)
        net(x)
        spec = read_operations(operations_of(net, x))
        for place, parts in enumerate((spec.spaces, spec.attentions, spec.gains)):
            counts[place] += len(parts)
    assert min(counts) >= 3, counts
