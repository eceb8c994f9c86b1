"""What every head must do. A new head inherits these tests from one factory method.

class TestMine(HeadContract):
    def make(self): return MyHead()
"""

import copy
import pickle

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.hyper.zoo import ZOO, make
from tests.oracle import close, gradients, loop
from weightloom.errors import HeadError
from weightloom.hyper.heads import InitTarget
from weightloom.hyper.rows import LinearCall
from weightloom.networks import WeightSpec

CASES = [name for name, case in ZOO.items() if case.heads]


class HeadContract:
    """Inherit and define `make`; heads with a constant part also define `constant`."""

    def make(self):
        raise NotImplementedError

    def build(self, sizes=(12, 20, 3), features=5):
        primary = wl.mlp(list(sizes)).double()
        spec = WeightSpec.from_module(primary)
        head = self.make()
        head.build(spec, features, {n: p.detach() for n, p in primary.named_parameters()})
        return head, spec, primary

    def test_writes_every_tensor_for_every_condition(self):
        head, spec, _ = self.build()
        for b in (1, 4):
            generated = head.generate(torch.randn(b, 5).double())
            assert set(generated) == set(spec)
            for name, shape in spec.shapes.items():
                assert generated[name].shape == shape
                assert generated[name].dense().shape == (b, *shape)

    def test_rows_are_independent(self):
        head, _, _ = self.build()
        self.draw(head)
        features = torch.randn(4, 5).double()
        together = head.generate(features)
        alone = head.generate(features[2:3])
        for name, value in together.items():
            close(value.dense()[2], alone[name].dense()[0])

    def draw(self, head):
        for parameter in head.parameters():
            nn.init.normal_(parameter, std=0.3)

    @pytest.mark.parametrize("points", [1, 7])
    def test_every_order_gives_the_same(self, points):
        head, _, _ = self.build()
        self.draw(head)
        features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        x = torch.randn(4, points, 12, dtype=torch.float64, requires_grad=True)
        inputs = [features, x, *(p for p in head.parameters() if p.requires_grad)]
        weight = head.generate(features)["0.weight"]
        want = torch.einsum("bni,boi->bno", x, weight.dense())
        for order in weight.orders(LinearCall(4, points, True, True)):
            for bias in (None, torch.randn(20).double(), torch.randn(4, 20).double()):
                shift = 0.0 if bias is None else bias.reshape(-1, 1, 20)
                got = head.generate(features)["0.weight"].linear(x, bias, order)
                close(got, want + shift)
            got = head.generate(features)["0.weight"].linear(x, None, order)
            for a, b in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
                close(a, b, 10)
            want = torch.einsum("bni,boi->bno", x, head.generate(features)["0.weight"].dense())

    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("order", ["auto", "write", "contract", "factor"])
    def test_in_a_hypernetwork(self, name, order):
        hyper, x, condition = make(name, head=self.make())
        self.draw(hyper.head)
        hyper.order = order
        x.requires_grad_()
        got, want = hyper(x, condition), loop(hyper, x, condition)
        close(got, want, 10)
        inputs = [x, *(p for p in hyper.parameters() if p.requires_grad)]
        for a, b in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
            close(a, b, 100)

    def test_initialise_meets_the_targets(self):
        """Second moments over 60 draws, within five standard errors measured from those draws."""
        torch.manual_seed(3)
        # Rows of one norm: a low-rank head is quadratic in the features, so its variance would
        # otherwise follow their fourth moment.
        features = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)).double()
        features = 3.8 * torch.nn.functional.normalize(features, dim=1)
        moment = features.square().mean().item()
        head, spec, primary = self.build()
        targets = {name: InitTarget(0.01 * (i + 1)) for i, name in enumerate(spec)}
        moments = {name: [] for name in spec}
        for _ in range(60):
            head.initialise(targets, moment)
            base = self.constant(primary)
            for name, value in head.generate(features).items():
                part = value.dense() - base[name] if name in base else value.dense()
                moments[name].append(part.square().mean().item())
        for name, values in moments.items():
            samples = torch.tensor(values)
            error = 5 * (samples.std() / len(values) ** 0.5).item()
            assert abs(samples.mean().item() - targets[name].variance) < error
            assert error < targets[name].variance  # or the test could not fail

    def constant(self, primary):
        """What this head adds on top of the targets, whatever they say."""
        return {}

    def test_initialise_keeps_offsets(self):
        head, spec, primary = self.build()
        values = {n: p.detach() for n, p in primary.named_parameters()}
        head.initialise({name: InitTarget(0.0, values[name]) for name in spec}, 1.0)
        for name, value in head.generate(torch.randn(3, 5).double()).items():
            close(value.dense(), values[name].expand(3, *spec.shapes[name]))

    def test_zero_is_zero_with_live_gradients(self):
        head, _, primary = self.build()
        head.zero(1.0)
        base = self.constant(primary)
        generated = head.generate(torch.randn(3, 5).double())
        total = 0.0
        for name, value in generated.items():
            written = value.dense()
            close(written, base.get(name, torch.zeros(())).expand_as(written).double())
            total = total + (written * torch.randn_like(written)).sum()
        trainable = [p for p in head.parameters() if p.requires_grad]
        grads = torch.autograd.grad(total, trainable, allow_unused=True)
        assert any(g is not None and g.abs().max() > 0 for g in grads)

    def test_copies(self):
        head, _, _ = self.build()
        self.draw(head)
        features = torch.randn(3, 5).double()
        want = {n: v.dense() for n, v in head.generate(features).items()}
        fresh, _, _ = self.build()
        fresh.load_state_dict(head.state_dict())
        for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), fresh):
            for name, value in other.generate(features).items():
                assert torch.equal(value.dense(), want[name])

    def test_a_head_serves_one_primary(self):
        head, spec, primary = self.build()
        with pytest.raises(HeadError, match="already writes the weights of another primary"):
            head.build(spec, 5, dict(primary.named_parameters()))
