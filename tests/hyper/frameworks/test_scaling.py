"""Scaled features: half precision, autocast, compilers, ONNX and derivatives."""

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.func import functional_call, jacfwd, jacrev, jvp, stack_module_state, vmap

import weightloom as wl
from tests.oracle import close, loop
from weightloom.hyper.start import FixedScaling, Normalisation
from weightloom.training import Member, Settings, Split, train

KINDS = {"centred": Normalisation, "not centred": Normalisation, "fixed": FixedScaling}
kinds = pytest.mark.parametrize("kind", KINDS)


def build(kind, dtype=torch.float32, seed=0):
    """One for each kind of scaling, moved away from its start."""
    torch.manual_seed(seed)
    head = wl.DeltaHead(rank=2) if kind == "not centred" else "full"
    encoder = wl.mlp([5, 5 if kind == "fixed" else 12], "tanh")
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2], "tanh"), encoder, head)
    assert isinstance(hyper.scaling, KINDS[kind])
    assert getattr(hyper.scaling, "centred", None) == {"centred": True, "not centred": False}.get(
        kind
    )
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return hyper.to(dtype)


def given(rows, dtype=torch.float32, points=4):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, points, 3, generator=generator, dtype=torch.float64)
    condition = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return x.to(dtype), condition.to(dtype)


def by_hand(features, scaling):
    """The definition, in double precision."""
    features = features.double()
    if isinstance(scaling, FixedScaling):
        return features * scaling.factor.double()
    if scaling.centred:
        features = features - features.mean(-1, keepdim=True)
    size = scaling.normalised[0].double()
    return size * features / features.square().mean(-1, keepdim=True).sqrt()


@kinds
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_features_of_every_size(kind, scale):
    """In single precision squares of these would be 0 or infinite."""
    hyper = build(kind)
    features = scale * torch.randn(6, hyper.head.features)
    got, want = hyper.scaled(features).double(), by_hand(features, hyper.scaling)
    assert ((got - want).abs() <= 1e-5 * want.abs().max()).all()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_features_that_are_all_equal(value):
    """Nothing to tell conditions apart by: zeros, not rounding errors made large, and not NaN."""
    hyper = build("centred", seed=1)
    features = torch.full((2, hyper.head.features), value, requires_grad=True)
    scaled = hyper.scaled(features)
    assert torch.equal(scaled, torch.zeros_like(scaled))
    scaled.sum().backward()
    assert bool(features.grad.isfinite().all())


# -- half precision ------------------------------------------------------------------------------

# One rounding to eight bits in the features, one in the result of the norm.
ROUNDED = {torch.bfloat16: 2**-7, torch.float16: 2**-9}


@kinds
@pytest.mark.parametrize("dtype", ROUNDED)
def test_features_in_half_precision(kind, dtype):
    hyper = build(kind)
    features = torch.randn(6, hyper.head.features).to(dtype)
    got, want = hyper.scaled(features), by_hand(features, hyper.scaling)
    assert got.dtype == dtype
    assert (got - want).abs().max() <= 2 * ROUNDED[dtype] * want.abs().max()


class Half(nn.Module):
    """A frozen encoder in bfloat16, such as a language model."""

    def __init__(self, encoder):
        super().__init__()
        self.inner = encoder.bfloat16().requires_grad_(False)

    def forward(self, condition):
        return self.inner(condition.bfloat16())


@pytest.mark.parametrize("head", [wl.DeltaHead(2), wl.AdapterHead(2, 8)])
def test_an_encoder_in_half_precision_and_a_head_in_single(head):
    torch.manual_seed(0)
    encoder = Half(wl.mlp([5, 12], "tanh"))
    x, condition = given(4)
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), encoder, head, calibration=condition)
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    assert isinstance(hyper.scaling, Normalisation)
    assert hyper.scaling.normalised.dtype == torch.float32
    features = hyper._encode(condition)[0]
    assert features.dtype == torch.bfloat16
    # The norm is computed in single precision: only the features are rounded.
    scaled = hyper.scaled(features.float())
    close(scaled.double(), by_hand(features, hyper.scaling), 1e9)
    want = hyper.head.generate(scaled)
    for name, change in hyper._changes(features).items():
        assert torch.equal(change.dense(), want[name].dense())
    close(hyper(x, condition), loop(hyper, x, condition), 10)


