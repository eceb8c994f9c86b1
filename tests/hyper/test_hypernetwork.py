"""HyperNetwork over every kind of primary, against the plain loop over conditions."""

import copy
import gc
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.hyper.zoo import ZOO, make
from tests.oracle import close, gradients, loop
from weightloom.errors import SlowPathWarning


def quietly(hyper, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SlowPathWarning has tests of its own
        return hyper(*args, **kwargs)


@pytest.mark.parametrize("name", ZOO)
def test_every_row_has_its_own_weights(name):
    hyper, x, condition = make(name)
    hyper.eval()
    if x.is_floating_point():
        x.requires_grad_()
    condition.requires_grad_()
    got, want = quietly(hyper, x, condition), loop(hyper, x, condition)
    close(*((got[0], want[0]) if isinstance(got, tuple) else (got, want)))
    inputs = [condition, *hyper.parameters()] + ([x] if x.is_floating_point() else [])
    for a, b in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
        close(a, b, 10)


@pytest.mark.parametrize("name", ZOO)
def test_training_mode_gives_the_same(name):
    hyper, x, condition = make(name)
    hyper.train()
    want = loop(copy.deepcopy(hyper), x, condition)
    got = quietly(hyper, x, condition)
    close(*((got[0], want[0]) if isinstance(got, tuple) else (got, want)))


@pytest.mark.parametrize("name", ZOO)
def test_materialize_is_an_ordinary_network(name):
    hyper, x, condition = make(name)
    hyper.eval()
    network = hyper.materialize(condition[1])
    assert type(network) is type(hyper.primary)
    want = loop(hyper, x, condition)
    got = network(x[1])
    close(*((got[0], want[0][1]) if isinstance(got, tuple) else (got, want[1])))
    assert all(parameter.is_leaf for parameter in network.parameters())
    original = dict(ZOO[name].build().named_parameters())
    assert {n: p.shape for n, p in network.named_parameters()} == {
        n: p.shape for n, p in original.items()
    }


def test_materialize_holds_no_reference_to_the_hypernetwork():
    hyper, x, condition = make("mlp")
    network = hyper.materialize(condition[0])
    state = network.state_dict()
    before = network(x[0])
    with torch.no_grad():
        for parameter in hyper.parameters():
            parameter.zero_()
    del hyper
    gc.collect()
    torch.testing.assert_close(network(x[0]), before, rtol=0, atol=0)
    fresh = wl.mlp([3, 8, 8, 2]).double()
    fresh.load_state_dict(state)
    torch.testing.assert_close(fresh(x[0]), before, rtol=0, atol=0)
    pickle.loads(pickle.dumps(network))


def test_single_condition_takes_any_x():
    hyper, _, condition = make("mlp")
    for shape in [(3,), (11, 3), (2, 5, 3)]:
        x = torch.randn(shape, dtype=torch.float64)
        close(hyper(x, condition[1]), hyper.materialize(condition[1])(x))


def test_one_row_is_not_squeezed():
    hyper, x, condition = make("mlp", b=1)
    assert hyper(x, condition).shape == (1, 7, 2)
    assert hyper.weights(condition)["0.weight"].shape == (1, 8, 3)
    assert hyper.weights(condition[0])["0.weight"].shape == (8, 3)


def test_no_rows_at_all():
    hyper, x, condition = make("mlp")
    assert hyper(x[:0], condition[:0]).shape == (0, 7, 2)


def test_run_uses_weights_written_before():
    hyper, x, condition = make("mlp")
    weights = hyper.weights(condition)
    close(hyper.run(x, weights), hyper(x, condition))
    single = hyper.weights(condition[0])
    close(hyper.run(x[0], single), hyper(x, condition)[0])


def test_tied_parameters_are_generated_once():
    hyper, _, condition = make("tied")
    assert list(hyper.spec) == ["encode.weight", "encode.bias", "decode.bias"]
    assert dict(hyper.spec.aliases) == {"decode.weight": "encode.weight"}
    network = hyper.materialize(condition[0])
    assert network.decode.weight is network.encode.weight


@pytest.mark.parametrize("name", ["tied", "tied sequential", "custom forward", "attention"])
def test_the_primary_keeps_nothing_of_a_call(name):
    hyper, x, condition = make(name)
    hyper(x, condition)
    hyper(x[0], condition[0])
    assert not list(hyper.primary.parameters())


def test_the_rest_is_learned_or_frozen():
    hyper, _, _ = make("only the last layer")
    assert [n for n, _ in hyper.primary.named_parameters()] == ["0.weight", "0.bias"]
    assert all(p.requires_grad for p in hyper.primary.parameters())
    frozen, x, condition = make("only the last layer", freeze_rest=True)
    assert not any(p.requires_grad for p in frozen.primary.parameters())
    frozen(x, condition).sum().backward()
    assert all(p.grad is None for p in frozen.primary.parameters())


def test_the_given_primary_is_left_alone():
    primary = wl.mlp([3, 8, 2])
    before = copy.deepcopy(primary.state_dict())
    hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]))
    torch.optim.SGD(hyper.parameters(), 1.0).step()
    for name, value in primary.state_dict().items():
        assert torch.equal(value, before[name])


