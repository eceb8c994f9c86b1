"""``weightloom inspect``: verdicts and exit codes, tables, hostile files."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from weightloom.bounds import report
from weightloom.cli import main
from weightloom.symmetry import fingerprint, random_equivalent

Capture = pytest.CaptureFixture[str]


def mlp(activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 8), activation(), nn.Linear(8, 7), activation(), nn.Linear(7, 2)
    )


def save(net: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> str:
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    save_file(state, path, metadata)
    return str(path)


def disguised(net: nn.Module) -> nn.Module:
    return random_equivalent(net, generator=torch.Generator().manual_seed(3))


def run(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main(["inspect", *arguments]) == code
    return capsys.readouterr().out


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_a_huge_network_is_not_searched_and_the_table_says_so(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["weightloom.bounds.network_report"], "HUGE", 10)
    net = mlp()
    out = run(capsys, save(net, tmp_path / "a.safetensors"))
    upper = float(report(net).lipschitz["2"].upper)
    assert f"at most {upper:.4g}" in out


def test_help_teaches(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["inspect", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for topic in ("where the architecture comes from:", "what is never done:", "exit code:"):
        assert topic in out
    assert "RUNS that code" in out
    assert max(map(len, out.splitlines())) <= 100


def test_one_file(tmp_path: Path, capsys: Capture) -> None:
    net = mlp()
    path = save(net, tmp_path / "a.safetensors")
    out = run(capsys, path)
    lines = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert f"{sum(p.numel() for p in net.parameters())}" in lines["parameters"]
    assert lines["normal"].split() == ["normal", "yes"]
    assert fingerprint(net)[:16] in lines["fingerprint"]
    assert "3-8-7-2" in lines["widths"]
    upper = float(report(net).lipschitz["2"].upper)
    assert f"to {upper:.4g}" in lines["Lipschitz, 2-norm"]
    assert "ASSUMED" in out
    assert "relu after every layer but the last" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json(tmp_path: Path, capsys: Capture) -> None:
    net = mlp(nn.Tanh)
    path = save(net, tmp_path / "a.safetensors")
    answer = json.loads(run(capsys, path, "--json", "--activation", "tanh"))
    (network,) = answer["networks"]
    assert answer["equivalence"] is None
    assert network["fingerprint"] == fingerprint(net)
    assert network["layers"] == ["0", "2", "4"]
    assert network["normality"]["normal"] is True
    expected = report(net)
    assert network["bounds"]["log_group_order"] == expected.log_group_order
    assert network["bounds"]["lipschitz"]["1"]["log_upper"] == expected.lipschitz["1"].upper.log


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_and_different(name: str, dtype: torch.dtype, tmp_path: Path, capsys: Capture) -> None:
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU}
    net = mlp(kinds[name]).to(dtype)
    twin = disguised(net)
    options = ["--activation", name, "--no-bounds", "--verdict-only"]
    a, b = save(net, tmp_path / "a.safetensors"), save(twin, tmp_path / "b.safetensors")
    out = run(capsys, a, b, *options)
    assert out.startswith("SAME function")
    with torch.no_grad():
        twin[2].weight[1, 1] += 0.001
    c = save(twin, tmp_path / "c.safetensors")
    out = run(capsys, a, c, *options, code=1)
    assert out.startswith("DIFFERENT")
    equivalence = json.loads(run(capsys, a, c, *options, "--json", code=1))["equivalence"]
    assert equivalence["same"] is False
    assert equivalence["mismatch"]
    assert run(capsys, a, c, *options, "--tolerance", "0.5").startswith("SAME")
    with torch.no_grad():
        twin[4].bias[0] += 0.1  # every output sees it
    d = save(twin, tmp_path / "d.safetensors")
    equivalence = json.loads(run(capsys, a, d, *options, "--json", code=1))["equivalence"]
    assert equivalence["output_deviation"] > 1e-3


def test_the_activation_matters(tmp_path: Path, capsys: Capture) -> None:
    """Scaled copies are the same for relu only."""
    net = mlp()
    a = save(net, tmp_path / "a.safetensors")
    b = save(disguised(net), tmp_path / "b.safetensors")
    run(capsys, a, b, "--no-bounds", code=0)
    run(capsys, a, b, "--no-bounds", "--activation", "tanh", code=1)


def test_metadata_name_the_activation(tmp_path: Path, capsys: Capture) -> None:
    net = mlp(nn.Tanh)
    noted = {"activation": "tanh"}
    a = save(net, tmp_path / "a.safetensors", noted)
    b = save(disguised(net), tmp_path / "b.safetensors", noted)
    assert "tanh after every layer but the last" in run(capsys, a, b, "--no-bounds")
    c = save(net, tmp_path / "c.safetensors", {"activation": "\x1b[2J"})
    assert r"activation '\x1b[2J' is not known" in refused(capsys, c)
    # A file that does not say it is read with that of the other, and the headline says so.
    d = save(net, tmp_path / "d.safetensors")
    for pair in ((a, d), (d, a)):
        out = run(capsys, *pair, "--no-bounds", "--verdict-only")
        assert out.startswith("SAME function if tanh\n")
    e = save(net, tmp_path / "e.safetensors", {"activation": "relu"})
    assert "DIFFERENT" in run(capsys, a, e, "--no-bounds", "--verdict-only", code=1)


def test_other_names_are_compared_by_position(tmp_path: Path, capsys: Capture) -> None:
    net = mlp()
    twin = disguised(net)
    named = nn.ModuleDict({"fc1": twin[0], "fc2": twin[2], "fc3": twin[4]})
    a, b = save(net, tmp_path / "a.safetensors"), save(named, tmp_path / "b.safetensors")
    out = run(capsys, a, b, "--no-bounds")
    assert "layers of b.safetensors, in this order: fc1, fc2, fc3" in out


def test_float32_and_float64_of_one_network(tmp_path: Path, capsys: Capture) -> None:
    net = mlp().double()
    a = save(net, tmp_path / "a.safetensors")
    b = save(disguised(net).float(), tmp_path / "b.safetensors")
    assert run(capsys, a, b, "--no-bounds", "--verdict-only").startswith("SAME")
    assert run(capsys, b, a, "--no-bounds", "--verdict-only").startswith("SAME")


def test_clones_are_listed_and_do_not_hide_a_copy(tmp_path: Path, capsys: Capture) -> None:
    net = mlp()
    wide = mlp()
    wide[0], wide[2] = nn.Linear(3, 9), nn.Linear(9, 7)
    with torch.no_grad():
        for name in ("weight", "bias"):
            old = getattr(net[0], name)
            getattr(wide[0], name).copy_(torch.cat([old, 2 * old[4:5]]))
        split = torch.cat([net[2].weight, net[2].weight[:, 4:5] / 4], dim=1)
        split[:, 4] /= 2  # 1/2 + 2 * 1/4: exact in floating point
        wide[2].weight.copy_(split)
        wide[2].bias.copy_(net[2].bias)
    a, b = save(net, tmp_path / "a.safetensors"), save(wide, tmp_path / "b.safetensors")
    out = run(capsys, a, b, "--no-bounds", "--verdict-only")
    assert out.startswith("SAME function after clones and dead units were removed")
    assert "no, 1 units can go" in out
    assert "layer '0', unit 8: scaled" in out or "layer '0', unit 4: scaled" in out


def test_other_depth_is_different(tmp_path: Path, capsys: Capture) -> None:
    a = save(mlp(), tmp_path / "a.safetensors")
    b = save(nn.Sequential(nn.Linear(3, 2)), tmp_path / "b.safetensors")
    assert "has shapes (8, 3) and (2, 3)" in run(capsys, a, b, "--no-bounds", code=1)


def test_convolutions_get_no_made_up_bounds(tmp_path: Path, capsys: Capture) -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))
    a = save(net, tmp_path / "a.safetensors")
    out = run(capsys, a)
    assert "strides, padding and pooling are not in the file; give --module" in " ".join(
        out.split()
    )
    assert "Lipschitz" not in out
    assert "--input-shape needs --module" in refused(capsys, a, "--input-shape", "1,6,6")
    code = tmp_path / "nets.py"
    code.write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))\n"
    )
    out = run(capsys, a, "--module", f"{code}:net", "--input-shape", "1,6,6")
    assert "Lipschitz, 2-norm" in out
    assert "ASSUMED" not in out


RESIDUAL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
    def forward(self, x):
        x = torch.tanh(self.a(x))
        return self.c(x + torch.tanh(self.b(x)))
number = 3
def wrong():
    return 3
def broken():
    raise OSError("no such dataset")
"""


