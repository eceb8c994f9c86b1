"""hyper-nn 0.2.2: subclass TorchHyperNetwork, write `generate_params`, call it.

As its README does: the module generates one vector of parameters from what `generate_params` is
given and calls the target network with it, so many conditions are a loop. Best idiom: generate
the vectors of all conditions at once and vmap the call (the library itself is built on functorch).
"""

from __future__ import annotations

from typing import Any

import torch
from hypernn.torch import TorchHyperNetwork
from torch import Tensor, nn
from torch.func import vmap
from workloads import Start, Workload, fill

from contenders.base import Contender

__all__ = ["contenders"]

FAMILY = "hyper-nn"


class Conditioned(TorchHyperNetwork):
    """The README's dynamic hypernetwork with f as its generator."""

    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__(workload.make_primary())
        self.embedding_module = start.make_encoder()
        self.weight_generator = nn.Linear(start.features, len(start.head_weight))
        fill(self.weight_generator, start.head_weight, start.head_bias)

    def generate_params(self, condition: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return self.weight_generator(self.embedding_module(condition)), {}


class Readme(nn.Module):
    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        self.hyper = Conditioned(workload, start)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        rows = zip(x, condition, strict=True)
        outputs = [self.hyper(x, generate_params_kwargs={"condition": c}) for x, c in rows]
        return torch.stack(outputs)


class Vmapped(Readme):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        params, _ = self.hyper.generate_params(condition)
        return vmap(lambda p, x: self.hyper(x, generated_params=p))(params, x)


def contenders(key: str) -> list[Contender]:
    return [
        Contender("as its README", FAMILY, Readme, peer=True),
        Contender("vmapped", FAMILY, Vmapped, peer=True),
    ]
