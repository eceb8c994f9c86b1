"""from_pretrained with what does not fit: another base, a damaged folder, no hub."""

import json
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import weightloom as wl
from tests.hyper.saving.models import base, encoder, loaded, same, trained
from weightloom.errors import CheckpointError, OutputError, UnsupportedModuleError

# -- the wrong base -------------------------------------------------------------------------------


def test_a_base_of_another_shape(tmp_path):
    trained("delta").save_pretrained(tmp_path)
    message = r"'0\.weight' is \[12, 4\] in the folder, \[13, 4\] here"
    with pytest.raises(CheckpointError, match=message):
        wl.HyperNetwork.from_pretrained(tmp_path, wl.mlp([4, 13, 12, 2]), encoder())
    with pytest.raises(CheckpointError, match=r"'4\.weight' is \[2, 12\].*absent here"):
        wl.HyperNetwork.from_pretrained(tmp_path, wl.mlp([4, 12, 12]), encoder())
    trained(generate="4.*", freeze_rest=True).save_pretrained(tmp_path)
    other = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), base()[4])
    with pytest.raises(CheckpointError, match=r"'primary\.0\.weight' is \[12, 4\].*\[12, 5\] here"):
        wl.HyperNetwork.from_pretrained(tmp_path, other, encoder())


@pytest.mark.parametrize("head", ["delta", "adapter"])
def test_a_base_with_other_values(tmp_path, head):
    trained(head).save_pretrained(tmp_path)
    message = r"primary.*other values.*primary\.0\.weight.*Load the base"
    with pytest.warns(UserWarning, match=message):
        wl.HyperNetwork.from_pretrained(tmp_path, base(seed=9), encoder())
    changed = base()
    with torch.no_grad():
        changed[2].weight.mul_(1.02)
    with pytest.warns(UserWarning, match=r"primary\.2\.weight") as seen:
        wl.HyperNetwork.from_pretrained(tmp_path, changed, encoder())
    assert "primary.0.weight" not in str(seen[0].message)


def test_values_of_a_base_that_is_replaced_do_not_matter(tmp_path):
    trained("full").save_pretrained(tmp_path)
    loaded(tmp_path, base(seed=9))


def test_a_base_in_half_precision_is_the_same_base(tmp_path):
    trained(generate="4.*", freeze_rest=True).save_pretrained(tmp_path)
    loaded(tmp_path, base().to(torch.bfloat16))


# -- folders that cannot be used ------------------------------------------------------------------


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_damaged_and_foreign_folders(tmp_path):
    def load():
        return wl.HyperNetwork.from_pretrained(tmp_path, base(), encoder())

    with pytest.raises(CheckpointError, match=r"no config\.json in .*save_pretrained"):
        load()
    hyper = trained()
    hyper.save_pretrained(tmp_path)
    config, tensors = tmp_path / "config.json", tmp_path / "model.safetensors"
    good, whole = config.read_text(), tensors.read_bytes()

    config.write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    with pytest.raises(CheckpointError, match=r"not written by save_pretrained.*model_type"):
        load()
    config.write_text(good[: len(good) // 2])
    with pytest.raises(CheckpointError, match=r"config\.json' cannot be read"):
        load()
    for wrong in ("[]", '"text"'):
        config.write_text(wrong)
        with pytest.raises(CheckpointError, match="not written by save_pretrained"):
            load()
    config.write_text(good)
    for changes, message in [
        ({"format_version": 99}, "newer version of weightloom"),
        ({"generate": {"shapes": 3}}, "cannot be read"),
        ({"features": "eight"}, "cannot be read"),
        ({"head": {"class": "LowRankHead", "options": {"size": 3}}}, r"LowRankHead.*size.*head="),
        ({"head": {"class": "make_head", "options": {}}}, "pass head="),
        ({"head": {"class": "LowRankHead", "options": {}}}, "another architecture"),
        ({"features": 9}, "another architecture"),
    ]:
        config.write_text(good)
        edited(tmp_path, **changes)
        with pytest.raises(CheckpointError, match=message):
            load()
    config.write_text(good)

    tensors.write_bytes(whole[:-40])
    with pytest.raises(CheckpointError, match=r"model\.safetensors' cannot be read.*damaged"):
        load()
    tensors.unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors in"):
        load()
    state = hyper.state_dict()
    state.pop("head.joint")
    save_file({**state, "head.other": torch.zeros(2)}, tensors)
    with pytest.raises(CheckpointError, match=r"head\.joint.*missing.*head\.other.*unexpected"):
        load()


def test_an_interrupted_save_keeps_the_older_one(tmp_path, monkeypatch):
    hyper = trained()
    hyper.save_pretrained(tmp_path)

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        trained("low_rank").save_pretrained(tmp_path)
    same(hyper, loaded(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(OutputError, match=r"save_pretrained.*x is a file, and a folder"):
        trained().save_pretrained(tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"no folder .*x"):
        wl.HyperNetwork.from_pretrained(tmp_path / "x", base())


def test_state_that_is_not_a_tensor(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

        def set_extra_state(self, state):
            pass

    hyper = wl.HyperNetwork(base(), nn.Sequential(Extra(6, 8)), features=8)
    with pytest.raises(UnsupportedModuleError, match=r"encoder\.0\._extra_state.*not a tensor"):
        hyper.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


# -- the hub --------------------------------------------------------------------------------------


def hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_name_on_the_hub(tmp_path, monkeypatch):
    hyper = trained()
    hyper.save_pretrained(tmp_path)
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    hub(monkeypatch, download)
    again = wl.HyperNetwork.from_pretrained("me/mine", base(), encoder(7), revision="v1")
    same(hyper, again)
    assert asked == [("me/mine", "v1", ["config.json", "model.safetensors"])]


def test_a_hub_that_cannot_be_reached_or_is_not_installed(tmp_path, monkeypatch):
    def download(*_, **__):
        raise ConnectionError("offline")

    hub(monkeypatch, download)
    with pytest.raises(CheckpointError, match=r"no folder 'me/mine'.*Hugging Face hub.*offline"):
        wl.HyperNetwork.from_pretrained("me/mine", base())
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = "no folder 'me/mine'.*huggingface_hub is not installed.*pip install huggingface_hub"
    with pytest.raises(CheckpointError, match=message):
        wl.HyperNetwork.from_pretrained("me/mine", base())
    for local in (tmp_path / "none", "./none", "a/b/c"):
        with pytest.raises(CheckpointError, match=r"no folder .*check the path"):
            wl.HyperNetwork.from_pretrained(local, base())