def test_module(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "own_nets_for_inspect.py"
    code.write_text(RESIDUAL)
    scope: dict = {"__name__": "own"}
    exec(RESIDUAL, scope)
    torch.manual_seed(0)
    net = scope["Net"]().double()
    a = save(net, tmp_path / "a.safetensors")
    b = save(disguised(net), tmp_path / "b.safetensors")
    out = run(capsys, a, b, "--module", f"{code}:Net", "--verdict-only")
    assert out.startswith("SAME function")
    assert "float64" in out
    assert "a.safetensors: no bounds:" in out  # a sum is no chain; the rest is still shown
    monkeypatch.syspath_prepend(str(tmp_path))
    run(capsys, a, b, "--module", "own_nets_for_inspect:Net", "--no-bounds")
    c = save(mlp(), tmp_path / "c.safetensors")
    assert "another architecture" in refused(capsys, c, "--module", f"{code}:Net")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{}", "wanted path.py:factory"),
        ("{}:none", "has no function 'none'"),
        ("{}:number", "has no function 'number'"),
        ("{}:wrong", "wrong() returned a int; wanted an nn.Module"),
        ("{}:broken", "broken() failed with OSError: no such dataset"),
        ("nowhere.py:net", "there is no file 'nowhere.py'"),
        ("no_such_package:net", "importing no_such_package failed with ModuleNotFoundError"),
    ],
)
def test_module_errors(spec: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "nets.py").write_text(RESIDUAL)
    a = save(mlp(), tmp_path / "a.safetensors")
    given = spec.format("nets" if spec == "{}" else tmp_path / "nets.py")
    assert message in refused(capsys, a, "--module", given)
    assert "the code decides" in refused(capsys, a, "--module", "x:y", "--activation", "relu")


