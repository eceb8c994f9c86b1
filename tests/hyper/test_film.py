"""FiLM networks against networks written by hand, in every form a hypernetwork is called in."""

import copy
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import CheckpointError, PatternError, UnsupportedModuleError
from weightloom.hyper.film import Modulated

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Named(nn.Module):
    """Layers in a plain list, and one whose weight is read: no call of the layer itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)
        self.chain = [self.first]

    def forward(self, x):
        for layer in self.chain:
            x = layer(x).tanh()
        x = nn.functional.linear(x, self.second.weight, self.second.bias).tanh()
        return self.last(x)


# primary, the shape of one row of x
PRIMARIES = {
    "mlp": (lambda: wl.mlp([3, 8, 8, 2], "tanh"), (5, 3)),
    "coordinates": (lambda: wl.coordinate_network(3, 2, width=8), (5, 3)),
    "convolutions": (conv_net, (4, 1, 8, 8)),
    "transformer": (transformer, (2, 5, 8)),
    "own module": (Named, (5, 3)),
}


def trained(primary, encoder=None, **options):
    """A FiLM network away from its start, with modulations of size 0.3."""
    film = wl.FiLMNetwork(primary, encoder or wl.mlp([4, 8], last_activation=True), **options)
    with torch.no_grad():
        for parameter in film.head.parameters():
            parameter.normal_(0, 0.3)
    return film


def by_hand(film, primary, x, condition):
    """Each row through its own copy of the primary, modulated by hooks: the plain definition."""
    modulation = film.weights(condition)
    outputs = []
    for i, row in enumerate(x):
        network = copy.deepcopy(primary)
        for name in film.layers:
            gamma, beta = (modulation[f"{name}.film_{part}"][i] for part in ("scale", "shift"))
            if isinstance(network.get_submodule(name), nn.Conv2d):
                gamma, beta = gamma[:, None, None], beta[:, None, None]
            network.get_submodule(name).register_forward_hook(
                lambda _, __, h, gamma=gamma, beta=beta: (1 + gamma) * h + beta
            )
        outputs.append(network(row))
    return torch.stack(outputs)


# -- the function ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PRIMARIES)
def test_it_starts_as_the_given_network(kind):
    build, shape = PRIMARIES[kind]
    primary = build().eval()
    film = wl.FiLMNetwork(primary, wl.mlp([4, 8], last_activation=True)).eval()
    x, condition = torch.randn(3, *shape), torch.randn(3, 4)
    want = torch.stack([primary(row) for row in x])
    close(film(x, condition), want)
    assert all(bool((value == 0).all()) for value in film.weights(condition).values())
    assert not torch.equal(trained(primary).eval()(x, condition), want)  # so the test can fail


@pytest.mark.parametrize("kind", ["mlp", "coordinates", "convolutions", "transformer"])
def test_it_is_the_definition(kind):
    build, shape = PRIMARIES[kind]
    primary = build().eval()
    film = trained(primary).eval()
    x, condition = torch.randn(3, *shape), torch.randn(3, 4)
    with torch.enable_grad():  # hooks would be passed over by the fused path
        want = by_hand(film, primary, x, condition)
    close(film(x, condition), want)


def test_a_film_mlp_written_out():
    primary, encoder = wl.mlp([2, 8, 8, 1]), wl.mlp([4, 8], last_activation=True)
    film = trained(primary, encoder)
    x, condition = torch.randn(3, 7, 2), torch.randn(3, 4)
    phi = encoder(condition)
    phi = phi - phi.mean(1, keepdim=True)
    phi = phi / phi.square().mean(1, keepdim=True).sqrt() * (8**0.5 / 8)  # the sizes add to sqrt(8)
    maps = phi @ film.head.joint.T + film.head.joint_offset
    gamma1, beta1, gamma2, beta2 = maps[:, None].split(8, -1)
    h = torch.relu((1 + gamma1) * primary[0](x) + beta1)
    h = torch.relu((1 + gamma2) * primary[2](h) + beta2)
    close(film(x, condition), primary[4](h))


@pytest.mark.parametrize("kind", PRIMARIES)
def test_one_condition_bound_and_materialized(kind):
    build, shape = PRIMARIES[kind]
    primary = build().eval()
    film = trained(primary).eval()
    x, condition = torch.randn(3, *shape), torch.randn(3, 4)
    want = film(x, condition)
    network = film.materialize(condition[1])
    assert [name for name, _ in network.named_modules()] == [n for n, _ in primary.named_modules()]
    for grad in (True, False):  # without gradients transformers read weights and call no layer
        with torch.set_grad_enabled(grad):
            close(film(x, condition), want, 10)
            close(film(x[1], condition[1]), want[1], 10)
            close(film.bind(condition)(x[:, 0].contiguous()), want[:, 0], 10)
            close(network(x[1]), want[1], 10)


def test_a_materialized_network_is_ordinary(tmp_path):
    film = trained(conv_net()).eval()
    x, condition = torch.randn(4, 1, 8, 8), torch.randn(4)
    network = film.materialize(condition)
    wl.export(network, tmp_path / "network.safetensors")
    other = conv_net().eval()
    other[3] = nn.Conv2d(4, 6, 3, stride=2)  # a shift needs a bias
    wl.load(other, tmp_path / "network.safetensors")
    close(other(x), film(x, condition), 10)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose2d(4, 6, 3, groups=2), nn.ConvTranspose1d(4, 6, 2, bias=False),
        nn.Conv1d(4, 6, 2, groups=2), nn.Conv3d(4, 6, 1), nn.Linear(4, 6, bias=False),
    ],
)  # fmt: skip
def test_weights_that_are_read_have_the_modulation_inside(layer):
    modulated = Modulated(copy.deepcopy(layer))
    nn.init.normal_(modulated.film_scale)
    nn.init.normal_(modulated.film_shift)
    dims = 0 if isinstance(layer, nn.Linear) else len(layer.kernel_size)
    x = torch.randn(2, 4, *(5,) * dims)
    want = modulated(x)
    assert want.shape == layer(x).shape
    close(modulated.folded()(x), want)
    assert modulated.in_channels == 4 if dims else modulated.in_features == 4  # its attributes


def test_batch_norm_and_modes():
    film = trained(conv_net())
    before = film.primary[1].running_mean.clone()
    film(torch.randn(3, 4, 1, 8, 8), torch.randn(3, 4))
    assert not torch.equal(film.primary[1].running_mean, before)


def test_conditions_as_trees_and_features():
    class Pair(nn.Module):
        def forward(self, a, b):
            return torch.cat([a, b], -1)

    film = trained(wl.mlp([2, 8, 1]), Pair(), features=8)
    x, a, b = torch.randn(3, 6, 2), torch.randn(3, 5), torch.randn(3, 3)
    want = film(x, {"a": a, "b": b})
    close(film(x, (a, b)), want)
    close(film(x, film.encode((a, b))), want)
    close(film(x, condition=(a, b)), want)
    plain = trained(wl.mlp([2, 8, 1]), nn.Identity(), features=8)
    assert plain(x, torch.randn(3, 8)).shape == (3, 6, 1)


# -- training -------------------------------------------------------------------------------------


def test_gradients():
    encoder = wl.mlp([4, 8], "tanh", last_activation=True)
    film = trained(wl.mlp([3, 4, 4, 2], "tanh"), encoder, dtype=torch.float64)
    x, condition = torch.randn(2, 3, 3).double(), torch.randn(2, 4).double()
    parameters = dict(film.named_parameters())
    names, values = list(parameters), list(parameters.values())

    def run(x, condition, *values):
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(film, state, (x, condition))

    inputs = (x.requires_grad_(), condition.requires_grad_(), *values)
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_a_first_step_of_adam_moves_modulations_as_far_for_any_number_of_features():
    moved = {}
    for k in (16, 1024):
        torch.manual_seed(0)
        film = wl.FiLMNetwork(wl.mlp([2, 32, 32, 1]), wl.mlp([4, k], last_activation=True))
        x, condition = torch.randn(16, 20, 2), torch.randn(16, 4)
        optimiser = torch.optim.Adam(film.parameters(), lr=1e-3)
        film(x, condition).sub(condition[:, :1, None]).square().mean().backward()
        optimiser.step()
        weights = film.weights(condition)
        moved[k] = torch.cat(list(weights.values()), -1).abs().mean().item()
    # At most the offset's own step and reach = min(8, sqrt(k)) times the rate; not k of them.
    assert 1e-4 < moved[16] < 5e-3
    assert 1e-4 < moved[1024] < 9e-3


def test_it_learns_what_depends_on_the_condition():
    torch.manual_seed(0)
    film = wl.FiLMNetwork(wl.mlp([1, 32, 32, 1], "tanh"), wl.mlp([2, 32], last_activation=True))
    condition = torch.randn(256, 2)
    x = torch.linspace(-1, 1, 16)[None, :, None].expand(256, -1, -1)
    target = condition[:, :1, None] * x + condition[:, 1:, None] * x**2
    optimiser = torch.optim.Adam(film.parameters(), lr=3e-3)
    for _ in range(300):
        loss = (film(x, condition) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1 * target.var()  # ignoring the condition leaves all of it


def test_frozen_primary():
    primary = wl.mlp([2, 8, 1])
    film = trained(primary, freeze_rest=True)
    assert not any(parameter.requires_grad for parameter in film.primary.parameters())
    assert film.primary[2].weight.data_ptr() == primary[2].weight.data_ptr()  # not copied
    film(torch.randn(3, 5, 2), torch.randn(3, 4)).sum().backward()
    assert film.head.joint.grad is not None


def test_diagnose_gives_no_false_alarm():
    film = wl.FiLMNetwork(wl.mlp([2, 16, 16, 1]), wl.mlp([4, 16], last_activation=True))
    diagnosis = wl.diagnose(film, torch.randn(16, 20, 2), torch.randn(16, 4))
    assert not any("same weights" in warning for warning in diagnosis.warnings)
    assert "neither scaled nor shifted" in str(film)


# -- the given primary, copies, threads, files ----------------------------------------------------


def test_the_primary_is_not_touched():
    primary = wl.mlp([2, 8, 1])
    before, modules = copy.deepcopy(primary.state_dict()), list(primary.modules())
    film = trained(primary)
    film(torch.randn(3, 5, 2), torch.randn(3, 4)).sum().backward()
    torch.optim.SGD(film.parameters(), lr=0.1).step()
    assert list(primary.modules()) == modules
    assert all(torch.equal(value, before[name]) for name, value in primary.state_dict().items())
    assert all(parameter.grad is None for parameter in primary.parameters())


@pytest.mark.parametrize("kind", PRIMARIES)
def test_copies_and_state(kind):
    build, shape = PRIMARIES[kind]
    film = trained(build()).eval()
    x, condition = torch.randn(3, *shape), torch.randn(3, 4)
    want = film(x, condition)
    copies = [copy.deepcopy(film), pickle.loads(pickle.dumps(film))]
    other = wl.FiLMNetwork(build(), wl.mlp([4, 8], last_activation=True)).eval()
    other.load_state_dict(film.state_dict())
    for each in (*copies, other):
        assert torch.equal(each(x, condition), want)


def test_pretrained_folders(tmp_path):
    base = conv_net()
    film = trained(base, layers="3").eval()
    x, condition = torch.randn(3, 4, 1, 8, 8), torch.randn(3, 4)
    film.save_pretrained(tmp_path / "film")
    encoder = wl.mlp([4, 8], last_activation=True)
    other = wl.FiLMNetwork.from_pretrained(tmp_path / "film", conv_net(), encoder)
    assert isinstance(other, wl.FiLMNetwork)
    assert other.layers == ("3",)
    close(other(x, condition), film(x, condition))
    close(other.materialize(condition[0])(x[0]), film(x, condition)[0], 10)
    with pytest.raises(PatternError, match=r"layers='3' selects no linear or convolution layer"):
        wl.FiLMNetwork.from_pretrained(tmp_path / "film", wl.mlp([2, 3, 1]), encoder)
    wl.HyperNetwork(wl.mlp([2, 3, 1]), encoder).save_pretrained(tmp_path / "hyper")
    with pytest.raises(CheckpointError, match=r"no FiLMNetwork \(it writes 0.weight, 0.bias"):
        wl.FiLMNetwork.from_pretrained(tmp_path / "hyper", wl.mlp([2, 3, 1]), encoder)


def test_threads():
    film = trained(wl.mlp([3, 8, 8, 2], "tanh"))
    condition = torch.randn(16, 4)
    x = torch.randn(16, 5, 3)
    want = film(x, condition)
    start = threading.Barrier(4)

    def ask(worker):
        start.wait()
        wrong = 0
        for turn in range(25):
            i = (5 * worker + turn) % 16
            wrong += not torch.allclose(film(x[i], condition[i]), want[i], atol=1e-5)
            rows = torch.arange(worker, 16, 4)
            wrong += not torch.allclose(film(x[rows], condition[rows]), want[rows], atol=1e-5)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [0] * 4


@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
def test_compiled(kind):
    build, shape = PRIMARIES[kind]
    film = trained(build()).eval()
    x, condition = torch.randn(3, *shape), torch.randn(3, 4)
    compiled = torch.compile(film, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(compiled(x, condition), film(x, condition), 10)
        close(compiled(x[0], condition[0]), film(x[0], condition[0]), 10)


def test_autocast():
    film = trained(wl.mlp([3, 8, 8, 2]))
    x, condition = torch.randn(3, 5, 3), torch.randn(3, 4)
    want = film(x, condition)
    with torch.autocast("cpu", torch.bfloat16):
        got = film(x, condition)
    # bfloat16 has 8 bits; a few roundings on the way through three layers
    assert (got - want).abs().max() < 8 * 2.0**-8 * want.abs().max()
    got.float().sum().backward()


# -- which layers, and what is refused ------------------------------------------------------------


def test_which_layers():
    names = {
        None: ("0", "3"), "*": ("0", "3", "6"), "3": ("3",), ("6", "0"): ("0", "6"),
    }  # fmt: skip
    for layers, want in names.items():
        assert wl.FiLMNetwork(conv_net(), nn.Embedding(3, 8), layers=layers).layers == want
    # Not inside attention, where no layer is called.
    assert wl.FiLMNetwork(transformer(), nn.Embedding(3, 8)).layers == (
        "layers.0.linear1", "layers.0.linear2", "layers.1.linear1",
    )  # fmt: skip


def test_the_primary_may_be_one_layer():
    film = trained(nn.Linear(3, 2), layers="*")
    x, condition = torch.randn(4, 3), torch.randn(4, 4)
    modulation = film.weights(condition)
    own = film.primary.layer(x)
    close(film(x, condition), (1 + modulation["film_scale"]) * own + modulation["film_shift"])
    close(film.materialize(condition[0])(x[0]), film(x, condition)[0])


def test_refusals():
    embed = nn.Embedding(3, 8)
    with pytest.raises(
        UnsupportedModuleError, match=r"\(Linear\) has 1 such layer. Choose layers="
    ):
        wl.FiLMNetwork(nn.Linear(2, 3), embed)
    with pytest.raises(UnsupportedModuleError, match=r"hidden layers.*\(GRU\) has no such layer"):
        wl.FiLMNetwork(nn.GRU(2, 3), embed)
    with pytest.raises(PatternError, match=r"layers='conv\*' selects no.*it has '0', '2'"):
        wl.FiLMNetwork(wl.mlp([2, 3, 1]), embed, layers="conv*")
    with pytest.raises(PatternError, match=r"out_proj'.*inside nn.MultiheadAttention"):
        wl.FiLMNetwork(transformer(), embed, layers="*.out_proj")
    with pytest.raises(PatternError, match=r"layers='' selects no"):
        wl.FiLMNetwork(wl.mlp([2, 3, 1]), embed, layers=[])
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(UnsupportedModuleError, match=r"'0' is lazy.*Run the primary once"):
        wl.FiLMNetwork(lazy, embed)
    film = wl.FiLMNetwork(wl.mlp([2, 3, 1]), embed)
    with pytest.raises(wl.errors.ShapeError, match="condition has 3 rows but x has 4"):
        film(torch.randn(4, 5, 2), torch.tensor([0, 1, 2]))
