"""hyperlight 0.0.5: HyperNet predicts weights, `using_externals` puts them into the main network.

Its README predicts one set of weights and calls the main network inside a `with`; for many
conditions that is a loop, indexing what HyperNet predicted for the whole batch. Better idioms:
unbind instead of indexing (whose backward fills a full-size zero tensor for every condition), and
vmap over the `with`.

HyperNet's default input encoding doubles the inputs and its default activation is LeakyReLU; both
are switched off by its own options, so that it computes the same function as everybody.
"""

from __future__ import annotations

import hyperlight as hl
import torch
from torch import Tensor, nn
from torch.func import vmap
from workloads import Start, Workload, fill

from contenders.base import Contender

__all__ = ["contenders"]

FAMILY = "hyperlight"


class Readme(nn.Module):
    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        primary = workload.make_primary()
        modules = hl.find_modules_of_type(primary, [nn.Linear, nn.Conv2d])
        self.main = hl.hypernetize(primary, modules=modules)
        self.hypernet = hl.HyperNet(
            input_shapes={"h": (workload.encoder[0],)},
            output_shapes=self.main.external_shapes(),
            hidden_sizes=list(workload.encoder[1:]),
            encoding=None,
            fc_kws={"nonlinearity": "ReLU"},
        )
        linears = [m for m in self.hypernet.backbone if isinstance(m, nn.Linear)]
        blocks = start.blocks()
        order = [blocks[name] for name in self.main.external_shapes()]
        head = (torch.cat([w for w, _ in order]), torch.cat([b for _, b in order]))
        for layer, (weight, bias) in zip(linears, [*start.encoder, head], strict=True):
            fill(layer, weight, bias)

    def condition_output(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        with self.main.using_externals(weights):
            return self.main(x)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.hypernet(h=condition)
        rows = ({name: w[i] for name, w in weights.items()} for i in range(len(x)))
        return torch.stack([self.condition_output(row, x[i]) for i, row in enumerate(rows)])


class Unbound(Readme):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.hypernet(h=condition)
        rows = zip(*(w.unbind() for w in weights.values()), strict=True)
        named = (dict(zip(weights, row, strict=True)) for row in rows)
        return torch.stack(
            [self.condition_output(w, row) for w, row in zip(named, x.unbind(), strict=True)]
        )


class Vmapped(Readme):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return vmap(self.condition_output)(self.hypernet(h=condition), x)


def contenders(key: str) -> list[Contender]:
    return [
        Contender("as its README", FAMILY, Readme, peer=True),
        Contender("unbind", FAMILY, Unbound, peer=True),
        Contender("vmapped", FAMILY, Vmapped, peer=True),
    ]
