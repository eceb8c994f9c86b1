"""Networks of points: scales at the start against closed forms, and what is done with them."""

import copy
import math

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import ShapeError
from weightloom.hyper.coordinates import RandomFourier
from weightloom.networks.activations import Sine, lookup

KINDS = ("fourier", "siren", "none")
WIDTH, SAMPLES, POINTS = 256, 48, 64


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def build(kind, depth=5, seed=0, **options):
    return wl.coordinate_network(
        2, 1, width=WIDTH, depth=depth, features=kind, generator=seeded(seed), **options
    )


def points(count=POINTS):
    return 2 * torch.rand(count, 2, generator=seeded(7)) - 1


def moments(kind, depth=5, **options):
    """E[h^2] of each activation and E[(dL/du)^2] of each layer's output, over sampled networks.

    Two numbers for each: the mean and its standard error, from one number for each network.
    """
    forward, backward = [], []
    for seed in range(SAMPLES):
        network = build(kind, depth, seed, **options)
        x, outputs, inputs = points(), [], []
        x = x / (3 * x.square().mean()).sqrt()  # the second moment of uniform coordinates, exactly
        for layer in network:
            if isinstance(layer, nn.Linear):
                inputs.append(x)
                x = layer(x)
                x.retain_grad()
                outputs.append(x)
            else:
                x = layer(x)
        x.sum().backward()
        forward.append([h.square().mean().item() for h in (*inputs[1:], x)])
        # times the width, as a layer of n numbers shares one gradient
        backward.append([u.grad.square().sum(-1).mean().item() for u in outputs])
    return summary(forward), summary(backward)


def summary(rows):
    values = torch.tensor(rows, dtype=torch.float64)
    return values.mean(0), values.std(0) / math.sqrt(len(values))


# -- the scale at the start -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fourier", "none"])
@pytest.mark.parametrize("depth", [2, 5, 8])
def test_activations_of_relu_networks_have_second_moment_one(kind, depth):
    (mean, error), _ = moments(kind, depth)
    # E[h^2] = 1 exactly in every layer, whatever the width: weights are independent and centred.
    assert ((mean - 1).abs() < 5 * error).all(), (mean, error)
    assert (error[:-1] < 0.05).all()  # so the test can fail


@pytest.mark.parametrize("kind", ["fourier", "none"])
def test_gradients_of_relu_networks_keep_their_size(kind):
    _, (mean, error) = moments(kind)
    # Backward: W^T has variance 2/n, but 1/n in the last layer, and half of the ReLUs pass. So the
    # squares of n gradients have the sum 1/2 in every hidden layer.
    want = torch.tensor([0.5, 0.5, 0.5, 0.5, 1.0], dtype=torch.float64)
    assert ((mean - want).abs() < 5 * error + 1e-6).all(), (mean, error)
    assert (error < 0.1).all()


def test_activations_and_gradients_of_a_siren():
    (mean, error), (slope, slope_error) = moments("siren")
    # A uniform phase in the first layer: exactly 1/2 for every point. Then a sine of a normal
    # number of variance v = 2 E[h^2]: (1 - exp(-2 v)) / 2, and a last layer of variance 2 / n /
    # omega^2. At width 256 the inputs of sines are not quite normal: terms of order 1/n.
    moment, want = 0.5, [0.5]
    for _ in range(3):
        moment = (1 - math.exp(-2 * 2 * moment)) / 2
        want.append(moment)
    want.append(2 * moment / 30**2)
    want = torch.tensor(want, dtype=torch.float64)
    assert ((mean - want).abs() < 5 * error + 4 / WIDTH * want).all(), (mean, want, error)
    # Gradients of what goes into the sines, omega u: slopes cos(u), which keep (1 + exp(-2v)) / 2
    # of the square, and a matrix of variance 2 / (n omega^2) times omega for each layer.
    back, expected = 1.0, [1.0]
    for v in (2 * want[2].item(), 2 * want[1].item(), 2 * want[0].item(), None):
        kept = 0.5 if v is None else (1 + math.exp(-2 * v)) / 2
        back *= 2 * kept
        expected.append(back)
    expected = torch.tensor(expected[::-1], dtype=torch.float64)
    assert ((slope - expected).abs() < 5 * slope_error + 16 / WIDTH * expected).all(), (
        slope, expected, slope_error,
    )  # fmt: skip


