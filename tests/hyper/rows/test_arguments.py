"""What goes in and comes out of a call with one set of weights for each row."""

import copy
import enum
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.hyper.rows.arguments import is_value
from weightloom.hyper.rows.outputs import LostObject, stacked

LOOPS = pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")


class Memory:
    """An object that a primary could read or write."""

    def __init__(self, value=None):
        self.value = value
        self.seen = []


@dataclass
class Settings:
    scale: float
    mask: Any = None


@dataclass(frozen=True)
class Frozen:
    scale: float
    names: tuple = ("a", "b")


class Colour(enum.Enum):
    RED = 1


class Primary(nn.Module):
    """``how`` says what it does with its extra argument; ``loop`` keeps vmap out."""

    def __init__(self, how, loop=False):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.how = how
        self.loop = loop

    def forward(self, x, extra=None, **named):
        y = self.layer(x)
        if self.loop:
            y = y + 0 * y.sum().item()
        return self.how(y, extra, **named)


def make(how, loop=False):
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(Primary(how, loop), wl.mlp([4, 6], "tanh"))
    return hyper, torch.randn(3, 5, 3), torch.randn(3, 4)


def plain(hyper, x, condition):
    """The linear layer of every condition, by itself."""
    return torch.stack(
        [hyper.materialize(c).layer(row) for c, row in zip(condition, x, strict=True)]
    )


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, 2, 2.5, True, "a", b"a", torch.float32, torch.device("cpu"), Colour.RED, (1, (2, "x")),
     slice(1, 2), range(3), Path("a"), Frozen(2.0), frozenset({1}), torch.relu, int, {"a": [1]}],
)  # fmt: skip
@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_plain_values_reach_every_row(value, loop):
    seen = []

    def how(y, extra):
        seen.append(extra)
        return y

    hyper, x, condition = make(how, loop)
    close(hyper(x, condition, value), plain(hyper, x, condition), 10)
    assert seen
    assert all(extra == value for extra in seen)


@pytest.mark.parametrize(
    "value",
    [Memory(), Settings(2.0), {1, 2}, bytearray(b"a"), nn.Linear(1, 1), object(),
     Frozen([torch.ones(1)])],
)  # fmt: skip
@pytest.mark.parametrize("loop", [False, True])
def test_objects_are_refused_by_name(value, loop):
    hyper, x, condition = make(lambda y, extra, **named: y, loop)
    kind = type(value).__name__
    message = rf"is an object of type {kind}, and 3 conditions would share it.*hyper\.bind.*shared"
    with pytest.raises(UnsupportedModuleError, match="argument 'extra' " + message):
        hyper(x, condition, value)
    with pytest.raises(UnsupportedModuleError, match="argument 'cache' " + message):
        hyper(x, condition, cache=value)
    with pytest.raises(UnsupportedModuleError, match=r"argument \"extra\['a'\]\[1\]\" " + message):
        hyper(x, condition, {"a": [1, value]})


def test_one_condition_takes_any_object():
    def how(y, memory):
        memory.seen.append(y)
        return y

    hyper, x, condition = make(how)
    memory = Memory()
    y = hyper(x[0], condition[0], memory)
    assert memory.seen[0] is y


@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_a_shared_object_is_read_by_all_rows(loop):
    hyper, x, condition = make(lambda y, memory: y * memory.value, loop)
    memory = Memory(torch.full((2,), 3.0))
    close(hyper(x, condition, wl.shared(memory)), 3 * plain(hyper, x, condition), 10)


def append(y, memory):
    memory.seen.append(y)
    return y


def assign(y, memory):
    memory.value = y.shape[-1]
    return y


def in_place(y, memory):
    memory.value.add_(1)
    return y


@pytest.mark.parametrize("how", [append, assign, in_place])
@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_writing_into_a_shared_object_is_refused(how, loop):
    hyper, x, condition = make(how, loop)
    with pytest.raises(UnsupportedModuleError, match=r"wrote into an object of type Memory"):
        hyper(x, condition, wl.shared(Memory(torch.ones(2))))


@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_containers_are_split_and_read(loop):
    hyper, x, condition = make(lambda y, extra: y * extra["a"][0] + extra["b"], loop)
    scale = torch.randn(3, 2)
    extra = {"a": [scale, 7], "b": 1}
    close(hyper(x, condition, extra), plain(hyper, x, condition) * scale[:, None] + 1, 10)
    assert extra["a"][0] is scale
    assert extra == {"a": [scale, 7], "b": 1}


