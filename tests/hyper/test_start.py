"""Initialisation: second moments through the depth, and training that used to explode."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import HeadError, NonFiniteWeightsError
from weightloom.hyper.encoders import feature_statistics
from weightloom.hyper.start import layer_gains


def activations(hyper, x, condition):
    """Second moment of the output of every activation (and of the last layer), over conditions."""
    moments = {}
    for i in range(len(condition)):
        network = hyper.materialize(condition[i])
        leaves = [m for m in network.modules() if next(m.children(), None) is None]
        for j, module in enumerate(leaves):
            if isinstance(module, nn.ReLU | nn.Tanh | nn.GELU) or j == len(leaves) - 1:
                module.register_forward_hook(
                    lambda m, a, y, j=j: moments.setdefault(j, []).append(y.square().mean().item())
                )
        with torch.no_grad():
            network(x[i])
    return [sum(values) / len(values) for values in moments.values()]


def gradient_moments(hyper, x, condition):
    """Second moment of the gradient at the input of every layer, for unit gradients behind."""
    moments = {}
    for i in range(len(condition)):
        network = hyper.materialize(condition[i])
        h, seen = x[i].clone().requires_grad_(), []
        for module in network:
            if isinstance(module, nn.Linear):
                h.retain_grad()
                seen.append(h)
            h = module(h)
        h.backward(torch.randn_like(h))
        for j, tensor in enumerate(seen):
            moments.setdefault(j, []).append(tensor.grad.square().mean().item())
    return [sum(values) / len(values) for values in moments.values()]


def average(measure, build, draws=12):
    """Mean over independent networks: a claim about the expectation over the draw."""
    return torch.tensor([measure(build()) for _ in range(draws)]).mean(0)


def deep(depth, init, activation="relu", width=96, bias=True):
    primary = wl.mlp([width] * (depth + 1), activation, bias=bias)
    return wl.HyperNetwork(primary, wl.mlp([20, 50], last_activation=True), init=init)


@pytest.mark.parametrize("depth", [2, 4, 8, 16])
@pytest.mark.parametrize("bias", [True, False])
def test_hyperfan_in_keeps_activations(depth, bias):
    x, condition = torch.randn(6, 40, 96), torch.randn(6, 20)
    moments = average(
        lambda hyper: activations(hyper, x, condition),
        lambda: deep(depth, "hyperfan_in", bias=bias),
    )
    assert len(moments) == depth
    assert (moments > 0.5).all(), moments
    assert (moments < 2.0).all(), moments


@pytest.mark.parametrize("depth", [8, 16])
def test_default_explodes_or_vanishes(depth):
    x, condition = torch.randn(6, 40, 96), torch.randn(6, 20)
    moments = average(lambda h: activations(h, x, condition), lambda: deep(depth, "default"))
    assert moments[-1] > 10 or moments[-1] < 0.1, moments


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_hyperfan_in_knows_other_activations(activation):
    x, condition = torch.randn(6, 40, 96), torch.randn(6, 20)
    moments = average(
        lambda h: activations(h, x, condition), lambda: deep(6, "hyperfan_in", activation), 6
    )
    assert (moments > 0.4).all(), moments
    assert (moments < 2.5).all(), moments


def convolutional(init):
    primary = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2, groups=2, padding=1), nn.ReLU(),
        nn.Conv2d(48, 24, 3, dilation=2), nn.ReLU(),
        nn.ConvTranspose2d(24, 24, 2, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 16 * 16, 10),
    )  # fmt: skip
    return wl.HyperNetwork(primary, wl.mlp([20, 50], last_activation=True), init=init)


def test_hyperfan_in_for_convolutions():
    x, condition = torch.randn(3, 4, 3, 24, 24), torch.randn(3, 20)
    moments = average(
        lambda h: activations(h, x, condition), lambda: convolutional("hyperfan_in"), 5
    )
    assert (moments > 0.5).all(), moments
    assert (moments < 2.0).all(), moments
    worse = average(lambda h: activations(h, x, condition), lambda: convolutional("default"), 2)
    assert worse[-1] > 10 or worse[-1] < 0.1, worse


@pytest.mark.parametrize("depth", [4, 12])
def test_hyperfan_out_keeps_gradients(depth):
    x, condition = torch.randn(6, 40, 96), torch.randn(6, 20)
    moments = average(
        lambda h: gradient_moments(h, x, condition), lambda: deep(depth, "hyperfan_out")
    )
    assert (moments > 0.5).all(), moments
    assert (moments < 2.0).all(), moments


def test_hyperfan_out_of_a_layer_that_widens():
    """fan_in 20, fan_out 80: weights of variance 2/80, biases make up for the rest."""
    condition = torch.randn(64, 20)
    samples = []
    for _ in range(20):
        hyper = wl.HyperNetwork(
            wl.mlp([20, 80, 1]), wl.mlp([20, 50], last_activation=True),
            init="hyperfan_out", calibration=condition,
        )  # fmt: skip
        weights = hyper.weights(condition)
        samples.append([weights["0.weight"].var().item(), weights["0.bias"].square().mean().item()])
    values = torch.tensor(samples)
    error = 5 * values.std(0) / math.sqrt(20)
    assert ((values.mean(0) - torch.tensor([2 / 80, 2 - 2 * 20 / 80])).abs() < error).all()
    assert (error < 0.2 * values.mean(0)).all()


def test_fans_and_gains():
    gains = layer_gains(convolutional("default").primary)
    assert (gains["0"].fan_in, gains["0"].fan_out) == (27, 24 * 9)
    assert (gains["2"].fan_in, gains["2"].fan_out) == (24 * 9 / 2, 48 * 9 / 2 / 4)
    assert (gains["6"].fan_in, gains["6"].fan_out) == (24 * 4 / 4, 24 * 4)
    assert gains["0"].gain == pytest.approx(2, rel=1e-3)
    assert gains["0"].backward_gain == pytest.approx(2, rel=1e-3)
    assert gains["9"].gain == 1


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_the_scale_of_features_is_taken_into_account(scale):
    condition = scale * torch.randn(64, 20)

    def size(**options):
        torch.manual_seed(4)
        encoder = wl.mlp([20, 50], last_activation=True, bias=False)
        hyper = wl.HyperNetwork(wl.mlp([30, 30, 1]), encoder, init="hyperfan_in", **options)
        return hyper.weights(condition)["0.weight"].square().mean().item() * 30

    assert size(calibration=condition) == pytest.approx(1.0, rel=0.3)
    assert not 0.3 < size() < 3  # measured on standard normal conditions instead
    with torch.no_grad():
        torch.manual_seed(4)
        known = wl.mlp([20, 50], last_activation=True, bias=False)(condition).square().mean().item()
    assert size(feature_moment=known) == pytest.approx(1.0, rel=0.3)


def test_initialisation_is_described():
    encoder = wl.mlp([20, 50], last_activation=True)

    def described(encoder, **options):
        return wl.HyperNetwork(wl.mlp([3, 1]), encoder, **options).initialisation

    old = {"init": "hyperfan_in"}
    assert "measured on calibration" in described(encoder, calibration=torch.randn(9, 20), **old)
    assert "2 (given)" in described(encoder, feature_moment=2.0, **old)
    assert "assumed" in described(nn.Sequential(nn.Flatten(), encoder), **old)
    ids = nn.Sequential(nn.Embedding(7, 20), *encoder)
    assert "measured on all of its ids" in described(ids, **old)
    assert "measured on standard normal conditions" in described(encoder, **old)
    assert "features normalised for each condition" in described(encoder)
    assert described(encoder).startswith("mup: own weights")
    few = wl.mlp([20, 5], last_activation=True)
    assert "divided by the root of 2 (given)" in described(few, feature_moment=2.0)
    with pytest.raises(HeadError, match="a second moment is positive"):
        described(encoder, feature_moment=0.0)


def test_measuring_leaves_random_numbers_and_modes_alone():
    encoder = nn.Sequential(nn.Linear(20, 50), nn.Dropout(0.5)).train()
    state = torch.random.get_rng_state()
    feature_statistics(encoder, 1, None)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert encoder.training
    assert encoder[1].training


def test_primary_starts_near_the_given_primary():
    primary = wl.mlp([30, 40, 2])
    hyper = wl.HyperNetwork(primary, wl.mlp([20, 50], last_activation=True), init="primary")
    weights = hyper.weights(torch.randn(64, 20))
    for name, own in primary.named_parameters():
        change = weights[name] - own
        ratio = change.square().mean().sqrt() / own.square().mean().sqrt()
        assert 0.05 < ratio < 0.2
        assert change.std(0).max() > 0


def test_norms_and_embeddings_keep_their_own_initialisation():
    primary = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    hyper = wl.HyperNetwork(primary, wl.mlp([20, 50], last_activation=True))
    weights = hyper.weights(torch.randn(64, 20))
    assert abs(weights["1.weight"].mean().item() - 1) < 0.1
    assert abs(weights["1.bias"].mean().item()) < 0.1


def modularity_setting(init, depth=2):
    """ "On the Modularity of Hypernetworks", Section 6: d = 1000, f with two layers."""
    torch.manual_seed(0)
    target = wl.mlp([2000, 100, 50, 50, 1], "elu")
    for layer in target:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    hyper = wl.HyperNetwork(
        wl.mlp([1000, 10, 1]), wl.mlp([1000] + [100] * (depth - 1), last_activation=True), init=init
    )
    return target, hyper


def train(target, hyper, steps, lr=0.01):
    optimiser = torch.optim.SGD(hyper.parameters(), lr)
    losses = []
    for _ in range(steps):
        x, condition = torch.randn(200, 1000), torch.randn(200, 1000)
        with torch.no_grad():
            y = target(torch.cat([x, condition], 1))
        loss = F.mse_loss(hyper(x, condition), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append((loss / y.var()).item())
    return losses


def test_the_modularity_setting_trains():
    losses = train(*modularity_setting("hyperfan_in"), steps=150)
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-30:]) < sum(losses[:30])
    assert max(losses) < 10


def test_the_modularity_setting_is_lost_with_default():
    with pytest.raises(NonFiniteWeightsError, match="leave init out"):
        train(*modularity_setting("default"), steps=150)


# -- ntk ----------------------------------------------------------------------------------------


def towers(condition=5, k=40, x=6, width=50):
    f = wl.mlp([condition, 50, k], last_activation=True, bias=False)
    return wl.HyperNetwork(wl.mlp([x, width, width, 1], bias=False), f, init="ntk").double()


def test_ntk_is_equations_2_and_3():
    hyper = towers()
    x, condition = torch.randn(4, 6).double(), torch.randn(4, 5).double()
    q = condition
    for layer in hyper.encoder:
        if isinstance(layer, nn.Linear):
            y = layer.weight @ q.T / math.sqrt(layer.in_features)
            q = math.sqrt(2) * torch.relu(y).T
    V = [hyper.head.table(name) for name in hyper.spec]
    a = x
    for i, table in enumerate(V):
        v = torch.einsum("koi,bk->boi", table, q) / math.sqrt(40)
        g = torch.einsum("boi,bi->bo", v, a) / math.sqrt(a.shape[1])
        a = math.sqrt(2) * torch.relu(g) if i < 2 else g
    close(hyper(x, condition), a, 10)


def test_ntk_parameters_are_standard_normal():
    hyper = towers(k=200, width=60)
    for name, parameter in hyper.named_parameters():
        n = parameter.numel()
        assert abs(parameter.mean().item()) < 5 / math.sqrt(n), name
        assert abs(parameter.var().item() - 1) < 5 * math.sqrt(2 / n), name


@pytest.mark.parametrize(
    ("primary", "encoder", "head", "message"),
    [
        (
            wl.mlp([3, 4, 1]),
            wl.mlp([5, 6], bias=False),
            "full",
            "of the primary is not one .has a bias",
        ),
        (
            wl.mlp([3, 4, 1], bias=False),
            wl.mlp([5, 6]),
            "full",
            "of the encoder is not one .has a bias",
        ),
        (nn.Sequential(nn.Conv1d(3, 3, 1)), wl.mlp([5, 6], bias=False), "full", "Conv1d"),
        (wl.mlp([3, 4, 1], bias=False), wl.mlp([5, 6], bias=False), "chunked", "linear head"),
    ],
)
def test_ntk_refuses_what_it_is_not_defined_for(primary, encoder, head, message):
    with pytest.raises(HeadError, match=message):
        wl.HyperNetwork(primary, encoder, head, init="ntk")
