"""diagnose against plain networks measured by hand, and every warning against its opposite."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.errors import MissingDependencyError, ShapeError
from weightloom.hyper.diagnosis import Diagnosis, LayerRow, diagnose

EPS = torch.finfo(torch.float64).eps
# Sums of a few thousand products, each rounded once, through a few layers.
CLOSE = 1e4 * EPS


def encoder(inner: int = 6, k: int = 12) -> nn.Module:
    return wl.mlp([inner, k, k], last_activation=True)


def make(primary: nn.Module, **options: object) -> wl.HyperNetwork:
    torch.manual_seed(0)
    options.setdefault("encoder", encoder())
    return wl.HyperNetwork(primary, dtype=torch.float64, **options)  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def healthy(**options: object) -> wl.HyperNetwork:
    return make(wl.mlp([3, 16, 16, 1]), **options)


def look(hyper: wl.HyperNetwork, scale: float = 1.0, **options: object) -> Diagnosis:
    return diagnose(hyper, normal(8, 5, 3), scale * normal(8, 6, seed=2), **options)  # type: ignore[arg-type]


def rms(tensors: list[Tensor]) -> float:
    return torch.cat([t.detach().flatten() for t in tensors]).square().mean().sqrt().item()


class Custom(nn.Module):
    """A forward of its own, a layer used twice, an activation in place, a pair returned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.twice = nn.Linear(5, 5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        hidden = self.act(self.twice(self.act(self.twice(self.act(self.first(x))))))
        return hidden.sum(-1), "label"


PRIMARIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: wl.mlp([3, 8, 8, 1]), (7, 3)),
    "bare": (lambda: nn.Linear(3, 2), (7, 3)),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(True), nn.Linear(8, 1)), (7, 3)),
    "conv and norm": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        ),
        (2, 1, 6, 6),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 4, 8),
    ),
    "custom": (Custom, (7, 3)),
}


def by_hand(hyper: wl.HyperNetwork, x: Tensor, condition: Tensor) -> dict[str, dict[str, float]]:
    """The same numbers from ordinary networks: materialize, hook, backward, nothing shared.

    Half the mean square over all conditions: each network's own loss over the number of them.
    """
    b = condition.shape[0]
    seen: dict[str, dict[str, list[Tensor]]] = {}

    def note(layer: str, what: str, tensor: Tensor) -> None:
        seen.setdefault(layer or "primary", {}).setdefault(what, []).append(tensor)

    for i in range(b):
        network = hyper.materialize(condition[i])
        kept: list[tuple[str, Tensor]] = []
        for name, module in network.named_modules():
            if not module._parameters:
                continue

            def hook(
                module: nn.Module, args: object, out: object, name: str = name, kept: list = kept
            ) -> object:
                tensor = out[0] if isinstance(out, tuple) else out
                tensor.retain_grad()
                kept.append((name, tensor))
                note(name, "output", tensor.detach().clone())
                copy = tensor.clone()
                return (copy, *out[1:]) if isinstance(out, tuple) else copy

            module.register_forward_hook(hook)
        output = network(x[i])
        output = output[0] if isinstance(output, tuple) else output
        (0.5 * output.square().mean() / b).backward()
        for name, tensor in kept:
            note(name, "output_grad", tensor.grad)
        for name, parameter in network.named_parameters():
            layer, _, leaf = name.rpartition(".")
            kind = "bias" if "bias" in leaf else "weight"
            note(layer, kind, parameter)
            note(layer, f"{kind}_grad", parameter.grad)
    return {layer: {k: rms(v) for k, v in what.items()} for layer, what in seen.items()}


