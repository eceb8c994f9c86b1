"""What every image set is, where its files are looked for, and errors about bad files."""

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
    """A data file that is damaged, or does not contain what its name says."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set that is not in any of the folders that were searched."""


@dataclass(frozen=True)
class ImageSet:
    """Training and test images, as flat rows of brightness in [0, 1].

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
    """The folder that contains any of ``files``, searched at ``places`` under the data folder.

    The data folder is ``folder``, else the value of WEIGHTLOOM_DATA, else ``data`` in or beside the
    repository if the package runs from one. Only the first of these that is set is searched: a set
    that is missing from a given folder is not taken from elsewhere.
    """
    searched = []
    for root in _roots(folder):
        for place in places:
            here = root / place
            searched.append(str(here))
            if any((here / file).is_file() for file in files):
                return here
    raise MissingDataError(
        f"no {name} found: looked for {files[0]} in "
        f"{', '.join(searched) or 'no folder, because none was given'}. Name the folder that "
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
    """Raise unless the MD5 of ``content`` is the ``known`` one; ``path`` is for the message."""
    if known is None:
        return
    seen = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if seen != known:
        raise DataError(
            f"{path} has other content than the file of that name as published: MD5 {seen}, "
            f"wanted {known}. Fetch it again, or pass verify=False if it is meant to differ"
        )
