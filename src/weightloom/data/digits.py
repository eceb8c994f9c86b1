"""Handwritten digits: MNIST if its files are found, else the 8 x 8 digits of scikit-learn.

scikit-learn's digits come with the package. MNIST is read from its original idx files, compressed
or not, without torchvision. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weightloom.data.cifar import find_cifar10
from weightloom.data.image_sets import DataError, ImageSet, MissingDataError, check_sum, find_set
from weightloom.errors import ConfigError, MissingDependencyError, ShapeError

__all__ = [
    "SIDE",
    "ImageSplit",
    "has_images",
    "load_digits",
    "load_mnist",
    "load_mnist_or_digits",
    "read_idx",
]

#: scikit-learn's digits: pixels on a side, and images.
SIDE, COUNT = 8, 1797

_PLACES = ("MNIST/raw", "raw", ".")
#: MD5 of each uncompressed file, so that the compression does not matter. They were computed from
#: files whose compressed MD5s are the published ones (f68b3c2d..., d53e105e..., 9fb629c4...,
#: ec29112d...).
_SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def load_mnist_or_digits(
    folder: Path | None = None,
    *,
    train: int | None = None,
    test: int | None = None,
    verify: bool = True,
) -> ImageSet:
    """MNIST if it can be found, else scikit-learn's digits of 8 x 8; ``source`` says which.

    The digits are used only if no MNIST file is there at all. A damaged or missing file is an
    error, so that a bad download does not change results unnoticed.

    >>> load_mnist_or_digits(Path("nowhere")).name
    'digits'
    """
    try:
        return load_mnist(folder, train=train, test=test, verify=verify)
    except MissingDataError as error:
        digits = load_digits()
        return ImageSet(
            "digits",
            digits.train[:train],
            digits.train_labels[:train],
            digits.held_out[:test],
            digits.held_out_labels[:test],
            digits.side,
            1,
            f"scikit-learn's digits, 8 x 8, instead of MNIST ({error})",
        )


# -- scikit-learn's digits ------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSplit:
    """Training and held-out images, as flat rows of brightness in [0, 1].

    Row ``i`` of ``held_out`` is image ``held_out_index[i]`` of scikit-learn's set.
    """

    train: Tensor  # [n, side * side]
    train_labels: Tensor  # [n]
    held_out: Tensor  # [m, side * side]
    held_out_labels: Tensor  # [m]
    held_out_index: Tensor  # [m]
    side: int

    def first_of_each(self) -> list[int]:
        """The first held-out row of each label, in the order of the labels."""
        labels = self.held_out_labels.tolist()
        return [labels.index(label) for label in sorted(set(labels))]


def load_digits(held_out: int = 360, seed: int = 0) -> ImageSplit:
    """The 1797 images of 8 x 8 pixels, ``held_out`` of them held out at random.

    The split depends on ``seed`` alone, so that by default different models and training seeds are
    tested on the same images. It is a split by image: the set does not say who wrote which digit,
    so the same writer may be on both sides.
    """
    if not 1 <= held_out < COUNT:
        raise ShapeError(
            f"held_out={held_out} was given; the set has {COUNT} images, and at least one is "
            f"needed on either side"
        )
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError as error:
        raise MissingDependencyError(
            "the handwritten digits come with scikit-learn, which cannot be imported here "
            f"({error}); pip install 'weightloom[demo]'"
        ) from error
    digits = bundled()
    images = torch.as_tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, train = order[:held_out], order[held_out:]
    return ImageSplit(images[train], labels[train], images[test], labels[test], test, SIDE)


# -- MNIST ----------------------------------------------------------------------------------------


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

    60,000 training and 10,000 test images; ``train`` and ``test`` are how many of them to keep, the
    first ones. ``verify=False`` accepts files whose content is not the published one.
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
    """The array in the file called ``name``, compressed or not, and the path of that file."""
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
    """The array of bytes in an idx file: two zeros, type 8, the number of axes, their sizes, data.

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
        problem = "is truncated" if there < wanted else "is too long"
        raise DataError(
            f"{path} {problem}: its header promises {wanted} bytes for shape {shape}, and "
            f"{there} follow. Fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


# -- which files are there ------------------------------------------------------------------------


_FINDERS = {"mnist": find_mnist, "cifar10": find_cifar10}


def has_images(name: str, folder: Path | None = None) -> bool:
    """Whether files of the set are there, complete or not; quick, because none is read.

    >>> has_images("mnist", Path("nowhere"))
    False
    """
    if name not in _FINDERS:
        raise ConfigError(f"images={name!r} is unknown; choose one of {', '.join(_FINDERS)}")
    try:
        _FINDERS[name](folder)
    except MissingDataError:
        return False
    return True
