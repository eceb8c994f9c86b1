"""The registry of all experiments. Each is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightloom_papers.lab import Experiment

__all__ = ["all_experiments"]

#: Where each experiment is: paper -> name -> "folder:class". The class is in ``experiment.py`` of
#: the folder, below ``experiments/`` of the paper. To add an experiment, add a line.
_FOLDERS = {
    "modularity": {
        "fig3a": "fig3:Fig3a",
        "fig3b": "fig3:Fig3b",
        "fig3c": "fig3:Fig3c",
        "fig3d": "fig3:Fig3d",
        "fig3e": "fig3:Fig3e",
        "fig3f": "fig3:Fig3f",
        "fig3-robust": "fig3_robust:Fig3Robust",
        "rates": "rates:Rates",
    },
    "infinite-width": {
        "fig1a": "fig1:Fig1a",
        "fig1b": "fig1:Fig1b",
        "thm1": "thm1:Thm1",
        "remark1": "remark1:Remark1",
        "fig2": "rotations:Rotations",
        "fig4": "rotations:RotationRates",
        "fig5": "fig5:WideShallow",
        "table1": "table1:Table1",
        "fig3": "fig3:InfiniteFig3",
        "scale": "scale:ScaleExperiment",
    },
    "deep-learning-theory": {
        "square-error": "square_error:SquareError",
        "sobolev": "sobolev:Sobolev",
        "pieces": "pieces:PiecesExperiment",
        "maurey": "maurey:Maurey",
        "barron": "barron:Barron",
        "near-init": "near_init:NearInit",
    },
    "depth-separation": {
        "legendre-tails": "legendre_tails:LegendreTails",
        "training": "training:DepthSeparation",
    },
}


def _address(paper: str, place: str) -> str:
    """
    >>> _address("infinite-width", "fig1:Fig1a")
    'weightloom_papers.infinite_width.experiments.fig1.experiment:Fig1a'
    """
    folder, _, attribute = place.partition(":")
    package = f"weightloom_papers.{paper.replace('-', '_')}.experiments"
    return f"{package}.{folder}.experiment:{attribute}"


#: Full name -> "module:class".
_PLACES = {
    f"{paper}/{name}": _address(paper, place)
    for paper, places in _FOLDERS.items()
    for name, place in places.items()
}


class _Experiments(Mapping[str, "Experiment"]):
    """The experiments by name; each module is imported when its experiment is first used."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._instances: dict[str, Experiment] = {}

    def __getitem__(self, name: str) -> Experiment:
        if name not in self._instances:
            module, _, attribute = self._places[name].partition(":")
            self._instances[name] = getattr(importlib.import_module(module), attribute)()
        return self._instances[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def all_experiments() -> Mapping[str, Experiment]:
    """Every experiment by name, in the order of the papers.

    >>> "modularity/fig3a" in all_experiments()
    True
    """
    return _Experiments(_PLACES)
