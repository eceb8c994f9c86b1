"""Heads made of other heads: one for each layer, or one that changes a given network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads.base import Head, InitTarget, key
from weightloom.hyper.heads.full import FullHead
from weightloom.hyper.heads.low_rank import LowRankHead
from weightloom.hyper.rows import Generated
from weightloom.networks import WeightSpec

__all__ = ["DeltaHead", "PerLayerHead"]


class PerLayerHead(Head):
    """Every layer of the primary is written by its own head.

    Pass one head as template for all layers, or a mapping from glob patterns over layer names to
    heads; the first match counts: ``PerLayerHead({"0": FullHead(), "*": LowRankHead(4)})``.
    """

    def __init__(self, heads: Head | Mapping[str, Head] | None = None) -> None:
        super().__init__()
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

    @property
    def has_offset(self) -> bool:  # type: ignore[override]
        return all(head.has_offset for _, head in self.templates)

    @property
    def direct(self) -> bool:  # type: ignore[override]
        return any(head.direct for _, head in self.templates)

    @property
    def learns_constant(self) -> bool:
        return all(head.learns_constant for _, head in self.templates)

    def _each(self) -> list[Head]:
        return [head for head in self.heads.values() if isinstance(head, Head)]

    def bases(self) -> dict[str, bool]:
        return {name: trained for head in self._each() for name, trained in head.bases().items()}

    def generate(self, features: Tensor) -> dict[str, Generated]:
        generated: dict[str, Generated] = {}
        for head in self._each():
            generated.update(head.generate(features))
        return generated

    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
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


class DeltaHead(Head):
    """W = W_0 + change(phi). W_0 is the primary as it was given, pretrained or not.

    W_0 stays in the primary: this head writes the change, and holds no copy of the given weights.

    ``rank=None``: the change is a full linear function of the features. ``rank=r``: a low-rank
    change per matrix, as LoRA does. ``change``: any other head that writes it, such as
    ``ChunkedHead()`` or ``PerLayerHead({"0": FullHead(False), "*": LowRankHead(4, False)})``. At
    the start the change is exactly zero, so the hypernetwork computes what the primary computed.
    ``train_base=True`` also trains W_0.

    An `AdapterHead` is not wrapped: it writes a change by itself, with one network for all layers.
    """

    relative = True

    def __init__(
        self, rank: int | None = None, train_base: bool = False, change: Head | None = None
    ) -> None:
        super().__init__()
        if change is None:
            change = FullHead(False) if rank is None else LowRankHead(rank, offset=False)
        elif rank is not None:
            raise HeadError(
                f"rank={rank} and change={type(change).__name__} were both given; the rank belongs "
                f"to the change: DeltaHead(change=LowRankHead({rank}, offset=False))"
            )
        _check_change(change)
        self.change = change
        self.train_base = train_base

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        self.change.build(spec, features, {name: _learned_type(v) for name, v in values.items()})

    def generate(self, features: Tensor) -> dict[str, Generated]:
        return self.change.generate(features)

    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        """A change with the variance of ``targets`` around W_0; their offsets are not used."""
        plain = {name: InitTarget(target.variance) for name, target in targets.items()}
        self.change.initialise(plain, moment)

    def default(self) -> None:
        self.zero(1.0)

    def zero(self, moment: float) -> None:
        """No change: what is generated is W_0."""
        with torch.no_grad():
            self.change.zero(moment)


def _learned_type(value: Tensor) -> Tensor:
    """Where the base is in half precision its change is learned in float32; takes no memory."""
    if value.dtype not in (torch.float16, torch.bfloat16):
        return value
    return torch.zeros((), dtype=torch.float32, device=value.device).expand(value.shape)


def _check_change(change: Head) -> None:
    """Refuse heads whose output is not a change that starts at zero."""
    if not isinstance(change, Head):
        raise HeadError(f"change={change!r} was given; pass a Head, such as ChunkedHead()")
    name = type(change).__name__
    if change.relative:
        raise HeadError(
            f"{name} writes a change of the given weights by itself; pass it to the HyperNetwork "
            f"as it is, without a DeltaHead around it"
        )
    if isinstance(change, FullHead | LowRankHead) and change.has_offset:
        options = f"{change.rank}, " if isinstance(change, LowRankHead) else ""
        raise HeadError(
            f"{name} with an offset learns a constant for all conditions, and in a DeltaHead the "
            f"given weights are that constant; pass {name}({options}offset=False), and "
            f"train_base=True to train it"
        )
    if isinstance(change, PerLayerHead):
        for _, head in change.templates:
            _check_change(head)
