"""Large files: one pair of tensors in memory at a time, and every byte read about once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weightloom.symmetry import diff
from weightloom.symmetry.differences import contents
from weightloom.symmetry.differences.sources import LazyTensor

SIDE = 1024
LARGEST = 4 * SIDE**2

PEAK = """
import sys, torch
from pathlib import Path
from weightloom.symmetry import diff

def kilobytes(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0])

small = {"w": torch.randn(200, 200)}
diff(small, {"w": small["w"] + 0.1 * torch.randn(200, 1) @ torch.randn(1, 200)})
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
result = diff(sys.argv[1], sys.argv[2], progress=True)
print(1024 * (kilobytes("VmHWM") - before))
print(result.headline)
"""


def files(folder: Path, changes: str, count: int = 24) -> tuple[Path, Path]:
    generator = torch.Generator().manual_seed(0)
    a = {f"w{i}": torch.randn(SIDE, SIDE, generator=generator) for i in range(count)}
    b = dict(a)
    if changes == "rank":
        for i in range(0, count, 3):
            left, right = (torch.randn(SIDE, 4, generator=generator) for _ in range(2))
            b[f"w{i}"] = a[f"w{i}"] + 0.1 * left @ right.T
    elif changes == "noise":
        b = {n: w + 0.1 * torch.randn(w.shape, generator=generator) for n, w in a.items()}
    paths = folder / "a.safetensors", folder / "b.safetensors"
    save_file(a, paths[0])
    save_file(b, paths[1])
    return paths


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's counters")
@pytest.mark.parametrize(
    ("changes", "most"), [("none", 1), ("noise", 8), ("rank", 16)]
)  # of 48 tensors in both files
def test_memory(changes: str, most: int, tmp_path: Path) -> None:
    """Peak memory of a process of its own, in units of the largest tensor."""
    first, second = files(tmp_path, changes)
    command = [sys.executable, "-c", PEAK, str(first), str(second)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, headline = done.stdout.splitlines()
    assert int(peak) < most * LARGEST, headline
    assert "comparing" in done.stderr  # the bar that was asked for
    wanted = {"none": "all 24", "noise": "24 other", "rank": "16 of 24 tensors identical, 8 low-r"}
    assert wanted[changes] in headline


def test_identical_bytes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = files(tmp_path, "none", 3)
    total = 0
    plain = LazyTensor.read_into

    def counted(self, start, buffer, file):
        nonlocal total
        total += len(buffer)
        return plain(self, start, buffer, file)

    monkeypatch.setattr(LazyTensor, "read_into", counted)
    assert diff(first, second).identical
    assert total == 2 * 3 * LARGEST


def test_a_difference_in_the_last_byte_is_seen(tmp_path: Path) -> None:
    for size in (1, 7, contents.BYTES, contents.BYTES + 3):
        a = torch.zeros(size, dtype=torch.uint8)
        b = a.clone()
        b[-1] = 1
        save_file({"x": a}, tmp_path / "a.safetensors")
        save_file({"x": b}, tmp_path / "b.safetensors")
        assert not diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").identical
        assert diff(tmp_path / "a.safetensors", {"x": a}).identical


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    a = {"x": torch.ones(3)}
    diff(a, a)
    assert capsys.readouterr().err == ""
    diff(a, a, progress=True)
    assert "comparing" in capsys.readouterr().err