@pytest.mark.parametrize("name", PRIMARIES)
def test_scales_and_gradients_are_those_of_materialized_networks(name: str) -> None:
    primary, shape = PRIMARIES[name]
    torch.manual_seed(0)
    hyper = make(primary())
    x, condition = normal(4, *shape), normal(4, 6, seed=2)
    expected = by_hand(hyper, x, condition)
    diagnosis = diagnose(hyper, x, condition)
    assert {row.layer for row in diagnosis.rows} == set(expected)
    for row in diagnosis.rows:
        numbers = {
            "weight": row.weight_rms,
            "bias": row.bias_rms,
            "output": row.output_rms,
            "weight_grad": row.weight_grad_rms,
            "bias_grad": row.bias_grad_rms,
            "output_grad": row.output_grad_rms,
        }
        known = {what: value for what, value in numbers.items() if value is not None}
        assert known == pytest.approx(expected[row.layer], rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("head", ["full", "low_rank", "chunked", "per_layer", "delta"])
def test_dependence_and_rank_against_svd(head: str) -> None:
    hyper = make(wl.mlp([3, 8, 2]), head=head)
    if head == "delta":  # starts at zero change; give it one
        with torch.no_grad():
            for parameter in hyper.head.change.parameters():
                parameter.normal_(0.0, 0.1)
    condition = normal(5, 6, seed=2)
    weights = hyper.weights(condition)
    for row in diagnose(hyper, normal(5, 4, 3), condition).rows:
        tensors = [weights[f"{row.layer}.{leaf}"].flatten(1) for leaf in ("weight", "bias")]
        matrix = torch.cat(tensors, dim=1).detach()
        centred = matrix - matrix.mean(0)
        between = (centred.square().sum(0) / 4).mean().item()
        power = torch.linalg.svdvals(centred).square()
        assert row.size == matrix.shape[1]
        assert row.between == pytest.approx(between, rel=CLOSE)
        spread = (matrix - matrix.mean(1, keepdim=True)).square().mean().item()
        assert row.within == pytest.approx(spread, rel=CLOSE)
        share = min(1.0, between / matrix.square().mean().item())
        assert row.dependence == pytest.approx(share, rel=CLOSE)
        rank = (power.sum() ** 2 / power.square().sum()).item()
        assert row.effective_rank == pytest.approx(rank, rel=CLOSE)
        assert 1.0 <= row.effective_rank <= 4.0 + CLOSE


def test_features() -> None:
    hyper = make(wl.mlp([3, 4, 1]), init="hyperfan_in")
    condition = normal(5, 6, seed=2)
    features = hyper.encoder(condition).detach()
    diagnosis = diagnose(hyper, normal(5, 3), condition).features
    power = torch.linalg.svdvals(features - features.mean(0)).square()
    assert diagnosis.count == 12
    assert diagnosis.second_moment == pytest.approx(features.square().mean().item(), rel=CLOSE)
    assert diagnosis.zero_fraction == pytest.approx((features == 0).double().mean().item())
    assert diagnosis.dead_fraction == pytest.approx((features == 0).all(0).double().mean().item())
    assert diagnosis.effective_rank == pytest.approx(
        (power.sum() ** 2 / power.square().sum()).item(), rel=CLOSE
    )
    assert f"{diagnosis.initialised_for:.4g}" in hyper.initialisation


def test_the_rank_of_features_is_that_of_what_the_head_is_given() -> None:
    hyper = make(wl.mlp([3, 4, 1]))
    condition = normal(5, 6, seed=2)
    with torch.no_grad():
        hyper.encoder[2].bias.add_(5.0)
    features = hyper.encoder(condition).detach()
    centred = features - features.mean(1, keepdim=True)
    normed = centred / centred.square().mean(1, keepdim=True).sqrt()
    power = torch.linalg.svdvals(normed - normed.mean(0)).square()
    seen = diagnose(hyper, normal(5, 3), condition).features
    assert seen.initialised_for is None
    # layer_norm adds 1e-10 to a variance of about 0.01
    assert seen.effective_rank == pytest.approx(
        (power.sum() ** 2 / power.square().sum()).item(), rel=1e-6
    )


def test_relative_gradients_of_encoder_and_head() -> None:
    hyper = make(wl.mlp([3, 4, 1]))
    x, condition, target = normal(3, 3), normal(3, 6, seed=2), normal(3, 1, seed=3)
    diagnosis = diagnose(hyper, x, condition, loss=lambda y: (y - target).square().sum())
    assert all(parameter.grad is None for parameter in hyper.parameters())
    value = (hyper(x, condition) - target).square().sum()
    value.backward()
    assert diagnosis.loss == pytest.approx(value.item(), rel=CLOSE)
    for part, seen in ((hyper.encoder, diagnosis.encoder_grad), (hyper.head, diagnosis.head_grad)):
        parameters = list(part.parameters())
        slope = rms([parameter.grad for parameter in parameters])
        assert seen == pytest.approx(slope / rms(parameters), rel=CLOSE)


def test_limit_without_a_loss_and_every_row_with_one() -> None:
    hyper = make(wl.mlp([3, 4, 1]))
    x, condition = normal(20, 3), normal(20, 6, seed=2)
    assert diagnose(hyper, x, condition).conditions == 16
    few = diagnose(hyper, x, condition, limit=3)
    sliced = diagnose(hyper, x[:3], condition[:3])
    assert few.conditions == 3
    assert few.loss == pytest.approx(sliced.loss, rel=CLOSE)
    assert few.loss != pytest.approx(diagnose(hyper, x, condition).loss, rel=1e-3)
    rows = []
    diagnose(hyper, x, condition, loss=lambda y: (rows.append(len(y)), y.sum())[1])
    assert set(rows) == {20}  # of the model, and of the primary by itself


def test_single_condition() -> None:
    hyper = make(wl.mlp([3, 8, 1]))
    x, condition = normal(7, 3), normal(6, seed=2)
    diagnosis = diagnose(hyper, x, condition)
    batch = diagnose(hyper, x[None], condition[None])
    assert [row.output_rms for row in diagnosis.rows] == pytest.approx(
        [row.output_rms for row in batch.rows], rel=CLOSE
    )
    assert diagnosis.rows[0].dependence is None
    assert diagnosis.rows[0].effective_rank is None
    assert diagnosis.condition_rank is None
    assert diagnosis.warnings == []


def test_learned_layers_tied_weights_ids_and_keyword_arguments() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.body = nn.Linear(4, 4)
            self.out = nn.Linear(4, 5, bias=False)
            self.out.weight = self.table.weight

        def forward(self, x: Tensor, *, scale: Tensor, power: int) -> Tensor:
            return self.out(self.body(self.table(x))) * scale**power

    hyper = make(Tied(), encoder=nn.Embedding(7, 6), generate="table.*")
    ids = torch.arange(8).reshape(4, 2) % 5
    diagnosis = diagnose(hyper, ids, torch.arange(4), scale=wl.shared(torch.full((), 2.0)), power=3)
    rows = {row.layer: row for row in diagnosis.rows}
    assert list(rows) == ["table", "body", "out"]
    assert rows["body"].size == 0
    assert rows["body"].dependence is None
    assert rows["out"].weight_rms == rows["table"].weight_rms
    assert diagnosis.input_rms is None
    assert diagnosis.condition_rank == 3.0


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    primary = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    hyper = make(primary, encoder=inner, features=5)
    hyper.primary[1].eval()
    x, condition = normal(4, 7, 3), normal(4, 6, seed=2)
    pending = hyper(x, condition).sum()
    state = {name: value.clone() for name, value in hyper.state_dict().items()}
    modes = [module.training for module in hyper.modules()]
    hooks = [len(module._forward_hooks) for module in hyper.modules()]
    random = torch.get_rng_state()
    with torch.no_grad():
        diagnose(hyper, x, condition)
    with torch.inference_mode():
        diagnose(hyper, x, condition)
    assert torch.equal(torch.get_rng_state(), random)
    assert modes == [module.training for module in hyper.modules()]
    assert hooks == [len(module._forward_hooks) for module in hyper.modules()]
    assert all(parameter.grad is None for parameter in hyper.parameters())
    after = hyper.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    pending.backward()  # what the graph remembers was not written to


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_the_same_where_gradients_are_off(mode: Callable[[], object]) -> None:
    hyper = make(wl.mlp([3, 8, 1]))
    outside = diagnose(hyper, normal(4, 3), normal(4, 6, seed=2))
    with mode():  # type: ignore[attr-defined]
        inside = diagnose(hyper, normal(4, 3), normal(4, 6, seed=2))
    assert inside.to_dict() == outside.to_dict()
    assert inside.rows[0].weight_grad_rms > 0.0


def test_table_json_and_figure(tmp_path: object) -> None:
    hyper = make(wl.mlp([3, 8, 1]))
    diagnosis = diagnose(hyper, normal(4, 3), normal(4, 6, seed=2))
    lines = str(diagnosis).splitlines()
    assert lines[1].split()[:3] == ["layer", "kind", "generated"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "2"]
    assert f"{diagnosis.rows[0].output_rms:.3g}" in lines[2]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert lines[4].startswith("features: 12 for 4 conditions")
    assert lines[-1] == "no warnings"
    again = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert again["rows"][1]["output_rms"] == diagnosis.rows[1].output_rms
    path = tmp_path / "diagnosis.png"  # type: ignore[operator]
    figure = diagnosis.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
    curves = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert curves["outputs"] == [row.output_rms for row in diagnosis.rows]


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = diagnose(make(wl.mlp([3, 4, 1])), normal(2, 3), normal(2, 6, seed=2))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom\[plot\]'"):
        diagnosis.plot()


# -- bad input -----------------------------------------------------------------------------------


def test_messages() -> None:
    hyper = healthy()
    x, condition = normal(4, 3), normal(4, 6, seed=2)
    with pytest.raises(ShapeError, match=r"condition has 4 rows but an input has shape \(3, 3\)"):
        diagnose(hyper, x[:3], condition)
    with pytest.raises(ShapeError, match=r"loss returned a tensor of shape \(4, 1\)"):
        diagnose(hyper, x, condition, loss=lambda y: y)
    with pytest.raises(ShapeError, match=r"limit=0 was given"):
        diagnose(hyper, x, condition, limit=0)
    with pytest.raises(ShapeError, match=r"one condition has 1 dimension"):
        diagnose(hyper, x, condition[None])


class Two(nn.Module):
    """Two inputs; the second is needed, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x) + y


class Optional(Two):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.layer(x) if y is None else self.layer(x) + y


def test_the_last_positional_argument_is_the_target_if_the_primary_cannot_take_it() -> None:
    x, condition, y, target = normal(4, 3), normal(4, 6), normal(4, 3, seed=3), normal(4, 3, seed=4)
    plain, two = make(nn.Linear(3, 3)), make(Two())
    assert diagnose(plain, x, condition, target).to_dict() == (
        diagnose(plain, x, condition, target=target).to_dict()
    )
    named = diagnose(two, x, condition, y, target=target).loss
    assert diagnose(two, x, condition, y, target).loss == named
    assert diagnose(two, x, condition, target, y=y).loss == named
    expected = (two(x, condition, y) - target).square().mean().item()
    assert named == pytest.approx(expected, rel=CLOSE)
    without = diagnose(two, x, condition, y).loss  # half the mean square: no target is left
    assert without == pytest.approx(0.5 * two(x, condition, y).square().mean().item(), rel=CLOSE)


def test_an_argument_that_could_be_either_is_refused() -> None:
    x, condition, y = normal(4, 3), normal(4, 6), normal(4, 3, seed=3)
    either = make(Optional())
    with pytest.raises(ShapeError, match=r"argument 4 .* target or an input of Optional.*target="):
        diagnose(either, x, condition, y)
    assert diagnose(either, x, condition, y, target=y).loss != pytest.approx(
        diagnose(either, x, condition, target=y).loss
    )
    assert diagnose(either, x, condition, y, y).loss == (
        diagnose(either, x, condition, y, target=y).loss
    )
    layer = make(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    tokens = normal(4, 2, 5, 4)
    with pytest.raises(ShapeError, match=r"input of TransformerEncoderLayer.*src_mask"):
        diagnose(layer, tokens, condition, tokens, optimiser=("adam", 1e-3))
    with pytest.raises(ShapeError, match=r"3 arguments follow the condition, but neither"):
        diagnose(make(nn.Linear(3, 3)), x, condition, y, y, y)


def test_rows_are_frozen() -> None:
    row = look(healthy()).rows[0]
    assert isinstance(row, LayerRow)
    with pytest.raises(AttributeError):
        row.size = 0  # type: ignore[misc]
