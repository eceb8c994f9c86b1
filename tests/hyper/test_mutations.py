"""The primary may be changed between calls in any way: no call answers for what it was before.

The oracle swaps generated weights into the primary as it is now (`tests.oracle.loop`), so it shares
nothing with remembered routes.
"""

import types
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrizations, parametrize

import weightloom as wl
from tests.oracle import close, gradients, loop
from weightloom.errors import UnsupportedModuleError

pytestmark = pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return x * self.scale


class Doubled(nn.ReLU):
    def forward(self, x):
        return 2 * super().forward(x)


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


class Backwards(nn.Sequential):
    def forward(self, x):
        return super().forward(-x)


class Squared(nn.Module):
    def forward(self, x):
        return x.square()


def fully_connected():
    return nn.Sequential(
        nn.Linear(6, 8, bias=False),
        nn.ReLU(),
        nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.1), nn.Dropout(0.0)),
        nn.GELU(),
        nn.Linear(8, 3),
    )


def mixed():
    """Layers that no route repeats: a convolution, a norm, an ordinary weight, a buffer."""
    return nn.Sequential(
        nn.Conv1d(6, 4, 3, padding=1), nn.LayerNorm(5), nn.ReLU(), Scaled(), nn.Linear(5, 5),
        nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


def own(module, function):
    """Give one instance a forward of its own."""
    module.forward = types.MethodType(function, module)


def other_primary(hyper):
    other = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Sequential(nn.Linear(8, 8)), nn.Sigmoid(),
        nn.Linear(8, 3),
    )  # fmt: skip
    hyper.primary = other


def replaced_hooks(hyper):
    """A dictionary of hooks that is not the one of before."""
    layer = hyper.primary[0]
    layer._forward_hooks = OrderedDict()
    layer.register_forward_hook(lambda module, given, output: output + 1)


def shuffled(hyper):
    children = list(hyper.primary._modules.values())
    children[1], children[3] = children[3], children[1]
    for name, child in zip(list(hyper.primary._modules), children, strict=True):
        hyper.primary._modules[name] = child


CHAIN = {
    "another primary": other_primary,
    "bias of a layer without": lambda h: setattr(h.primary[0], "bias", nn.Parameter(torch.ones(8))),
    "bias as a plain tensor": lambda h: (
        h.primary[0]._parameters.pop("bias"), setattr(h.primary[0], "bias", torch.ones(8).double())
    ),
    "class of an activation": lambda h: setattr(h.primary[1], "__class__", Doubled),
    "class of a linear layer": lambda h: setattr(h.primary[4], "__class__", Halved),
    "class of the container": lambda h: setattr(h.primary, "__class__", Backwards),
    "class of an inner container": lambda h: setattr(h.primary[2], "__class__", Backwards),
    "an activation": lambda h: h.primary.__setitem__(1, nn.Tanh()),
    "an inner activation": lambda h: h.primary[2].__setitem__(1, Squared()),
    "order of layers": shuffled,
    "another layer behind": lambda h: h.primary.append(nn.Sigmoid()),
    "another layer inside": lambda h: h.primary[2].append(nn.Softplus()),
    "one layer less": lambda h: h.primary[2].__delitem__(1),
    "forward of an activation": lambda h: own(h.primary[1], lambda self, x: x.abs() + 1),
    "forward of a linear layer": lambda h: own(
        h.primary[4], lambda self, x: F.linear(x, self.weight.abs(), self.bias)
    ),
    "forward of the container": lambda h: own(h.primary, lambda self, x: self[4](self[0](x))),
    "forward hook": lambda h: h.primary[0].register_forward_hook(lambda m, i, o: 2 * o),
    "forward hook with keywords": lambda h: h.primary[1].register_forward_hook(
        lambda m, i, k, o: o + 1, with_kwargs=True
    ),
    "forward hook that is always called": lambda h: h.primary[3].register_forward_hook(
        lambda m, i, o: o - 1, always_call=True
    ),
    "forward pre-hook": lambda h: h.primary[4].register_forward_pre_hook(lambda m, i: i[0] + 1),
    "forward pre-hook with keywords": lambda h: h.primary[2].register_forward_pre_hook(
        lambda m, i, k: ((3 * i[0],), k), with_kwargs=True
    ),
    "hook of the container": lambda h: h.primary.register_forward_hook(lambda m, i, o: o.exp()),
    "dictionary of hooks": replaced_hooks,
    "slope": lambda h: setattr(h.primary[2][1], "negative_slope", 0.7),
    "approximation": lambda h: setattr(h.primary[3], "approximate", "tanh"),
    "dropout": lambda h: setattr(h.primary[2][2], "p", 1.0),
    "type of numbers": lambda h: h.float(),
}  # fmt: skip


