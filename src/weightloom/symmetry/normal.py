"""Normal networks (000, Definitions 3 to 5): no unit is idle, unread or a copy of another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from weightloom.symmetry.reduce_find import Action, Work, find
from weightloom.symmetry.reduce_probe import folded
from weightloom.symmetry.reduce_walk import Box

__all__ = ["Normality", "is_normal"]

Unit = tuple[str, int]
Copy = tuple[str, int, int]


@dataclass(frozen=True)
class Normality:
    """What keeps a network from being normal; true if nothing does.

    Units are (layer, unit), copies (layer, unit, the unit that they copy).
    """

    zero: tuple[Unit, ...] = ()
    """no outgoing weights"""
    constant: tuple[Unit, ...] = ()
    """one value for every input: no incoming weights, or an activation that never moves"""
    clone: tuple[Copy, ...] = ()
    """incoming weights and bias equal to another unit's"""
    scaled: tuple[Copy, ...] = ()
    """a positive multiple of another unit's, where the activation lets that through"""
    mirrored: tuple[Copy, ...] = ()
    """a negative multiple (opposite) of another unit's, where the activation lets that through"""
    parallel: tuple[Copy, ...] = ()
    """always on (or without activation), and parallel to another such unit; biases differ"""
    notes: tuple[str, ...] = ()
    """what was not judged or cannot be helped; does not count"""

    def __bool__(self) -> bool:
        return not any(getattr(self, one.name) for one in fields(self) if one.name != "notes")

    def __str__(self) -> str:
        lines = [] if self else ["not normal:"]
        for one in fields(self)[:-1]:
            for layer, unit, *of in getattr(self, one.name):
                lines.append(f"layer {layer!r}, unit {unit}: {_words(one.name, of)}")
        return "\n".join([*lines, *self.notes]) or "normal"


_PLACES = {
    "zero": "zero",
    "constant": "constant",
    "saturated": "constant",
    "clone": "clone",
    "scaled clone": "scaled",
    "mirrored clone": "mirrored",
    "always on": "parallel",
}


def is_normal(module: nn.Module, box: Box | None = None, tolerance: float = 0.0) -> Normality:
    """Whether no hidden unit can go: the network has no zero, constant or clone units.

    Definition 5 of 000, with three corrections: columns of the input and rows of the output do not
    count (Def. 4 prints "each matrix"), clones may be scaled or mirrored where the activation lets
    that through, and a layer of a single unit without any weights is as small as a layer can be.
    The answer lists what can be seen at once; removing it may bring out more, see `reduce`, whose
    results are normal. ``box`` and ``tolerance`` are those of `reduce`. Takes a few passes over the
    weights.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> bool(is_normal(net))
    True
    >>> _ = net[0].weight.data[2].copy_(-net[0].weight.data[0])
    >>> _ = net[0].bias.data[2].copy_(-net[0].bias.data[0])
    >>> is_normal(net).mirrored
    (('0', 2, 0),)
    """
    ready = folded(module)
    work = Work(ready, box)
    found: dict[str, list[Any]] = {}
    notes = [f"space {name!r} was not judged: {why}" for name, why in work.blocked.items()]
    for space in work.spec.spaces:
        if space not in work.blocked:
            actions, own = find(work, space, tolerance)
            notes += own
            for action in actions:
                found.setdefault(_PLACES[action.reason], []).append(_entry(space, action))
    lists = {name: tuple(units) for name, units in found.items()}
    return Normality(**lists, notes=tuple(notes))


def _entry(space: str, action: Action) -> Unit | Copy:
    return (space, action.unit) if action.into is None else (space, action.unit, action.into)


def _words(name: str, of: list[int]) -> str:
    if not of:
        return name
    return f"{name if name == 'clone' else f'{name} clone'} of unit {of[0]}"