class Bomb:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("name", ["a.pt", "a.bin", "a.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_never_run(
    name: str, zipped: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"0.weight": Bomb()}, name, _use_new_zipfile_serialization=zipped)
    assert "was refused: it is a pickle" in refused(capsys, name)
    assert not Path("exploded").exists()
    Path(name).rename("bomb.pt")  # torch.load goes by the name too
    torch.load("bomb.pt", weights_only=False)  # the bomb works
    assert Path("exploded").exists()


def hostile(kind: str, whole: bytes) -> bytes:
    nested = b'{"__metadata__":' + b"[" * 5000 + b"]" * 5000 + b"}"
    beyond = json.dumps(
        {"0.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}
    ).encode()
    return {
        "empty": b"",
        "short": whole[:5],
        "header cut": whole[:40],
        "data cut": whole[:-3],
        "huge header": struct.pack("<Q", 2**62) + whole[8:],
        "no json": struct.pack("<Q", 4) + b"oops" + whole,
        "nested": struct.pack("<Q", len(nested)) + nested,
        "beyond": struct.pack("<Q", len(beyond)) + beyond + b"1234",
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["empty", "short", "header cut", "data cut", "huge header", "no json", "nested", "beyond"],
)
def test_hostile_files(kind: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.safetensors"
    save(mlp(), path)
    path.write_bytes(hostile(kind, path.read_bytes()))
    err = refused(capsys, str(path))
    assert "a.safetensors' cannot be read as safetensors" in err
    assert len(err) < 600


def test_bad_contents(tmp_path: Path, capsys: Capture) -> None:
    net = mlp()
    with torch.no_grad():
        net[2].bias[3] = float("nan")
    path = save(net, tmp_path / "a.safetensors")
    assert "tensor '2.bias' holds NaN or infinity (1 of 7 numbers)" in refused(capsys, path)
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    r = nn.ReLU\n"
        "    return nn.Sequential(nn.Linear(3, 8), r(), nn.Linear(8, 7), r(), nn.Linear(7, 2))\n"
    )
    module = f"{tmp_path / 'nets.py'}:net"
    assert "'2.bias' holds NaN" in refused(capsys, path, "--module", module)
    assert "there is no file" in refused(capsys, str(tmp_path / "none.safetensors"))
    assert "there is no file" in refused(capsys, str(tmp_path))
    tied = save(mlp(), tmp_path / "t.safetensors", {"tied": '{"6.weight": "4.weight"}'})
    assert "uses one tensor in several places" in refused(capsys, tied)


@pytest.mark.parametrize(
    ("option", "value"), [("--tolerance", "2"), ("--tolerance", "x"), ("--input-shape", "3,a")]
)
def test_bad_options(option: str, value: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["inspect", "a.safetensors", option, value])
    assert stop.value.code == 2
    assert f"{value!r} was given" in capsys.readouterr().err


def test_full(tmp_path: Path, capsys: Capture) -> None:
    path = save(mlp(), tmp_path / "a.safetensors")
    assert "stochastic error" in run(capsys, path, "--full")
