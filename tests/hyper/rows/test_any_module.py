"""Modules without a batched rule: what vmap cannot do is done otherwise, and only that."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import weightloom as wl
from tests.oracle import close, gradients, loop
from weightloom.errors import SlowPathWarning, UnsupportedModuleError
from weightloom.hyper.rows import any_module
from weightloom.hyper.rows.any_module import RowwiseTask


class Asking(nn.Module):
    """Code that asks for values: of an argument, or of what it computes."""

    def __init__(self, inner=3):
        super().__init__()
        self.layer = nn.Linear(inner, 2)

    def forward(self, x, mask=None, steps=None, by_value=False):
        y = self.layer(x)
        if mask is not None:
            y = y if mask.all() else 2 * torch.tanh(y)
        for _ in range(0 if steps is None else int(steps)):
            y = y + torch.sin(y)
        return y * y.sum().item() if by_value else y


def make(primary, rows=6, **options):
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(primary, wl.mlp([4, 5], "tanh"), **options)
    condition = torch.randn(rows, 4).requires_grad_()
    return hyper, torch.randn(rows, 5, 3), condition


@pytest.fixture
def ways(monkeypatch):
    """Which ways the calls took."""
    taken = []
    for name in ("vmapped", "branched", "looped"):
        original = getattr(RowwiseTask, name)

        def way(self, *args, _original=original, _name=name, **kwargs):
            taken.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(RowwiseTask, name, way)
    return taken


def same(hyper, x, condition, *args, **kwargs):
    got, want = hyper(x, condition, *args, **kwargs), loop(hyper, x, condition, *args, **kwargs)
    close(got, want, 10)
    close(gradients(got, [condition])[0], gradients(want, [condition])[0], 100)


# -- questions about values -----------------------------------------------------------------------


@pytest.mark.parametrize("holes", [[], [0], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_rows_with_the_same_answer_go_together(holes, ways):
    hyper, x, condition = make(Asking())
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[holes, 2] = False
    same(hyper, x, condition, mask)
    assert ways == ["vmapped", "branched"]
    same(hyper, x, condition, mask)
    assert ways[2:] == ["branched"]  # a call of this kind does not try in vain again
    with torch.no_grad():
        close(hyper(x, condition, mask), loop(hyper, x, condition, mask), 10)


def test_two_questions(ways):
    hyper, x, condition = make(Asking(), rows=12)
    mask = torch.ones(12, 4, dtype=torch.bool)
    mask[::2, 1] = False
    steps = torch.arange(12) % 3
    same(hyper, x, condition, mask, steps)
    assert "looped" not in ways


def test_the_plan_of_rows_that_go_different_ways_names_every_layer_once():
    hyper, _, condition = make(Asking(inner=40), head=wl.LowRankHead(1))
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[1] = False
    plan = hyper.plan(torch.randn(6, 1, 40), condition, mask)
    assert [decision.layer for decision in plan.decisions] == ["layer"]


def test_too_many_answers_are_a_loop(ways):
    hyper, x, condition = make(Asking())
    with pytest.warns(SlowPathWarning, match=r"slow loop over 6 conditions: torch.vmap refused"):
        same(hyper, x, condition, steps=torch.arange(6))
    assert ways == ["vmapped", "branched", "looped"]


def test_one_row(ways):
    hyper, x, condition = make(Asking(), rows=1)
    same(hyper, x, condition, by_value=True)
    assert ways == ["vmapped", "branched"]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x, flag):
        y = self.norm(self.layer(x))
        return 2 * y if flag.all() else y


def test_running_statistics_are_the_average_over_all_rows():
    hyper, x, condition = make(Normed())
    flags = torch.tensor([[True], [False], [True], [True], [False], [True]])
    networks = [hyper.materialize(c.detach()).train() for c in condition]
    want = torch.stack([n(row, f) for n, row, f in zip(networks, x, flags, strict=True)])
    close(hyper(x, condition, flags), want, 10)
    close(hyper.primary.norm.running_mean,
          torch.stack([n.norm.running_mean for n in networks]).mean(0), 10)  # fmt: skip
    assert hyper.primary.norm.num_batches_tracked == 1


class Nested(nn.Module):
    """An operation that runs vmap itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, flag):
        if not flag.any():
            return self.layer(x)
        return torch.vmap(lambda row: self.layer(row) if row.sum() > 0 else row[:2])(x)


def test_a_question_inside_an_inner_vmap_is_refused_as_by_vmap():
    hyper, x, condition = make(Nested())
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        hyper(x, condition, torch.ones(6, 1, dtype=torch.bool))


# -- one slow call --------------------------------------------------------------------------------


def test_one_slow_call_does_not_slow_down_the_others(ways):
    hyper, x, condition = make(Asking())
    with pytest.warns(SlowPathWarning, match=r"\.item\(\)"):
        same(hyper, x, condition, by_value=True)
    ways.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            same(hyper, x, condition)  # another kind of call: by vmap
        same(hyper, x, condition, by_value=True)  # the same kind: the loop, without a warning
    assert ways == ["vmapped", "vmapped", "looped"]


def test_a_changed_module_is_tried_again(ways):
    class Slow(nn.Linear):
        def forward(self, x):
            return super().forward(x) * x.sum().item()

    hyper, x, condition = make(nn.Sequential(Slow(3, 2)))
    with pytest.warns(SlowPathWarning, match="layer '0'"):
        hyper(x, condition)
    hyper.primary[0].__class__ = type("Fast", (nn.Linear,), {"forward": nn.Linear.forward})
    ways.clear()
    same(hyper, x, condition)
    assert ways == ["vmapped"]