# -- slow paths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if case.slow])
def test_slow_paths_warn_once(name):
    hyper, x, condition = make(name)
    with pytest.warns(SlowPathWarning, match="slow loop over 3 conditions"):
        hyper(x, condition)
    hyper(x, condition)  # a second warning would be an error here
    assert any(d.order == "loop" for d in quietly_plan(name).decisions)


def quietly_plan(name):
    hyper, x, condition = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hyper.plan(x, condition)


def test_slow_path_names_the_operation():
    hyper, x, condition = make("GRU")
    with pytest.warns(SlowPathWarning, match="GRU"):
        hyper(x, condition)
    hyper, x, condition = make("branch on value")
    with pytest.warns(SlowPathWarning, match=r"item\(\)"):
        hyper(x, condition)


def test_recurrent_layers_keep_nothing_of_a_call():
    hyper, x, condition = make("LSTM inside")
    out = quietly(hyper, x, condition)[0]
    copy.deepcopy(hyper)  # would fail on tensors that are part of a graph
    assert out.grad_fn is not None


# -- norms, dropout, arguments ------------------------------------------------------------------


class NormInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8, momentum=0.3)

    def forward(self, x):
        return self.norm(self.lift(x))


@pytest.mark.parametrize("build", [
    NormInside, lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=0.3)),
])  # fmt: skip
def test_batch_norm_statistics_move_to_the_average_over_conditions(build):
    hyper = wl.HyperNetwork(build(), wl.mlp([4, 6])).double().train()
    x, condition = torch.randn(3, 10, 3).double(), torch.randn(3, 4).double()
    alone = []
    for i in range(3):
        network = hyper.materialize(condition[i]).train()
        network(x[i])
        alone.append(dict(network.named_buffers()))
    hyper(x, condition)
    for name, buffer in hyper.primary.named_buffers():
        if buffer.is_floating_point():
            close(buffer, torch.stack([row[name] for row in alone]).mean(0))
        else:
            assert buffer.item() == 1
    hyper.eval()
    before = {n: b.clone() for n, b in hyper.primary.named_buffers()}
    close(hyper(x, condition), loop(hyper, x, condition))
    assert all(torch.equal(b, before[n]) for n, b in hyper.primary.named_buffers())


