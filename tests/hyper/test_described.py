"""The layers of a network in the metadata of its file, and the network that is built from them."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors import safe_open
from torch import nn

import weightloom as wl
from weightloom.cli import main
from weightloom.errors import CheckpointError
from weightloom.hyper.saving.described import about, built, described
from weightloom.symmetry import equivalent, random_equivalent
from weightloom.symmetry.files.checkpoints import load_by_names

NETWORKS = {
    "tanh": (lambda: wl.mlp([3, 8, 8, 2], "tanh"), (3,)),
    "leaky": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)), (3,)),
    "several": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Dropout(0.1),
                              nn.Sequential(nn.Linear(4, 4), nn.ELU(0.5)),
                              nn.Linear(4, 1, bias=False), nn.Sigmoid()),
        (3,),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(),
                              nn.BatchNorm2d(4), nn.MaxPool2d((2, 1)), nn.ConvTranspose2d(4, 3, 2),
                              nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)),
        (2, 8, 8),
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8, eps=1e-3), nn.GELU("tanh"),
                              nn.RMSNorm(8), nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.SiLU()),
        (3,),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), None),
    "fourier": (lambda: wl.coordinate_network(2, 3, width=8, depth=3), (2,)),
    "siren": (lambda: wl.coordinate_network(2, 3, width=8, depth=3, features="siren"), (2,)),
    "shared activation": (lambda: shared(nn.Tanh()), (3,)),
}  # fmt: skip


def shared(activation):
    return nn.Sequential(
        nn.Linear(3, 4), activation, nn.Linear(4, 4), activation, nn.Linear(4, 2), activation
    )


def make(name):
    torch.manual_seed(0)
    network, shape = NETWORKS[name]
    network = network().eval()
    for _, buffer in network.named_buffers():
        if buffer.is_floating_point() and buffer.dim() == 1:
            buffer.uniform_(0.5, 1.5)
    return network, torch.randint(0, 9, (4, 5)) if shape is None else torch.randn(4, *shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_is_the_network(name, tmp_path):
    network, x = make(name)
    path = wl.export(network, tmp_path / "net.safetensors")
    loaded = load_by_names(path, None)
    assert loaded.described
    assert not loaded.assumptions
    assert torch.equal(loaded.module(x), network(x))
    assert list(loaded.module.state_dict()) == list(network.state_dict())
    # Twice, and with the names of another file.
    assert described(loaded.module) == described(network)
    with safe_open(path, framework="pt") as file:
        entries, names = json.loads(file.metadata()["structure"]), len(loaded.layers)
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    renamed = built(entries, state, [f"layer{i}" for i in range(names)])
    assert torch.equal(renamed(x), network(x))


@pytest.mark.parametrize("name", ["tanh", "siren", "several"])
def test_inspect_needs_no_activation(name, tmp_path, capsys):
    network, _ = make(name)
    a = wl.export(network, tmp_path / "a.safetensors")
    twin = random_equivalent(network, torch.Generator().manual_seed(1))
    b = wl.export(twin, tmp_path / "b.safetensors")
    options = ["--verdict-only", "--no-bounds"]
    assert main(["inspect", str(a), str(b), *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SAME function\n")
    assert "ASSUMED" not in out
    with torch.no_grad():
        next(p for p in reversed(list(twin.parameters())) if p.dim() > 1)[0, 0] += 0.1
    c = wl.export(twin, tmp_path / "c.safetensors")
    assert main(["inspect", str(a), str(c), *options]) == 1
    assert capsys.readouterr().out.startswith("DIFFERENT: ")


def test_other_activations_are_another_function(tmp_path, capsys):
    """Identical tensors; the files say that different things are done with them."""
    network, _ = make("tanh")
    other = wl.mlp([3, 8, 8, 2], "gelu")
    other.load_state_dict(network.state_dict())
    a = wl.export(network, tmp_path / "a.safetensors")
    b = wl.export(other, tmp_path / "b.safetensors")
    assert main(["inspect", str(a), str(b), "--verdict-only", "--no-bounds"]) == 1
    assert "tanh" in capsys.readouterr().out


def test_what_has_no_description():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    layer = nn.Linear(3, 3)
    hooked = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    hooked[1].register_forward_hook(lambda module, args, output: output + 1)
    replaced = nn.Sequential(nn.Linear(3, 3))
    replaced[0].forward = lambda x: x
    tied = nn.Sequential(layer, nn.ReLU(), layer)
    unknown = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3))
    for network in (Own(nn.Linear(3, 3)), hooked, replaced, tied, unknown, layer):
        assert described(network) is None
    assert json.loads(about(unknown).get("activations", "{}")) == {}
    subclass = type("ReLU", (nn.ReLU,), {"forward": lambda self, x: x})
    assert described(nn.Sequential(layer, subclass())) is None


LINEAR = {"name": "0", "layer": "Linear", "settings": {"in_features": 3, "out_features": 2}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("text", "not a list of layers"),
        ([], "not a list of layers"),
        ([{"layer": "Linear"}], "has no name"),
        ([LINEAR | {"layer": "System"}], "unknown layer 'System'"),
        ([LINEAR | {"layer": ["Linear"]}], "unknown layer"),
        ([LINEAR | {"settings": {"in_features": 10**12, "out_features": 2}}], "do not confirm"),
        ([LINEAR | {"settings": {"in_features": {}, "out_features": 2}}], "do not confirm"),
        ([LINEAR | {"settings": {"in_features": 2, "out_features": 2}}], "does not fit"),
        ([LINEAR | {"settings": {"bad": 2}}], "cannot be made"),
        ([LINEAR, LINEAR], "twice"),
        ([LINEAR, LINEAR | {"name": "1"}], "does not fit"),
        ([LINEAR | {"name": "1"}], "does not have the tensors 0.weight"),
        ([LINEAR, LINEAR | {"name": "0.a", "layer": "ReLU", "settings": {}}], "inside '0.a'"),
        ([LINEAR, {"name": "p", "layer": "AdaptiveAvgPool1d", "settings": {"output_size": 10**9}}],
         "do not confirm"),
    ],
)  # fmt: skip
def test_hostile_structures(entries, message):
    state = nn.Linear(3, 2).state_dict(prefix="0.")
    with pytest.raises(CheckpointError, match=message):
        built(entries, state)


def test_a_copy_of_the_demo_network_is_the_same(tmp_path):
    from weightloom.demo.networks import coordinate_network

    network = coordinate_network()
    path = wl.export(network, tmp_path / "digit.safetensors")
    loaded = load_by_names(path, None)
    assert equivalent(loaded.module, copy.deepcopy(network)).answer == "same"
