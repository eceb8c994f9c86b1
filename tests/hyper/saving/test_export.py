"""Saved networks: exported files give the same outputs, and loading checks the file first."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import weightloom as wl
from weightloom.errors import (
    CheckpointError,
    MissingDependencyError,
    ShapeError,
    UnsupportedModuleError,
)
from weightloom.hyper.saving import export, load

# Outputs of order 1 to 10 from sums of up to 400 float32 products, in another order.
CLOSE = {
    "rtol": 400 * torch.finfo(torch.float32).eps,
    "atol": 4000 * torch.finfo(torch.float32).eps,
}


def encoder() -> nn.Module:
    return wl.mlp([5, 8], last_activation=True)


def make(primary: nn.Module | None = None, seed: int = 0, **options: Any) -> wl.HyperNetwork:
    torch.manual_seed(seed)
    return wl.HyperNetwork(primary or wl.mlp([4, 16, 2]), encoder(), **options)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- ONNX ----------------------------------------------------------------------------------------


def run(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, (i.numpy() for i in inputs), strict=True)))


def same(path: Path, network: nn.Module, *inputs: Tensor) -> None:
    """onnxruntime's outputs are the network's; and are not trivially so."""
    network.eval()
    with torch.no_grad():
        expected = network(*inputs)
    every = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(run(path, *inputs), every, strict=True):
        assert want.std() > 0.01
        np.testing.assert_allclose(got, want.numpy(), **CLOSE)


def test_contracted_input_and_any_number_of_rows(tmp_path: Path) -> None:
    hyper = make(wl.mlp([400, 10, 2]))
    x, condition = normal(3, 400), normal(3, 5, seed=2)
    with torch.no_grad():
        assert hyper.plan(x, condition).orders["0"] == "contract"
    path = export(hyper, tmp_path / "h.onnx", x, condition)
    same(path, hyper, x, condition)
    same(path, hyper, normal(7, 400, seed=3), normal(7, 5, seed=4))


def test_many_points_and_any_number_of_them(tmp_path: Path) -> None:
    hyper = make()
    path = export(hyper, tmp_path / "h.onnx", normal(3, 6, 4), normal(3, 5, seed=2))
    same(path, hyper, normal(3, 6, 4), normal(3, 5, seed=2))
    same(path, hyper, normal(2, 9, 4, seed=3), normal(2, 5, seed=4))
    with pytest.raises(Exception, match="invalid dimensions"):
        run(path, normal(2, 9, 5), normal(2, 5))


class Heads(nn.Module):
    """Several hypernetworks in one computation: converting one by one takes seconds each."""

    def __init__(self) -> None:
        super().__init__()
        heads = ["full", wl.LowRankHead(2), wl.ChunkedHead(16), "per_layer"]
        networks = [make(wl.mlp([20, 16, 2]), seed=i, head=head) for i, head in enumerate(heads)]
        for seed, head in enumerate(["delta", wl.DeltaHead(rank=2)], start=9):
            delta = make(wl.mlp([20, 16, 2]), seed=seed, head=head)
            for parameter in delta.head.change.parameters():  # it starts with no change at all
                nn.init.normal_(parameter, 0.0, 0.2)
            networks.append(delta)
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, ...]:
        return tuple(network(x, condition) for network in self.networks)


def test_every_head(tmp_path: Path) -> None:
    heads = Heads()
    path = export(heads, tmp_path / "heads.onnx", normal(3, 6, 20), normal(3, 5, seed=2))
    same(path, heads, normal(4, 5, 20, seed=3), normal(4, 5, seed=4))


def test_convolutional_primary(tmp_path: Path) -> None:
    hyper = make(
        nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(32, 2)
        )
    )
    x, condition = normal(3, 2, 1, 6, 6), normal(3, 5, seed=2)
    same(export(hyper, tmp_path / "h.onnx", x, condition), hyper, x, condition)


class Gated(nn.Module):
    """A forward of its own, so the hypernetwork runs it through vmap; and a second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 1)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)) * gate) + x.mean(-1, keepdim=True)


def test_custom_forward_with_further_arguments(tmp_path: Path) -> None:
    hyper = make(Gated())
    inputs = (normal(3, 6, 4), normal(3, 5, seed=2), normal(3, 6, 8, seed=3))
    path = export(hyper, tmp_path / "h.onnx", *inputs)
    same(path, hyper, *inputs)
    same(path, hyper, normal(5, 2, 4), normal(5, 5, seed=2), normal(5, 2, 8, seed=3))


