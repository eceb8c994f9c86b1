"""Every kind of layer in a bound network, with every head, against each condition's own network."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import weightloom as wl
from weightloom.errors import ShapeError, SlowPathWarning, UnsupportedModuleError

B = 3

HEADS = {
    "full": lambda: "full",
    "low rank": lambda: wl.LowRankHead(2),
    "chunked": lambda: wl.ChunkedHead(16),
    "delta": lambda: wl.DeltaHead(),
    "low-rank delta": lambda: wl.DeltaHead(2),
    "adapter": lambda: wl.AdapterHead(2, 8),
}

# name -> (layer, shape of one row, dimension of the rows)
LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,), 0),
    "linear, points": (lambda: nn.Linear(5, 4), (6, 5), 0),
    "linear, no bias": (lambda: nn.Linear(5, 4, bias=False), (6, 5), 0),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (4, 7), 0),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2), (4, 9, 9), 0),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 6, 6), 0),
    "conv2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
                         (4, 6, 6), 0),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4), 0),
    "transposed conv1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (4, 5), 0),
    "transposed conv2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (4, 5, 5), 0,
    ),
    "layer norm": (lambda: nn.LayerNorm([3, 4]), (2, 3, 4), 0),
    "rms norm": (lambda: nn.RMSNorm(4), (2, 4), 0),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 5), 0),
    "batch norm": (lambda: nn.BatchNorm2d(3), (3, 4, 4), 0),
    "instance norm": (lambda: nn.InstanceNorm1d(3, affine=True), (3, 5), 0),
    "attention": (lambda: OwnAttention(True), (5, 8), 0),
    "attention, length first": (lambda: OwnAttention(False), (5, 8), 0),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), (5, 8), 0),
    "transformer, length first": (lambda: nn.TransformerEncoderLayer(8, 2, 12), (5, 8), 1),
    "decoder": (lambda: OwnDecoder(), (5, 8), 0),
    "prelu": (lambda: nn.PReLU(4), (4, 3), 0),
    "bilinear": (lambda: OwnBilinear(), (5,), 0),
    "weight norm": (lambda: weight_norm(nn.Linear(5, 4)), (5,), 0),
    "parameter of its own": (lambda: OwnScale(), (5, 4), 0),
}  # fmt: skip


class OwnAttention(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x):
        if not self.attention.batch_first:
            x = x.transpose(0, 1)
        output, weights = self.attention(x, x, x)
        if not self.attention.batch_first:
            output = output.transpose(0, 1)
        return output + weights.sum(2, keepdim=True)


class OwnDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.layer(x, 2 * x, tgt_mask=mask)


class OwnBilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(5, 5, 4)

    def forward(self, x):
        return self.layer(x, x.sin())


class OwnScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(5, 4))
        self.token = nn.Parameter(torch.rand(1, 1, 4))

    def forward(self, x):
        token = self.token.expand(x.shape[0], -1, -1)
        return torch.cat([token, x * self.scale], 1)


def built(layer, head):
    """In double precision, with conditions that clearly differ."""
    hyper = wl.HyperNetwork(layer(), nn.Embedding(B, 6), HEADS[head]()).double().eval()
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return hyper


def rows_of(hyper, x, owner, dim):
    """One condition after the other; differentiable."""
    outputs = []
    for j, condition in enumerate(owner):
        weights = hyper.weights(torch.tensor(int(condition)))
        outputs.append(hyper.run(x.narrow(dim, j, 1), weights))
    return torch.cat(outputs, dim)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer(name, head):
    layer, shape, dim = LAYERS[name]
    hyper = built(layer, head)
    conditions = torch.arange(B)
    orders = {
        "one row each": (None, conditions),
        "two rows each": (None, conditions.repeat_interleave(2)),
        "ragged": (torch.tensor([2, 0, 0, 2, 2]), torch.tensor([2, 0, 0, 2, 2])),
    }
    for index, owner in orders.values():
        x = torch.randn(len(owner), *shape).double().movedim(0, dim)
        output = hyper.bind(conditions, index)(x)
        expected = rows_of(hyper, x, owner, dim)
        torch.testing.assert_close(output, expected)
        probe = torch.randn_like(output)
        parameters = [p for p in hyper.parameters() if p.requires_grad]
        own = torch.autograd.grad((output * probe).sum(), parameters, allow_unused=True)
        plain = torch.autograd.grad((expected * probe).sum(), parameters, allow_unused=True)
        for grad, want in zip(own, plain, strict=True):
            zero = torch.zeros(())
            torch.testing.assert_close(
                zero if grad is None else grad.sum(),
                (zero if want is None else want.sum()).to(
                    zero.dtype if grad is None else grad.dtype
                ),
            )
            if grad is not None and want is not None:
                torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("padding", [None, 0])
def test_tables(head, padding):
    hyper = built(lambda: nn.Embedding(11, 7, padding_idx=padding), head)
    ids = torch.randint(0, 11, (6, 4))
    owner = torch.tensor([1, 1, 2, 0, 2, 1])
    output = hyper.bind(torch.arange(B), owner)(ids)
    expected = torch.cat(
        [hyper.materialize(torch.tensor(int(c)))(ids[j : j + 1]) for j, c in enumerate(owner)]
    )
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_run_in_a_loop_and_say_so(layer, batch_first):
    hyper = built(lambda: layer(4, 5, num_layers=2, batch_first=batch_first), "full")
    dim = 0 if batch_first else 1
    x = torch.randn(B, 6, 4).double().movedim(0, dim)
    with pytest.warns(SlowPathWarning, match="slow loop over 3 groups of rows"):
        output, _ = hyper.bind(torch.arange(B))(x)
    for i in range(B):
        expected, _ = hyper.materialize(torch.tensor(i))(x.narrow(dim, i, 1))
        torch.testing.assert_close(output.narrow(dim, i, 1), expected)


def test_an_embedding_that_changes_its_own_table():
    hyper = built(lambda: nn.Embedding(11, 7, max_norm=1.0), "full")
    with pytest.raises(UnsupportedModuleError, match=r"max_norm.*leave it out of generate="):
        hyper.bind(torch.arange(B))(torch.randint(0, 11, (3, 4)))


def test_rows_that_do_not_fit():
    hyper = built(lambda: nn.Linear(5, 4), "full")
    net = hyper.bind(torch.arange(B))
    with pytest.raises(ShapeError, match=r"got 4 rows.*3 conditions.*index=owner"):
        net(torch.randn(4, 5).double())
    ragged = hyper.bind(torch.arange(B), index=torch.tensor([0, 2]))
    with pytest.raises(ShapeError, match=r"got 3 rows.*an index of 2 rows"):
        ragged(torch.randn(3, 5).double())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([0, 3]), "from 0 to 3, but there are 3 conditions"),
        (torch.tensor([-1, 0]), "from -1 to 0"),
        (torch.tensor([0.0, 1.0]), "whole number for each row"),
        (torch.tensor([[0, 1]]), r"must be \[rows\]"),
        (torch.tensor([], dtype=torch.long), "is empty"),
    ],
)
def test_bad_indices(index, message):
    hyper = built(lambda: nn.Linear(5, 4), "full")
    with pytest.raises(ShapeError, match=message):
        hyper.bind(torch.arange(B), index=index)


def test_very_uneven_rows():
    """One condition with nearly all rows: no condition is filled up to the largest."""
    hyper = built(lambda: nn.Linear(5, 4), "full")
    owner = torch.tensor([0] * 40 + [1, 2, 1])[torch.randperm(43)]
    x = torch.randn(43, 5).double()
    output = hyper.bind(torch.arange(B), owner)(x)
    torch.testing.assert_close(output, rows_of(hyper, x, owner, 0))


def test_one_image_for_each_task():
    """hyper(x, c) gives the primary x[i]; where it wants a batch, the error names bind."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)]
    hyper = wl.HyperNetwork(nn.Sequential(*layers), nn.Embedding(4, 6)).eval()
    images, task = torch.randn(4, 3, 8, 8), torch.arange(4)
    with pytest.raises(ShapeError, match=r"cannot take \(3, 8, 8\).*hyper\.bind\(condition\)\(x\)"):
        hyper(images, task)
    output = hyper.bind(task)(images)
    torch.testing.assert_close(output, hyper(images[:, None], task)[:, 0])
    with pytest.raises(RuntimeError, match="channels"):  # wrong for both: the primary's own error
        hyper(torch.randn(4, 2, 8, 8), task)