def test_memory_is_bounded():
    hyper, _, _ = make(Asking())
    memory = hyper._rowwise
    for n in range(1000):
        memory.refuse(n, "reason")
    assert len(memory._refused) <= 64
    assert copy.deepcopy(hyper)._rowwise._refused == {}


def test_the_plan_names_the_loop_every_time():
    hyper, x, condition = make(nn.Sequential(nn.Linear(3, 3), First()))
    with pytest.warns(SlowPathWarning, match="GRU"):
        first = hyper.plan(x, condition)
    assert first.orders["1"] == hyper.plan(x, condition).orders["1"] == "loop"


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(3, 2)

    def forward(self, x):
        return self.inner(x)[0]


# -- activation checkpointing ---------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.reentrant = reentrant
        self.runs = []

    def forward(self, x):
        for layer in self.layers:
            if self.reentrant is None:
                x = self.step(layer, x)
            else:
                x = checkpoint(self.step, layer, x, use_reentrant=self.reentrant)
        return x

    def step(self, layer, x):
        self.runs.append(1)
        return torch.tanh(layer(x))


def twins(reentrant):
    """The same hypernetwork with and without checkpointing."""
    hyper, x, condition = make(Checkpointed(reentrant), rows=3)
    plain, _, _ = make(Checkpointed(None), rows=3)
    plain.load_state_dict(hyper.state_dict())
    return hyper, plain, x.requires_grad_(), condition


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
@pytest.mark.parametrize("rows", ["one", "batch"])
def test_checkpointing(rows):
    hyper, plain, x, condition = twins(reentrant=False)
    given = (x[0], condition[0]) if rows == "one" else (x, condition)
    inputs = [x, condition, *hyper.parameters()]
    got = gradients(hyper(*given), inputs)
    assert len(hyper.primary.runs) == (1 if rows == "one" else 3) * 6  # every step ran twice
    for a, b in zip(
        got, gradients(plain(*given), [x, condition, *plain.parameters()]), strict=True
    ):
        close(a, b, 100)


def test_checkpointing_is_named_in_the_warning():
    hyper, _, x, condition = twins(reentrant=False)
    with pytest.warns(SlowPathWarning, match=r"activation checkpointing .*hyper\.bind"):
        hyper(x, condition)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        hyper(x, condition)  # nothing is computed again: vmap does it


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
@pytest.mark.parametrize("rows", ["one", "batch"])
def test_reentrant_checkpointing_is_refused(rows):
    hyper, plain, x, condition = twins(reentrant=True)
    given = (x[0], condition[0]) if rows == "one" else (x, condition)
    output = hyper(*given)
    close(output, plain(*given), 10)
    with pytest.raises(UnsupportedModuleError, match=r"use_reentrant=False.*hyper\.bind"):
        output.sum().backward()


def test_saved_tensor_hooks_around_a_call_work():
    hyper, x, condition = make(Checkpointed(None))
    want = gradients(hyper(x, condition), [condition])[0]
    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        output = hyper(x, condition)
    assert packed
    close(gradients(output, [condition])[0], want)
    outer = checkpoint(hyper, x, condition, use_reentrant=False)
    close(gradients(outer, [condition])[0], want)


# -- what is left behind --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
def test_shells_with_backward_hooks_die_with_the_graph():
    hyper, x, condition = make(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    shells = []
    hyper.primary[0].register_forward_hook(lambda m, i, o: shells.append(weakref.ref(m)))
    hyper.primary[0].register_full_backward_hook(lambda m, i, o: None)
    output = hyper(x, condition).sum()
    assert len(shells) == 6
    output.backward()
    del output
    gc.collect()
    assert [shell() for shell in shells] == [None] * 6


def test_attention_layers_with_several_names():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.MultiheadAttention(4, 2, batch_first=True)
            self.second = self.first

        def forward(self, x):
            return self.second(*(self.first(x, x, x)[0],) * 3)[0]

    torch.manual_seed(0)
    hyper = wl.HyperNetwork(Twice(), wl.mlp([4, 5], "tanh")).eval()
    x, condition = torch.randn(3, 2, 5, 4), torch.randn(3, 4, requires_grad=True)
    same(hyper, x, condition)


@pytest.mark.parametrize("generate", ["*", "*linear*", "*in_proj_weight"])
def test_transformers_in_evaluation_mode(generate, ways):
    """With gradients no fused path is taken, also where attention itself is not generated."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    hyper = wl.HyperNetwork(encoder, wl.mlp([4, 5], "tanh"), generate=generate).eval()
    x, condition = torch.randn(3, 2, 5, 8), torch.randn(3, 4, requires_grad=True)
    padding = torch.zeros(3, 2, 5, dtype=torch.bool)
    padding[1:, :, 3:] = True
    for named in ({}, {"src_key_padding_mask": padding}):
        got, want = hyper(x, condition, **named), loop(hyper, x, condition, **named)
        close(got, want, 100)
        close(gradients(got, [condition])[0], gradients(want, [condition])[0], 1000)
    assert ways == ["vmapped", "vmapped"]


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_without_gradients_is_zero_as_in_pytorch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    hyper = wl.HyperNetwork(nn.TransformerEncoder(layer, 2), wl.mlp([4, 5], "tanh")).eval()
    x, condition = torch.randn(3, 2, 5, 8), torch.randn(3, 4)
    padding = torch.zeros(3, 2, 5, dtype=torch.bool)
    padding[1:, :, 3:] = True
    with torch.no_grad():
        got = hyper(x, condition, src_key_padding_mask=padding)
        close(got, loop(hyper, x, condition, src_key_padding_mask=padding), 100)
    assert not got[1, :, 3:].any()


def test_names_that_other_parts_import():
    assert any_module.stacked([torch.ones(1), torch.ones(1)]).shape == (2, 1)
    assert RuntimeError in any_module.VMAP_REFUSALS
