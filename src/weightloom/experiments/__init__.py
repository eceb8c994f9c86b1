"""Experiments: everything the package shows about itself, one folder for each subject."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightloom.lab import Experiment

__all__ = ["all_experiments"]

#: Where each experiment is: name -> "module:attribute". The attribute is an Experiment or a
#: function or class that makes one without arguments. To add an experiment, add a line.
_PLACES = {
    "fig3a": "weightloom.experiments.modularity.fig3:Fig3a",
    "fig3b": "weightloom.experiments.modularity.fig3:Fig3b",
    "fig3c": "weightloom.experiments.modularity.fig3:Fig3c",
    "fig3d": "weightloom.experiments.modularity.fig3:Fig3d",
    "fig3e": "weightloom.experiments.modularity.fig3:Fig3e",
    "fig3f": "weightloom.experiments.modularity.fig3:Fig3f",
    "fig3-robust": "weightloom.experiments.modularity.fig3:Fig3Robust",
    "rates": "weightloom.experiments.modularity.rates:Rates",
    "fig1a": "weightloom.experiments.infinite_width.fig1a:Fig1a",
    "fig1b": "weightloom.experiments.infinite_width.fig1b:Fig1b",
    "thm1": "weightloom.experiments.infinite_width.thm1:Thm1",
    "remark1": "weightloom.experiments.infinite_width.remark1:Remark1",
    "fig2": "weightloom.experiments.infinite_width.fig2:Rotations",
    "fig4": "weightloom.experiments.infinite_width.fig4:RotationRates",
    "fig5": "weightloom.experiments.infinite_width.fig5:WideShallow",
    "table1": "weightloom.experiments.infinite_width.table1:Table1",
    "fig3": "weightloom.experiments.infinite_width.fig3:InfiniteFig3",
    "scale": "weightloom.experiments.infinite_width.scale:Scale",
    "square-error": "weightloom.experiments.depth.square_error:SquareError",
    "sobolev": "weightloom.experiments.depth.sobolev:Sobolev",
    "pieces": "weightloom.experiments.depth.pieces:Pieces",
    "maurey": "weightloom.experiments.width.maurey:Maurey",
    "barron": "weightloom.experiments.width.barron:Barron",
    "near-init": "weightloom.experiments.width.near_init:NearInit",
    "legendre-tails": "weightloom.experiments.separation.tails:LegendreTails",
    "depth-separation": "weightloom.experiments.separation.depth:DepthSeparation",
}


class _Experiments(Mapping[str, "Experiment"]):
    """The experiments by name; each module is imported when its experiment is first asked for."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._made: dict[str, Experiment] = {}

    def __getitem__(self, name: str) -> Experiment:
        if name not in self._made:
            module, _, attribute = self._places[name].partition(":")
            found = getattr(importlib.import_module(module), attribute)
            self._made[name] = found() if callable(found) else found
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def all_experiments() -> Mapping[str, Experiment]:
    """Every experiment by name, in the order of the papers; imported one by one, when used.

    >>> "demo" in all_experiments()
    False
    """
    return _Experiments(_PLACES)
