"""Saved models keep how features are scaled; what was saved before scaling still opens."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import weightloom as wl
from tests.hyper.saving.models import CONDITION, base, encoder, loaded, same, trained
from weightloom.errors import CheckpointError
from weightloom.hyper.start import FixedScaling, Normalisation

HEADS = {
    "full": lambda: wl.FullHead(),
    "chunked": lambda: wl.ChunkedHead(size=16, embedding=4, hidden=8),
    "delta": lambda: wl.DeltaHead(),
    "delta, trained base": lambda: wl.DeltaHead(2, train_base=True),
    "adapter": lambda: wl.AdapterHead(rank=2, width=16),
}
heads = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)


def few(seed=1):
    """Fewer than eight features."""
    torch.manual_seed(seed)
    return wl.mlp([6, 4], last_activation=True)


def hypernetwork(head, kind, new_encoder=None):
    """One that was moved away from its start; features of a scale that is not 1."""
    make = new_encoder or {"normalised": encoder, "fixed": few, "plain": encoder}[kind]
    options = {"init": "hyperfan_in"} if kind == "plain" else {"calibration": 30 * CONDITION}
    hyper = wl.HyperNetwork(base(), make(), head(), **options)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    wanted = {"normalised": Normalisation, "fixed": FixedScaling, "plain": type(None)}
    assert type(hyper.scaling) is wanted[kind]
    return hyper.eval(), make


@heads
@pytest.mark.parametrize("kind", ["normalised", "fixed", "plain"])
def test_folders(tmp_path, head, kind):
    hyper, make = hypernetwork(head, kind)
    again = loaded(hyper.save_pretrained(tmp_path), new_encoder=make(7))
    same(hyper, again)
    assert type(again.scaling) is type(hyper.scaling)
    assert str(again.scaling) == str(hyper.scaling)


@heads
def test_folders_written_before(tmp_path, head):
    """Their configuration says nothing about scaling: features are used as they are."""
    hyper, make = hypernetwork(head, "plain")
    hyper.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("scaling") is None
    if "delta" in config["initialisation"]:
        config["initialisation"] = "delta: generates the given primary exactly"  # as it was
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not any("scaling" in name for name in load_file(tmp_path / "model.safetensors"))
    again = loaded(tmp_path, new_encoder=make(7))
    assert again.scaling is None
    same(hyper, again)


@pytest.mark.parametrize("kind", ["normalised", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_folders_in_other_types(tmp_path, kind, dtype):
    """The number that scales is stored so that it has every bit."""
    hyper, make = hypernetwork(wl.FullHead, kind)
    hyper = hyper.to(dtype)
    hyper.save_pretrained(tmp_path)
    again = loaded(tmp_path, base().to(dtype), make(7).to(dtype))
    features = hyper._encode(CONDITION.to(dtype))[0]
    assert torch.equal(again.scaled(features), hyper.scaled(features))


@heads
@pytest.mark.parametrize("kind", ["normalised", "fixed", "plain"])
def test_files(tmp_path, head, kind):
    hyper, make = hypernetwork(head, kind)
    wl.export(hyper, tmp_path / "hyper.safetensors")
    options = {"init": "hyperfan_in"} if kind == "plain" else {}
    other = wl.HyperNetwork(base(7), make(7), head(), **options)  # without the calibration
    same(hyper, wl.load(other, tmp_path / "hyper.safetensors"))


@pytest.mark.parametrize("kind", ["normalised", "fixed"])
def test_a_file_of_plain_features_is_refused_with_the_remedy(tmp_path, kind):
    make = few if kind == "fixed" else encoder
    hyper, _ = hypernetwork(wl.DeltaHead, "plain", make)
    wl.export(hyper, tmp_path / "hyper.safetensors")
    for given in (None, "mup"):
        other = wl.HyperNetwork(base(), make(), wl.DeltaHead(), init=given)
        with pytest.raises(CheckpointError, match=r"'scaling.* build it with init='hyperfan_in'"):
            wl.load(other, tmp_path / "hyper.safetensors")
        with pytest.raises(CheckpointError, match=r"(?s)scaling.*build it with init='hyperfan_in'"):
            other.load_state_dict(hyper.state_dict())
    plain = wl.HyperNetwork(base(), make(7), wl.DeltaHead(), init="hyperfan_in")
    same(hyper, wl.load(plain, tmp_path / "hyper.safetensors"))


def test_the_remedy_is_not_given_for_other_differences(tmp_path):
    hyper = trained()
    with pytest.raises(CheckpointError) as error:
        wl.HyperNetwork(wl.mlp([4, 3, 2]), encoder()).load_state_dict(hyper.state_dict())
    assert "hyperfan_in" not in str(error.value)


def test_conditions_that_are_features(tmp_path):
    """No encoder: one number for all conditions, which comes back."""
    hyper = wl.HyperNetwork(base(), features=6, feature_moment=49.0).eval()
    assert isinstance(hyper.scaling, FixedScaling)
    again = wl.HyperNetwork.from_pretrained(hyper.save_pretrained(tmp_path), base())
    same(hyper, again)
    assert torch.equal(again.scaling.factor, hyper.scaling.factor)
    assert isinstance(again.encoder, nn.Identity)