def test_one_generated_network_in_evaluation_mode(tmp_path: Path) -> None:
    hyper = make(
        nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
    )
    network = hyper.materialize(normal(5, seed=2))
    network[1].running_mean.fill_(0.3)
    network.train()
    network[2].eval()  # a mixture, to be kept
    state = {name: value.clone() for name, value in network.state_dict().items()}
    path = export(network, tmp_path / "digit.onnx", normal(6, 4))
    assert [module.training for module in network.modules()] == [True, True, True, False, True]
    after = network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    same(path, network, normal(9, 4, seed=3))


def test_embedding_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = wl.EmbeddingNetwork(wl.mlp([4 + 8, 16, 2]), encoder())
    path = export(network, tmp_path / "e.onnx", normal(3, 6, 4), normal(3, 5, seed=2))
    same(path, network, normal(7, 2, 4, seed=3), normal(7, 5, seed=4))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_and_a_first_attempt_that_fails(tmp_path: Path) -> None:
    hyper = make(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    x, condition = normal(3, 2, 5, 8), normal(3, 5, seed=2)
    path = export(hyper, tmp_path / "h.onnx", x, condition)
    # PyTorch leaves vmap switched on when a conversion fails: this would raise.
    torch.empty(3).normal_()
    assert torch._C._functorch.get_interpreter_stack() is None
    same(path, hyper, x, condition)


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum().item() > 0 else 2 * y


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
def test_what_onnx_cannot_hold(tmp_path: Path) -> None:
    hyper = make(LooksAtValues())
    with pytest.raises(UnsupportedModuleError, match=r"cannot be written as ONNX.*materialize"):
        export(hyper, tmp_path / "h.onnx", normal(2, 3, 4), normal(2, 5))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
def test_a_slow_path_is_written_as_a_loop(tmp_path: Path) -> None:
    hyper = make(nn.Sequential(nn.Linear(4, 3), FirstOutput(nn.GRU(3, 3, batch_first=True))))
    x, condition = normal(2, 2, 3, 4), normal(2, 5)
    same(export(hyper, tmp_path / "h.onnx", x, condition), hyper, x, condition)


class FirstOutput(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def test_onnx_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hyper = make()
    with pytest.raises(ShapeError, match=r"needs example inputs: .*x, condition"):
        export(hyper, tmp_path / "h.onnx")
    with pytest.raises(ShapeError, match=r"condition has 3 rows but x has 2"):
        export(hyper, tmp_path / "h.onnx", normal(2, 4), normal(3, 5))
    monkeypatch.setattr("weightloom.hyper.saving.onnx._LARGEST", 100)
    with pytest.raises(UnsupportedModuleError, match=r"one ONNX file holds at most 2 GiB"):
        export(hyper, tmp_path / "h.onnx", normal(3, 4), normal(3, 5))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom\[onnx\]'"):
        export(hyper, tmp_path / "h.onnx", normal(3, 4), normal(3, 5))
    assert list(tmp_path.iterdir()) == []


# -- safetensors ---------------------------------------------------------------------------------


def test_round_trip_of_a_hypernetwork(tmp_path: Path) -> None:
    hyper, other = make(seed=0), make(seed=1)
    x, condition = normal(3, 4), normal(3, 5, seed=2)
    assert not torch.equal(hyper(x, condition), other(x, condition))
    path = export(hyper, tmp_path / "h.safetensors")
    assert load(other, path) is other
    assert torch.equal(hyper(x, condition), other(x, condition))
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["class"] == "HyperNetwork"
    assert metadata["weightloom_version"] == wl.__version__
    shapes = {name: list(shape) for name, shape in hyper.spec.shapes.items()}
    assert json.loads(metadata["spec"])["shapes"] == shapes


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        whole = torch.arange(6.0)
        self.register_buffer("part", whole[:3])
        self.register_buffer("across", whole.view(2, 3).T)


def test_tied_and_overlapping_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, other = Tied(), Tied()
    path = export(network, tmp_path / "tied.safetensors")
    with safe_open(path, framework="pt") as file:
        assert "b.weight" not in file.keys()  # noqa: SIM118
    load(other, path)
    assert other.b.weight is other.a.weight
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_state_dicts_of_torch_save(tmp_path: Path, suffix: str) -> None:
    network, other = make(seed=0), make(seed=1)
    torch.save(network.state_dict(), tmp_path / f"n{suffix}")
    load(other, tmp_path / f"n{suffix}")
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


OTHERS = {
    "missing": (lambda: nn.Linear(3, 2, bias=False), r"missing in the file: 'bias'"),
    "unexpected": (lambda: nn.BatchNorm1d(2), r"unexpected in the file: .*'running_mean'"),
    "shape": (lambda: nn.Linear(4, 2), r"shape of 'weight' is \(2, 4\) in the file, \(2, 3\) here"),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("name", OTHERS)
def test_another_architecture_changes_nothing(tmp_path: Path, name: str, suffix: str) -> None:
    build, message = OTHERS[name]
    network, path = nn.Linear(3, 2), tmp_path / f"other{suffix}"
    if suffix == ".pt":
        torch.save(build().state_dict(), path)
    else:
        export(build(), path)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=rf"another architecture.*{message}.*Nothing was load"
    ):
        load(network, path)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_equal_state_dicts_of_different_primaries(tmp_path: Path) -> None:
    """11 generated numbers either way, in one table: only the spec tells them apart."""
    first, second = make(nn.Linear(10, 1)), make(nn.Bilinear(2, 5, 1))
    shapes = {name: value.shape for name, value in first.state_dict().items()}
    assert shapes == {name: value.shape for name, value in second.state_dict().items()}
    path = export(first, tmp_path / "h.safetensors")
    with pytest.raises(
        CheckpointError, match=r"another primary: 'weight' is \[1, 10\] in the file"
    ):
        load(second, path)


# -- files that cannot be trusted ----------------------------------------------------------------


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_pickled_code_is_never_run(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    torch.save({"weight": Malicious(harm)}, tmp_path / "archive.pt")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"weight": Malicious(harm)}, protocol=2))
    torch.save(nn.Linear(3, 2), tmp_path / "module.pt")
    for name in ("archive.pt", "plain.pth", "module.pt"):
        with pytest.raises(CheckpointError, match=r"was refused: it holds pickled Python objects"):
            load(nn.Linear(3, 2), tmp_path / name)
        assert not harm.exists()
    torch.load(tmp_path / "archive.pt", weights_only=False)
    assert harm.exists()  # the file would have done harm


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"n{suffix}"
    network = nn.Linear(30, 20)
    if suffix == ".pt":
        torch.save(network.state_dict(), path)
    else:
        export(network, path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"hello, this is no checkpoint"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"damaged or incomplete \({len(content)} bytes"):
            load(network, path)


