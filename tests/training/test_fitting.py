"""`fit`: against `train` and loops written by hand; what it refuses; how it ends."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.training.problems import (
    CLOSE,
    assert_same_weights,
    classes,
    classifier,
    embedding,
    hyper,
    pairs,
    plain,
    points,
)
from weightloom.errors import ShapeError, TrainingError
from weightloom.training import DivergedError, FitHistory, Member, Settings, fit, train

QUIET: dict[str, Any] = {"progress": False}


def triple(seed: int = 0, n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    split = pairs(seed, n)
    return (*split.inputs, split.target)  # type: ignore[return-value]


@pytest.mark.parametrize("make", [hyper, embedding])
@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_equals_train(make: Any, name: str) -> None:
    """Two engines that share no loop: same batches, same steps, same curves."""
    ours, theirs = make(0), make(0)
    held_out = pairs(5)
    history = fit(
        ours, triple(), validation=held_out, optimiser=name, lr=0.02, epochs=4, batch_size=12,
        clip_norm=0.5, **QUIET,
    )  # fmt: skip
    settings = Settings(epochs=4, batch_size=12, optimiser=name, learning_rate=0.02, clip_norm=0.5)
    report = train([Member(theirs, pairs(0), {"validation": held_out})], settings)[0]
    assert_same_weights(ours, theirs, **CLOSE)
    assert history.validation == pytest.approx(report.curves["validation"][1], rel=1e-9)
    assert history.steps == report.steps


def test_the_default_is_adam_at_one_in_a_thousand() -> None:
    ours, theirs = hyper(0), hyper(0)
    fit(ours, triple(), epochs=2, batch_size=40, **QUIET)
    optimiser = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    x, condition, y = triple()
    for _ in range(2):
        optimiser.zero_grad()
        F.mse_loss(theirs(x, condition), y).backward()
        optimiser.step()
    assert_same_weights(ours, theirs, **CLOSE)


class Rows(Dataset[Any]):
    def __init__(self, nested: bool) -> None:
        self.columns, self.nested = triple(), nested

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, i: int) -> Any:
        x, condition, y = (column[i] for column in self.columns)
        return ((x, condition), y) if self.nested else (x, condition, y)


@pytest.mark.parametrize(
    "data",
    [
        list(triple()),
        (triple()[:2], triple()[2]),
        tuple(column.numpy() for column in triple()),
        pairs(0),
        TensorDataset(*triple()),
        Rows(nested=False),
        Rows(nested=True),
        DataLoader(TensorDataset(*triple()), batch_size=40),
        [],
    ],
    ids=["list", "nested", "numpy", "split", "tensors", "dataset", "pairs", "loader", "batches"],
)
def test_every_form_of_data(data: Any) -> None:
    """One batch of all samples: the order does not matter, so all forms agree."""

    class Batches:
        def __iter__(self) -> Any:
            return iter([triple()])

    ours, theirs = hyper(0), hyper(0)
    size = None if isinstance(data, DataLoader) or data == [] else 40
    fit(ours, Batches() if data == [] else data, epochs=3, batch_size=size, **QUIET)
    fit(theirs, triple(), epochs=3, batch_size=40, **QUIET)
    assert_same_weights(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("mnist", r"data is the string 'mnist'; pass tensors \(x, condition, target\)"),
        (torch.zeros(3, 2), r"data is one Tensor of shape \(3, 2\); pass tensors"),
        ((torch.zeros(3, 2),), r"data is a tuple of 1 \(Tensor\); pass tensors"),
        ((torch.zeros(3),) * 4, r"a tuple of 4 \(Tensor, Tensor, Tensor, Tensor\)"),
        ((i for i in range(3)), "data is a generator, which is used up after one epoch; pass"),
        ({"x": 1}, "data is a dict; pass tensors"),
        (None, "data is a NoneType; pass"),
        ((torch.zeros(3, 6), torch.zeros(3, 5), "y"), "the target, last in data, is the string"),
        ((torch.zeros(3, 6), 7, torch.zeros(3, 1)), "input 1 in data is a int, not a tensor"),
        (
            (torch.zeros(4, 6), torch.zeros(3, 5), torch.zeros(4, 1)),
            "x has 4 rows, condition has 3 rows, the target has 4 rows; each needs one row for",
        ),
        ((torch.zeros(0, 6), torch.zeros(0, 5), torch.zeros(0, 1)), "data has no samples"),
        (
            (torch.zeros(3, 6), torch.zeros(3, 5), torch.tensor([[0.0], [float("nan")], [1.0]])),
            r"the target in data is not finite in 1 of 3 rows \(the first is row 1\)",
        ),
        (
            (torch.zeros(3, 6), torch.full((3, 5), float("inf")), torch.zeros(3, 1)),
            "condition in data is not finite in 3 of 3 rows",
        ),
        (DataLoader(TensorDataset(*triple()), 64, drop_last=True), "data yields no batches"),
    ],
)
def test_what_is_not_data(data: Any, message: str) -> None:
    with pytest.raises((TrainingError, ShapeError), match=message):
        fit(hyper(0), data, **QUIET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "steps": 1}, "epochs=1 and steps=1 were both given"),
        ({"epochs": 0}, "epochs=0 must be a whole number, at least 1"),
        ({"patience": 3}, "patience=3 looks at the validation loss, but there is no"),
        ({"validation": 1.5}, "validation=1.5 was given; a fraction is between 0 and 1"),
        ({"validation": 0.001}, "leaves 0 to validate on and 40 to train on"),
        ({"loss": "mae"}, "loss='mae' is unknown; choose one of mse, cross_entropy"),
        ({"loss": 3}, "loss is a int; pass a name"),
        ({"loss": lambda a, b: a - b}, r"the loss returned shape \(32, 1\); .* take its mean"),
        ({"lr": -1}, "lr=-1 must be a number above 0"),
        ({"clip_norm": 0}, "clip_norm=0 was given; the largest norm is above 0"),
        ({"optimiser": "lion"}, "optimiser='lion' is unknown; choose one of sgd, momentum, adam"),
        ({"optimiser": 7}, "optimiser is a int; pass a name"),
        ({"optimiser": "adam", "optimizer": "sgd"}, "optimiser= and optimizer= were both given"),
        (
            {"optimiser": torch.optim.SGD(plain(0).parameters(), lr=1.0)},
            "the optimiser holds none of the model's parameters",
        ),
        (
            {"optimiser": lambda p: torch.optim.SGD(p, lr=1.0), "lr": 0.1},
            "lr=0.1 was given together with an optimiser",
        ),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TrainingError, ShapeError), match=message):
        fit(hyper(0), triple(), **{"progress": False, **options})


def test_models_that_cannot_be_trained() -> None:
    with pytest.raises(TrainingError, match="model is a tuple, not an nn"):
        fit(triple(), hyper(0), **QUIET)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="no parameter that requires a gradient"):
        fit(hyper(0).requires_grad_(False), triple(), **QUIET)
    with pytest.raises(TrainingError, match=r"\(Sequential\) cannot be called with 2 inputs"):
        fit(plain(0), triple(), **QUIET)


@pytest.mark.parametrize("loss", ["mse", F.mse_loss, nn.L1Loss()])
def test_broadcasting_is_refused(loss: Any) -> None:
    x, condition, y = triple()
    with pytest.raises(ShapeError, match=r"output has shape .* but the target"):
        fit(hyper(0), (x, condition, y.expand(-1, 3)), loss=loss, **QUIET)


@pytest.mark.parametrize("spelling", ["optimiser", "optimizer"])
@pytest.mark.parametrize(
    "choose",
    [
        lambda p: ("sgd", {"lr": 0.1}),
        lambda p: (torch.optim.SGD, {"lr": 0.1}),
        lambda p: (torch.optim.SGD(p, lr=0.1), {}),
        lambda p: (lambda q: torch.optim.SGD(q, lr=0.1), {}),
    ],
)
def test_optimisers_in_every_form(choose: Any, spelling: str) -> None:
    ours, theirs = plain(0), plain(0)
    given, options = choose(ours.parameters())
    split = points(0)
    fit(ours, split, epochs=2, **{spelling: given}, **options, **QUIET)
    settings = Settings(epochs=2, batch_size=32, learning_rate=0.1)
    train([Member(theirs, split)], settings)
    assert_same_weights(ours, theirs, **CLOSE)


def test_lbfgs_takes_its_closure() -> None:
    model = plain(0)
    history = fit(model, points(0), optimiser=torch.optim.LBFGS, epochs=5, batch_size=40, **QUIET)
    assert history.losses[-1] < 0.1 * history.losses[0]


def test_cross_entropy_learns_classes() -> None:
    split = classes(0, 400)
    history = fit(
        classifier(0), split, loss="cross_entropy", validation=0.25, lr=0.01, epochs=30, **QUIET
    )
    assert history.validation[-1] < 0.5 * history.validation[0]


def test_patience_restores_the_best_epoch() -> None:
    """Noise as a target: the validation loss soon rises while the training loss falls."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 6, generator=g).double(), torch.randn(30, 1, generator=g).double()
    held_x, held_y = torch.randn(30, 6, generator=g).double(), torch.randn(30, 1, generator=g)
    model = plain(0)
    history = fit(
        model, (x, y), validation=(held_x, held_y.double()), lr=0.05, epochs=500, patience=5,
        **QUIET,
    )  # fmt: skip
    assert history.status == "stopped early"
    assert len(history.losses) == history.best_epoch + 5 == (history.restored or 0) + 5
    assert f"the weights are those of epoch {history.best_epoch}" in history.message
    value = F.mse_loss(model(held_x), held_y.double()).item()
    assert value == pytest.approx(min(history.validation), rel=1e-12)


