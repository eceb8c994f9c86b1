"""CIFAR-10's pickles: read as they were written, and unable to run anything."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weightloom.data import DataError, MissingDataError, load_cifar10
from weightloom.data.cifar import read_pickle

SIZE = 3 * 32 * 32
IMAGES = np.random.default_rng(1).integers(0, 256, (6, SIZE), dtype=np.uint8)
LABELS = [6, 9, 0, 4, 1, 1]


def python2(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it: text and bytes are both str, opcodes T and U."""

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([len(images)]) + b"M" + SIZE.to_bytes(2, "little") + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89" + text(images.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def write(folder: Path) -> Path:
    here = folder / "cifar-10-batches-py"
    here.mkdir()
    for name, rows in (("data_batch_1", slice(0, 2)), ("data_batch_3", slice(2, 4))):
        (here / name).write_bytes(python2(IMAGES[rows], LABELS[rows]))
    (here / "test_batch").write_bytes(python2(IMAGES[4:], LABELS[4:]))
    return here


def rewrite(folder: Path, content: Any, protocol: int = 2) -> Path:
    path = write(folder) / "data_batch_1"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


def test_the_batches_that_are_there_are_read(tmp_path: Path) -> None:
    write(tmp_path)
    data = load_cifar10(tmp_path, verify=False)
    expected = torch.from_numpy(IMAGES).double() / 255
    torch.testing.assert_close(torch.cat([data.train, data.test]).double(), expected)
    assert data.train_labels.tolist() + data.test_labels.tolist() == LABELS
    assert (data.side, data.channels, data.name) == (32, 3, "cifar10")
    assert "2 of 5 training files" in data.source
    few = load_cifar10(tmp_path / "cifar-10-batches-py", train=3, test=1, verify=False)
    assert (len(few.train), len(few.train_labels), len(few.test)) == (3, 3, 1)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_today(tmp_path: Path, protocol: int) -> None:
    rewrite(tmp_path, {"data": IMAGES[:2], "labels": LABELS[:2]}, protocol)
    data = load_cifar10(tmp_path, verify=False)
    torch.testing.assert_close(data.train[:2].double(), torch.from_numpy(IMAGES[:2]).double() / 255)


class Hostile:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_pickle_that_runs_code_is_refused_and_named(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    rewrite(tmp_path, {"data": Hostile(Path.touch, trace), "labels": []}, protocol)
    with pytest.raises(DataError, match=r"data_batch_1 asks for .*, which no image set needs"):
        load_cifar10(tmp_path, verify=False)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", r"os\.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"builtins\.eval"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile_\x93.", r"numpy\.ndarray\.tofile_"),
        (b"c__main__\nx\n.", r"__main__\.x"),
    ],
)
def test_names_are_refused(content: bytes, name: str) -> None:
    with pytest.raises(DataError, match=f"asks for {name}"):
        read_pickle(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}",
        b"not a pickle",
        b"\x82\x01.",  # an extension code
        b"Pname\n.",  # a persistent name
        b"\x80\x02c_codecs\nencode\n}b.",  # attributes for what a name stands for
        b"\x80\x02cnumpy\ndtype\n}b.",
        pickle.dumps(Hostile(__import__("_codecs").encode, "a", "rot13"), 2),
    ],
)
def test_unreadable_pickles(content: bytes) -> None:
    with pytest.raises(DataError, match=r"the file (cannot be read as a pickle|asks for)"):
        read_pickle(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], r"holds a list; a dictionary is wanted"),
        ({"data": IMAGES[:2]}, r"has the entries data; an array 'data' and a list 'labels'"),
        ({"data": [1], "labels": [1]}, r"an array 'data'"),
        ({"data": IMAGES[:2], "labels": [1]}, r"shape \(2, 3072\) and 1 labels"),
        ({"data": IMAGES[:2, :8].copy(), "labels": [1, 2]}, r"shape \(2, 8\) and 2 labels"),
        ({"data": IMAGES[:2], "labels": [1, 10]}, r"labels other than the whole numbers 0 to 9"),
        ({"data": IMAGES[:2], "labels": [1, "2"]}, r"labels other than"),
        ({"data": IMAGES[:2].astype(float), "labels": [1, 2]}, r"type .*f8.*bytes \(u1\)"),
        (python2(IMAGES[:2], LABELS[:2])[:-50], r"cannot be read as a pickle"),
        (python2(IMAGES[:2], [1, 2]).replace(b"(K\x01K\x02M", b"(K\x01K\x03M"), r"holds 6144 byt"),
    ],
)
def test_bad_batches(tmp_path: Path, content: Any, message: str) -> None:
    rewrite(tmp_path, content)
    with pytest.raises(DataError, match=message):
        load_cifar10(tmp_path, verify=False)


def test_content_is_checked(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=r"data_batch_1 has other content.*wanted c99cafc1"):
        load_cifar10(tmp_path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no CIFAR-10 found: looked for data_batch_1 in"):
        load_cifar10(tmp_path)
    (write(tmp_path) / "test_batch").unlink()
    with pytest.raises(DataError, match=r"has data_batch_1, data_batch_3; test_batch and at least"):
        load_cifar10(tmp_path, verify=False)


def test_the_real_files_if_they_are_here() -> None:
    try:
        data = load_cifar10(train=20, test=20)  # with the checksums
    except MissingDataError:
        pytest.skip("CIFAR-10 is not on this machine: set WEIGHTLOOM_DATA to its folder")
    assert data.train_labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test_labels[:5].tolist() == [3, 8, 8, 0, 6]
