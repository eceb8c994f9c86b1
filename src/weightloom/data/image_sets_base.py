"""What every image set is, where its files are looked for, and what is said when they are bad."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from weightloom.errors import WeightloomError

__all__ = ["VARIABLE", "DataError", "ImageSet", "MissingDataError", "check_sum", "find_set"]

#: The environment variable that names the folder of all data sets.
VARIABLE = "WEIGHTLOOM_DATA"


class DataError(WeightloomError, ValueError):
    """A data file that is damaged, or is not what its name says."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set that is in none of the places where it was looked for."""


@dataclass(frozen=True)
class ImageSet:
    """Images to learn from and images to test on, as flat rows of brightness in [0, 1].

    A row holds its channels one after the other, each row by row.
    """

    name: str  # "mnist", "cifar10" or "digits"
    train: Tensor  # [n, channels * side * side]
    train_labels: Tensor  # [n]
    test: Tensor  # [m, channels * side * side]
    test_labels: Tensor  # [m]
    side: int
    channels: int
    source: str  # which set this is and where it came from, for captions and logs


def find_set(name: str, places: Sequence[str], files: Sequence[str], folder: Path | None) -> Path:
    """The folder that holds any of ``files``, looked for at ``places`` under the data folder.

    The data folder is ``folder``; without it what WEIGHTLOOM_DATA names; without that ``data``
    in or beside the repository, where the package runs from one. The first that is *said* counts:
    a set that is missing from the folder given is not taken from elsewhere.
    """
    looked = []
    for root in _roots(folder):
        for place in places:
            here = root / place
            looked.append(str(here))
            if any((here / file).is_file() for file in files):
                return here
    raise MissingDataError(
        f"no {name} found: looked for {files[0]} in "
        f"{', '.join(looked) or 'no place at all, as none was given'}. Name the folder that "
        f"holds {places[0]}/ with --data-dir or the environment variable {VARIABLE}"
    )


def _roots(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
    elif os.environ.get(VARIABLE):
        yield Path(os.environ[VARIABLE])
    else:
        repository = Path(__file__).resolve().parents[3]
        if (repository / "pyproject.toml").is_file():  # not when installed among other packages
            yield from (repository / "data", repository.parent / "data")


def check_sum(path: Path, content: bytes, known: str | None) -> None:
    """Refuse ``content`` of ``path`` if its MD5 is not the ``known`` one."""
    if known is None:
        return
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != known:
        raise DataError(
            f"{path} has other content than the file of that name as published: MD5 {found}, "
            f"wanted {known}. Fetch it again, or pass verify=False if it is meant to differ"
        )