@pytest.mark.parametrize(
    "metadata",
    [{"tied": '{"a": "b"}'}, {"tied": "[1]"}, {"spec": "[]"}, {"spec": "{}"}, {"spec": "{"}],
)
def test_invalid_metadata(tmp_path: Path, metadata: dict[str, str]) -> None:
    save_file({"weight": torch.zeros(1)}, tmp_path / "n.safetensors", metadata)
    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        load(make(), tmp_path / "n.safetensors")


def test_paths_and_contents_that_do_not_fit(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match=r"there is no file .*none.pt"):
        load(network, tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match=r"ends in '.bin'; load reads .safetensors, .pt"):
        load(network, tmp_path / "n.bin")
    with pytest.raises(CheckpointError, match=r"an ONNX file holds a computation: .*onnxruntime"):
        load(network, tmp_path / "n.onnx")
    with pytest.raises(CheckpointError, match=r"ends in 'no suffix'; export writes .safetensors"):
        export(network, tmp_path / "n")
    with pytest.raises(CheckpointError, match=r"folder .*absent' does not exist"):
        export(network, tmp_path / "absent" / "n.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match=r"holds a list, not a state dict"):
        load(network, tmp_path / "list.pt")
    torch.save({"weight": 1, "bias": torch.zeros(2)}, tmp_path / "number.pt")
    with pytest.raises(CheckpointError, match=r"'weight' is a int, not a tensor"):
        load(network, tmp_path / "number.pt")
    with pytest.raises(
        UnsupportedModuleError, match=r"'weight' in the state dict has no shape yet"
    ):
        export(nn.LazyLinear(2), tmp_path / "lazy.safetensors")


def test_an_interrupted_export_keeps_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export(nn.Linear(3, 2), tmp_path / "n.safetensors")
    older = path.read_bytes()

    def interrupted(tensors: object, part: Path, metadata: object) -> None:
        Path(part).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(nn.Linear(3, 2), path)
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    path = export(nn.Linear(3, 2), tmp_path / "n.safetensors")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