MIXED = {
    "stride": lambda h: (
        setattr(h.primary[0], "stride", (2,)), setattr(h.primary[0], "padding", (3,))
    ),
    "dilation": lambda h: (
        setattr(h.primary[0], "dilation", (2,)), setattr(h.primary[0], "padding", (2,))
    ),
    "padding mode": lambda h: (
        setattr(h.primary[0], "padding_mode", "circular"),
        setattr(h.primary[0], "_reversed_padding_repeated_twice", [1, 1]),
    ),
    "eps": lambda h: setattr(h.primary[1], "eps", 1.0),
    "buffer": lambda h: setattr(h.primary[3], "scale", torch.tensor(5.0)),
    "buffer in place": lambda h: h.primary[3].scale.fill_(7.0),
    "ordinary weight": lambda h: setattr(h.primary[4], "weight", nn.Parameter(torch.eye(5))),
    "ordinary weight in place": lambda h: h.primary[4].weight.data.mul_(3),
    "ordinary bias removed": lambda h: setattr(h.primary[4], "bias", None),
    "parametrization": lambda h: parametrize.register_parametrization(
        h.primary[4], "weight", Squared()
    ),
    "weight norm, then another length": lambda h: (
        parametrizations.weight_norm(h.primary[4]),
        h.primary[4].parametrizations.weight.original0.data.mul_(2),
    ),
    "flatten": lambda h: own(h.primary[5], lambda self, x: 2 * x.flatten(-2)),
    "hook of the convolution": lambda h: h.primary[0].register_forward_hook(
        lambda m, i, o: o.square()
    ),
    "class of the convolution": lambda h: setattr(
        h.primary[0], "__class__", type("Wide", (nn.Conv1d,), {"forward": wide})
    ),
}  # fmt: skip


def wide(self, x):
    return nn.Conv1d.forward(self, x).square()


def make(primary, generate="*"):
    torch.manual_seed(0)
    return wl.HyperNetwork(primary, wl.mlp([3, 4], "tanh"), generate=generate).double()


def warm(hyper, x, condition):
    """Every kind of call, twice: the second takes what the first remembered."""
    for _ in range(2):
        hyper(x, condition)
        hyper(x[0], condition[0])
        hyper.bind(condition[:1])
        with torch.no_grad():
            before = hyper(x, condition)
    return before


def answers_for_now(hyper, x, condition):
    """Outputs and gradients are those of the primary as it is now; the output is returned."""
    want = loop(hyper, x, condition)
    for _ in range(2):
        got = hyper(x, condition)
        close(got, want, 10)
        close(gradients(got, [condition])[0], gradients(want, [condition])[0], 100)
        want = loop(hyper, x, condition)
    with torch.no_grad():
        close(hyper(x, condition), want.detach(), 10)
    close(hyper(x[0], condition[0]), want[0], 10)
    return want.detach()


def changed(before, after):
    return before.shape != after.shape or not torch.allclose(before.to(after), after, 1e-3, 1e-3)


@pytest.mark.parametrize("points", [None, 4])
@pytest.mark.parametrize("what", CHAIN)
def test_a_chain_of_layers(what, points):
    hyper = make(fully_connected())
    shape = (5, 6) if points is None else (5, points, 6)
    x = torch.randn(shape, dtype=torch.float64)
    condition = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    before = warm(hyper, x, condition)
    torch.manual_seed(1)
    CHAIN[what](hyper)
    if what == "type of numbers":
        x, condition = x.float(), condition.detach().float().requires_grad_()
    else:
        hyper.double()
    after = answers_for_now(hyper, x, condition)
    assert changed(before, after) or what in ("approximation", "type of numbers")


