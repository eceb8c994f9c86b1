"""``weightloom inspect A B``: differences first, then the verdict, and what the exit code says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from weightloom.cli import main

Capture = pytest.CaptureFixture[str]


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def save(net: nn.Module, path: Path) -> str:
    save_file(net.state_dict(), path)
    return str(path)


def run(capsys: Capture, *arguments: str, code: int) -> str:
    assert main(["inspect", *arguments]) == code
    return capsys.readouterr().out


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    net = mlp()
    a = save(net, tmp_path / "a.safetensors")
    with torch.no_grad():
        net[2].bias[1] += 1
    return a, save(net, tmp_path / "b.safetensors")


def attention(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(16, 2, 32)


def test_differences_come_first(pair: tuple[str, str], capsys: Capture) -> None:
    out = run(capsys, *pair, "--no-bounds", code=1)
    assert out.startswith("3 of 4 tensors identical, 1 sparse change (1 entry)\n")
    assert out.index("sparse change: 1 of 2 entries") < out.index("DIFFERENT")
    out = run(capsys, pair[0], pair[0], "--no-bounds", code=0)
    assert out.startswith("all 4 tensors identical\n\nSAME function")


def test_only_one_of_them(pair: tuple[str, str], capsys: Capture) -> None:
    assert run(capsys, *pair, "--no-bounds", "--verdict-only", code=1).startswith("DIFFERENT")
    out = run(capsys, *pair, "--diff-only", code=1)
    assert "DIFFERENT" not in out
    assert out.startswith("3 of 4")
    run(capsys, pair[0], pair[0], "--diff-only", code=0)
    with pytest.raises(SystemExit):
        main(["inspect", *pair, "--diff-only", "--verdict-only"])
    assert "not allowed with" in capsys.readouterr().err


def test_json(pair: tuple[str, str], capsys: Capture) -> None:
    about = json.loads(run(capsys, *pair, "--no-bounds", "--json", code=1))
    assert about["diff"]["counts"] == {"identical": 3, "sparse": 1}
    assert about["equivalence"]["same"] is False
    about = json.loads(run(capsys, *pair, "--diff-only", "--json", code=1))
    assert about["diff"]["identical"] is False
    about = json.loads(run(capsys, *pair, "--no-bounds", "--json", "--verdict-only", code=1))
    assert "diff" not in about


def test_an_unknown_architecture_needs_identical_tensors(tmp_path: Path, capsys: Capture) -> None:
    a = save(attention(), tmp_path / "a.safetensors")
    b = save(attention(), tmp_path / "b.safetensors")
    c = save(attention(1), tmp_path / "c.safetensors")
    out = run(capsys, a, b, code=0)
    assert out.startswith("all 12 tensors identical\n\nSAME function: all tensors are identical")
    assert run(capsys, a, b, "--verdict-only", code=0).startswith("SAME function: all tensors")
    out = run(capsys, a, c, code=3)
    words = " ".join(out.split())
    assert "UNDECIDED: the functions were not compared." in words
    assert "the architecture cannot be inferred" in words
    about = json.loads(run(capsys, a, b, "--json", code=0))
    assert about["diff"]["identical"] is True
    assert about["equivalence"]["answer"] == "same"
    about = json.loads(run(capsys, a, c, "--json", "--verdict-only", code=3))
    assert "diff" not in about
    assert about["equivalence"]["answer"] == "undecided"
    assert about["equivalence"]["same"] is None
    assert "cannot be inferred" in about["equivalence"]["missing"]


def test_identical_tensors_for_other_code_are_not_the_same(tmp_path: Path, capsys: Capture) -> None:
    net = attention()
    state = net.state_dict()
    paths = []
    for name in ("encoder", "decoder"):
        paths.append(str(tmp_path / f"{name}.safetensors"))
        save_file(state, paths[-1], {"class": name})
    run(capsys, *paths, code=3)
    renamed = str(tmp_path / "renamed.safetensors")
    save_file({f"module.{name}": tensor for name, tensor in state.items()}, renamed)
    run(capsys, paths[0], renamed, code=3)


def test_what_the_user_asked_for_stays_an_error(pair: tuple[str, str], capsys: Capture) -> None:
    assert main(["inspect", *pair, "--activation", "nonsense"]) == 2
    assert "activation 'nonsense' is not known" in capsys.readouterr().err
    for option in ("--diff-only", "--verdict-only"):
        assert main(["inspect", pair[0], option]) == 2
        assert f"{option} is for two checkpoints, and one was given" in capsys.readouterr().err


def test_pickles_are_compared_without_running_them(tmp_path: Path, capsys: Capture) -> None:
    torch.save(mlp().state_dict(), tmp_path / "a.pt")
    a = str(tmp_path / "a.pt")
    out = run(capsys, a, a, code=0)
    assert out.startswith("all 4 tensors identical\n\nSAME function: all tensors")
    torch.save(mlp(1).state_dict(), tmp_path / "b.pt")
    out = run(capsys, a, str(tmp_path / "b.pt"), code=3)
    assert "it is a pickle" in " ".join(out.split())
    run(capsys, a, a, "--diff-only", code=0)


def folder(path: Path, net: nn.Module, **config: object) -> str:
    path.mkdir()
    save_file(net.state_dict(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_folders(tmp_path: Path, capsys: Capture) -> None:
    a = folder(tmp_path / "a", mlp(), heads=2)
    b = folder(tmp_path / "b", mlp(), heads=4)
    out = run(capsys, a, b, code=3)
    assert "is a folder, and the verdict reads single .safetensors files" in " ".join(out.split())
    assert "heads: 2 and 4" in out
    assert "bit for bit" not in out  # the configurations differ
    assert "SAME" in run(capsys, a, a, code=0)
    assert "SAME" in run(capsys, a, a, "--verdict-only", code=0)
    run(capsys, a, b, "--diff-only", code=3)
    run(capsys, a, a, "--diff-only", code=0)


def test_a_missing_shard_is_undecided_at_best(tmp_path: Path, capsys: Capture) -> None:
    a = save(mlp(), tmp_path / "a.safetensors")
    state = mlp().state_dict()
    files = {name: f"part-{i}.safetensors" for i, name in enumerate(state)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    for name, file in list(files.items())[1:]:
        save_file({name: state[name]}, tmp_path / file)
    out = run(capsys, a, str(tmp_path / "model.safetensors.index.json"), "--diff-only", code=3)
    assert out.startswith("INCOMPLETE: 3 of 4 tensors identical, 1 not compared")
    assert "part-0.safetensors" in out


def test_an_adapter_and_its_base(tmp_path: Path, capsys: Capture) -> None:
    import weightloom as wl
    from weightloom.hyper.adapters.factors import AdapterLayer

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 40), nn.ReLU(), nn.Linear(40, 24))
    layer = AdapterLayer(torch.randn(2, 32), torch.randn(40, 2), 2.0)
    adapter = wl.Adapter({"0": layer})
    adapter.save(tmp_path / "adapter")
    a = save(net, tmp_path / "a.safetensors")
    out = run(capsys, a, str(tmp_path / "adapter"), "--diff-only", code=1)
    assert out.startswith("3 of 4 tensors identical, 1 low-rank change (rank 2)")
    save_file(adapter.merge(net).state_dict(), tmp_path / "m.safetensors")
    options = ["--base", a, "--diff-only"]
    run(capsys, str(tmp_path / "m.safetensors"), str(tmp_path / "adapter"), *options, code=0)


def test_help_explains_the_exit_codes(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    out = capsys.readouterr().out
    for text in ("what differs (two checkpoints):", "--verdict-only", "3  two checkpoints: undec"):
        assert text in out