@pytest.mark.parametrize("wrap", [lambda layer: nn.Sequential(layer), lambda layer: Wrapped(layer)])
def test_dropout_differs_between_conditions_and_samples(wrap):
    hyper = wl.HyperNetwork(nn.Sequential(nn.Linear(1, 64), wrap(nn.Dropout(0.5))), wl.mlp([4, 6]))
    x, condition = torch.ones(2, 2, 1), torch.randn(1, 4).expand(2, 4)
    masks = hyper(x, condition) == 0
    rows = [masks[i, j] for i in range(2) for j in range(2)]
    for i in range(4):
        for j in range(i):
            assert not torch.equal(rows[i], rows[j])
    hyper.eval()
    assert torch.equal(hyper(x, condition)[0], hyper(x, condition)[0])


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Arguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, gate, *, shift=None, mode="add", options=None):
        y = self.layer(x) * gate
        if shift is not None:
            y = y + shift if mode == "add" else y - shift
        return {"y": y, "scale": options["scale"] * y, "note": mode}


def test_keyword_and_other_arguments():
    hyper = wl.HyperNetwork(Arguments(), wl.mlp([4, 6])).double()
    x, gate = torch.randn(2, 5, 3).double(), torch.randn(2, 5, 1).double()
    shift, condition = torch.randn(3).double(), torch.randn(2, 4).double()
    options = {"shift": wl.shared(shift), "mode": "sub", "options": {"scale": 3.0}}
    got = hyper(x, condition, gate, **options)
    assert got["note"] == "sub"
    for i in range(2):
        network = hyper.materialize(condition[i])
        want = network(x[i], gate[i], shift=shift, mode="sub", options={"scale": 3.0})
        close(got["y"][i], want["y"])
        close(got["scale"][i], want["scale"])
    single = hyper(x[0], condition[0], gate[0], **options)
    close(single["y"], got["y"][0])


def test_outputs_that_are_not_tensors():
    hyper = wl.HyperNetwork(nn.MultiheadAttention(8, 2, batch_first=True), wl.mlp([4, 6]))
    x, condition = torch.randn(2, 1, 5, 8), torch.randn(2, 4)
    out, weights = hyper(x, condition, x, x, need_weights=False)
    assert weights is None
    network = hyper.materialize(condition[1])
    close(out[1], network(x[1], x[1], x[1], need_weights=False)[0], 10)


def test_a_scripted_part_that_is_not_generated():
    primary = nn.Sequential(
        nn.Linear(3, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    )
    hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]), generate="0.*")
    x, condition = torch.randn(2, 5, 3), torch.randn(2, 4)
    want = torch.stack([hyper.materialize(c)(row) for c, row in zip(condition, x, strict=True)])
    close(hyper(x, condition), want)


def test_hooks_of_the_primary_are_called():
    primary = wl.mlp([3, 4, 1])
    seen = []
    primary[0].register_forward_hook(lambda *_: seen.append(1))
    hyper = wl.HyperNetwork(primary, wl.mlp([4, 6]))
    hyper(torch.randn(2, 5, 3), torch.randn(2, 4))
    assert seen


# -- conditions ---------------------------------------------------------------------------------


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, image):
        return self.conv(image).mean((-2, -1))


@pytest.mark.parametrize(
    ("encoder", "condition", "options"),
    [
        (wl.mlp([4, 6]), torch.randn(3, 4), {}),
        (nn.Embedding(5, 6), torch.tensor([0, 4, 4]), {}),
        (Features(), torch.randn(3, 1, 6, 6), {"features": 3}),
        (Features(), torch.randn(3, 1, 6, 6), {"calibration": torch.randn(8, 1, 6, 6)}),
        (wl.mlp([36, 6]).insert(0, nn.Flatten()), torch.randn(3, 6, 6), {"condition_dims": 2}),
        (wl.SetEncoder(wl.mlp([2, 6])), torch.randn(3, 7, 2), {}),
        (nn.Sequential(wl.SetEncoder(wl.mlp([2, 6])), wl.mlp([6, 6])), torch.randn(3, 7, 2), {}),
        (None, torch.randn(3, 6), {"features": 6}),
    ],
    ids=["vectors", "task ids", "images", "images, calibrated", "flattened", "sets", "sets, mixed",
         "features"],
)  # fmt: skip
def test_kinds_of_conditions(encoder, condition, options):
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), encoder, **options)
    x = torch.randn(3, 5, 3)
    got = hyper(x, condition)
    close(got, loop(hyper, x, condition))
    close(hyper(x[1], condition[1]), got[1], 10)
    assert not torch.allclose(hyper(x, condition)[0], hyper(x, condition.roll(1, 0))[0])


