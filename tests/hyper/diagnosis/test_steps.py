"""Training steps of diagnose: numbers recomputed by hand, failures that warn, runs that do not."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from tests.hyper.diagnosis.tasks import Task, digits, emoji, smooth, steps_of
from weightloom.errors import ShapeError
from weightloom.hyper.diagnosis import diagnose

# -- numbers -------------------------------------------------------------------------------------


def by_hand(task: Task, rate: float, steps: int) -> tuple[list[float], list[float]]:
    """Losses and movements of an ordinary training loop."""
    hyper, x, condition, target = task
    optimiser = torch.optim.Adam(hyper.parameters(), lr=rate)
    losses, outputs = [], []
    for _ in range(steps + 1):
        output = hyper(x, condition)
        loss = (output - target).square().mean()
        losses.append(loss.item())
        outputs.append(output.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    scale = max((outputs[0] - target).square().mean().sqrt(), target.std(unbiased=False))
    moves = [b - a for a, b in pairwise(outputs)]
    return losses, [(move.square().mean().sqrt() / scale).item() for move in moves]


@pytest.mark.parametrize("form", ["pair", "callable", "instance"])
def test_losses_and_movements_are_those_of_a_plain_loop(form: str) -> None:
    hyper, *data = digits()
    choices = {
        "pair": ("adam", 1e-3),
        "callable": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        "instance": torch.optim.Adam(hyper.parameters(), lr=1e-3),
    }
    report = steps_of((hyper, *data), choices[form], steps=3).steps
    losses, changes = by_hand(digits(), 1e-3, 3)
    assert [row.loss for row in report.rows] == pytest.approx(losses, rel=1e-3)
    assert [row.change for row in report.rows[1:]] == pytest.approx(changes, rel=1e-3)
    assert report.rows[0].change is None
    assert report.optimiser == "Adam, learning rate 0.001"


def test_the_network_alone_is_a_materialized_one_trained_in_a_plain_loop() -> None:
    hyper, x, condition, target = smooth("hyperfan_in")
    report = steps_of((hyper, x, condition, target), ("adam", 1e-2), steps=3).steps
    network = hyper.materialize(condition[0])
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    outputs: list[Tensor] = []
    for row in report.rows:
        outputs.append(network(x))
        loss = (outputs[-1] - target).square().mean()
        assert row.alone_loss == pytest.approx(loss.item(), rel=1e-3)
        if row.step:
            moved = (outputs[-1] - outputs[-2]).square().mean().sqrt().item() / report.scale
            assert row.alone_change == pytest.approx(moved, rel=1e-3)
            assert row.ratio == pytest.approx(row.change / moved, rel=1e-3)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def test_an_optimiser_in_the_middle_of_training_goes_on_from_its_state() -> None:
    hyper, x, condition, target = smooth("hyperfan_in")
    optimiser = torch.optim.SGD(hyper.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        loss = (hyper(x, condition) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    for _ in range(3):
        step()
    report = steps_of((hyper, x, condition, target), optimiser, steps=2).steps
    ahead = [step(), step(), step()]
    assert [row.loss for row in report.rows] == pytest.approx(ahead, rel=1e-3)


def test_saturation_is_counted() -> None:
    hyper, x, condition, target = emoji()
    report = steps_of((hyper, x, condition, target), ("adam", 3e-3), steps=1).steps
    optimiser = torch.optim.Adam(hyper.parameters(), lr=3e-3)
    (hyper(x, condition) - target).square().mean().backward()
    optimiser.step()
    output = hyper(x, condition).detach()
    ends = (output <= 0.01) | (output >= 0.99)
    assert report.last_activation == "Sigmoid"
    assert report.rows[1].saturated == pytest.approx(ends.double().mean().item(), abs=1e-3)
    wrong = ends & ((output - target).abs() > 0.1)
    assert report.rows[1].wrong == pytest.approx(wrong.double().mean().item(), abs=1e-3)


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (nn.Tanh(), "Tanh"),
        (nn.ReLU(), "ReLU"),
        (nn.Hardtanh(0.0, 1.0), "Hardtanh"),
        (nn.Sequential(nn.Sigmoid(), nn.Unflatten(-1, (1, 1)), nn.Flatten(-2)), "Sigmoid"),
        (nn.GELU(), None),
        (nn.Softplus(), None),
    ],
)
def test_the_last_activation_is_found(last: nn.Module, name: str | None) -> None:
    hyper = wl.HyperNetwork(nn.Sequential(nn.Linear(2, 1), last), wl.mlp([3, 4]))
    task = (hyper, torch.randn(4, 5, 2), torch.randn(4, 3), torch.rand(4, 5, 1))
    assert steps_of(task, ("sgd", 1e-3), steps=1).steps.last_activation == name


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_rate_that_is_too_small_and_weights_that_stay_the_same() -> None:
    (text,) = steps_of(smooth("hyperfan_in"), ("adam", 1e-9)).warnings
    assert re.search(r"do not move the outputs.*learning rate 1e-09.*Raise the learning rate", text)
    hyper, *data = smooth("primary")
    for parameter in [*hyper.head.parameters(), *hyper.encoder.parameters()]:
        parameter.requires_grad_(False)
    next(hyper.encoder.parameters()).requires_grad_(True)
    with torch.no_grad():
        for name in hyper.spec:
            hyper.head.table(name).mul_(1e-6)
    texts = steps_of((hyper, *data), ("adam", 1e-3)).warnings
    assert any(re.search(r"steps do not move the outputs.*though a written", t) for t in texts)


def test_a_loss_that_becomes_nan() -> None:
    texts = steps_of(smooth("hyperfan_in"), ("sgd", 1e30)).warnings
    assert any(re.search(r"too far|not finite after step", text) for text in texts), texts


def test_how_much_outputs_respond_to_the_condition() -> None:
    hyper, x, condition, target = smooth()
    report = steps_of((hyper, x, condition, target), ("adam", 1e-2), steps=1).steps
    for seen in (report.response_before, report.response):
        weights = hyper.weights(condition)
        other = {name: value.roll(1, 0) for name, value in weights.items()}
        gap = hyper.run(x, weights) - hyper.run(x, other)
        assert seen == pytest.approx(gap.square().mean().sqrt().item() / report.scale, rel=1e-3)
        optimiser = torch.optim.Adam(hyper.parameters(), lr=1e-2)
        (hyper(x, condition) - target).square().mean().backward()
        optimiser.step()


def test_conditions_that_hardly_differ() -> None:
    """Temperatures around 300 kelvin: features and weights are the same for all of them."""
    hyper, x, condition, target = smooth()
    (text,) = steps_of((hyper, x, 300.0 + 1e-3 * condition, target), ("adam", 1e-4)).warnings
    assert re.search(r"weights hardly depend.*do not change that.*Normalise the conditions", text)
    assert steps_of((hyper, x, condition, target), ("adam", 1e-4)).warnings == []


def test_features_that_die() -> None:
    """Outputs are the sum of the features, and far too large: all features are pushed below 0."""
    torch.manual_seed(0)
    inner = wl.mlp([4, 16, 16], last_activation=True)
    hyper = wl.HyperNetwork(nn.Linear(2, 1), inner, init="hyperfan_in")
    with torch.no_grad():
        hyper.head.table("bias").fill_(1.0)
    task = (hyper, torch.randn(8, 5, 2), torch.randn(8, 4), torch.full((8, 5, 1), -9.0))
    texts = steps_of(task, ("adam", 0.3)).warnings
    assert any(re.search(r"features die in the first steps.*GELU", text) for text in texts), texts
    texts = steps_of(task, ("adam", 1e-3)).warnings
    assert not any("features die" in text for text in texts)


# -- parts ---------------------------------------------------------------------------------------


def with_norm() -> Task:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.LeakyReLU())
    hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), inner, head="delta", features=16)
    return hyper, torch.randn(8, 20, 2), torch.randn(8, 4), torch.randn(8, 20, 1)


def test_statistics_of_a_frozen_encoder_that_move() -> None:
    hyper, *data = with_norm()
    assert steps_of((hyper, *data), ("adam", 1e-3)).warnings == []
    hyper.encoder.requires_grad_(False)
    (text,) = steps_of((hyper, *data), ("adam", 1e-3)).warnings
    assert re.search(r"frozen part changes.*'encoder\.1'.*Call eval\(\)", text)
    hyper.encoder.eval()
    assert steps_of((hyper, *data), ("adam", 1e-3)).warnings == []


def test_parameters_that_the_optimiser_lacks_or_cannot_train() -> None:
    hyper, *data = with_norm()
    (text,) = steps_of((hyper, *data), torch.optim.Adam(hyper.head.parameters())).warnings
    assert re.search(r"'encoder\.0\.weight', .* and 1 more are not in the optimiser.*Make", text)
    hyper.encoder.eval().requires_grad_(False)
    every = torch.optim.Adam(hyper.parameters())
    assert steps_of((hyper, *data), every).warnings == []
    groups = [{"params": list(part.parameters())} for part in (hyper.encoder, hyper.head)]
    (text,) = steps_of((hyper, *data), torch.optim.Adam(groups)).warnings
    assert re.search(r"group with 'encoder\.0\.weight' is frozen.*requires_grad_\(True\)", text)


# -- nothing is touched --------------------------------------------------------------------------


def test_model_optimiser_and_random_state_are_left_as_they_were() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
    hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), inner, features=16, init="primary")
    hyper.encoder[2].eval()
    x, condition, target = torch.randn(8, 20, 2), torch.randn(8, 4), torch.randn(8, 20, 1)
    optimiser = torch.optim.Adam(hyper.parameters(), lr=1e-2)
    (hyper(x, condition) - target).square().mean().backward()
    optimiser.step()
    hyper.encoder[0].requires_grad_(False)  # frozen, but with a gradient from before
    state = copy.deepcopy(hyper.state_dict())
    held = copy.deepcopy(optimiser.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in hyper.parameters()]
    modes = [module.training for module in hyper.modules()]
    random = torch.get_rng_state()
    steps_of((hyper, x, condition, target), optimiser)
    with torch.inference_mode():
        steps_of((hyper, x, condition, target), optimiser)
    assert torch.equal(torch.get_rng_state(), random)
    assert modes == [module.training for module in hyper.modules()]
    assert all(torch.equal(value, state[name]) for name, value in hyper.state_dict().items())
    for parameter, before in zip(hyper.parameters(), grads, strict=True):
        assert before is not None
        assert torch.equal(parameter.grad, before)
    now = optimiser.state_dict()
    assert now["param_groups"] == held["param_groups"]
    for key, values in held["state"].items():
        for name, value in values.items():
            assert torch.equal(now["state"][key][name], value)


def test_dropout_does_not_count_as_movement() -> None:
    torch.manual_seed(0)
    primary = nn.Sequential(nn.Linear(2, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    hyper = wl.HyperNetwork(primary, wl.mlp([4, 8]), init="primary")
    task = (hyper, torch.randn(8, 20, 2), torch.randn(8, 4), torch.randn(8, 20, 1))
    rows = steps_of(task, ("sgd", 0.0)).steps.rows
    assert [row.change for row in rows[1:]] == [0.0] * 5


# -- the report ----------------------------------------------------------------------------------


def test_table_json_figure_and_both_spellings(tmp_path: object) -> None:
    hyper, x, condition, target = emoji("primary")
    diagnosis = diagnose(hyper, x, condition, target=target, optimizer=("adam", 1e-4), steps=2)
    lines = str(diagnosis).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("steps on a copy (Adam"))
    assert lines[start + 1].split()[:3] == ["step", "loss", "alone"]
    assert [line.split()[0] for line in lines[start + 2 : start + 5]] == ["0", "1", "2"]
    assert f"{diagnosis.steps.rows[2].loss:.3g}" in lines[start + 4]
    again = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert again["steps"]["rows"][1]["change"] == diagnosis.steps.rows[1].change
    path = tmp_path / "steps.png"  # type: ignore[operator]
    figure = diagnosis.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    curves = {line.get_label(): list(line.get_ydata()) for line in figure.axes[3].get_lines()}
    assert curves["hypernetwork"] == [row.loss for row in diagnosis.steps.rows]
    assert len(figure.axes) == 6  # the last is the share of saturated outputs


def test_messages() -> None:
    hyper, x, condition, target = smooth("primary")
    adam = ("adam", 1e-3)
    with pytest.raises(ShapeError, match=r"pass target=, or loss="):
        diagnose(hyper, x, condition, optimiser=adam)
    with pytest.raises(ShapeError, match=r"optimiser= and optimizer= were both given"):
        diagnose(hyper, x, condition, target=target, optimiser=adam, optimizer=adam)
    with pytest.raises(ShapeError, match=r"'adan'.* is unknown; choose one of .*adamw"):
        diagnose(hyper, x, condition, target=target, optimiser=("adan", 1e-3))
    other = torch.optim.SGD(wl.mlp([2, 2]).parameters(), lr=0.1)
    with pytest.raises(ShapeError, match=r"holds none of this model's parameters"):
        diagnose(hyper, x, condition, target=target, optimiser=other)
    with pytest.raises(ShapeError, match=r"\(16, 40, 1\) but target is float32 \(16, 40\)"):
        diagnose(hyper, x, condition, target=target[..., 0])
    with pytest.raises(ShapeError, match=r"steps=0 was given"):
        diagnose(hyper, x, condition, target=target, optimiser=adam, steps=0)
    with pytest.raises(ShapeError, match=r"returned list; it must return a torch.optim"):
        diagnose(hyper, x, condition, target=target, optimiser=lambda p: p)


def test_one_condition_and_lbfgs() -> None:
    hyper, x, condition, target = smooth("primary")
    single = diagnose(hyper, x[0], condition[0], target=target[0], optimiser=("lbfgs", 0.1))
    losses = [row.loss for row in single.steps.rows]
    assert losses[-1] < losses[0]
    assert single.steps.response is None
