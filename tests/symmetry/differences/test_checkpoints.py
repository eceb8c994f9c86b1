"""Files, folders, shards, adapters; what is missing, damaged or hostile."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from weightloom.errors import CheckpointError, ConfigError
from weightloom.symmetry import diff
from weightloom.symmetry.differences.folders import open_checkpoint

State = dict[str, Tensor]


def state(seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {f"layers.{i}.weight": torch.randn(16, 24, generator=generator) for i in range(6)}


def shards(folder: Path, tensors: State, count: int = 3, kind: str = "safetensors") -> Path:
    folder.mkdir()
    names = list(tensors)
    stem, suffix = ("model", ".safetensors") if kind == "safetensors" else ("pytorch_model", ".bin")
    weight_map = {}
    for k in range(count):
        file = f"{stem}-{k + 1:05d}-of-{count:05d}{suffix}"
        part = {name: tensors[name] for name in names[k::count]}
        save_file(part, folder / file) if kind == "safetensors" else torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin"])
def test_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    save_file(state(), path) if suffix == ".safetensors" else torch.save(state(), path)
    assert diff(state(), path).identical
    assert diff(path, str(path)).identical
    changed = state()
    changed["layers.3.weight"][0, 0] += 1
    result = diff(path, changed)
    assert result.headline == "5 of 6 tensors identical, 1 sparse change (1 entry)"
    assert result.changed[0].name == "layers.3.weight"


def test_the_old_format_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(state(), path, _use_new_zipfile_serialization=False)
    assert diff(state(), path).identical


def test_a_training_checkpoint(tmp_path: Path) -> None:
    net = nn.Linear(3, 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    path = tmp_path / "a.pt"
    torch.save(
        {"epoch": 3, "state_dict": net.state_dict(), "optimizer": optimiser.state_dict()}, path
    )
    result = diff(net, path)
    assert result.identical
    assert "the entry 'state_dict' was read; left out: 'epoch', 'optimizer'" in result.notes[0]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
     torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64],
)  # fmt: skip
def test_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    value = 3 * torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    value = value > 0 if dtype == torch.bool else value.to(dtype)
    tensors = {"x": value, "empty": torch.empty(0, 3, dtype=dtype), "scalar": value[0, 0].clone()}
    save_file(tensors, tmp_path / "a.safetensors")
    assert diff(tmp_path / "a.safetensors", tensors).identical
    other = tensors | {"x": value.flip(0).contiguous()}
    result = diff(tmp_path / "a.safetensors", other)
    assert result.counts["identical"] == 2
    assert str(result)


FIRST = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.complex64, torch.uint64,
         torch.float8_e5m2]  # fmt: skip
SECOND = [torch.bool, torch.int8, torch.float32, torch.bfloat16, torch.complex64, torch.uint32,
          torch.float8_e4m3fn]  # fmt: skip


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_pairs_of_dtypes(first: torch.dtype, second: torch.dtype) -> None:
    """0 and 1 are the same numbers in every dtype; other numbers are not."""
    value = (torch.arange(40).reshape(5, 8) % 3 == 0).to(torch.uint8)
    wanted = "identical" if first == second else "cast"
    assert diff({"w": value.to(first)}, {"w": value.to(second)}).rows[0].kind == wanted
    result = diff({"w": value.to(first)}, {"w": 1 - value.double()})
    assert result.rows[0].changed == 40
    assert str(result)


def test_quantised_tensors_of_torch_are_compared_by_their_numbers() -> None:
    value = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    first = torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)
    second = torch.quantize_per_tensor(2 * value, 0.2, 0, torch.qint8)  # the same integers
    assert torch.equal(first.int_repr(), second.int_repr())
    assert diff({"w": first}, {"w": first.clone()}).identical
    assert diff({"w": first}, {"w": second}).rows[0].kind == "scaled"
    assert diff({"w": first}, {"w": first.dequantize()}).rows[0].kind == "cast"
    assert diff({"w": value}, {"w": first}).rows[0].kind == "quantised"


# -- shards --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards(kind: str, tmp_path: Path) -> None:
    folder = shards(tmp_path / "a", state(), kind=kind)
    assert diff(state(), folder).identical
    assert diff(next(folder.glob("*.index.json")), folder).identical
    other = shards(tmp_path / "b", state(), 2, kind)
    assert diff(folder, other).identical


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard(side: int, index: bool, tmp_path: Path) -> None:
    folder = shards(tmp_path / "a", state())
    gone = "model-00002-of-00003.safetensors"
    (folder / gone).unlink()
    if not index:
        next(folder.glob("*.index.json")).unlink()
    pair = (folder, state()) if side == 0 else (state(), folder)
    result = diff(*pair)
    assert not result.identical
    assert result.incomplete == (f"{folder}: {gone}",)
    assert result.headline.startswith("INCOMPLETE: 4 of ")
    assert result.counts["identical"] == 4  # everything else was compared
    if index:
        assert result.counts == {"identical": 4, "incomplete": 2}
        assert {row.name for row in result.changed} == {"layers.1.weight", "layers.4.weight"}
    assert gone in str(result)


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    folder = shards(tmp_path / "a", state())
    index = next(folder.glob("*.index.json"))
    about = json.loads(index.read_text())
    about["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
    del about["weight_map"]["layers.0.weight"]
    index.write_text(json.dumps(about))
    result = diff(state(), folder)
    assert result.incomplete
    text = " ".join(str(result).split())
    assert "the index does not list 'layers.0.weight'" in text
    assert "not read: tensor 'ghost' of model-00001-of-00003.safetensors is missing" in text
    for entry in ("../secret.safetensors", "..", "/etc/passwd"):
        about["weight_map"]["ghost"] = entry
        index.write_text(json.dumps(about))
        with pytest.raises(CheckpointError, match=r"wanted names of files beside the index"):
            diff(state(), folder)
    index.write_text("{")
    with pytest.raises(CheckpointError, match=r"is not valid JSON .* copy it again"):
        diff(state(), folder)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no 'weight_map'"):
        diff(state(), folder)


def test_folders_that_hold_nothing_or_too_much(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no weights; wanted model.safetensors"):
        diff(tmp_path, state())
    save_file(state(), tmp_path / "x.safetensors")
    assert diff(tmp_path, state()).identical
    save_file(state(), tmp_path / "y.safetensors")
    with pytest.raises(CheckpointError, match=r"several checkpoints \(x.safetensors, y.saf"):
        diff(tmp_path, state())


def test_configurations(tmp_path: Path) -> None:
    for name, heads in (("a", 4), ("b", 8)):
        folder = tmp_path / name
        folder.mkdir()
        save_file(state(), folder / "model.safetensors")
        about = {"heads": heads, "dtype": name, "_name_or_path": name}
        (folder / "config.json").write_text(json.dumps(about))
    result = diff(tmp_path / "a", tmp_path / "b")
    assert result.identical
    assert result.config == {"heads": (4, 8)}
    assert "heads: 4 and 8" in str(result)


# -- damaged and hostile -------------------------------------------------------------------------
class Bomb:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("name", ["a.pt", "a.bin", "a.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_never_runs(
    name: str, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Bomb()}, name, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"was refused|cannot be read"):
        diff(name, state())
    assert not Path("exploded").exists()
    Path(name).rename("bomb.pt")  # torch.load goes by the name too
    torch.load("bomb.pt", weights_only=False)  # the bomb works
    assert Path("exploded").exists()


@pytest.mark.parametrize("cut", [0, 5, 40, -3])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_damaged_files(cut: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    save_file(state(), path) if suffix == ".safetensors" else torch.save(state(), path)
    path.write_bytes(path.read_bytes()[:cut] if cut else b"")
    with pytest.raises(CheckpointError, match=r"damaged, incomplete or another kind of file") as e:
        diff(path, state())
    assert len(str(e.value)) < 600


def test_a_huge_header(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}" * 50)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        diff(path, state())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (3, ConfigError, "a int was given; wanted an nn.Module, a state dict, or the path"),
        ("nowhere.safetensors", CheckpointError, "there is no file or folder 'nowhere.saf"),
        ({"x": 3}, CheckpointError, r"a holds no tensors \(its keys: 'x'\)"),
        ({}, CheckpointError, r"a holds no tensors \(its keys: none\)"),
    ],
)
def test_what_cannot_be_compared(value: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        diff(value, state())


def test_tensors_without_numbers(tmp_path: Path) -> None:
    with torch.device("meta"):
        net = nn.Linear(3, 4)
    result = diff(net, nn.Linear(3, 4))
    assert set(result.counts) == {"unreadable"}
    assert "on the meta device" in result.rows[0].text
    assert not result.identical
    save_file(nn.Linear(3, 4).state_dict(), tmp_path / "a.safetensors")
    assert set(diff(tmp_path / "a.safetensors", net).counts) == {"unreadable"}


def test_a_file_that_is_cut_while_it_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(state(), path)
    tensor = open_checkpoint(path, "a").tensors["layers.5.weight"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"'layers.5.weight' cannot be read .* 100 bytes too"):
        tensor.tensor()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read from .* Was the file changed"):
        tensor.tensor()


# -- the result ----------------------------------------------------------------------------------
def test_shapes_that_differ() -> None:
    a = {"embed": torch.randn(10, 4), "w": torch.randn(3, 4), "v": torch.randn(5)}
    b = {"embed": torch.cat([a["embed"], torch.randn(2, 4)]), "w": torch.randn(2, 7), "v": a["w"]}
    rows = {row.name: row for row in diff(a, b).rows}
    assert rows["embed"].details == {"axis": 0, "common": 10, "common_kind": "identical"}
    assert "(10, 4) and (12, 4); the first 10 along axis 0: identical" in rows["embed"].text
    assert {row.kind for row in rows.values()} == {"shape differs"}


def test_the_most_changed_come_first_and_the_rest_is_counted() -> None:
    generator = torch.Generator().manual_seed(0)
    a = {f"w{i}": torch.randn(8, 8, generator=generator) for i in range(40)}
    b = {
        name: value + 10.0 ** (-i) * torch.randn(8, 8, generator=generator)
        for i, (name, value) in enumerate(list(a.items())[:5])
    }
    text = str(diff(a, a | b))
    assert text.startswith("35 of 40 tensors identical, 5 other\n")
    assert re.findall(r"(?m)^w\d+", text) == ["w0", "w1", "w2", "w3", "w4"]
    all_changed = {
        name: value + 1e-3 * torch.randn(8, 8, generator=generator) for name, value in a.items()
    }
    text = str(diff(a, all_changed))
    assert "and 20 more: 20 other" in text
    assert len(text.splitlines()) < 30


def test_json_and_truth(tmp_path: Path) -> None:
    a = state()
    b = state() | {"layers.0.weight": a["layers.0.weight"] * float("nan"), "more": torch.ones(2)}
    result = diff(a, b)
    about = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert about["counts"] == {"identical": 5, "other": 1, "only in b": 1}
    assert about["headline"] == result.headline
    assert len(about["tensors"]) == 7
    with pytest.raises(TypeError, match=r"neither true nor false; use .identical"):
        bool(result)


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    other = {name: value + 0.1 * torch.randn(16, 24) for name, value in state().items()}
    for path in diff(state(), other).plot(tmp_path / "change"):
        assert path.stat().st_size > 1000