@pytest.mark.parametrize("batch_size", [8, 40])
def test_divergence_restores_weights_that_are_good(batch_size: int) -> None:
    model = hyper(0)
    before = F.mse_loss(model(*triple()[:2]), triple()[2]).item()
    with pytest.raises(
        DivergedError, match=r"diverged: .* step \d+\. .*lr=1e\+05 .* clip_norm"
    ) as e:
        fit(model, triple(), optimiser="sgd", lr=1e6, epochs=50, batch_size=batch_size, **QUIET)
    assert isinstance(e.value.history, FitHistory)
    after = F.mse_loss(model(*triple()[:2]), triple()[2]).item()
    assert after <= before * (1 + 1e-9)


def test_ctrl_c_keeps_what_was_learned_and_resumes() -> None:
    class Pressed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls, self.stop = plain(0), 0, 6

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == self.stop:
                raise KeyboardInterrupt
            return self.inner(x)

    model = Pressed()
    with pytest.warns(UserWarning, match=r"interrupted after step 5 \(epoch 2\)"):
        history = fit(model, points(0), batch_size=10, epochs=4, **QUIET)
    assert (history.status, history.steps, len(history.losses)) == ("interrupted", 5, 1)
    assert not torch.equal(model.inner[0].weight, plain(0)[0].weight)
    history = fit(model, points(0), batch_size=10, epochs=4, resume=history, **QUIET)
    assert (history.status, len(history.losses)) == ("done", 4)


