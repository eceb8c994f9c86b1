"""MNIST or the digits, and never one for the other unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.data.test_mnist import TRAIN, write
from weightloom.data import DataError, has_images, load_digits, load_mnist_or_digits
from weightloom.errors import ConfigError


def test_mnist_when_it_is_there(tmp_path: Path) -> None:
    write(tmp_path)
    data = load_mnist_or_digits(tmp_path, train=2, verify=False)
    assert (data.name, data.side, len(data.train)) == ("mnist", 4, 2)


def test_digits_when_it_is_not_and_says_so(tmp_path: Path) -> None:
    data, digits = load_mnist_or_digits(tmp_path, train=7, test=5), load_digits()
    assert (data.name, data.side, data.channels) == ("digits", 8, 1)
    assert data.source.startswith("scikit-learn's digits, 8 x 8, instead of MNIST (no MNIST found")
    assert torch.equal(data.train, digits.train[:7])
    assert torch.equal(data.train_labels, digits.train_labels[:7])
    assert torch.equal(data.test, digits.held_out[:5])
    assert torch.equal(data.test_labels, digits.held_out_labels[:5])


def test_a_damaged_mnist_is_not_replaced(tmp_path: Path) -> None:
    path = write(tmp_path) / f"{TRAIN}.gz"
    with pytest.raises(DataError, match="other content"):
        load_mnist_or_digits(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="all four are needed"):
        load_mnist_or_digits(tmp_path, verify=False)


def test_whether_a_set_is_there(tmp_path: Path) -> None:
    assert not has_images("mnist", tmp_path)
    write(tmp_path)
    assert has_images("mnist", tmp_path)
    assert not has_images("cifar10", tmp_path)
    (tmp_path / "test_batch").touch()  # not whole, but there: reading it will say what is wrong
    assert has_images("cifar10", tmp_path)
    with pytest.raises(ConfigError, match="images='svhn' is unknown; choose one of mnist, cifar10"):
        has_images("svhn", tmp_path)
