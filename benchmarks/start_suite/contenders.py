"""Who takes part: the same primary, encoder and features, with another start of the head.

Each contender is a function from a problem to a model, or None where it does not apply. The random
numbers of primary and encoder are the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import weightloom as wl
from start_suite.base import Problem

__all__ = ["CONTENDERS", "OPTIONAL", "OURS", "PAPERS", "REFERENCES"]

Contender = Callable[[Problem], nn.Module | None]


def weightloom(problem: Problem) -> nn.Module:
    """The default, with the batch of conditions that the guides pass."""
    head = "full" if problem.rank is None else wl.DeltaHead(problem.rank)
    return built(problem, head, calibration=problem.calibration)


def uncalibrated(problem: Problem) -> nn.Module:
    """The default without a batch of conditions."""
    head = "full" if problem.rank is None else wl.DeltaHead(problem.rank)
    return built(problem, head)


def hyperfan_in(problem: Problem) -> nn.Module | None:
    """Chang, Flokas and Lipson (2020) with weightloom's share; the default up to 0.1."""
    if problem.rank is not None:
        return None
    return built(problem, "full", "hyperfan_in", calibration=problem.calibration)


def pytorch(problem: Problem) -> nn.Module:
    """The head as nn.Linear starts: what most hand-written hypernetworks do.

    Also hypnettorch's default: HMLP calls its `init_params`, a copy of nn.Linear's.
    """
    if problem.rank is None:
        return built(problem, "full", "default")
    factors = wl.LowRankHead(problem.rank, offset=False)
    model = built(problem, wl.DeltaHead(change=factors))
    factors.default()
    return model


def mip(problem: Problem) -> nn.Module:
    """Magnitude Invariant Parametrizations (Ortiz and others, 2023), as in hyperlight 0.0.5.

    Conditions in a range become [cos, sin] (`encode_input`), and the encoder keeps their length:
    kaiming normal by fan out, no biases. Other features are scaled to length 1, as one number would
    have. Weights are the primary's own, which are learned (`HyperNet.from_existing`), plus a
    change: kaiming normal by fan out, so variance 2 / size of the tensor; zero for biases
    (`_init_output_split`).
    """
    primary = problem.primary()
    if problem.bounds is not None:
        inner = problem.encoder(2)
        for layer in inner.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="leaky_relu")
                nn.init.zeros_(layer.bias)
        encoder: nn.Module = nn.Sequential(CosSin(*problem.bounds), inner)
    else:
        encoder = nn.Sequential(problem.encoder(), ConstantLength())
    if problem.rank is not None:
        return wl.HyperNetwork(
            primary, encoder, wl.DeltaHead(problem.rank), calibration=problem.calibration
        )
    head = wl.FullHead()
    model = wl.HyperNetwork(
        primary, encoder, head, "primary", features=problem.features, condition_dims=dims(problem)
    )
    with torch.no_grad():
        for name, size in model.spec.sizes.items():
            head.table(name).normal_(0.0, 0.0 if is_bias(name) else math.sqrt(2 / size))
    return model