def test_a_bound_network_has_no_state_dict():
    net = built(lambda: nn.Linear(5, 4), "delta").bind(torch.arange(B))
    with pytest.raises(UnsupportedModuleError, match=r"hyper\.materialize\(condition\[i\]\)"):
        net.state_dict()


def test_parameters_tell_type_and_device_and_no_values():
    """Code that asks its first parameter for a type gets it; code that uses values sees NaN."""
    net = built(lambda: nn.Linear(5, 4), "delta").bind(torch.arange(B))
    first = next(net.parameters())
    assert first.dtype == torch.double
    assert first.shape == (4, 5)
    assert first.isnan().all()
    assert "for each of 3 conditions" in repr(net.weight)


def test_the_primary_is_never_touched():
    hyper = built(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), "low-rank delta")
    before = {name: value.clone() for name, value in hyper.state_dict().items()}
    net = hyper.bind(torch.arange(B))
    net.train()
    net(torch.randn(6, 5).double()).sum().backward()
    assert not hyper.primary.training
    assert not hyper.primary[1].training
    assert set(before) == set(hyper.state_dict())
    changed = [n for n, v in hyper.state_dict().items() if not torch.equal(v, before[n])]
    # Running statistics are shared: training a bound network updates them.
    assert changed == [
        "primary.1.running_mean", "primary.1.running_var", "primary.1.num_batches_tracked",
    ]  # fmt: skip


class Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x, log):
        y = self.layer(x)
        log.append(y)
        return y


def test_what_the_primary_puts_into_an_argument_arrives():
    hyper = built(Logging, "delta")
    log = []
    output = hyper.bind(torch.arange(B))(torch.randn(B, 5).double(), log)
    assert len(log) == 1
    assert log[0] is output


def test_a_bound_network_need_not_be_kept_for_the_backward_pass():
    hyper = built(lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), "delta")
    events = []
    hyper.primary[0].register_full_backward_hook(lambda *_: events.append("full"))
    hyper.primary[1].register_backward_hook(lambda *_: events.append("old"))
    hyper.bind(torch.arange(B))(torch.randn(B, 5).double()).sum().backward()
    assert sorted(events) == ["full", "old"]


def conv1d(inner, out):
    return pytest.importorskip("transformers").pytorch_utils.Conv1D(out, inner)


@pytest.mark.parametrize("before", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", [nn.Linear, conv1d])
def test_a_call_without_gradients_does_not_take_them_from_later_calls(layer, before):
    """Matrices alone: then layers keep what their products take from call to call.

    What can lose its gradients is a view: nn.Linear takes views of the factors, Conv1D one of the
    base. So the base is trained here.
    """
    net = nn.Sequential(layer(20, 15), nn.Tanh(), layer(15, 12))
    head = wl.DeltaHead(2, train_base=True)
    hyper = wl.HyperNetwork(net, nn.Embedding(B, 6), head, generate="*.weight")
    x = torch.randn(B, 20)
    bound = hyper.bind(torch.arange(B))
    with before():
        bound(x)
    later, wanted = gradients(hyper, bound, x), gradients(hyper, hyper.bind(torch.arange(B)), x)
    assert set(later) == set(wanted)
    assert {"primary.0.weight", "primary.2.weight"} < set(wanted)
    for name, gradient in wanted.items():
        torch.testing.assert_close(later[name], gradient)
    assert max(gradient.abs().max() for name, gradient in later.items() if "head." in name) > 0


def gradients(hyper, bound, x):
    """By name, of the parameters that got one."""
    hyper.zero_grad()
    bound(x).square().sum().backward()
    named = hyper.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}
