"""MNIST in its original idx files, packed or not, read without torchvision."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weightloom.data.image_sets_base import DataError, ImageSet, check_sum, find_set

__all__ = ["find_mnist", "load_mnist", "read_idx"]

_PLACES = ("MNIST/raw", "raw", ".")

#: MD5 of each file as unpacked, so that it does not matter how it was packed. They were taken
#: from files whose packed MD5s are the published ones (f68b3c2d..., d53e105e..., 9fb629c4...,
#: ec29112d...).
_SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def find_mnist(folder: Path | None = None) -> Path:
    """Where MNIST's files are (see `find_set`); MissingDataError if they are nowhere."""
    names = [end for name in _SUMS for end in (f"{name}.gz", name)]
    return find_set("MNIST", _PLACES, names, folder)


def load_mnist(
    folder: Path | None = None,
    *,
    train: int | None = None,
    test: int | None = None,
    verify: bool = True,
) -> ImageSet:
    """MNIST from ``folder`` (see `find_set` for the default), or only its first images.

    60,000 images to train on and 10,000 to test on; ``train`` and ``test`` keep the first so many
    of them. ``verify=False`` admits files whose content is not the published one.
    """
    here = find_mnist(folder)
    first, first_labels = _split(here, "train", train, verify)
    last, last_labels = _split(here, "t10k", test, verify)
    if first.shape[1] != last.shape[1]:
        raise DataError(
            f"{here} has training images of {first.shape[1]} pixels and test images of "
            f"{last.shape[1]}; they must be of one size"
        )
    side = math.isqrt(first.shape[1])
    return ImageSet(
        "mnist", first, first_labels, last, last_labels, side, 1, f"MNIST, read from {here}"
    )


def _split(here: Path, part: str, count: int | None, verify: bool) -> tuple[Tensor, Tensor]:
    """The first ``count`` images of a part, flat, with their labels."""
    images, where = _read(here, f"{part}-images-idx3-ubyte", verify)
    labels, _ = _read(here, f"{part}-labels-idx1-ubyte", verify)
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise DataError(f"{where} has shape {images.shape}; square images are wanted: [n, s, s]")
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{here} has {images.shape[0]} {part} images and labels of shape {labels.shape}; "
            f"one label for each image is wanted"
        )
    kept = torch.from_numpy(images[:count].reshape(len(images[:count]), -1).copy())
    return kept.float() / 255.0, torch.from_numpy(labels[:count].astype(np.int64))


def _read(here: Path, name: str, verify: bool) -> tuple[np.ndarray, Path]:
    """The array in the file called ``name``, packed or not, and which file that was."""
    packed, plain = here / f"{name}.gz", here / name
    path = packed if packed.is_file() else plain
    if not path.is_file():
        raise DataError(
            f"{here} has no {packed.name} (nor {name}), though other MNIST files are there; "
            f"all four are needed"
        )
    content = path.read_bytes()
    if path == packed:
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{path} cannot be unpacked ({error}): truncated or damaged. Fetch it again"
            ) from error
    array = read_idx(content, path)
    check_sum(path, content, _SUMS[name] if verify else None)
    return array, path


def read_idx(content: bytes, path: Path | str = "the file") -> np.ndarray:
    """The array of bytes in an idx file: two zeros, type 8, how many axes, their sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])).tolist()
    [5, 6]
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 4:
        start = content[:4].hex(" ") or "(none)"
        raise DataError(
            f"{path} begins with the bytes {start}; an idx file of bytes "
            f"begins with 00 00 08 and the number of axes, 1 to 4. It is not such a file"
        )
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise DataError(f"{path} is truncated: it ends within its header. Fetch it again")
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    there, wanted = len(content) - begin, math.prod(shape)
    if there != wanted:
        wrong = "is truncated" if there < wanted else "is too long"
        raise DataError(
            f"{path} {wrong}: its header promises {wanted} bytes for shape {shape}, and "
            f"{there} follow. Fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