def test_the_siren_start_is_that_of_its_paper():
    network = build("siren", 4)
    first, *rest = [layer for layer in network if isinstance(layer, nn.Linear)]
    # Sitzmann et al. 2020, Section 3.2: w ~ U(-sqrt(6/n), sqrt(6/n)) / omega; first U(-1/n, 1/n).
    for layer, bound in [(first, 1 / 2), *((layer, math.sqrt(6 / WIDTH) / 30) for layer in rest)]:
        weight = layer.weight.detach().flatten() / bound
        assert weight.abs().max() <= 1
        # the largest of m uniform numbers misses 1 by more than t with probability (1 - t)^m
        assert weight.abs().max() > 1 - 20 / weight.numel()
        assert abs(weight.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / weight.numel())
    phases = 30 * first.bias.detach() / math.pi
    assert phases.abs().max() <= 1
    assert abs(phases.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / WIDTH)
    assert all(bool((layer.bias == 0).all()) for layer in rest)
    other = build("siren", 4, omega=10.0)
    close(other[2].weight, 3 * network[2].weight)
    assert other[1].omega == 10.0


@pytest.mark.parametrize("scale", [0.5, 1.0, 8.0])
def test_fourier_features_have_second_moment_one(scale):
    waves = RandomFourier(2, 32, scale, seeded(0))
    features = waves(points())
    # sin^2 + cos^2 = 1 for each frequency: exact for every point, not only on average
    close(features.square().mean(-1), torch.ones(POINTS))
    spread = RandomFourier(2, 5000, scale, seeded(1)).matrix
    assert abs(spread.std() / scale - 1) < 5 / math.sqrt(2 * spread.numel())
    x = points(3)
    phase = 2 * math.pi * x @ waves.matrix.T
    close(features[:3, :32], math.sqrt(2) * phase.sin(), 10)
    close(features[:3, 32:], math.sqrt(2) * phase.cos(), 10)


@pytest.mark.parametrize("depth", [3, 8])
def test_mlps_of_sines_keep_their_scale(depth):
    rows = []
    for seed in range(SAMPLES):
        torch.manual_seed(seed)
        network = wl.mlp([WIDTH] * depth + [1], "sin")
        x, seen = torch.randn(POINTS, WIDTH), []
        for layer in network:
            x = layer(x)
            if isinstance(layer, nn.Linear):
                seen.append(x.square().mean().item())
        rows.append(seen)
    mean, error = summary(rows)
    # Every sine gets variance 1, and nn.Linear's biases add 1 / (3 n) to each.
    assert ((mean - 1).abs() < 5 * error + 8 / WIDTH).all(), (mean, error)
    assert isinstance(network[1], Sine)
    assert network[1].omega == 1.0
    torch.manual_seed(0)
    plain = wl.mlp([4, 8, 1], Sine)  # a class: layers start as nn.Linear does
    torch.manual_seed(0)
    assert torch.equal(plain[0].weight, nn.Linear(4, 8).weight)


# -- options --------------------------------------------------------------------------------------


