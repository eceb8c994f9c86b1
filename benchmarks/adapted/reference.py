"""The right answers: every condition's network by itself, in double precision."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adapted.settings import RATE, SHORT_NEW, Start

__all__ = ["Reference", "outputs_of_rows"]

STEPS = 2


class Reference:
    """Outputs before and after ``STEPS`` steps of SGD, one network after the other."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.base = copy.deepcopy(start.base).double()
        self.hyper = copy.deepcopy(start.hyper).double()
        with torch.no_grad():
            self.generated = self._generate()
        self.before = self.logits(start.short)
        self.scale = float(self.before.std())
        learned = [p for p in self.hyper.parameters() if p.requires_grad]
        for _ in range(STEPS):
            self._step(learned)
        with torch.no_grad():
            rows = outputs_of_rows(self.base, self._generate(), start.short)
            self.change = torch.cat([row.logits for row in rows]) - self.before

    def _generate(self) -> dict[str, Any]:
        return self.hyper.head.generate(
            self.hyper.scaled(self.hyper.encoder(self.start.conditions))
        )

    def _step(self, learned: list[nn.Parameter]) -> None:
        generated = self._generate()
        factors = [tensor for value in generated.values() for tensor in value.batched()]
        leaves = [tensor.detach().requires_grad_(True) for tensor in factors]
        pairs = iter(leaves)
        cut = {name: v.rebuild((next(pairs), next(pairs))) for name, v in generated.items()}
        # Backward row by row: the matrices of all rows at once would take many gigabytes.
        for row in outputs_of_rows(self.base, cut, self.start.short):
            (row.loss / self.start.setting.conditions).backward()
        grads = torch.autograd.grad(factors, learned, [leaf.grad for leaf in leaves])
        with torch.no_grad():
            for parameter, grad in zip(learned, grads, strict=True):
                parameter -= RATE * grad

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """Of the networks before training, [b, n, vocabulary]."""
        rows = outputs_of_rows(self.base, self.generated, ids)
        return torch.cat([row.logits for row in rows])

    def shortfall(self, tokens: Tensor) -> float:
        """By how much decoded tokens are worse than the best at their places, in scales.

        Not a comparison of tokens: two that are nearly as good may change places by rounding.
        """
        logits = self.logits(tokens)[:, -1 - SHORT_NEW : -1]
        taken = logits.gather(2, tokens[:, -SHORT_NEW:, None]).squeeze(2)
        return float((logits.amax(2) - taken).max()) / self.scale


def outputs_of_rows(base: nn.Module, generated: dict[str, Any], ids: Tensor) -> Iterator[Any]:
    """The output and loss of every row, each with matrices that are written out."""
    own = dict(base.named_parameters())
    columns = [zip(v.left.unbind(0), v.right.unbind(0), strict=True) for v in generated.values()]
    for row, factors in zip(ids.split(1), zip(*columns, strict=True), strict=True):
        named = zip(generated, factors, strict=True)
        weights = {name: own[name] + left @ right for name, (left, right) in named}
        given = {"input_ids": row, "labels": row, "use_cache": False}
        yield functional_call(base, weights, (), given)
