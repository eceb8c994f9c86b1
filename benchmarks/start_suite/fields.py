"""Functions with exact answers: distances to shapes, a heat equation, sines, ridge regression."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import weightloom as wl
from start_suite.base import Batch, Field, HeldOut, Problem, Task
from start_suite.images import seeded
from start_suite.networks import mlp, network

__all__ = ["TASKS", "Heat", "Ridge", "Shapes", "Sines"]


class Shapes(Problem):
    """Six numbers -> the signed distance function of a rotated box with round corners."""

    bounds = (0.0, 1.0)

    def __init__(self) -> None:
        self.calibration = torch.rand(256, 6, generator=seeded(1))
        self.shapes = torch.rand(200, 6, generator=seeded(2))
        self.places = 2 * torch.rand(200, 200, 2, generator=seeded(3)) - 1
        self.truth = distance(self.places, self.shapes)
        mean = distance(self.places, self.calibration[:200]).mean()
        self.scale = (self.truth - mean).square().mean().item()

    field = Field(nn.Identity, 2, 2, 32, 1)

    def primary(self) -> nn.Module:
        return network(self.field)

    def encoder(self, widen: int = 1) -> nn.Module:
        return mlp([6 * widen, 64, self.features], last=True)

    def batch(self, generator: torch.Generator) -> Batch:
        shapes = torch.rand(16, 6, generator=generator)
        places = 2 * torch.rand(16, 128, 2, generator=generator) - 1
        return Batch(places, shapes, distance(places, shapes))

    def error(self, model: nn.Module) -> float:
        gap = model(self.places, self.shapes) - self.truth
        return gap.square().mean().item() / self.scale

    def held_out(self) -> HeldOut:
        return HeldOut(self.places[:32], self.truth[:32], self.scale)


def distance(places: Tensor, shapes: Tensor) -> Tensor:
    """Signed distance of places [b, n, 2] to boxes: centre, half sides, angle, radius, [b, 6]."""
    centre = 0.8 * shapes[:, None, :2] - 0.4
    half = 0.1 + 0.4 * shapes[:, None, 2:4]
    angle = math.pi * shapes[:, 4]
    radius = 0.2 * shapes[:, 5:6]
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    outside = ((places - centre) @ turn).abs() - half
    far = outside.clamp(min=0).square().sum(-1).sqrt()
    near = outside.amax(-1).clamp(max=0)
    return (far + near - radius).unsqueeze(-1)


class Heat(Problem):
    """HyperPINN: log diffusivity -> the solution of u_t = nu u_xx, learned from the equation alone.

    u(x, 0) = sin(pi x) + sin(3 pi x) / 2 on [0, 1], zero at both ends.
    """

    bounds = (0.0, 1.0)
    steps = 600

    def __init__(self) -> None:
        self.calibration = torch.linspace(0, 1, 256).unsqueeze(1)
        self.settings = torch.linspace(0.02, 0.98, 25).unsqueeze(1)
        self.places = torch.rand(25, 400, 2, generator=seeded(3))
        self.truth = solution(self.places, diffusivity(self.settings))
        self.scale = (self.truth - self.truth.mean()).square().mean().item()

    field = Field(nn.Identity, 2, 2, 32, 1, nn.Tanh)

    def primary(self) -> nn.Module:
        return network(self.field)

    def encoder(self, widen: int = 1) -> nn.Module:
        return mlp([widen, 64, self.features], nn.Tanh, last=True)

    def batch(self, generator: torch.Generator) -> Batch:
        """For `diagnose`, which needs a loss of the output: with the solution as target."""
        settings = torch.rand(8, 1, generator=generator)
        places = torch.rand(8, 64, 2, generator=generator)
        return Batch(places, settings, solution(places, diffusivity(settings)))

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        settings = torch.rand(8, 1, generator=generator)
        inner = torch.rand(8, 64, 2, generator=generator).requires_grad_()
        edge = torch.rand(8, 48, 2, generator=generator)
        edge[:, :16, 0], edge[:, 16:32, 0], edge[:, 32:, 1] = 0.0, 1.0, 0.0
        u = model(torch.cat([inner, edge], 1), settings)
        (first,) = torch.autograd.grad(u[:, :64].sum(), inner, create_graph=True)
        (second,) = torch.autograd.grad(first[..., 0].sum(), inner, create_graph=True)
        rest = first[..., 1] - diffusivity(settings) * second[..., 0]
        given = u[:, 64:] - solution(edge, diffusivity(settings))
        return rest.square().mean() + 10 * given.square().mean()

    def error(self, model: nn.Module) -> float:
        gap = model(self.places, self.settings) - self.truth
        return gap.square().mean().item() / self.scale


def diffusivity(settings: Tensor) -> Tensor:
    """From 0.01 to 0.1, evenly in the logarithm."""
    return 0.01 * 10**settings


def solution(places: Tensor, nu: Tensor) -> Tensor:
    x, t = math.pi * places[..., :1], places[..., 1:]
    decay = -(math.pi**2) * nu.unsqueeze(-1) * t
    return torch.sin(x) * decay.exp() + 0.5 * torch.sin(3 * x) * (9 * decay).exp()


class Sines(Problem):
    """Ten points of a sine -> the sine (Finn and others, 2017: amplitude 0.1 to 5, any phase)."""

    def __init__(self) -> None:
        self.calibration, _, _ = draw_sines(256, 1, seeded(1))
        self.seen, self.places, self.truth = draw_sines(300, 100, seeded(2))
        self.scale = self.truth.square().mean().item()  # their mean is zero

    field = Field(nn.Identity, 1, 1, 40, 1)

    def primary(self) -> nn.Module:
        return network(self.field)

    def encoder(self, widen: int = 1) -> nn.Module:
        each = mlp([2, 64, 64], last=True)
        return nn.Sequential(wl.SetEncoder(each), nn.Linear(64, self.features), nn.ReLU())

    def batch(self, generator: torch.Generator) -> Batch:
        seen, places, truth = draw_sines(32, 32, generator)
        return Batch(places, seen, truth)

    def error(self, model: nn.Module) -> float:
        return (model(self.places, self.seen) - self.truth).square().mean().item() / self.scale

    def held_out(self) -> HeldOut:
        return HeldOut(self.places[:32], self.truth[:32], self.truth[:32].square().mean().item())


def draw_sines(
    count: int, queries: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    amplitude = 0.1 + 4.9 * torch.rand(count, 1, 1, generator=generator)
    phase = math.pi * torch.rand(count, 1, 1, generator=generator)
    x = 10 * torch.rand(count, 10 + queries, 1, generator=generator) - 5
    y = amplitude * torch.sin(x + phase)
    return torch.cat([x, y], -1)[:, :10], x[:, 10:], y[:, 10:]


class Ridge(Problem):
    """log10 of a strength of regularisation -> the linear network that is best at that strength.

    As examples/hyperparameter_conditioned.py. The error compares predictions with the closed form;
    1 is to predict what is best on average over strengths.
    """

    bounds = (0.0, 1.0)

    def __init__(self) -> None:
        from sklearn.datasets import load_diabetes

        x, y = (torch.as_tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
        x = x / x.std(0)
        i, j = torch.triu_indices(10, 10)
        x = torch.cat([x, x[:, i] * x[:, j]], dim=1)
        order = torch.randperm(len(x), generator=seeded(0))
        train, test = order[:100], order[100:]
        self.x, self.test = (
            (x[rows] - x[train].mean(0)) / x[train].std(0) for rows in (train, test)
        )
        self.y = (y[train] - y[train].mean()) / y[train].std()
        self.calibration = torch.linspace(0, 1, 256).unsqueeze(1)
        self.settings = torch.linspace(0, 1, 41).unsqueeze(1)
        self.truth = torch.stack([self.test @ self.best(s) for s in strength(self.settings)[:, 0]])
        self.scale = (self.truth - self.truth.mean(0)).square().mean().item()

    def best(self, strength: Tensor) -> Tensor:
        gram = self.x.T @ self.x / len(self.x) + strength * torch.eye(self.x.shape[1])
        return torch.linalg.solve(gram, self.x.T @ self.y / len(self.x))

    def primary(self) -> nn.Module:
        return nn.Linear(self.x.shape[1], 1, bias=False)

    def encoder(self, widen: int = 1) -> nn.Module:
        return mlp([widen, 64, self.features], nn.SiLU, last=True)

    def batch(self, generator: torch.Generator) -> Batch:
        settings = torch.rand(16, 1, generator=generator)
        eye = torch.eye(self.x.shape[1]).expand(16, -1, -1)

        def loss(weights: Tensor) -> Tensor:  # a linear network on unit vectors: its weights
            fit = (self.x @ weights - self.y.unsqueeze(-1)).square().mean((1, 2))
            return (fit + strength(settings)[:, 0] * weights.square().sum((1, 2))).mean()

        return Batch(eye, settings, None, loss)

    def error(self, model: nn.Module) -> float:
        drawn = model(self.test.expand(len(self.settings), -1, -1), self.settings)
        return (drawn.squeeze(-1) - self.truth).square().mean().item() / self.scale


def strength(settings: Tensor) -> Tensor:
    """From 0.001 to 10, evenly in the logarithm."""
    return 10 ** (4 * settings - 3)


TASKS = [
    Task("shapes", "six numbers -> signed distance function of a 2-D shape", Shapes),
    Task("heat", "HyperPINN: diffusivity -> solution, from the equation alone", Heat),
    Task("sines", "ten points of a sine -> the sine", Sines),
    Task("ridge", "strength of regularisation -> the best linear network", Ridge),
]