@pytest.mark.parametrize("what", MIXED)
def test_other_layers(what):
    hyper = make(mixed(), generate=["0.*", "1.*", "6.*"])
    x = torch.randn(4, 2, 6, 5, dtype=torch.float64)
    condition = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    before = warm(hyper, x, condition)
    MIXED[what](hyper)
    hyper.double()
    assert changed(before, answers_for_now(hyper, x, condition))


def sequential(**layers):
    return OrderedDict(layers)


def test_layers_under_other_names():
    hyper = make(nn.Sequential(sequential(a=nn.Linear(4, 4), b=nn.Tanh(), c=nn.Linear(4, 4))))
    x, condition = torch.randn(3, 4).double(), torch.randn(3, 3).double().requires_grad_()
    before = warm(hyper, x, condition)
    layers = hyper.primary._modules
    layers["a"], layers["b"], layers["c"] = layers["c"], layers["b"], layers["a"]
    close(answers_for_now(hyper, x, condition), before)  # weights follow names, not modules
    hyper.primary._modules = sequential(c=layers["a"], b=layers["b"], a=layers["c"])
    assert changed(before, answers_for_now(hyper, x, condition))


def test_back_again():
    """What was remembered before a change is right again when the change is undone."""
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    before = warm(hyper, x, condition)
    relu = hyper.primary[1]
    hyper.primary[1] = nn.Tanh()
    assert changed(before, answers_for_now(hyper, x, condition))
    hyper.primary[1] = relu
    close(answers_for_now(hyper, x, condition), before)
    relu.forward = torch.exp
    assert changed(before, answers_for_now(hyper, x, condition))
    del relu.forward
    close(answers_for_now(hyper, x, condition), before)


@pytest.mark.parametrize("kind", [nn.Linear, nn.ReLU, nn.Sequential, nn.LeakyReLU, nn.Dropout])
def test_the_forward_of_a_class(kind, monkeypatch):
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    before = warm(hyper, x, condition)
    original = kind.forward
    with monkeypatch.context() as patch:
        patch.setattr(kind, "forward", lambda self, x: 2 * original(self, x) + 1)
        want = torch.stack([hyper.materialize(c)(row) for c, row in zip(condition, x, strict=True)])
        weights = hyper.weights(condition)
        got = hyper.run(x, weights)
        close(got, want, 10)
        assert changed(before, want)
    close(hyper(x, condition), before)


def test_training_mode_and_dropout():
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    hyper.primary[2][2].p = 1.0
    before = warm(hyper, x, condition)
    hyper.eval()
    assert changed(before, answers_for_now(hyper, x, condition))
    hyper.primary[2][2].train()
    close(answers_for_now(hyper, x, condition), before)


def test_what_is_learned():
    hyper = make(fully_connected(), generate=["0.*", "2.*", "4.weight"])
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    warm(hyper, x, condition)
    bias = hyper.primary[4].bias
    for wanted in (False, True):
        bias.requires_grad_(wanted)
        got = gradients(hyper(x, condition), [condition, bias][: 1 + wanted])
        want = gradients(loop(hyper, x, condition), [condition, bias][: 1 + wanted])
        for a, b in zip(got, want, strict=True):
            close(a, b, 100)
    for parameter in hyper.parameters():
        parameter.requires_grad_(False)
    answers_for_now(hyper, x, condition)
    x.requires_grad_()
    close(gradients(hyper(x, condition), [x])[0], gradients(loop(hyper, x, condition), [x])[0], 100)