class CosSin(nn.Module):
    """Numbers between low and high -> points of a quarter circle."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, condition: Tensor) -> Tensor:
        angle = math.pi / 2 * (condition - self.low) / (self.high - self.low)
        return torch.cat([angle.cos(), angle.sin()], -1)


class ConstantLength(nn.Module):
    """Features scaled to length 1."""

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features, dim=-1)


def hypnettorch(problem: Problem) -> nn.Module | None:
    """hypnettorch 0.0.4's optional `HMLP.apply_hyperfan_init`; its default is "pytorch".

    The encoder's layers are kaiming uniform, without biases, and its features are assumed to have
    mean square 1. Tables are uniform with variance 2 / (c fan_in k), c = 2 with biases; every layer
    is taken to be followed by a ReLU. Norm layers are constant.
    """
    if problem.rank is not None:
        return None
    primary, encoder = problem.primary(), problem.encoder()
    for layer in encoder.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    head = wl.FullHead()
    model = wl.HyperNetwork(
        primary, encoder, head, "primary", features=problem.features, condition_dims=dims(problem)
    )
    with torch.no_grad():
        for name, shape in model.spec.shapes.items():
            hyperfan(head, name, shape, has_bias=f"{name.rpartition('.')[0]}.bias" in model.spec)
    return model


def hyperfan(head: wl.FullHead, name: str, shape: tuple[int, ...], has_bias: bool) -> None:
    if len(shape) == 1 and name.endswith("weight"):  # of a norm layer: its own ones
        head.table(name).zero_()
        return
    fan_in = 1.0 if len(shape) == 1 else math.prod(shape[1:])
    share = 2.0 if has_bias or len(shape) == 1 else 1.0
    bound = math.sqrt(3 * 2 / (share * fan_in * head.features))
    head.table(name).uniform_(-bound, bound)
    offset = head.offset(name)
    if offset is not None:
        offset.zero_()


def paper(problem: Problem) -> nn.Module | None:
    """The recipe that was published for this kind of task."""
    return None if problem.paper is None else PAPERS[problem.paper](problem)


def sitzmann(problem: Problem) -> nn.Module:
    """Sitzmann and others (2020), `meta_modules.py` of their code, for coordinate networks.

    Tables kaiming normal, divided by 100; offsets uniform in 1 / fan_in of the primary's layer for
    weights, 1 / k for biases.
    """
    head = wl.FullHead()
    model = built(problem, head, "default")
    with torch.no_grad():
        for name, shape in model.spec.shapes.items():
            head.table(name).normal_(0.0, math.sqrt(2 / head.features) / 100)
            bound = 1 / (head.features if is_bias(name) else shape[-1])
            offset = head.offset(name)
            if offset is not None:
                offset.uniform_(-bound, bound)
    return model


def von_oswald(problem: Problem) -> nn.Module:
    """von Oswald and others (2020): one small network writes chunks; PyTorch's initialisation."""
    return built(problem, wl.ChunkedHead(size=256, embedding=32, hidden=64), "default")


def ha(problem: Problem) -> nn.Module:
    """Small normal tables and no offset, as Ha, Dai and Le (2017) start theirs (0.01)."""
    head = wl.FullHead()
    model = built(problem, head, "default")
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        for name in model.spec:
            head.table(name).normal_(0.0, 0.01)
    return model


def text_to_lora(problem: Problem) -> nn.Module:
    """Charakorn and others (2025): one trunk for all layers, only a bias of the right factor."""
    return built(problem, wl.AdapterHead(problem.rank or 4, 64, 16, 16))


def cnp(problem: Problem) -> nn.Module | None:
    """A conditional neural process: no hypernetwork, for reference, where conditions are sets."""
    encoder = problem.encoder()
    if not (isinstance(encoder, nn.Sequential) and isinstance(encoder[0], wl.SetEncoder)):
        return None
    predictor = wl.mlp([1 + problem.features, 128, 128, 1])
    return wl.EmbeddingNetwork(predictor, encoder)


# -- building -------------------------------------------------------------------------------------


def built(
    problem: Problem,
    head: str | wl.Head,
    init: str | None = None,
    calibration: Tensor | None = None,
) -> wl.HyperNetwork:
    primary = problem.primary()
    return wl.HyperNetwork(
        primary,
        problem.encoder(),
        head,
        init,
        features=problem.features,
        calibration=calibration,
        condition_dims=dims(problem),
    )


def dims(problem: Problem) -> int:
    return problem.calibration.dim() - 1


def is_bias(name: str) -> bool:
    return name.endswith("bias")


OURS = "weightloom"
PAPERS: dict[str, Callable[[Problem], nn.Module]] = {
    "sitzmann": sitzmann,
    "von_oswald": von_oswald,
    "ha": ha,
    "text_to_lora": text_to_lora,
}
CONTENDERS: dict[str, Contender] = {
    OURS: weightloom,
    "hyperfan_in": hyperfan_in,
    "pytorch": pytorch,
    "mip": mip,
    "hypnettorch": hypnettorch,
    "paper": paper,
    "cnp": cnp,
    "uncalibrated": uncalibrated,
}
REFERENCES = ("cnp",)  # shown beside the contenders, but not compared with
OPTIONAL = ("uncalibrated",)  # only if --only names it