def test_resuming_equals_no_pause() -> None:
    ours, theirs = hyper(0), hyper(0)
    history = fit(ours, triple(), epochs=2, **QUIET)
    assert fit(ours, triple(), epochs=5, resume=history, **QUIET) is history
    whole = fit(theirs, triple(), epochs=5, **QUIET)
    assert history.losses == whole.losses
    assert_same_weights(ours, theirs)


def test_steps_seed_modes_and_random_state() -> None:
    model = hyper(0).eval()
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    history = fit(model, triple(), steps=3, batch_size=16, **QUIET)
    assert (history.steps, len(history.losses)) == (3, 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.training
    other = copy.deepcopy(hyper(0))
    fit(other, triple(), steps=3, batch_size=16, seed=1, **QUIET)
    assert not torch.equal(next(model.parameters()).double(), next(other.parameters()).double())


def test_numpy_doubles_train_a_float_model() -> None:
    x = np.random.default_rng(0).normal(size=(64, 6))
    history = fit(plain(0).float(), (x, x[:, :1]), lr=0.01, epochs=20, **QUIET)
    assert history.losses[-1] < 0.5 * history.losses[0]


def test_plot_and_bar(capsys: pytest.CaptureFixture[str]) -> None:
    history = fit(hyper(0), triple(), validation=0.5, epochs=3)
    assert "training: 100%" in capsys.readouterr().err
    (axis,) = history.plot().axes
    assert [line.get_label() for line in axis.lines] == ["training", "validation", "best epoch"]