def test_a_network_made_without_gradients_is_the_same():
    with torch.no_grad():
        network = build("fourier")
    close(network(points()), build("fourier")(points()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_generator_gives_the_same_network(kind):
    state = torch.random.get_rng_state()
    first, second, other = build(kind, seed=3), build(kind, seed=3), build(kind, seed=4)
    # The layers are made by nn.Linear, which asks the global generator for numbers nobody keeps.
    torch.random.set_rng_state(state)
    for a, b, c in zip(first.state_dict().values(), second.state_dict().values(),
                       other.state_dict().values(), strict=True):  # fmt: skip
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or bool((a == 0).all())


def test_sizes():
    network = wl.coordinate_network(3, 2, width=16, depth=3)
    assert [tuple(p.shape) for p in network.parameters()] == [
        (16, 16), (16,), (16, 16), (16,), (2, 16), (2,),
    ]  # fmt: skip
    assert wl.coordinate_network(3, 2, 16, 3, frequencies=5)[1].in_features == 10
    assert wl.coordinate_network(3, 2, 16, 1, features="none")[0].out_features == 2
    assert isinstance(wl.coordinate_network(3, 2, activation="silu")[2], nn.SiLU)
    assert network(torch.rand(4, 5, 3)).shape == (4, 5, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "waves"}, r"features='waves' is unknown; choose fourier, siren, none"),
        ({"width": 0}, r"width=0 was given; .* at least 1"),
        ({"depth": 2.0}, r"depth=2.0 was given"),
        ({"inputs": True}, r"inputs=True was given"),
        ({"frequencies": 0}, r"frequencies=0 was given"),
        ({"scale": 0.0}, r"scale=0.0 was given; it is a positive, finite number"),
        ({"scale": math.inf}, r"scale=inf was given"),
        ({"features": "siren", "omega": -1.0}, r"omega=-1.0 was given"),
        ({"omega": 30.0}, r"omega=30.0 .*'fourier', which does not use it; .*'siren': change"),
        ({"features": "siren", "scale": 2.0}, r"scale=2.0 was given with features='siren'"),
        ({"features": "siren", "activation": "relu"}, r"belongs to features='fourier' or"),
        ({"features": "none", "frequencies": 8}, r"frequencies=8 was given with features='none'"),
        ({"activation": "sinus"}, r"activation='sinus' is unknown; choose one of"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ShapeError, match=message):
        wl.coordinate_network(**{"inputs": 2, "outputs": 3, **options})


# -- as a primary ---------------------------------------------------------------------------------

HEADS = {
    "full": lambda: "full",
    "low rank": lambda: wl.LowRankHead(2),
    "chunked": lambda: wl.ChunkedHead(64),
    "per layer": lambda: wl.PerLayerHead(),
    "delta": lambda: wl.DeltaHead(2),
    "adapter": lambda: wl.AdapterHead(2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HEADS)
def test_as_the_primary_of_a_hypernetwork(kind, head):
    primary = wl.coordinate_network(2, 3, width=16, depth=3, features=kind, generator=seeded(0))
    hyper = wl.HyperNetwork(primary, wl.mlp([5, 8], last_activation=True), HEADS[head]())
    x, condition = points(12).expand(3, -1, -1), torch.randn(3, 5, generator=seeded(1))
    want = hyper(x, condition)
    assert want.shape == (3, 12, 3)
    assert want.isfinite().all()
    for i in range(3):
        close(hyper.materialize(condition[i])(x[i]), want[i], 50)
        close(hyper(x[i], condition[i]), want[i], 50)
    close(hyper.bind(condition)(x[:, 4]), want[:, 4], 50)
    want.square().mean().backward()
    assert all(p.grad is not None for p in hyper.head.parameters())
    if kind == "fourier":  # the waves are neither generated nor learned
        assert torch.equal(hyper.primary[0].matrix, primary[0].matrix)
        assert not any("matrix" in name for name in (*hyper.spec, *dict(hyper.named_parameters())))


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind, tmp_path):
    network = wl.coordinate_network(2, 3, width=16, depth=3, features=kind)
    path = wl.export(network, tmp_path / "network.safetensors")
    other = wl.coordinate_network(2, 3, width=16, depth=3, features=kind)
    x = points(9)
    assert not torch.equal(other(x), network(x))
    wl.load(other, path)
    assert torch.equal(other(x), network(x))  # the waves with it
    copied = copy.deepcopy(network)
    assert torch.equal(copied(x), network(x))


@pytest.mark.parametrize("kind", ["fourier", "siren"])
def test_onnx(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    network = wl.coordinate_network(2, 3, width=8, depth=2, features=kind)
    x = points(9)
    path = wl.export(network, tmp_path / "network.onnx", x)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    close(torch.from_numpy(got), network(x), 50)


def test_sines_are_read_back():
    network = build("siren", 3)
    record = lookup(network[1])
    assert record is not None
    assert record.lipschitz == 30.0
    assert wl.symmetry.equivalent(network, wl.symmetry.random_equivalent(network, seeded(0)))


# -- training -------------------------------------------------------------------------------------


def test_waves_fit_a_picture_that_a_plain_network_cannot():
    axis = torch.linspace(-1, 1, 24)
    x = torch.cartesian_prod(axis, axis)
    target = (3 * math.pi * x[:, :1]).sin() * (2 * math.pi * x[:, 1:]).cos()  # three periods
    errors = {}
    for kind in KINDS:
        network = wl.coordinate_network(2, 1, 64, 3, features=kind, generator=seeded(0))
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(200):
            loss = (network(x) - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        errors[kind] = (network(x) - target).square().mean().item() / target.var().item()
    assert errors["fourier"] < 0.2 * errors["none"], errors
    assert errors["siren"] < 0.2 * errors["none"], errors
    assert errors["fourier"] < 0.1, errors