@pytest.mark.parametrize(
    "how",
    [
        lambda y, extra: extra["a"].append(y) or y,
        lambda y, extra: extra.update(new=y) or y,
        lambda y, extra: extra.update(b=y) or y,
        lambda y, extra: extra["a"].append(1) or y,
    ],
)
@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_what_is_put_into_a_container_is_not_lost_in_silence(how, loop):
    hyper, x, condition = make(how, loop)
    with pytest.raises(UnsupportedModuleError, match=r"put something into a list.*hyper\.bind"):
        hyper(x, condition, {"a": [torch.randn(3, 2)], "b": 1})


def test_taking_out_of_a_container_is_allowed():
    hyper, x, condition = make(lambda y, extra: y * extra.pop("scale"))
    extra = {"scale": torch.full((3, 1), 2.0)}
    close(hyper(x, condition, extra), 2 * plain(hyper, x, condition), 10)
    assert list(extra) == ["scale"]


def test_tensors_need_a_row_for_each_condition():
    hyper, x, condition = make(lambda y, extra: y * extra)
    with pytest.raises(ShapeError, match=r"an argument of shape \(2,\) was given with 3"):
        hyper(x, condition, torch.ones(2))


def test_mutable_things_are_not_values():
    assert not any(map(is_value, [[], {}, set(), Memory(), Settings(1.0), torch.ones(1)]))


# -- outputs --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    y: Tensor
    name: str


@dataclass
class Output:
    y: Tensor
    inner: Any
    count: int = 0

    def __post_init__(self):
        self.total = None


@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_dataclasses_are_put_together(loop):
    hyper, x, condition = make(lambda y, extra: Output(y, [Output(2 * y, None), "a"], 3), loop)
    output = hyper(x, condition)
    want = plain(hyper, x, condition)
    assert type(output) is Output
    close(output.y, want, 10)
    close(output.inner[0].y, 2 * want, 10)
    assert (output.inner[1], output.count, output.total) == ("a", 3, None)
    parameter = next(hyper.head.parameters())
    (got,) = torch.autograd.grad(output.inner[0].y.sum(), parameter)
    (once,) = torch.autograd.grad(hyper(x, condition).y.sum(), parameter)
    close(got, 2 * once, 10)
    assert once.abs().max() > 0


@pytest.mark.parametrize("loop", [False, True])
@LOOPS
def test_known_containers_are_put_together(loop):
    hyper, x, condition = make(lambda y, extra: {"a": Pair(y, "b"), "c": [None, 1.5]}, loop)
    output = hyper(x, condition)
    close(output["a"].y, plain(hyper, x, condition), 10)
    assert output["a"].name == "b"
    assert output["c"] == [None, 1.5]


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(
    "wrap",
    [
        Memory,
        lambda y: [Memory({"deep": [y]})],
        lambda y: torch.distributions.Normal(y, 1.0),
        lambda y: (y, Memory(y)),
    ],
)
@LOOPS
def test_objects_with_tensors_do_not_get_out(wrap, loop):
    hyper, x, condition = make(lambda y, extra: wrap(y), loop)
    with pytest.raises(
        UnsupportedModuleError, match=r"returned an object of type (Memory|Normal).*hyper\.bind"
    ):
        hyper(x, condition)


@LOOPS
def test_numbers_that_differ_between_conditions_are_refused():
    hyper, x, condition = make(lambda y, extra: (y, y.sum().item()))
    with pytest.raises(UnsupportedModuleError, match=r"returned -?\d.* for one condition and -?\d"):
        hyper(x, condition)
    close(hyper(x[:1], condition[:1])[0], plain(hyper, x[:1], condition[:1]), 10)


def test_stacking_needs_one_structure():
    with pytest.raises(UnsupportedModuleError, match=r"returned 1 values .* and 2 for another"):
        stacked([torch.ones(1), (torch.ones(1), torch.ones(1))])
    with pytest.raises(UnsupportedModuleError, match="must be tensors"):
        stacked([(torch.ones(1), 1), (torch.ones(1), torch.ones(1))])
    tensor, number = stacked([(torch.ones(2), float("nan")), (torch.zeros(2), float("nan"))])
    assert tensor.tolist() == [[1, 1], [0, 0]]
    assert number != number


def test_a_lost_object_raises_when_it_is_used():
    lost = LostObject("Cache")
    for use in (lambda: lost.layers, lambda: lost[0], lambda: list(lost), lambda: len(lost), lost):
        with pytest.raises(UnsupportedModuleError, match=r"type Cache for each.*hyper\.bind"):
            use()
    assert "Cache for each condition" in repr(lost)
    assert copy.deepcopy(lost) == pickle.loads(pickle.dumps(lost)) == lost
    assert hash(lost) == hash(LostObject("Cache"))
    assert lost != LostObject("Other")
