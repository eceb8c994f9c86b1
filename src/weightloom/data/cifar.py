"""CIFAR-10 in its original pickles, read by an unpickler that cannot run code.

A pickle is a small program that may call any function by name. Here the names that an array in a
pickle needs stand for classes that only record their arguments. Every other name is refused before
anything is called. numpy itself never sees the contents of the file.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightloom.data.image_sets import DataError, ImageSet, check_sum, find_set

__all__ = ["find_cifar10", "load_cifar10", "read_pickle"]

_PLACES = ("cifar-10-batches-py", ".")
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_TEST = "test_batch"
_SIDE, _CHANNELS, _LABELS = 32, 3, 10

#: MD5 of each file, as published with the set.
_SUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def find_cifar10(folder: Path | None = None) -> Path:
    """Where CIFAR-10's files are (see `find_set`); MissingDataError if they are nowhere."""
    return find_set("CIFAR-10", _PLACES, (*_BATCHES, _TEST), folder)


def load_cifar10(
    folder: Path | None = None,
    *,
    train: int | None = None,
    test: int | None = None,
    verify: bool = True,
) -> ImageSet:
    """CIFAR-10 from ``folder`` (see `find_set` for the default), or only its first images.

    Training images come from those of the five ``data_batch`` files that are there, in order;
    ``source`` says how many. ``train`` and ``test`` are how many images to keep, the first ones.
    ``verify=False`` accepts files whose content is not the published one.
    """
    here = find_cifar10(folder)
    there = [name for name in _BATCHES if (here / name).is_file()]
    if not there or not (here / _TEST).is_file():
        raise DataError(
            f"{here} has {', '.join(there) or _TEST}; {_TEST} and at least one data_batch file "
            f"are needed"
        )
    batches = [_batch(here / name, verify) for name in there]
    images = torch.cat([batch[0] for batch in batches])[:train]
    labels = torch.cat([batch[1] for batch in batches])[:train]
    test_images, test_labels = _batch(here / _TEST, verify)
    return ImageSet(
        "cifar10",
        images.float() / 255.0,
        labels,
        test_images[:test].float() / 255.0,
        test_labels[:test],
        _SIDE,
        _CHANNELS,
        f"CIFAR-10, {len(there)} of {len(_BATCHES)} training files, read from {here}",
    )


def _batch(path: Path, verify: bool) -> tuple[Tensor, Tensor]:
    """The images (bytes, flat) and labels of one file."""
    content = path.read_bytes()
    batch = read_pickle(content, path)
    check_sum(path, content, _SUMS[path.name] if verify else None)
    if not isinstance(batch, dict):
        raise DataError(f"{path} holds a {type(batch).__name__}; a dictionary is wanted")
    # Keys written by Python 2 arrive as bytes.
    entries = {key.decode() if isinstance(key, bytes) else key: v for key, v in batch.items()}
    if not isinstance(entries.get("data"), _Array) or not isinstance(entries.get("labels"), list):
        raise DataError(
            f"{path} has the entries {', '.join(map(str, entries))}; an array 'data' and a list "
            f"'labels' are wanted"
        )
    images, labels = entries["data"].bytes_of(path), entries["labels"]
    if images.ndim != 2 or images.shape[1] != _CHANNELS * _SIDE**2 or len(labels) != len(images):
        raise DataError(
            f"{path} has images of shape {images.shape} and {len(labels)} labels; "
            f"[n, {_CHANNELS * _SIDE**2}] and n labels are wanted"
        )
    if not all(type(label) is int and 0 <= label < _LABELS for label in labels):
        raise DataError(f"{path} has labels other than the whole numbers 0 to {_LABELS - 1}")
    return torch.from_numpy(images.copy()), torch.tensor(labels, dtype=torch.int64)


def read_pickle(content: bytes, path: Path | str = "the file") -> object:
    """The contents of a pickle of plain data and byte arrays; arrays are records of their bytes.

    >>> read_pickle(pickle.dumps({"labels": [3, 1]}))
    {'labels': [3, 1]}
    """
    try:
        return _SafeUnpickler(io.BytesIO(content), path).load()
    except DataError:
        raise
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        raise DataError(
            f"{path} cannot be read as a pickle ({type(error).__name__}: {error}): truncated, "
            f"damaged or something else. Fetch it again"
        ) from error


class _Type:
    """Stands for numpy.ndarray and numpy.dtype: records its arguments."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which one-byte numbers do not have."""


class _Array:
    """Stands for an array under construction: records its shape, type and bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of(self, path: Path) -> np.ndarray:
        """The array, if it has unsigned bytes in C order; otherwise raise."""
        state = self.state
        if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[2], _Type)):
            raise DataError(f"{path} holds an array that is not stored as numpy stores arrays")
        _, shape, kind, fortran, raw = state
        name = kind.arguments[0] if kind.arguments else None
        if name not in ("u1", b"u1") or fortran or not isinstance(raw, bytes):
            raise DataError(f"{path} holds an array of type {name!r}; bytes (u1) are wanted")
        if not isinstance(shape, tuple) or not all(type(s) is int and s >= 0 for s in shape):
            raise DataError(f"{path} holds an array of shape {shape!r}")
        if len(raw) != math.prod(shape):
            raise DataError(f"{path} holds {len(raw)} bytes for an array of shape {shape}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


class _Encoded:
    """Stands for _codecs.encode, which Python 3 uses for bytes in old pickle protocols.

    It is a class with `__setstate__`, so that a pickle cannot set attributes on it.
    """

    def __new__(cls, text: Any, encoding: Any) -> Any:
        if encoding not in ("latin1", b"latin1") or not isinstance(text, str):
            raise ValueError(f"{type(text).__name__} encoded as {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Never called: what `__new__` returns is bytes."""


#: All names that a pickle may use, and what stands for them.
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encoded,
}


class _SafeUnpickler(pickle.Unpickler):
    """Reads pickles that use no names but those of an array."""

    def __init__(self, file: io.BytesIO, path: Path | str) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise DataError(
                f"{self._path} asks for {module}.{name}, which no image set needs: the file may "
                f"try to run code. It was not read; do not open it with pickle"
            )
        return _NAMES[module, name]
