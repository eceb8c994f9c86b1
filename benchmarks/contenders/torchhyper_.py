"""torchhyper 0.1.2: HyperNetwork predicts a dictionary, `functional_call` applies it.

Its HyperNetwork averages over the rows it is given, so there is one call for each condition, as in
its README. Best idiom: vmap over conditions, prediction and application together.

`import torchhyper.model` needs diffusers and torchvision, which it does not require on
installation. The hypernetwork itself needs neither, so its file is loaded by itself.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from workloads import Start, Workload, fill

from contenders.base import Contender, Unavailable

__all__ = ["contenders"]

FAMILY = "torchhyper"


def _architectures() -> ModuleType:
    package = importlib.util.find_spec("torchhyper")
    if package is None or not package.submodule_search_locations:
        raise Unavailable("No module named 'torchhyper'")
    path = Path(package.submodule_search_locations[0], "model", "hypernetwork_architectures.py")
    spec = importlib.util.spec_from_file_location("torchhyper_architectures", path)
    if spec is None or spec.loader is None:
        raise Unavailable(f"{path.name} is not where version 0.1.2 has it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Readme(nn.Module):
    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        self.downstream = workload.make_primary().requires_grad_(False)
        first, *hidden = workload.encoder
        self.hyper = _architectures().HyperNetwork(first, hidden, self.downstream)
        linears = [m for m in self.hyper.inner_net if isinstance(m, nn.Linear)]
        linears += list(self.hyper.weight_predictors)
        layers = [*start.encoder, *start.blocks().values()]
        for layer, (weight, bias) in zip(linears, layers, strict=True):
            fill(layer, weight, bias)

    def condition_output(self, x: Tensor, condition: Tensor) -> Tensor:
        return functional_call(self.downstream, self.hyper(condition), x)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return torch.stack([self.condition_output(*row) for row in zip(x, condition, strict=True)])


class Vmapped(Readme):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return vmap(self.condition_output)(x, condition)


def contenders(key: str) -> list[Contender]:
    _architectures()
    return [
        Contender("as its README", FAMILY, Readme, peer=True),
        Contender("vmapped", FAMILY, Vmapped, peer=True),
    ]