@kinds
def test_autocast(kind):
    hyper = build(kind)
    x, condition = given(4)
    want = hyper(x, condition)
    with torch.autocast("cpu", torch.bfloat16):
        got = hyper(x, condition)
        loss = hyper(x, condition).float().square().mean()
    # bfloat16 has 8 bits: each of a handful of layers may lose one part in 2^8.
    assert (got.float() - want).abs().max() < 0.1 * want.abs().max()
    loss.backward()
    grads = [p.grad for p in hyper.parameters() if p.requires_grad]
    assert all(bool(grad.isfinite().all()) for grad in grads)


# -- compilers -----------------------------------------------------------------------------------


@kinds
def test_compile(kind):
    torch._dynamo.reset()
    hyper = build(kind)
    model = torch.compile(hyper, fullgraph=True, backend="aot_eager")
    for rows in (3, 5):
        x, condition = given(rows)
        got, want = model(x, condition), loop(hyper, x, condition)
        close(got, want, 10)
        parameters = [p for p in hyper.parameters() if p.requires_grad]
        grads = (torch.autograd.grad(y.square().mean(), parameters) for y in (got, want))
        for a, b in zip(*grads, strict=True):
            close(a, b, 50)
    torch._dynamo.reset()


@kinds
def test_export(kind):
    hyper = build(kind)
    rows, points = Dim("rows", min=2), Dim("points", min=2)
    x, condition = given(3)
    program = torch.export.export(
        hyper,
        (x,),
        {"condition": condition},
        dynamic_shapes={"args": ({0: rows, 1: points},), "condition": {0: rows}},
    )
    for number in (2, 5, 33):
        x, condition = given(number, points=number + 1)
        close(program.module()(x, condition=condition), loop(hyper, x, condition), 10)


@kinds
def test_onnx(kind, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    hyper = build(kind)
    wl.export(hyper, tmp_path / "hyper.onnx", *given(3))
    session = runtime.InferenceSession(str(tmp_path / "hyper.onnx"))
    names = [value.name for value in session.get_inputs()]
    for rows in (2, 5):
        x, condition = given(rows)
        fed = dict(zip(names, (x.numpy(), condition.numpy()), strict=True))
        close(torch.tensor(session.run(None, fed)[0]), loop(hyper, x, condition).detach(), 10)


# -- derivatives and ensembles -------------------------------------------------------------------


@kinds
def test_derivatives(kind):
    """Of first and second order, forward and reverse, against finite differences."""
    hyper = build(kind, torch.float64)
    x, condition = given(2, torch.float64, points=1)

    def function(condition):
        return hyper(x, condition)

    assert torch.autograd.gradcheck(function, condition.requires_grad_(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, condition)
    close(jacfwd(function)(condition), jacrev(function)(condition))
    along = torch.randn(2, 5, dtype=torch.float64)
    step = 1e-6
    slope = (function(condition + step * along) - function(condition - step * along)) / (2 * step)
    got = jvp(function, (condition,), (along,))[1]
    assert (got - slope).abs().max() <= 1e-7 * got.abs().max()
    assert got.abs().max() > 0.01


@kinds
def test_vmap(kind):
    hyper = build(kind, torch.float64)
    x, condition = given(3, torch.float64)
    several = torch.stack([condition, condition.flip(0), condition + 1])
    got = vmap(lambda c: hyper(x, c))(several)
    close(got, torch.stack([loop(hyper, x, c) for c in several]))
    close(
        vmap(lambda c: hyper(x[0], c))(condition), torch.stack([hyper(x[0], c) for c in condition])
    )


@pytest.mark.parametrize("kind", ["centred", "fixed"])
def test_an_ensemble_of_models(kind):
    """Buffers that scale have one row for each model."""
    models = [build(kind, torch.float64, seed) for seed in range(3)]
    parameters, buffers = stack_module_state(models)
    x, condition = given(3, torch.float64)
    got = vmap(lambda p, b: functional_call(models[0], (p, b), (x, condition)))(parameters, buffers)
    close(got, torch.stack([loop(model, x, condition) for model in models]))


@pytest.mark.parametrize("kind", ["centred", "fixed"])
def test_members_that_are_trained_at_once(kind):
    """The engine stacks models; three together are three alone."""
    x, condition = given(40, torch.float64, points=1)
    split = Split((x[:, 0], condition), x[:, 0, :2] * condition[:, :2])
    together = [build(kind, torch.float64, seed) for seed in range(3)]
    settings = Settings(epochs=3, batch_size=16, optimiser="adam", learning_rate=0.01)
    train([Member(model, split) for model in together], settings)
    for seed, model in enumerate(together):
        alone = build(kind, torch.float64, seed)
        train([Member(alone, split)], settings)
        for a, b in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
