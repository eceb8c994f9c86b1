"""Handwritten digits: the split of scikit-learn's set, MNIST's files, and which set is used."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from weightloom.data import (
    DataError,
    MissingDataError,
    has_images,
    load_digits,
    load_mnist,
    load_mnist_or_digits,
)
from weightloom.data.digits import read_idx
from weightloom.data.image_sets import _roots
from weightloom.errors import ConfigError, MissingDependencyError, ShapeError


def test_split_is_a_partition_of_the_set() -> None:
    from sklearn.datasets import load_digits as bundled

    data, source = load_digits(), bundled()
    assert data.train.shape == (1437, 64)
    assert data.held_out.shape == (360, 64)
    original = torch.as_tensor(source.data, dtype=torch.float32) / 16
    assert torch.equal(data.held_out, original[data.held_out_index])
    assert data.held_out_labels.tolist() == source.target[data.held_out_index].tolist()
    assert data.held_out_index.unique().numel() == 360
    everything = torch.cat([data.train, data.held_out])
    # A permutation of the rows keeps the sum of any function of a row; a weighted one tells rows.
    key = torch.arange(64, dtype=torch.float64).sin()
    there, here = original.double() @ key, everything.double() @ key
    torch.testing.assert_close(there.sort().values, here.sort().values)


def test_brightness_is_between_zero_and_one() -> None:
    train = load_digits().train
    assert train.min() == 0.0
    assert train.max() == 1.0


def test_the_split_depends_on_its_seed_alone() -> None:
    first = load_digits()
    torch.manual_seed(99)
    assert torch.equal(first.held_out_index, load_digits().held_out_index)
    assert not torch.equal(first.held_out_index, load_digits(seed=1).held_out_index)


def test_first_of_each_is_the_first() -> None:
    data = load_digits()
    rows = data.first_of_each()
    assert data.held_out_labels[rows].tolist() == list(range(10))
    for digit, row in enumerate(rows):
        assert digit not in data.held_out_labels[:row].tolist()


@pytest.mark.parametrize("count", [0, -1, 1797, 5000])
def test_impossible_split(count: int) -> None:
    with pytest.raises(ShapeError, match=rf"held_out={count} was given; the set has 1797 images"):
        load_digits(held_out=count)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"scikit-learn.*pip install 'weightloom\[dem"):
        load_digits()


# -- MNIST ----------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
TRAIN, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write(folder: Path, packed: bool = True) -> Path:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            content = idx(array[rows])
            name = f"{part}-{kind}-ubyte"
            (raw / (f"{name}.gz" if packed else name)).write_bytes(
                gzip.compress(content) if packed else content
            )
    return raw


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", ["", "MNIST", "MNIST/raw"])
def test_what_was_written_is_read(tmp_path: Path, packed: bool, inside: str) -> None:
    write(tmp_path, packed)
    data = load_mnist(tmp_path / inside, verify=False)
    expected = torch.from_numpy(IMAGES.reshape(5, 16)).double() / 255
    torch.testing.assert_close(torch.cat([data.train, data.test]).double(), expected)
    assert data.train_labels.tolist() == [3, 1, 4]
    assert data.test_labels.tolist() == [1, 5]
    assert (data.side, data.channels, data.name) == (4, 1, "mnist")
    assert str(tmp_path) in data.source
    assert 0.0 <= data.train.min() <= data.train.max() <= 1.0


def test_first_images_only(tmp_path: Path) -> None:
    write(tmp_path)
    few = load_mnist(tmp_path, train=2, test=1, verify=False)
    assert (len(few.train), len(few.train_labels), len(few.test)) == (2, 2, 1)


def test_content_is_checked(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=r"train-images.*other content.*MD5 [0-9a-f]{32}.*verify=F"):
        load_mnist(tmp_path)


def test_only_the_given_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "there")
    monkeypatch.setenv("WEIGHTLOOM_DATA", str(tmp_path / "there"))
    assert len(load_mnist(verify=False).train) == 3
    with pytest.raises(MissingDataError, match=r"no MNIST found.*elsewhere/MNIST/raw.*WEIGHTLOOM"):
        load_mnist(tmp_path / "elsewhere", verify=False)
    monkeypatch.delenv("WEIGHTLOOM_DATA")
    roots = list(_roots(None))
    assert [root.name for root in roots] == ["data", "data"]
    assert (roots[0].parent / "pyproject.toml").is_file()
    assert roots[1].parent == roots[0].parent.parent


def test_one_file_of_four_missing(tmp_path: Path) -> None:
    (write(tmp_path) / f"{TRAIN_LABELS}.gz").unlink()
    with pytest.raises(DataError, match=r"has no train-labels-idx1-ubyte.gz.*all four") as caught:
        load_mnist(tmp_path, verify=False)
    assert not isinstance(caught.value, MissingDataError)


def test_truncated_archive(tmp_path: Path) -> None:
    path = write(tmp_path) / f"{TRAIN}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images.*cannot be unpacked.*truncated"):
        load_mnist(tmp_path, verify=False)
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"cannot be unpacked"):
        load_mnist(tmp_path, verify=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"begins with the bytes \(none\)"),
        (b"\0\0\x0d\x01" + bytes(8), r"begins with the bytes 00 00 0d 01; an idx file"),
        (b"\0\0\x08\x00", r"number of axes, 1 to 4"),
        (idx(IMAGES)[:-1], r"is truncated: its header promises 80 bytes.*79 follow"),
        (idx(IMAGES)[:9], r"is truncated"),
        (idx(IMAGES) + b"x", r"is too long: its header promises 80 bytes"),
    ],
)
def test_bad_idx(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(content)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    raw = write(tmp_path, packed=False)
    (raw / TRAIN_LABELS).write_bytes(idx(LABELS))
    with pytest.raises(DataError, match=r"3 train images and labels of shape \(5,\)"):
        load_mnist(tmp_path, verify=False)
    (raw / TRAIN_LABELS).write_bytes(idx(LABELS[:3]))
    (raw / TRAIN).write_bytes(idx(IMAGES[:3, :, :2]))
    with pytest.raises(DataError, match=r"shape \(3, 4, 2\); square images"):
        load_mnist(tmp_path, verify=False)
    (raw / TRAIN).write_bytes(idx(IMAGES[:3, :2, :2]))
    with pytest.raises(DataError, match=r"training images of 4 pixels and test images of 16"):
        load_mnist(tmp_path, verify=False)


def test_the_real_files_if_they_are_here() -> None:
    try:
        data = load_mnist(train=20, test=20)  # with the checksums
    except MissingDataError:
        pytest.skip("MNIST is not on this machine: set WEIGHTLOOM_DATA to its folder")
    assert data.side == 28
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.test_labels[:5].tolist() == [7, 2, 1, 0, 4]


# -- MNIST or scikit-learn's digits ---------------------------------------------------------------


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
