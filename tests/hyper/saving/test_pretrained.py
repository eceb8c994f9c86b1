"""save_pretrained and from_pretrained: what was learned is kept in a folder, the base is not."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import weightloom as wl
from tests.hyper.saving.models import CONDITION, X, base, encoder, loaded, same, trained
from weightloom.errors import CheckpointError, HeadError

HEADS = {
    "full": lambda: wl.FullHead(),
    "full without offset": lambda: wl.FullHead(offset=False),
    "low rank": lambda: wl.LowRankHead(2, offset=False),
    "chunked": lambda: wl.ChunkedHead(size=16, embedding=4, hidden=8),
    "delta": lambda: wl.DeltaHead(),
    "delta of a rank": lambda: wl.DeltaHead(rank=2),
    "adapter": lambda: wl.AdapterHead(rank=2, width=16),
    "per layer": lambda: wl.PerLayerHead(),
    "per layer, template": lambda: wl.PerLayerHead(wl.LowRankHead(rank=3)),
    "per layer, patterns": lambda: wl.PerLayerHead(
        {"0": wl.FullHead(offset=False), "*": wl.ChunkedHead(size=8)}
    ),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_round_trip(make, tmp_path):
    hyper = trained(make())
    assert hyper.save_pretrained(tmp_path / "a" / "model") == tmp_path / "a" / "model"
    assert sorted(p.name for p in (tmp_path / "a" / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    again = loaded(tmp_path / "a" / "model")
    same(hyper, again)
    assert type(again.head) is type(hyper.head)
    assert again.initialisation == hyper.initialisation
    assert again.initial_features == hyper.initial_features
    assert not again.training
    assert {n: p.requires_grad for n, p in again.named_parameters()} == {
        n: p.requires_grad for n, p in hyper.named_parameters()
    }
    again.save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a/model" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("train_base", [False, True])
def test_the_base_is_saved_only_if_it_was_trained(tmp_path, train_base):
    primary = base()
    before = copy.deepcopy(primary.state_dict())
    hyper = trained(wl.DeltaHead(2, train_base), primary)
    hyper.save_pretrained(tmp_path)
    names = list(load_file(tmp_path / "model.safetensors"))
    assert any(name.startswith("primary.") for name in names) == train_base
    assert all("base" not in name for name in names)
    same(hyper, loaded(tmp_path, primary))
    assert all(torch.equal(value, before[name]) for name, value in primary.state_dict().items())


def test_the_rest_of_the_primary(tmp_path):
    for freeze in (False, True):
        hyper = trained(generate="4.*", freeze_rest=freeze)
        folder = hyper.save_pretrained(tmp_path / str(freeze))
        names = [name for name in load_file(folder / "model.safetensors") if "primary." in name]
        wanted = ["primary.0.bias", "primary.0.weight", "primary.2.bias", "primary.2.weight"]
        assert sorted(names) == ([] if freeze else wanted)
        again = loaded(folder)
        same(hyper, again)
        assert again.primary[0].weight.requires_grad != freeze


def test_a_primary_of_which_a_part_is_trained(tmp_path):
    hyper = wl.HyperNetwork(base(), encoder(), generate="4.*")
    hyper.primary[0].requires_grad_(False)
    with torch.no_grad():
        hyper.primary[2].weight.add_(1.0)
    hyper.save_pretrained(tmp_path)
    primary = base().requires_grad_(False)
    before = copy.deepcopy(primary.state_dict())
    again = loaded(tmp_path, primary)
    same(hyper, again)
    assert [p.requires_grad for p in again.primary.parameters()] == [False, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in primary.state_dict().items())
    assert not any(p.requires_grad for p in primary.parameters())


@pytest.mark.parametrize("freeze", [False, True])
def test_running_statistics_are_learned(tmp_path, freeze):
    def primary():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    hyper = trained(primary=primary(), generate="2.*", freeze_rest=freeze)
    hyper.train()(X + 2.0, CONDITION)
    hyper.eval().save_pretrained(tmp_path)
    same(hyper, loaded(tmp_path, primary()))


def test_tied_and_oddly_named_parameters(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.add_module("a[0]*", nn.Linear(4, 4))
            self.b = nn.Linear(4, 4)
            self.b.weight = getattr(self, "a[0]*").weight

        def forward(self, x):
            return self.b(getattr(self, "a[0]*")(x))

    for generate in ("*", "*.bias"):
        hyper = trained(primary=Tied(), generate=generate)
        hyper.save_pretrained(tmp_path / str(len(generate)))
        again = loaded(tmp_path / str(len(generate)), Tied())
        same(hyper, again)
        assert dict(again.spec.aliases) == dict(hyper.spec.aliases)
    assert again.primary.b.weight is getattr(again.primary, "a[0]*").weight


def test_ntk_parametrisation(tmp_path):
    def parts():
        return wl.mlp([4, 9, 2], bias=False), wl.mlp([6, 8], bias=False, last_activation=True)

    hyper = wl.HyperNetwork(*parts(), init="ntk")
    hyper.save_pretrained(tmp_path)
    same(hyper, loaded(tmp_path, *parts()))


def test_the_types_that_were_learned(tmp_path):
    hyper = trained().double()
    hyper.save_pretrained(tmp_path)
    again = loaded(tmp_path, base().double(), encoder(7).double())
    same(hyper, again, X.double(), CONDITION.double())
    mixed = loaded(tmp_path)  # the head as it was saved, the encoder as it was given
    assert {p.dtype for p in mixed.head.parameters()} == {torch.float64}
    assert {p.dtype for p in mixed.encoder.parameters()} == {torch.float32}


# -- encoders -------------------------------------------------------------------------------------


def test_a_frozen_encoder_is_not_saved(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=12,
    )  # fmt: skip

    class Pooled(nn.Module):
        def __init__(self, seed=0):
            super().__init__()
            torch.manual_seed(seed)
            self.model = transformers.BertModel(config).requires_grad_(False).eval()
            self.out = nn.Linear(16, 8)

        def forward(self, **batch):
            return self.out(self.model(**batch).last_hidden_state.mean(1))

    batch = {"input_ids": torch.arange(12).view(3, 4)}
    hyper = wl.HyperNetwork(
        base(), Pooled(), features=8, condition_dims={"input_ids": 1}, calibration=batch
    ).eval()
    hyper.save_pretrained(tmp_path)
    names = list(load_file(tmp_path / "model.safetensors"))
    assert {name for name in names if name.startswith("encoder.")} == {
        "encoder.out.weight",
        "encoder.out.bias",
    }
    given = Pooled()
    again = loaded(tmp_path, new_encoder=given)
    assert again.encoder is given
    same(hyper, again, condition=batch)
    single = {"input_ids": batch["input_ids"][1]}
    assert torch.equal(again(X[1], single), hyper(X[1], single))
    with pytest.warns(UserWarning, match=r"encoder.*other values.*encoder\.model\."):
        wl.HyperNetwork.from_pretrained(tmp_path, base(), Pooled(seed=5))


def test_the_encoder_must_be_given(tmp_path):
    hyper = trained()
    hyper.save_pretrained(tmp_path)
    message = r"encoder \(Sequential\).*pass encoder=.*same architecture.*nn\.Identity\(\)"
    with pytest.raises(CheckpointError, match=message):
        wl.HyperNetwork.from_pretrained(tmp_path, base())
    with pytest.raises(CheckpointError, match=r"'encoder\.0\.weight' is \(8, 6\).*\(8, 5\) here"):
        wl.HyperNetwork.from_pretrained(tmp_path, base(), wl.mlp([5, 8]))
    without = loaded(tmp_path, new_encoder=nn.Identity())
    features = hyper.encode(CONDITION)
    assert torch.equal(without(X, features.values), hyper(X, CONDITION))
    plain = wl.HyperNetwork(base(), features=6)
    plain.save_pretrained(tmp_path)
    same(plain, wl.HyperNetwork.from_pretrained(tmp_path, base()))
    with pytest.raises(CheckpointError, match=r"saved without an encoder.*leave encoder= out"):
        wl.HyperNetwork.from_pretrained(tmp_path, base(), encoder())


# -- heads ----------------------------------------------------------------------------------------


class OwnHead(wl.LowRankHead):
    def __init__(self, rank, act=torch.tanh):
        super().__init__(rank)
        self.act = act


def test_a_head_of_the_user(tmp_path):
    hyper = trained(OwnHead(2))
    hyper.save_pretrained(tmp_path)
    message = r"tests\.hyper\.saving\.test_pretrained\.OwnHead.*pass head=OwnHead\(\.\.\.\)"
    with pytest.raises(CheckpointError, match=message):
        loaded(tmp_path)
    same(hyper, loaded(tmp_path, head=OwnHead(2)))
    with pytest.raises(CheckpointError, match=r"another architecture.*'head\.left\.2/weight' is"):
        loaded(tmp_path, head=OwnHead(3))
    trained(wl.PerLayerHead({"0": OwnHead(2, torch.relu), "*": wl.FullHead()})).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match=r"pass head=PerLayerHead\(\.\.\.\)"):
        loaded(tmp_path)


def test_options_of_heads():
    assert wl.LowRankHead(3).options() == {"rank": 3}
    assert wl.LowRankHead(offset=False, rank=2).options() == {"rank": 2, "offset": False}
    assert OwnHead(4).options() == {"rank": 4}
    head = copy.deepcopy(wl.ChunkedHead(8, hidden=3))
    assert head.options() == {"size": 8, "hidden": 3}
    inner = wl.FullHead()
    assert wl.PerLayerHead(inner).options() == {"heads": inner}
    assert not list(wl.PerLayerHead(inner).children())
    with pytest.raises(TypeError, match="rnak"):
        wl.LowRankHead(rnak=3)
    with pytest.raises(HeadError):
        wl.LowRankHead(0)
