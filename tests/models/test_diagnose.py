"""diagnose against plain networks measured by hand, and every warning against its opposite."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.errors import MissingDependencyError, NonFiniteWeightsError, ShapeError
from weightloom.models.diagnose import diagnose
from weightloom.models.diagnosis import Diagnosis, LayerRow

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
    found = diagnose(hyper, x, condition)
    assert {row.layer for row in found.rows} == set(expected)
    for row in found.rows:
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
    hyper = make(wl.mlp([3, 4, 1]))
    condition = normal(5, 6, seed=2)
    features = hyper.encoder(condition).detach()
    found = diagnose(hyper, normal(5, 3), condition).features
    power = torch.linalg.svdvals(features - features.mean(0)).square()
    assert found.count == 12
    assert found.second_moment == pytest.approx(features.square().mean().item(), rel=CLOSE)
    assert found.zero_fraction == pytest.approx((features == 0).double().mean().item())
    assert found.dead_fraction == pytest.approx((features == 0).all(0).double().mean().item())
    assert found.effective_rank == pytest.approx(
        (power.sum() ** 2 / power.square().sum()).item(), rel=CLOSE
    )
    assert f"{found.initialised_for:.4g}" in hyper.initialisation


def test_relative_gradients_of_encoder_and_head() -> None:
    hyper = make(wl.mlp([3, 4, 1]))
    x, condition, target = normal(3, 3), normal(3, 6, seed=2), normal(3, 1, seed=3)
    found = diagnose(hyper, x, condition, loss=lambda y: (y - target).square().sum())
    assert all(parameter.grad is None for parameter in hyper.parameters())
    value = (hyper(x, condition) - target).square().sum()
    value.backward()
    assert found.loss == pytest.approx(value.item(), rel=CLOSE)
    for part, seen in ((hyper.encoder, found.encoder_grad), (hyper.head, found.head_grad)):
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
    assert rows == [20]


def test_single_condition() -> None:
    hyper = make(wl.mlp([3, 8, 1]))
    x, condition = normal(7, 3), normal(6, seed=2)
    found = diagnose(hyper, x, condition)
    batch = diagnose(hyper, x[None], condition[None])
    assert [row.output_rms for row in found.rows] == pytest.approx(
        [row.output_rms for row in batch.rows], rel=CLOSE
    )
    assert found.rows[0].dependence is None
    assert found.rows[0].effective_rank is None
    assert found.condition_rank is None
    assert found.warnings == []


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
    found = diagnose(hyper, ids, torch.arange(4), scale=wl.shared(torch.full((), 2.0)), power=3)
    rows = {row.layer: row for row in found.rows}
    assert list(rows) == ["table", "body", "out"]
    assert rows["body"].size == 0
    assert rows["body"].dependence is None
    assert rows["out"].weight_rms == rows["table"].weight_rms
    assert found.input_rms is None
    assert found.condition_rank == 3.0


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


def test_shows_itself_as_table_json_and_figure(tmp_path: object) -> None:
    hyper = make(wl.mlp([3, 8, 1]))
    found = diagnose(hyper, normal(4, 3), normal(4, 6, seed=2))
    lines = str(found).splitlines()
    assert lines[1].split()[:3] == ["layer", "kind", "generated"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "2"]
    assert f"{found.rows[0].output_rms:.3g}" in lines[2]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert lines[4].startswith("features: 12 for 4 conditions")
    assert lines[-1] == "no warnings"
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["rows"][1]["output_rms"] == found.rows[1].output_rms
    path = tmp_path / "found.png"  # type: ignore[operator]
    figure = found.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert drawn["outputs"] == [row.output_rms for row in found.rows]


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnose(make(wl.mlp([3, 4, 1])), normal(2, 3), normal(2, 6, seed=2))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom\[plot\]'"):
        found.plot()


# -- warnings ------------------------------------------------------------------------------------


def healthy(**options: object) -> wl.HyperNetwork:
    return make(wl.mlp([3, 16, 16, 1]), **options)


def look(hyper: wl.HyperNetwork, scale: float = 1.0, **options: object) -> Diagnosis:
    return diagnose(hyper, normal(8, 5, 3), scale * normal(8, 6, seed=2), **options)  # type: ignore[arg-type]


def test_a_healthy_network_has_no_warnings() -> None:
    assert look(healthy()).warnings == []


def explode(hyper: wl.HyperNetwork) -> None:
    for parameter in hyper.head.parameters():
        parameter.mul_(20.0)


def vanish(hyper: wl.HyperNetwork) -> None:
    for parameter in hyper.head.parameters():
        parameter.mul_(0.01)


def silence_features(hyper: wl.HyperNetwork) -> None:
    hyper.encoder[2].bias[:9] = -100.0


def constant_features(hyper: wl.HyperNetwork) -> None:
    hyper.encoder[2].weight.zero_()
    hyper.encoder[2].bias.fill_(0.3)


def one_direction(hyper: wl.HyperNetwork) -> None:
    weight = hyper.encoder[0].weight
    weight.copy_(weight[:1].expand_as(weight).clone())
    hyper.encoder[0].bias.fill_(5.0)


def ignore_features(hyper: wl.HyperNetwork) -> None:
    for name in hyper.spec:
        hyper.head.table(name).zero_()
        hyper.head.offset(name).normal_(0.0, 0.3)


def tiny_tables(hyper: wl.HyperNetwork) -> None:
    ignore_features(hyper)
    for name in hyper.spec:
        hyper.head.table(name).normal_(0.0, 1e-5)


def kill_first_layer(hyper: wl.HyperNetwork) -> None:
    hyper.head.offset("0.bias").fill_(-1000.0)


BROKEN = {
    "explode": (explode, r"explode with depth: .* after layer '\d'.*calibration="),
    "vanish": (vanish, r"vanish with depth: .*calibration="),
    "dead": (silence_features, r"83% of the features are zero for every condition.*LeakyReLU"),
    "constant": (constant_features, r"same weights: the encoder returns the same features"),
    "ignored": (ignore_features, r"same weights: the head ignores the features"),
    "one direction": (one_direction, r"vary in about one direction .*Normalise"),
    "hardly": (tiny_tables, r"hardly depend on the condition.*init='hyperfan_in'"),
    "standstill": (tiny_tables, r"gradient of the head dwarfs that of the encoder.*Adam"),
    "no gradient": (kill_first_layer, r"no gradient reaches layer '0'.*generate="),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_deserves_a_warning_gets_it(name: str) -> None:
    damage, pattern = BROKEN[name]
    hyper = healthy()
    with torch.no_grad():
        damage(hyper)
    found = look(hyper)
    assert len([text for text in found.warnings if _matches(pattern, text)]) == 1, found.warnings
    assert not [text for text in look(healthy()).warnings if _matches(pattern, text)]
    assert f"warning: {found.warnings[0]}" in str(found)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def test_other_initialisations_are_told_to_use_hyperfan_in() -> None:
    hyper = healthy(init="default")
    with torch.no_grad():
        explode(hyper)
    assert _matches(r"explode.*Start with init='hyperfan_in'", look(hyper).warnings[0])


def test_primary_initialisation_is_said_to_start_small() -> None:
    found = look(healthy(init="primary"))
    assert _matches(r"hardly depend.*init='primary' starts like this", found.warnings[0])


def test_a_fresh_delta_head_is_explained_and_a_trained_one_is_not_warned() -> None:
    hyper = healthy(head="delta")
    (text,) = look(hyper).warnings
    assert _matches(r"same weights: a DeltaHead starts there", text)
    with torch.no_grad():
        for parameter in hyper.head.change.parameters():
            parameter.normal_(0.0, 0.2)
    assert not [text for text in look(hyper).warnings if "same weights" in text]


def test_equal_conditions_are_named_as_the_cause() -> None:
    found = diagnose(healthy(), normal(4, 3), normal(1, 6).expand(4, 6))
    assert _matches(r"same weights: the conditions given are all equal", found.warnings[0])


def test_feature_scale_and_calibration() -> None:
    # Pixels from 0 to 255 where the head reckoned with standard normal conditions.
    (text,) = [text for text in look(healthy(), 100.0).warnings if "second moment" in text]
    assert "pass calibration=" in text
    ratio = look(healthy(), 100.0).features
    factor = math.sqrt(ratio.second_moment / ratio.initialised_for)
    assert f"factor of {factor:.3g}" in text
    calibrated = healthy(calibration=100.0 * normal(8, 6, seed=2).float())
    assert not [text for text in look(calibrated, 100.0).warnings if "second moment" in text]


def test_vanishing_gradients_over_depth() -> None:
    deep = [3] + [16] * 15 + [1]
    text = [text for text in look(make(wl.mlp(deep), init="default")).warnings if "back" in text]
    assert len(text) == 1
    assert _matches(r"gradients vanish on the way back: .* at layer '30'.*hyperfan_out", text[0])
    assert not [t for t in look(make(wl.mlp(deep))).warnings if "gradients" in t]


def test_a_loss_without_gradient() -> None:
    found = look(healthy(), loss=lambda y: (y * 0.0).sum())
    assert _matches(r"gradient of the loss is zero everywhere.*loss=", found.warnings[0])


# -- not finite ----------------------------------------------------------------------------------


def test_weights_that_are_nan_are_named_and_survived() -> None:
    hyper = healthy()
    with torch.no_grad():
        hyper.head.offset("2.bias").fill_(math.nan)
    with pytest.raises(NonFiniteWeightsError):
        hyper.weights(normal(8, 6, seed=2))
    found = look(hyper)
    assert [row.layer for row in found.rows if row.non_finite] == ["2"]
    (text,) = found.warnings
    assert _matches(r"parameter 'joint_offset' of the head is not finite.*layer '2'", text)
    assert _matches(r"diverged.*learning rate", text)
    assert json.dumps(found.to_dict(), allow_nan=False)
    found.plot()


def test_a_condition_an_input_or_a_loss_that_is_nan() -> None:
    bad = normal(8, 6, seed=2)
    bad[3, 1] = math.nan
    (text,) = diagnose(healthy(), normal(8, 3), bad).warnings
    assert _matches(r"the condition is not finite.*layer '0'.*Clean the data", text)
    x = normal(8, 3)
    x[0, 0] = math.inf
    (text,) = diagnose(healthy(), x, normal(8, 6, seed=2)).warnings
    assert _matches(r"the input is not finite.*Clean the data", text)
    (text,) = look(healthy(), loss=lambda y: (y.sum() * 0.0).log()).warnings
    assert _matches(r"the loss is not finite.*look into loss", text)


def test_a_primary_that_refuses_nan_weights_does_not_stop_the_diagnosis() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            if bool(y.isnan().any()):
                raise ValueError("refused")
            return y

    hyper = make(Strict())
    x, condition = normal(4, 3), normal(4, 6, seed=2)
    assert diagnose(hyper, x, condition).rows[0].weight_grad_rms is not None
    with torch.no_grad():
        hyper.head.joint_offset.fill_(math.nan)
    found = diagnose(hyper, x, condition)
    assert math.isnan(found.loss)
    assert found.rows[0].weight_grad_rms is None
    assert _matches(r"layer 'layer'", found.warnings[0])


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


def test_rows_are_frozen() -> None:
    row = look(healthy()).rows[0]
    assert isinstance(row, LayerRow)
    with pytest.raises(AttributeError):
        row.size = 0  # type: ignore[misc]
