"""The rotation task: accuracy from votes, the data, the networks, and verdicts."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weightloom.data import angle_class, rotate
from weightloom.training import Member, Settings, Split, train
from weightloom.training.choices import OBJECTIVES
from weightloom_papers.infinite_width.experiments.rotations import task
from weightloom_papers.infinite_width.experiments.rotations.analysis import (
    SLIGHT,
    difference,
    judge,
    overall,
    value_of,
)
from weightloom_papers.infinite_width.experiments.rotations.experiment import (
    INITS,
    build,
    generated_weights,
)
from weightloom_papers.infinite_width.experiments.rotations.task import (
    CLASSES,
    Voter,
    accuracy_of,
    both,
    classified,
    load_images,
    make_task,
    marked,
    turned_pairs,
)
from weightloom_papers.lab import Outcome, Result, Run
from weightloom_papers.lab.statistics import Mean

TINY = {
    "images": "mnist", "side": 7, "train_images": 60, "test_images": 40, "depth": 3, "width": 5,
    "f_width": 8, "f_depth": 4, "init": "default",
}  # fmt: skip


@pytest.fixture
def nowhere(tmp_path):
    """A data folder without data: the digits are used."""
    return tmp_path


# -- votes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["cross_entropy", "mse"])
def test_votes_give_the_accuracy_of_argmax(objective):
    torch.manual_seed(0)
    model, x, labels = nn.Linear(6, 10), torch.randn(500, 6), torch.randint(10, (500,))
    target = labels if objective == "cross_entropy" else F.one_hot(labels, 10).float()
    voter = Voter(model, objective)
    sets = both(Split((x,), target))
    with torch.no_grad():
        values = {
            name: OBJECTIVES[objective](voter(*s.inputs)[None], s.target[None]).mean().item()
            for name, s in sets.items()
        }
        plain = OBJECTIVES[objective](model(x)[None], target[None]).mean().item()
        right = (model(x).argmax(1) == labels).float().mean().item()
    assert values["test"] == pytest.approx(plain)
    assert accuracy_of(values["votes"], objective, 10) == pytest.approx(right, abs=1e-6)
    assert 0.0 < right < 0.5


def test_no_vote_from_outputs_that_are_not_finite():
    voter = Voter(nn.Identity(), "mse")
    out = voter(torch.tensor([[1.0, math.nan], [math.inf, 0.0], [2.0, 1.0]]), torch.ones(3).bool())
    assert out[:2].isnan().any(1).all()
    assert out[2].tolist() == [1.0, 0.0]


def test_votes_through_training_at_once_and_alone():
    """Accuracy curves of a stack are those of the trained models, counted by hand."""
    torch.manual_seed(1)
    x = torch.randn(300, 4)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    data, test = Split((x[:200],), labels[:200]), Split((x[200:],), labels[200:])
    train_set, held_out = marked(data, False), both(test)
    for count in (1, 3):
        members = [
            Member(Voter(nn.Linear(4, 3), "cross_entropy"), train_set, held_out, seed=s)
            for s in range(count)
        ]
        settings = Settings(epochs=3, batch_size=20, learning_rate=0.3, objective="cross_entropy")
        for member, report in zip(members, train(members, settings), strict=True):
            outcome = classified(report, "cross_entropy", 3, {"chance": 0.5})
            answers = member.model.model(x[200:])
            right = (answers.argmax(1) == labels[200:]).float().mean().item()
            assert outcome.metrics["accuracy"] == pytest.approx(right, abs=1e-6)
            loss = F.cross_entropy(answers, labels[200:]).item()
            assert outcome.metrics["test_loss"] == pytest.approx(loss, rel=1e-4)
            steps, curve = outcome.curves["accuracy"]
            assert steps == [10, 20, 30]
            assert outcome.metrics["mean_accuracy"] == pytest.approx(sum(curve) / 3)
            assert outcome.metrics["first_accuracy"] == curve[0]
            assert right > 0.6
            assert "votes" not in outcome.curves


def test_diverged_training_has_no_accuracy():
    data = Split((torch.full((20, 2), math.inf),), torch.zeros(20, dtype=torch.long))
    member = Member(Voter(nn.Linear(2, 3), "cross_entropy"), marked(data, False), both(data))
    settings = Settings(epochs=2, batch_size=10, objective="cross_entropy")
    (report,) = train([member], settings)
    outcome = classified(report, "cross_entropy", 3, {"chance": 0.5})
    assert outcome.status == "diverged"
    assert math.isnan(outcome.metrics["accuracy"])
    assert value_of(Result(Run("x", {}, 0), outcome), "accuracy") == 0.5


# -- the task ------------------------------------------------------------------------------------


def test_pairs_are_an_image_and_its_rotation():
    images = torch.rand(30, 2, 8, 8)
    x, z, angle = turned_pairs(images, 4, torch.Generator().manual_seed(3))
    first, second = torch.rand(2, 30, dtype=torch.float64,
                               generator=torch.Generator().manual_seed(3)) * 360  # fmt: skip
    assert torch.equal(angle, second)
    assert x.shape == z.shape == (30, 2 * 16)
    for i in (0, 7):
        once = rotate(images[i : i + 1], first[i : i + 1])
        assert torch.allclose(x[i].reshape(2, 4, 4), F.avg_pool2d(once, 2)[0], atol=1e-6)
        twice = rotate(once, second[i : i + 1])
        assert torch.allclose(z[i].reshape(2, 4, 4), F.avg_pool2d(twice, 2)[0], atol=1e-6)


def test_task_from_digits(nowhere):
    task = make_task(TINY, nowhere)
    assert task.digits
    assert (len(task.train), len(task.test), task.inputs) == (60, 40, 64)
    z, x = task.train.inputs
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(x.std()) == pytest.approx(1.0, abs=1e-5)
    counts = torch.bincount(task.test.target, minlength=CLASSES)
    assert task.chance == pytest.approx(float(counts.max()) / 40)
    again = make_task(TINY, nowhere)
    assert torch.equal(again.train.inputs[0], z)
    assert int(task.train.target.max()) < CLASSES


def test_targets_are_the_second_angle(nowhere):
    generator = torch.Generator().manual_seed(20_201)
    images = load_images("mnist", 60, 40, nowhere)
    _, _, angle = turned_pairs(images.train.reshape(-1, 1, 8, 8), 7, generator)
    assert torch.equal(make_task(TINY, nowhere).train.target, angle_class(angle, 12))


def test_digits_stand_for_either_set(nowhere):
    assert load_images("cifar10", 10, 10, nowhere).name == "digits"
    with pytest.raises(ValueError, match="images='svhn' is unknown; choose one of mnist, cifar10"):
        load_images("svhn", 10, 10, nowhere)


def test_a_set_that_is_there_is_used(monkeypatch, nowhere):
    seen = load_images("mnist", 5, 5, nowhere)
    monkeypatch.setitem(task._LOADERS, "cifar10", lambda folder, train, test: seen)
    load_images.cache_clear()
    assert load_images("cifar10", 5, 5, nowhere) is seen
    load_images.cache_clear()


# -- the networks --------------------------------------------------------------------------------


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("depth", [2, 3, 6])
def test_networks_are_as_deep_and_wide_as_asked(init, depth):
    config = {**TINY, "init": init, "depth": depth, "width": 7}
    model = build(config, 20, seed=0)
    assert model.spec.size == generated_weights(config, 20)
    weights = [shape for name, shape in model.spec.shapes.items() if name.endswith("weight")]
    wanted = [(7, 20), *[(7, 7)] * (depth - 2), (12, 7)]
    assert [tuple(shape) for shape in weights] == wanted
    matrices = [p for name, p in model.encoder.named_parameters() if name.endswith("weight")]
    assert [tuple(p.shape) for p in matrices] == [(8, 20), (8, 8), (8, 8)]  # and the head: four
    assert model(torch.randn(4, 20), torch.randn(4, 20)).shape == (4, 12)
    same, other = build(config, 20, seed=0), build(config, 20, seed=1)
    assert torch.equal(next(same.parameters()), next(model.parameters()))
    assert not torch.equal(next(other.parameters()), next(model.parameters()))


def test_default_weights_do_not_depend_on_the_width_of_g():
    """Why the initialisation is varied: by default narrow g get weights that are too small."""
    x = torch.randn(200, 30)
    gains = {}
    for init in ("default", "hyperfan_in"):
        for width in (8, 128):
            model = build({**TINY, "init": init, "width": width, "f_width": 100}, 30, seed=0)
            with torch.no_grad():
                weights = model.weights(x)["2.weight"]  # the hidden layer [b, width, width]
            gains[init, width] = float(weights.square().mean()) * width
    assert gains["default", 128] / gains["default", 8] == pytest.approx(16, rel=0.2)
    assert gains["hyperfan_in", 128] / gains["hyperfan_in", 8] == pytest.approx(1, rel=0.2)


def test_features_keep_their_scale_under_hyperfan_in_alone():
    x = torch.randn(500, 60)
    size = {}
    for init in ("default", "hyperfan_in"):
        model = build({**TINY, "init": init, "f_width": 200}, 60, seed=0)
        with torch.no_grad():
            size[init] = float(model.encoder(x).square().mean())
    assert size["hyperfan_in"] == pytest.approx(1.0, abs=0.4)  # He: E relu(y)^2 = E x^2
    assert size["default"] < 0.1


def test_messages():
    with pytest.raises(ValueError, match="init='xavier' is unknown; choose one of default"):
        build({**TINY, "init": "xavier"}, 20, seed=0)
    with pytest.raises(ValueError, match="depth=1 and f_depth=4 were given; both networks have"):
        build({**TINY, "depth": 1}, 20, seed=0)


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gap", "word"),
    [
        (None, "no data"),
        (Mean(0.3, math.nan, 1), "unclear"),
        (Mean(0.1, 0.05, 3), "holds"),
        (Mean(0.1, 0.2, 3), "unclear"),
        (Mean(-0.1, 0.05, 3), "fails"),
        (Mean(0.0, SLIGHT / 2, 3), "fails"),  # too precise to hide a difference
    ],
)
def test_judge(gap, word):
    assert judge(gap) == word


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ([], "no data"),
        (["no data"], "no data"),
        (["holds", "holds"], "holds"),
        (["holds", "unclear"], "unclear"),
        (["holds", "unclear", "fails"], "fails"),
    ],
)
def test_overall(words, word):
    assert overall(words) == word


def test_differences_are_taken_seed_by_seed():
    def results(values):
        return [
            Result(Run("r", {}, seed), Outcome("done", {"accuracy": value, "chance": 0.1}))
            for seed, value in values.items()
        ]

    gap = difference(results({0: 0.9, 1: 0.5, 2: 0.7}), results({1: 0.4, 0: 0.8, 7: 0.0}),
                     "accuracy")  # fmt: skip
    assert gap.count == 2
    assert gap.value == pytest.approx(0.1)
    assert gap.margin == pytest.approx(0.0, abs=1e-9)
    assert difference(results({0: 0.9}), results({1: 0.9}), "accuracy") is None
