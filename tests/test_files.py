"""Files that are there whole or not at all."""

import json
import os
import stat

import pytest
import torch
from safetensors.torch import save_file

from weightloom import files
from weightloom.files import atomic_write, own_version, read_safetensors


def names(folder):
    return sorted(item.name for item in folder.iterdir())


def test_nothing_is_seen_before_all_is_written(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("old")
    with atomic_write(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["report.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "report.txt"
    path.write_text("old")

    def write(part):
        part.write_text("half of the n")
        raise error

    with pytest.raises(error), atomic_write(path) as part:
        write(part)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.txt"]


def test_a_full_disk_is_met_before_the_old_file_goes(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "report.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), atomic_write(path) as part:
        part.write_text("new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.txt"]


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    real = os.fsync

    def only_files(number):
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(22, "Invalid argument")
        real(number)

    monkeypatch.setattr(os, "fsync", only_files)
    with atomic_write(tmp_path / "report.txt") as part:
        part.write_text("new")
    assert (tmp_path / "report.txt").read_text() == "new"


def test_files_can_be_read_by_whoever_may(tmp_path):
    plain, path = tmp_path / "plain", tmp_path / "weights.safetensors"
    plain.touch()
    with atomic_write(path) as part:
        save_file({"w": torch.ones(2)}, part)
        part.chmod(0o600)
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_part_that_was_left_is_written_over(tmp_path):
    path, part = tmp_path / "run", tmp_path / "run.part"
    part.write_text("left by a crash, and longer than what comes now")
    with atomic_write(path, part) as given:
        assert given == part
        part.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["run"]


def test_values_and_tensors_come_back(tmp_path):
    path = tmp_path / "file.safetensors"
    save_file({"w": torch.arange(3.0)}, path, metadata={"about": json.dumps({"rate": 0.1})})
    about, tensors = read_safetensors(path, "about")
    assert about == {"rate": 0.1}
    assert torch.equal(tensors["w"], torch.arange(3.0))
    with pytest.raises(KeyError):
        read_safetensors(path, "other")


def test_a_source_tree_has_no_version(monkeypatch):
    assert own_version() != "unknown"

    def missing(name):
        raise files.PackageNotFoundError(name)

    monkeypatch.setattr(files, "version", missing)
    assert own_version() == "unknown"
