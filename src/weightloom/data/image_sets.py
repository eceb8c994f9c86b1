"""The handwritten digits at hand: MNIST where it can be found, else scikit-learn's."""

from __future__ import annotations

from pathlib import Path

from weightloom.data.cifar import find_cifar10
from weightloom.data.digits import load_digits
from weightloom.data.image_sets_base import ImageSet, MissingDataError
from weightloom.data.mnist import find_mnist, load_mnist
from weightloom.errors import ConfigError

__all__ = ["has_images", "load_mnist_or_digits"]

_FINDERS = {"mnist": find_mnist, "cifar10": find_cifar10}


def has_images(name: str, folder: Path | None = None) -> bool:
    """Whether the set's files are there, whole or not; quick, as none is read.

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


def load_mnist_or_digits(
    folder: Path | None = None,
    *,
    train: int | None = None,
    test: int | None = None,
    verify: bool = True,
) -> ImageSet:
    """MNIST if it can be found, else scikit-learn's digits of 8 x 8; ``source`` says which.

    Only a set that is not there at all is replaced. Files that are there and damaged, or one of
    four that is missing, are an error: results must not depend on a bad download unnoticed.

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