def test_the_order_of_a_set_does_not_matter():
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.SetEncoder(wl.mlp([2, 6]))).double()
    x, condition = torch.randn(2, 5, 3).double(), torch.randn(2, 7, 2).double()
    close(hyper(x, condition), hyper(x, condition.flip(1)))


# -- second derivatives, copies, files ----------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "mlp one point", "conv2d 1x1", "custom forward"])
@pytest.mark.parametrize("order", ["write", "contract"])
def test_gradgradcheck(name, order):
    hyper, x, condition = make(name, b=2, init="primary")
    x = x[..., :40] if x.dim() == 2 else x
    hyper.order = order
    smooth = dict(hyper.encoder.named_parameters())

    def f(x, condition, *encoder):
        state = dict(zip([f"encoder.{n}" for n in smooth], encoder, strict=True))
        return torch.func.functional_call(hyper, state, (x, condition))

    inputs = (x.requires_grad_(), condition.requires_grad_(), *smooth.values())
    assert torch.autograd.gradcheck(f, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True)


def test_copies_and_state_dicts():
    hyper, x, condition = make("conv2d")
    want = hyper(x, condition)
    for other in (copy.deepcopy(hyper), pickle.loads(pickle.dumps(hyper))):
        assert torch.equal(other(x, condition), want)
    buffer = io.BytesIO()
    torch.save(hyper.state_dict(), buffer)
    buffer.seek(0)
    fresh, _, _ = make("conv2d")
    torch.manual_seed(5)
    for parameter in fresh.parameters():
        nn.init.normal_(parameter)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(fresh(x, condition), want)


def test_state_dict_holds_only_what_is_learned():
    hyper, _, _ = make("mlp")
    assert not any(name.startswith("primary") for name in hyper.state_dict())


def test_device_and_dtype_arguments():
    hyper = wl.HyperNetwork(wl.mlp([3, 2]), wl.mlp([4, 6]), device="meta", dtype=torch.float64)
    assert {p.device.type for p in hyper.parameters()} == {"meta"}
    assert {p.dtype for p in hyper.parameters()} == {torch.float64}
    out = hyper(
        torch.empty(2, 5, 3, device="meta", dtype=torch.float64),
        torch.empty(2, 4, device="meta", dtype=torch.float64),
    )
    assert out.shape == (2, 5, 2)


def test_inside_a_larger_module():
    class Larger(nn.Module):
        def __init__(self):
            super().__init__()
            self.hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6]))
            self.out = nn.Linear(2, 1)

        def forward(self, x, condition):
            return self.out(self.hyper(x, condition))

    model = Larger()
    x, condition = torch.randn(4, 5, 3), torch.randn(4, 4)
    model(x, condition).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    other = Larger()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, condition), model(x, condition))


def test_transforms_of_a_hypernetwork():
    """vmap, grad and jacrev over the whole model, as empirical kernels need them."""
    hyper, x, condition = make("mlp one point")
    state = {name: p.detach() for name, p in hyper.named_parameters()}

    def output(state, x, condition):
        return torch.func.functional_call(hyper, state, (x[None], condition[None]))[0, 0]

    rows = torch.vmap(torch.func.grad(output), (None, 0, 0))(state, x, condition)
    for i in range(3):
        want = torch.autograd.grad(
            hyper(x[i : i + 1], condition[i : i + 1]).sum(), list(hyper.parameters())
        )
        for (name, _), grad in zip(hyper.named_parameters(), want, strict=True):
            close(rows[name][i], grad, 10)
