"""The warnings of diagnose: each appears where it applies, and only there."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from tests.hyper.diagnosis.test_measuring import healthy, look, make, normal
from weightloom.errors import NonFiniteWeightsError
from weightloom.hyper.coordinates import coordinate_network
from weightloom.hyper.diagnosis import diagnose

# -- warnings ------------------------------------------------------------------------------------


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
    "explode": (explode, r"explode with depth: .* after layer '\d'.*initialise the primary"),
    "vanish": (vanish, r"vanish with depth: .*initialise the primary"),
    "dead": (silence_features, r"83% of the features are zero for every condition.*LeakyReLU"),
    "constant": (constant_features, r"same weights: the encoder returns the same features"),
    "ignored": (ignore_features, r"same weights: the head ignores the features"),
    "one direction": (one_direction, r"vary in about one direction .*Normalise"),
    "hardly": (tiny_tables, r"hardly depend on the condition.*Normalise the conditions"),
    "standstill": (
        tiny_tables,
        r"gradient of the head is far larger than that of the encoder.*Adam",
    ),
    "no gradient": (kill_first_layer, r"no gradient reaches layer '0'.*generate="),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_warning_appears_where_it_applies(name: str) -> None:
    damage, pattern = BROKEN[name]
    hyper = healthy()
    with torch.no_grad():
        damage(hyper)
    diagnosis = look(hyper)
    assert len([text for text in diagnosis.warnings if _matches(pattern, text)]) == 1, (
        diagnosis.warnings
    )
    assert not [text for text in look(healthy()).warnings if _matches(pattern, text)]
    assert f"warning: {diagnosis.warnings[0]}" in str(diagnosis)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


OTHER = {
    "explode": (explode, r"explode with depth.*Leave init out \(the default start"),
    "vanish": (vanish, r"vanish with depth.*Leave init out \(the default start"),
    "hardly": (tiny_tables, r"hardly depend on the condition.*leave init out \(the default start"),
}


@pytest.mark.parametrize("init", ["hyperfan_in", "default"])
@pytest.mark.parametrize("name", OTHER)
def test_other_initialisations_are_advised_to_use_the_default(name: str, init: str) -> None:
    damage, pattern = OTHER[name]
    hyper = healthy(init=init)
    with torch.no_grad():
        damage(hyper)
    texts = look(hyper).warnings
    assert len([text for text in texts if _matches(pattern, text)]) == 1, texts
    calibration = [text for text in texts if "depth" in text and "calibration=" in text]
    assert len(calibration) == (init == "hyperfan_in" and name != "hardly")


@pytest.mark.parametrize("omega", [30.0, 60.0])
def test_the_scales_that_a_siren_has_by_itself_are_no_warning(omega: float) -> None:
    torch.manual_seed(0)
    primary = coordinate_network(3, 1, width=32, depth=4, features="siren", omega=omega)
    assert look(make(primary)).warnings == []


def test_primary_initialisation_is_explained_as_a_small_start() -> None:
    diagnosis = look(healthy(init="primary"))
    assert _matches(r"hardly depend.*init='primary' starts like this", diagnosis.warnings[0])


def test_a_fresh_delta_head_has_no_warning_but_constant_features_do() -> None:
    hyper = healthy(head="delta")
    assert look(hyper).warnings == []
    with torch.no_grad():
        constant_features(hyper)
    assert _matches(r"same weights: the encoder returns the same", look(hyper).warnings[0])


def test_a_change_that_outgrows_the_given_primary_is_seen() -> None:
    hyper = healthy(head="delta")
    with torch.no_grad():
        for parameter in hyper.head.change.parameters():
            parameter.normal_(0.0, 30.0)
    assert _matches(r"explode with depth.*The primary by itself does not", look(hyper).warnings[0])


def test_equal_conditions_are_named_as_the_cause() -> None:
    diagnosis = diagnose(healthy(), normal(4, 3), normal(1, 6).expand(4, 6))
    assert _matches(r"same weights: the conditions given are all equal", diagnosis.warnings[0])


def test_feature_scale_and_calibration() -> None:
    # Pixels from 0 to 255 where the head reckoned with standard normal conditions.
    plain = look(healthy(init="hyperfan_in"), 100.0)
    (text,) = [text for text in plain.warnings if "second moment" in text]
    assert "pass calibration=" in text
    ratio = plain.features
    factor = math.sqrt(ratio.second_moment / ratio.initialised_for)
    assert f"factor of {factor:.3g}" in text
    calibrated = healthy(init="hyperfan_in", calibration=100.0 * normal(8, 6, seed=2).float())
    assert look(healthy(), 100.0).warnings == []  # the default start does not care
    assert not [text for text in look(calibrated, 100.0).warnings if "second moment" in text]


def test_vanishing_gradients_over_depth() -> None:
    deep = [3] + [16] * 15 + [1]
    text = [text for text in look(make(wl.mlp(deep), init="default")).warnings if "back" in text]
    assert len(text) == 1
    assert _matches(r"gradients vanish on the way back: .* at layer '30'.*hyperfan_out", text[0])
    for init in ("hyperfan_in", "hyperfan_out"):
        assert not [t for t in look(make(wl.mlp(deep), init=init)).warnings if "gradients" in t]


def test_a_deep_primary_whose_own_gradients_vanish_is_named_as_the_cause() -> None:
    deep = wl.mlp([3] + [16] * 15 + [1])
    for init in (None, "primary"):
        (text,) = [t for t in look(make(deep, init=init)).warnings if "back" in t]
        assert _matches(r"gradients vanish.*the primary by itself.*kaiming_normal_", text)
    for layer in deep:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert not [t for t in look(make(deep)).warnings if "gradients" in t]


def test_a_loss_without_gradient() -> None:
    diagnosis = look(healthy(), loss=lambda y: (y * 0.0).sum())
    assert _matches(r"gradient of the loss is zero everywhere.*loss=", diagnosis.warnings[0])


# -- not finite ----------------------------------------------------------------------------------


def test_weights_that_are_nan_are_named_and_survived() -> None:
    hyper = healthy()
    with torch.no_grad():
        hyper.head.offset("2.bias").fill_(math.nan)
    with pytest.raises(NonFiniteWeightsError):
        hyper.weights(normal(8, 6, seed=2))
    diagnosis = look(hyper)
    assert [row.layer for row in diagnosis.rows if row.non_finite] == ["2"]
    (text,) = diagnosis.warnings
    assert _matches(r"parameter 'joint_offset' of the head is not finite.*layer '2'", text)
    assert _matches(r"diverged.*learning rate", text)
    assert json.dumps(diagnosis.to_dict(), allow_nan=False)
    diagnosis.plot()


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
    diagnosis = diagnose(hyper, x, condition)
    assert math.isnan(diagnosis.loss)
    assert diagnosis.rows[0].weight_grad_rms is None
    assert _matches(r"layer 'layer'", diagnosis.warnings[0])
