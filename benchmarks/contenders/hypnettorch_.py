"""hypnettorch 0.0.4: HMLP writes weights, a main network of its zoo takes them as a list.

As its README and tutorials do: HMLP with externally given condition embeddings (`cond_input`),
which returns one list of tensors for each condition, and a loop that calls the main network with
each. Best idiom found: ask HMLP for the flat output and vmap the main network's forward.

Its zoo has no plain network of two 3x3 convolutions with padding, so on workload (c) its HMLP
writes the weights and `functional_call` applies them, which costs no more than its own layers do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypnettorch.hnets import HMLP
from hypnettorch.mnets import MLP
from torch import Tensor, nn
from torch.func import functional_call, vmap
from workloads import Start, Workload, fill

from contenders.base import Contender

__all__ = ["contenders"]

FAMILY = "hypnettorch"


class Readme(nn.Module):
    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        self.shapes = list(start.shapes.values())
        self.sizes = start.sizes
        self.run = _main_network(workload, start)
        self.hnet = HMLP(
            [list(shape) for shape in self.shapes],
            cond_in_size=workload.encoder[0],
            layers=workload.encoder[1:],
            num_cond_embs=0,
            no_cond_weights=True,
            verbose=False,
        )
        layers = [*start.encoder, (start.head_weight, start.head_bias)]
        stored = zip(self.hnet.layer_weight_tensors, self.hnet.layer_bias_vectors, strict=True)
        for (weight, bias), (own_weight, own_bias) in zip(layers, stored, strict=True):
            fill(_Pair(own_weight, own_bias), weight, bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.hnet(cond_input=condition, ret_format="sequential")
        return torch.stack([self.run(w, row) for w, row in zip(weights, x, strict=True)])


class Vmapped(Readme):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        flat = self.hnet(cond_input=condition, ret_format="flattened")
        pieces = zip(flat.split(self.sizes, 1), self.shapes, strict=True)
        return vmap(self.run)([piece.view(-1, *shape) for piece, shape in pieces], x)


class _Pair(nn.Module):
    """HMLP keeps its layers as two lists of parameters; `fill` wants an object with both."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias


def _main_network(workload: Workload, start: Start) -> Callable[[list[Tensor], Tensor], Tensor]:
    """(weights, x of one condition) -> output: the zoo's MLP, or functional_call where it has none.

    The README always gives the main network a batch, so a single input x [1000] becomes [1, 1000].
    """
    if workload.key == "c":
        primary, names = workload.make_primary(), list(start.shapes)
        return lambda w, x: functional_call(primary, dict(zip(names, w, strict=True)), (x,))
    widths = [shape for shape in start.shapes.values() if len(shape) == 2]
    hidden = [out for out, _ in widths[:-1]]
    mnet = MLP(
        n_in=widths[0][1],
        n_out=widths[-1][0],
        hidden_layers=hidden,
        no_weights=True,
        verbose=False,
    )
    if len(workload.inputs) > 1:
        return lambda w, x: mnet(x, weights=w)
    return lambda w, x: mnet(x.unsqueeze(0), weights=w).squeeze(0)


def contenders(key: str) -> list[Contender]:
    return [
        Contender("as its README", FAMILY, Readme, peer=True),
        Contender("vmapped", FAMILY, Vmapped, peer=True),
    ]
