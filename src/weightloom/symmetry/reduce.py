"""Lossless reduction: the same function with fewer hidden units."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.reduce_apply import take_out
from weightloom.symmetry.reduce_find import Action, Work, find, find_silent, is_placeholder
from weightloom.symmetry.reduce_probe import deviation_of, folded
from weightloom.symmetry.reduce_walk import Box

__all__ = ["Reduced", "Removal", "reduce"]


@dataclass(frozen=True)
class Removal:
    """One unit that went, and why. Indices are those of the network that was given."""

    layer: str
    """the space of the unit: the first layer that writes it"""
    unit: int
    reason: str
    """"zero", "constant", "saturated", "clone", "scaled clone", "mirrored clone", "always on" """
    into: int | None = None
    """the unit that took over its outgoing weights, if one did"""
    factor: float = 0.0
    """how many times the value of ``into`` its own value was"""

    def __str__(self) -> str:
        text = _TEXTS[self.reason].format(value=self.factor)
        merged = "" if self.into is None else f"; its outgoing weights went to unit {self.into}"
        return f"layer {self.layer!r}, unit {self.unit}: {text}{merged}"


_TEXTS = {
    "zero": "no layer reads it (outgoing weights are zero)",
    "constant": "constant (no incoming weights), folded into the next bias",
    "saturated": "constant for every input, folded into the next bias",
    "clone": "same incoming weights as another unit",
    "scaled clone": "incoming weights are a multiple of another unit's, {value:g} times its value",
    "mirrored clone": "incoming weights are opposite to another unit's",
    "always on": "never switched off, and parallel to another such unit",
}


@dataclass(frozen=True)
class Reduced:
    """A network with fewer units that computes the same."""

    module: nn.Module
    log: tuple[Removal, ...]
    """what went, in order"""
    kept: dict[str, Tensor]
    """for each space, the old indices of the units that are left"""
    notes: tuple[str, ...]
    """what could not be reduced, and why"""
    deviation: float | None
    """largest difference of outputs on random inputs, relative to the largest output (in float64
    for up to a million parameters); None if no input was given and none could be guessed"""

    @property
    def removed(self) -> int:
        """How many units went."""
        return len(self.log)

    def __str__(self) -> str:
        return "\n".join([*(str(one) for one in self.log), *self.notes]) or "nothing to remove"


def reduce(
    module: nn.Module,
    box: Box | None = None,
    tolerance: float = 0.0,
    example: Tensor | None = None,
) -> Reduced:
    """A smaller network that computes the same function: no zero, constant or clone units are left.

    A unit goes if
    - no layer reads it: its outgoing weights are zero (000, Def. 4, for hidden units only: columns
      of the input and rows of the output stay);
    - it is constant: no incoming weights, or an activation that cannot leave one value (a ReLU of
      something never positive). Its value is folded into the next bias, which is made if missing;
    - it is a clone of another unit (000, Def. 3), also a positive multiple for ReLU-like
      activations, an opposite for odd, even and sigmoid-like ones: outgoing weights are added, with
      the factor.
    This is repeated until nothing is left to do, since each removal can make others possible.

    ``box`` = (low, high), numbers or one for each feature (channel), bounds the inputs that matter:
    ReLU units that never switch on inside it are constants; units that are always on and parallel
    to each other (w and c w, whatever their biases) are merged. The function is kept inside the box
    only.
    ``tolerance`` (relative, 2-norm of incoming weights; entries of outgoing ones) also takes units
    that are almost clones or almost unread: then outputs change, see ``deviation``. At 0 clones are
    exactly equal, and multiples equal up to the rounding of a rescaling.

    Units of a convolution are its channels. A constant channel cannot be folded into a convolution
    that pads with zeros: such channels are merged into one, which stays, with a note. Layers whose
    units are bound together (norms, attention, softmax, depthwise convolutions) or which are used
    several times stay as they are, with a note. BatchNorm is folded into its layer first. If all
    units of a layer go, one without weights stays. The module given is not changed.

    >>> net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0], [2.0], [0.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    >>> smaller = reduce(net)
    >>> smaller.module[0].out_features
    1
    >>> print(smaller.log[0])
    layer '0', unit 2: constant (no incoming weights), folded into the next bias
    >>> print(smaller.log[1].reason, smaller.log[1].factor)
    scaled clone 2.0
    """
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; it is relative, give 0 <= tolerance < 1")
    small = folded(copy.deepcopy(module))
    log, kept, notes = _sweep(small, box, tolerance)
    deviation = deviation_of(module, small, box, example) if log else 0.0
    return Reduced(small, tuple(log), kept, tuple(notes), deviation)


def _sweep(
    module: nn.Module, box: Box | None, tolerance: float
) -> tuple[list[Removal], dict[str, Tensor], list[str]]:
    """Take out units, in place, until nothing is found: from the back what no one reads, from the
    front what says nothing new."""
    work = Work(module, box)
    units = {name: list(range(space.size)) for name, space in work.spec.spaces.items()}
    notes = {f"space {name!r} was left: {why}": None for name, why in work.blocked.items()}
    log: list[Removal] = []
    while True:
        changed = False
        free = [name for name in work.spec.spaces if name not in work.blocked]
        for name in reversed(free):
            actions = find_silent(work, name, tolerance)
            log += _take(work, name, actions, units)
            changed = changed or bool(actions)
        stuck: list[str] = []
        for name in free:
            actions, found = find(work, name, tolerance)
            stuck += found
            log += _take(work, name, actions, units)
            changed = changed or bool(actions)
        if not changed:
            empty = [
                f"layer {name!r}: no unit is needed; one without weights stays"
                for name in free
                if is_placeholder(work, name)
            ]
            kept = {name: torch.tensor(left) for name, left in units.items()}
            return log, kept, [*notes, *stuck, *empty]
        work = Work(module, box)


def _take(
    work: Work, space: str, actions: list[Action], units: dict[str, list[int]]
) -> list[Removal]:
    """Apply actions; the log speaks of the units' first indices."""
    if not actions:
        return []
    old = units[space]
    kept = take_out(work, space, actions)
    units[space] = [old[unit] for unit in kept]
    return [
        Removal(
            space,
            old[one.unit],
            one.reason,
            None if one.into is None else old[one.into],
            one.factor,
        )
        for one in actions
    ]
