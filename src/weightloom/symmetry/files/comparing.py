"""Two files: load them so that they can be compared, and compare them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from weightloom.symmetry.files.answers import TRIED, FileVerdict, compare_modules
from weightloom.symmetry.files.checkpoints import Loaded, load_by_names

__all__ = ["compare_files", "compare_loaded", "load_pair"]

#: Most parameters of networks that are compared with each activation in turn.
_MOST_TRIED = 1 << 24

Labelled = tuple[Path, str]
"""path, and the name that the reader knows it by"""


def load_pair(
    first: Labelled, second: Labelled, activation: str | None, assumed: str | None = None
) -> tuple[Loaded, Loaded]:
    """Both networks, with layers compared by position: "fc1" in one may be "0" in the other.

    A file that does not say its activation is read with that of the other one.
    """
    a = load_by_names(first[0], activation, label=first[1], assumed=assumed)
    known = a.activation if not a.guessed else assumed
    b = load_by_names(second[0], activation, a.layers, second[1], known)
    if a.guessed and not b.guessed and b.activation:
        a = load_by_names(first[0], activation, label=first[1], assumed=b.activation)
    return a, b


def compare_files(
    first: Labelled, second: Labelled, activation: str | None, tolerance: float | None = None
) -> tuple[FileVerdict, list[Loaded]]:
    """Whether two files hold the same function, and the networks as they were read.

    Where no file says its activation, one of each kind is tried; where one file does, the other is
    taken to have the same, and the answer says so.
    """
    a, b = load_pair(first, second, activation)
    stand_in = a.convolutional or b.convolutional
    if not (a.guessed or b.guessed):
        return compare_loaded(a, b, tolerance=tolerance), [a, b]
    known = next((each.activation for each in (a, b) if not each.guessed), None)
    names = (known,) if known else TRIED
    if sum(p.numel() for p in a.module.parameters()) > _MOST_TRIED:
        names = names[:1]
    pairs: dict[str | None, Callable[[], tuple[nn.Module, nn.Module]]] = {
        name: partial(_modules, first, second, name) for name in names
    }
    compared = compare_modules(pairs, tolerance, stand_in)
    shown = next(
        name for name, answer in compared.tried.items() if answer == compared.verdict.answer
    )
    return compared, list(load_pair(first, second, activation, shown))


def compare_loaded(a: Loaded, b: Loaded, *, tolerance: float | None = None) -> FileVerdict:
    """The verdict on two networks of which nothing was guessed but strides and pooling."""
    make = partial(_both, a, b)
    return compare_modules({None: make}, tolerance, a.convolutional or b.convolutional)


def _both(a: Loaded, b: Loaded) -> tuple[nn.Module, nn.Module]:
    return a.module, b.module


def _modules(first: Labelled, second: Labelled, assumed: str) -> tuple[nn.Module, nn.Module]:
    a, b = load_pair(first, second, None, assumed)
    return a.module, b.module
