"""A head of its own for every layer of the primary, of one kind or of several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.models.heads.base import Head, Target, key
from weightloom.weights import Generated, WeightSpec

__all__ = ["PerLayerHead"]


class PerLayerHead(Head):
    """Every layer of the primary is written by its own head.

    Give one head for all layers, or a mapping from glob patterns over layer names to heads, of
    which the first match counts: ``PerLayerHead({"0": FullHead(), "*": LowRankHead(4)})``.
    """

    def __init__(self, heads: Head | Mapping[str, Head] | None = None) -> None:
        super().__init__()
        from weightloom.models.heads.full import FullHead

        chosen = FullHead() if heads is None else heads
        # Templates are options, not parameters: a tuple keeps nn.Module from registering them.
        self.templates = tuple(chosen.items() if isinstance(chosen, Mapping) else [("*", chosen)])

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        self.heads = nn.ModuleDict()
        for layer in dict.fromkeys(_layer(name) for name in spec):
            names = [name for name in spec if _layer(name) == layer]
            head = copy.deepcopy(self._template(layer))
            head.build(spec.subset(names), features, values)
            self.heads[key(layer) or "primary"] = head

    def _template(self, layer: str) -> Head:
        for pattern, head in self.templates:
            if fnmatchcase(layer, pattern):
                return head
        raise HeadError(
            f"no head is given for layer {layer!r}; patterns are "
            f"{[pattern for pattern, _ in self.templates]}. Add a pattern such as '*'"
        )

    @property
    def degree(self) -> int:  # type: ignore[override]
        return max(head.degree for _, head in self.templates)

    def _each(self) -> list[Head]:
        return [head for head in self.heads.values() if isinstance(head, Head)]

    def generate(self, features: Tensor) -> dict[str, Generated]:
        generated: dict[str, Generated] = {}
        for head in self._each():
            generated.update(head.generate(features))
        return generated

    def initialise(self, targets: Mapping[str, Target], moment: float) -> None:
        for head in self._each():
            names = head.spec or ()
            head.initialise({name: targets[name] for name in names}, moment)

    def default(self) -> None:
        self._for_all(lambda head: head.default())

    def zero(self, moment: float) -> None:
        self._for_all(lambda head: head.zero(moment))

    def _for_all(self, action: Callable[[Head], None]) -> None:
        for head in self._each():
            action(head)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