@pytest.mark.parametrize("names", ["4", "2.0"])
def test_a_generated_layer_that_is_gone(names):
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double()
    warm(hyper, x, condition)
    owner, _, child = names.rpartition(".")
    del hyper.primary.get_submodule(owner)._modules[child]
    message = rf"'{names}\.weight'.*no module '{names}'.*build the HyperNetwork anew"
    for call in (lambda: hyper(x, condition), lambda: hyper(x[0], condition[0])):
        with pytest.raises(UnsupportedModuleError, match=message):
            call()


def test_a_generated_layer_without_that_parameter():
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double()
    warm(hyper, x, condition)
    hyper.primary[2][0] = nn.Identity()
    message = r"'2\.0\.weight'.*Identity, has no parameter 'weight'.*build the HyperNetwork anew"
    for call in (lambda: hyper(x, condition), lambda: hyper(x[0], condition[0])):
        with pytest.raises(UnsupportedModuleError, match=message):
            call()


# -- hooks that see gradients, and hooks of all modules -------------------------------------------


def backward_hook(module, grads_in, grads_out):
    return tuple(None if g is None else 3 * g for g in grads_in)


BACKWARD = {
    "full backward hook": lambda m: m.register_full_backward_hook(backward_hook),
    "full backward pre-hook": lambda m: m.register_full_backward_pre_hook(
        lambda module, grads: tuple(2 * g for g in grads)
    ),
}


@pytest.mark.parametrize("where", ["", "0", "2", "2.1", "4"])
@pytest.mark.parametrize("kind", BACKWARD)
def test_backward_hooks(kind, where):
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    x.requires_grad_()
    warm(hyper, x, condition)
    plain = gradients(hyper(x, condition), [x])[0]
    handle = BACKWARD[kind](hyper.primary.get_submodule(where))
    got = gradients(hyper(x, condition), [x, condition])
    for a, b in zip(got, gradients(loop(hyper, x, condition), [x, condition]), strict=True):
        close(a, b, 100)
    assert changed(plain, got[0])
    single = gradients(hyper(x[0], condition[0]), [x])[0]
    close(single[0], gradients(loop(hyper, x[:1], condition[:1])[0], [x])[0][0], 100)
    handle.remove()
    close(gradients(hyper(x, condition), [x])[0], plain, 100)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_the_old_backward_hook_is_called():
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double()
    warm(hyper, x, condition)
    seen = []
    hyper.primary[4].register_backward_hook(lambda m, i, o: seen.append(type(m)))
    hyper(x, condition).sum().backward()
    assert seen == [nn.Linear] * 5


GLOBAL = {
    "forward hook": lambda: hooks.register_module_forward_hook(
        lambda m, i, o: 2 * o if isinstance(m, nn.ReLU) else None
    ),
    "forward pre-hook": lambda: hooks.register_module_forward_pre_hook(
        lambda m, i: (i[0] + 1,) if isinstance(m, nn.LeakyReLU) else None
    ),
    "backward hook": lambda: hooks.register_module_full_backward_hook(
        lambda m, i, o: backward_hook(m, i, o) if isinstance(m, nn.GELU) else None
    ),
    "backward pre-hook": lambda: hooks.register_module_full_backward_pre_hook(
        lambda m, o: (2 * o[0],) if isinstance(m, nn.ReLU) else None
    ),
}


@pytest.mark.parametrize("kind", GLOBAL)
def test_hooks_of_all_modules(kind):
    hyper = make(fully_connected())
    x, condition = torch.randn(5, 6).double(), torch.randn(5, 3).double().requires_grad_()
    x.requires_grad_()
    warm(hyper, x, condition)
    weights = {name: value.detach() for name, value in hyper.weights(condition).items()}
    networks = [hyper.materialize(c) for c in condition]

    def both():
        got = hyper.run(x, weights)
        want = torch.stack([net(row) for net, row in zip(networks, x, strict=True)])
        return (got, *gradients(got, [x])), (want, *gradients(want, [x]))

    plain, _ = both()
    handle = GLOBAL[kind]()
    try:
        got, want = both()
    finally:
        handle.remove()
    for a, b in zip(got, want, strict=True):
        close(a, b, 100)
    assert changed(plain[1], got[1])
    close(both()[0][1], plain[1])
