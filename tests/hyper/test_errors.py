"""Bad input: every message says what was seen, what was wanted and what to do."""

import pytest
import torch
from torch import nn

import weightloom as wl
from weightloom.errors import (
    CheckpointError,
    HeadError,
    NonFiniteWeightsError,
    PatternError,
    ShapeError,
    UnsupportedModuleError,
    WeightloomError,
)


def hyper(**options):
    return wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6], last_activation=True), **options)


def test_rows_that_do_not_match():
    message = (
        r"condition has 3 rows but x has 4; each row of x needs one condition \(or pass a single "
        r"condition without a leading dimension\)"
    )
    with pytest.raises(ShapeError, match=message):
        hyper()(torch.randn(4, 5, 3), torch.randn(3, 4))
    with pytest.raises(ShapeError, match="condition has 3 rows but x has 4 rows"):
        wl.EmbeddingNetwork(wl.mlp([5, 1]), wl.mlp([4, 2]))(torch.randn(4, 3), torch.randn(3, 4))


def test_rows_of_further_arguments():
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    model = wl.HyperNetwork(attention, wl.mlp([4, 6]))
    x, condition = torch.randn(2, 1, 5, 4), torch.randn(2, 4)
    with pytest.raises(ShapeError, match=r"shape \(1, 5, 4\) was given with 2 conditions.*shared"):
        model(x, condition, x[0], x[0])


def test_a_condition_of_the_wrong_shape():
    with pytest.raises(
        ShapeError, match=r"condition has shape \(2, 3, 4\), but one condition has 1"
    ):
        hyper()(torch.randn(2, 5, 3), torch.randn(2, 3, 4))


@pytest.mark.parametrize("pattern", ["head.*", ["0.*", "nothing"], "WEIGHT"])
def test_a_pattern_that_selects_nothing(pattern):
    with pytest.raises(PatternError, match=r"selects no parameter.*0\.weight, 0\.bias"):
        hyper(generate=pattern)


def test_a_primary_without_parameters():
    with pytest.raises(PatternError, match="its parameters are none at all"):
        wl.HyperNetwork(nn.ReLU(), wl.mlp([4, 6]))


def test_an_unknown_head_or_init():
    with pytest.raises(HeadError, match=r"head='fulll' is unknown; choose one of full, low_rank"):
        hyper(head="fulll")
    with pytest.raises(
        HeadError, match=r"init='xavier' is unknown; choose one of mup, hyperfan_in"
    ):
        hyper(init="xavier")


def test_lazy_parameters():
    with pytest.raises(UnsupportedModuleError, match=r"'0.weight' is lazy.*Run the primary once"):
        wl.HyperNetwork(nn.Sequential(nn.LazyLinear(3)), wl.mlp([4, 6]))


def test_integer_parameters():
    primary = nn.Linear(3, 2)
    primary.table = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(UnsupportedModuleError, match=r"'table' has dtype torch.int64"):
        wl.HyperNetwork(primary, wl.mlp([4, 6]))
    assert wl.HyperNetwork(primary, wl.mlp([4, 6]), generate=["weight", "bias"]).spec.size == 8


def test_scripted_modules():
    with pytest.raises(UnsupportedModuleError, match="'weight' belongs to a scripted module"):
        wl.HyperNetwork(torch.jit.script(nn.Linear(3, 2)), wl.mlp([4, 6]))


@pytest.mark.parametrize("points", [(3,), (5, 3)])
def test_nan_names_the_layer(points):
    model = hyper()
    with torch.no_grad():
        model.head.table("2.weight")[:, 0, 0] = float("nan")
    x, condition = torch.randn(2, *points), torch.randn(2, 4)
    for attempt in (
        lambda: model(x, condition),
        lambda: model(x[0], condition[0]),
        lambda: model.weights(condition),
        lambda: model.materialize(condition[0]),
    ):
        with pytest.raises(
            NonFiniteWeightsError, match=r"'2.weight' holds \d+ values that are NaN"
        ):
            attempt()
    model.check_finite = False
    assert model(x, condition).isnan().any()


def test_nan_in_x_is_not_blamed_on_the_weights():
    x = torch.full((2, 5, 3), float("nan"))
    assert hyper()(x, torch.randn(2, 4)).isnan().all()


def test_a_checkpoint_of_another_architecture():
    other = wl.HyperNetwork(wl.mlp([3, 9, 2]), wl.mlp([4, 6], last_activation=True))
    with pytest.raises(CheckpointError, match=r"(?s)another architecture.*size mismatch"):
        hyper().load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="Missing key"):
        hyper().load_state_dict({})


def test_features_that_cannot_be_read():
    class Opaque(nn.Module):
        def forward(self, condition):
            return condition[:, :2]

    with pytest.raises(ShapeError, match=r"Opaque.*pass features=k"):
        wl.HyperNetwork(wl.mlp([3, 2]), Opaque())
    wrong = wl.HyperNetwork(wl.mlp([3, 2]), Opaque(), features=3)
    with pytest.raises(ShapeError, match="returned 2 features, but the head was built for 3"):
        wrong(torch.randn(2, 3), torch.randn(2, 4))


def test_a_python_number_is_refused_as_condition():
    tasks = wl.HyperNetwork(wl.mlp([3, 2]), nn.Embedding(5, 4))
    with pytest.raises(ShapeError, match=r"condition is 3, not a tensor.*torch.tensor\(3\)"):
        tasks(torch.randn(6, 3), 3)
    assert tasks(torch.randn(6, 3), torch.tensor(3)).shape == (6, 2)


def test_materialize_takes_one_condition():
    with pytest.raises(ShapeError, match="condition has 2 rows, but one network"):
        hyper().materialize(torch.randn(2, 4))


def test_weights_of_another_network():
    model = hyper()
    weights = model.weights(torch.randn(2, 4))
    with pytest.raises(ShapeError, match="missing none, unknown \\['typo'\\]"):
        model.run(torch.randn(2, 3), {**weights, "typo": weights["0.bias"]})
    with pytest.raises(ShapeError, match=r"'0.bias' has shape \(2, 1\), but must end in \(8,\)"):
        model.run(torch.randn(2, 3), {**weights, "0.bias": torch.zeros(2, 1)})


def test_bad_sizes():
    with pytest.raises(ShapeError, match="at least two sizes"):
        wl.mlp([3])
    with pytest.raises(ShapeError, match="activation='swish' is unknown; choose one of relu"):
        wl.mlp([3, 1], "swish")
    with pytest.raises(ShapeError, match="match='size' is unknown"):
        wl.matched_pair(3, 3, match="size")
    with pytest.raises(ShapeError, match="pool='median' is unknown"):
        wl.SetEncoder(nn.Linear(3, 2), "median")


def test_errors_of_the_primary_are_raised_unchanged():
    """A wrong x is reported by the layer that met it, not hidden behind a fallback."""
    with pytest.raises(RuntimeError):
        hyper()(torch.randn(2, 5, 7), torch.randn(2, 4))

    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        wl.HyperNetwork(Picky(), wl.mlp([4, 6]))(torch.randn(2, 3), torch.randn(2, 4))


def test_all_errors_share_a_base():
    for name in wl.errors.__all__:
        kind = getattr(wl.errors, name)
        assert issubclass(kind, WeightloomError | UserWarning)
