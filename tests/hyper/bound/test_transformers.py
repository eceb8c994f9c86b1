"""Bound Hugging Face models against each condition's own network."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl
from weightloom.errors import UnsupportedModuleError

from . import transformers_zoo as zoo

CONDITIONS = torch.arange(3)
HEADS = {"delta": lambda: wl.DeltaHead(2), "full": lambda: "full"}
NO_EXPERTS = [name for name in zoo.LANGUAGE if name != "mixtral"]


def networks(hyper):
    return [hyper.materialize(condition) for condition in CONDITIONS]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", [*NO_EXPERTS, *zoo.OTHERS])
def test_every_parameter_generated(name, head):
    hyper = zoo.hypernetwork(zoo.model(name), HEADS[head]())
    given = zoo.arguments(name, 3)
    with torch.no_grad():
        zoo.assert_rows(hyper.bind(CONDITIONS)(**given), networks(hyper), given)


@pytest.mark.parametrize("name", zoo.LANGUAGE)
def test_adapters_decode_with_a_cache(name):
    """Greedy decoding of padded prompts, token by token, equals each network's own."""
    hyper = zoo.adapted(name)
    ids = torch.randint(2, 97, (3, 6))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    options = {"max_new_tokens": 6, "do_sample": False}
    written = hyper.bind(CONDITIONS).generate(ids, attention_mask=mask, **options)
    for i, net in enumerate(networks(hyper)):
        own = net.generate(ids[i : i + 1], attention_mask=mask[i : i + 1], **options)
        assert torch.equal(written[i : i + 1], own)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "bloom"])
def test_beam_search(name):
    """Three rows of the batch for each condition: consecutive rows share it."""
    hyper = zoo.hypernetwork(zoo.model(name), wl.DeltaHead(2))
    ids = torch.randint(2, 97, (3, 5))
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    written = hyper.bind(CONDITIONS).generate(ids, **options)
    for i, net in enumerate(networks(hyper)):
        assert torch.equal(written[i : i + 1], net.generate(ids[i : i + 1], **options))


def test_a_cache_from_outside():
    """Step by step with a cache that the user holds."""
    hyper = zoo.adapted("llama")
    ids = torch.randint(2, 97, (3, 6))
    net = hyper.bind(CONDITIONS)
    with torch.no_grad():
        cache = net(ids[:, :4], use_cache=True).past_key_values
        assert cache.get_seq_length() == 4
        steps = [net(ids[:, t : t + 1], past_key_values=cache).logits for t in (4, 5)]
        assert cache.get_seq_length() == 6
        for i, own in enumerate(networks(hyper)):
            whole = own(ids[i : i + 1]).logits[:, 4:]
            torch.testing.assert_close(torch.cat(steps, 1)[i : i + 1], whole, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_ragged_rows_in_any_order(name):
    hyper = zoo.hypernetwork(zoo.model(name), wl.DeltaHead(2))
    owner = torch.tensor([2, 0, 0, 1, 2, 2, 0])
    given = zoo.arguments(name, 7)
    with torch.no_grad():
        output = hyper.bind(CONDITIONS, index=owner)(**given)
        zoo.assert_rows(output, networks(hyper), given, owner)


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
@pytest.mark.parametrize("generated", ["*", "adapters"])
def test_activation_checkpointing(name, generated):
    """The loss with labels and the head's gradients do not change."""
    if generated == "*":
        hyper = zoo.hypernetwork(zoo.model(name), wl.DeltaHead(2))
    else:
        hyper = zoo.adapted(name)
    hyper.train()
    for module in hyper.primary.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ids = torch.randint(2, 97, (3, 6))

    def loss_and_gradients():
        loss = hyper.bind(CONDITIONS)(input_ids=ids, labels=ids).loss
        return loss, torch.autograd.grad(loss, list(hyper.head.parameters()))

    plain, expected = loss_and_gradients()
    hyper.primary.gradient_checkpointing_enable({"use_reentrant": False})
    loss, gradients = loss_and_gradients()
    torch.testing.assert_close(loss, plain)
    for own, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(own, other)
    own = torch.stack([net(input_ids=ids[i : i + 1], labels=ids[i : i + 1]).loss
                       for i, net in enumerate(networks(hyper))])  # fmt: skip
    torch.testing.assert_close(loss, own.mean())


def test_reentrant_checkpointing_says_what_to_do():
    hyper = zoo.adapted("llama").train()
    hyper.primary.gradient_checkpointing_enable({"use_reentrant": True})
    ids = torch.randint(2, 97, (3, 6))
    loss = hyper.bind(CONDITIONS)(input_ids=ids, labels=ids).loss
    with pytest.raises(UnsupportedModuleError, match="use_reentrant=False"):
        loss.backward()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("half", ["base", "autocast", "both"])
def test_half_precision(name, half):
    """A float32 head beside a bf16 base, and autocast: as far from float32 as the base is."""
    hyper = zoo.adapted(name)
    given = zoo.arguments(name, 3)
    exact = [net(**zoo.row(given, i)).logits for i, net in enumerate(networks(hyper))]
    if half in ("base", "both"):
        short = zoo.model(name).bfloat16()
        other = wl.HyperNetwork(short, nn.Embedding(3, 8), wl.AdapterHead(2, 16),
                                generate=list(hyper.spec), freeze_rest=True)  # fmt: skip
        other.load_state_dict(
            {k: v for k, v in hyper.state_dict().items() if not k.startswith("primary.")},
            strict=False,
        )
        hyper = other.eval()
        assert {p.dtype for p in hyper.head.parameters()} == {torch.float32}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half != "base"):
        output = hyper.bind(CONDITIONS)(**given).logits
        output.float().square().mean().backward()
    assert output.dtype == torch.bfloat16
    largest = torch.cat(exact).abs().max()
    # bf16 keeps 8 bits; a dozen layers of sums add a few of its last ones.
    assert (output.float() - torch.cat(exact)).abs().max() < 2**-5 * largest
    assert all(p.grad is not None and p.grad.isfinite().all() for p in hyper.head.parameters())


class Int8Linear(nn.Module):
    """A frozen linear layer whose weights are int8 with a scale for each row."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("quantised", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    @property
    def weight(self):
        return self.quantised

    def dequantised(self):
        return self.quantised.float() * self.scale

    def forward(self, x):
        return F.linear(x, self.dequantised().to(x.dtype), self.bias)


class FourBitLinear(nn.Module):
    """Two weights in each byte of a flat buffer, as bitsandbytes keeps them."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.scale = layer.weight.detach().abs().max() / 7
        codes = (layer.weight.detach() / self.scale).round().long().reshape(-1) + 8
        packed = (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)
        self.weight = nn.Parameter(packed.unsqueeze(1), requires_grad=False)
        self.bias = layer.bias

    def dequantised(self):
        codes = self.weight[:, 0].long()
        values = torch.stack([codes // 16, codes % 16], 1).reshape(-1) - 8
        return (values * self.scale).reshape(self.out_features, self.in_features)

    def forward(self, x):
        return F.linear(x, self.dequantised().to(x.dtype), self.bias)


@pytest.mark.parametrize("kind", [Int8Linear, FourBitLinear])
def test_quantised_frozen_bases(kind):
    """Adapters beside quantised layers, against the same base with dequantised weights."""
    base = zoo.model("llama")
    plain = copy.deepcopy(base)
    for name, module in list(base.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            short = kind(module)
            base.set_submodule(name, short)
            plain.get_submodule(name).weight.data.copy_(short.dequantised())
    generate = ["*q_proj.weight", "*v_proj.weight"]
    options = {"generate": generate, "freeze_rest": True}
    hyper = zoo.hypernetwork(base, wl.AdapterHead(2, 16), **options)
    reference = zoo.hypernetwork(plain, wl.AdapterHead(2, 16), **options)
    reference.encoder.load_state_dict(hyper.encoder.state_dict())
    reference.head.load_state_dict(hyper.head.state_dict())
    given = zoo.arguments("llama", 3)
    output = hyper.bind(CONDITIONS)(**given)
    zoo.assert_rows(output, networks(reference), given)
    output.logits.square().mean().backward()
    assert all(p.grad is not None for p in hyper.head.parameters())
    ids = given["input_ids"]
    written = hyper.bind(CONDITIONS).generate(ids, max_new_tokens=4, do_sample=False)
    expected = reference.bind(CONDITIONS).generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(written, expected)


def test_attributes_and_methods_of_the_primary():
    hyper = zoo.adapted("llama")
    net = hyper.bind(CONDITIONS)
    assert net.config is hyper.primary.config
    assert isinstance(net, type(hyper.primary))
    assert net.get_input_embeddings() is net.model.embed_tokens
    assert (
        net.model.layers[0].self_attn.q_proj is not hyper.primary.model.layers[0].self_attn.q_proj
    )
    own, other = net.lm_head.weight, hyper.primary.lm_head.weight
    assert own is other


def test_the_first_tensor_may_be_a_keyword():
    hyper = zoo.adapted("llama")
    given = zoo.arguments("llama", 3)
    net = hyper.bind(CONDITIONS)
    with torch.no_grad():
        by_position = net(given["input_ids"], given["attention_mask"]).logits
        assert torch.equal(by_position, net(**given).logits)
        embedded = net.get_input_embeddings()(given["input_ids"])
        by_embedding = net(inputs_embeds=embedded, attention_mask=given["attention_mask"]).logits
        torch.testing.assert_close(by_embedding, by_position)


def test_experts_are_refused_and_attention_beside_them_is_not():
    """A mixture of experts sorts tokens by value: rows cannot be followed there."""
    hyper = zoo.hypernetwork(zoo.model("mixtral"), wl.DeltaHead(2))
    with pytest.raises(UnsupportedModuleError, match=r"experts.*Leave it out of generate="):
        hyper.bind(CONDITIONS)(**zoo.arguments("mixtral", 3))
    hyper = zoo.adapted("mixtral")
    given = zoo.arguments("mixtral", 3)
    with torch.no_grad():
        zoo.assert_rows(hyper.bind(CONDITIONS)(**given), networks(hyper), given)


@pytest.mark.parametrize("head", ["adapter", "delta"])
def test_a_frozen_base_is_not_copied(head):
    """Wrapping and binding share the base's tensors, buffers included."""
    base = zoo.model("llama")
    patterns = ["*q_proj.weight", "*v_proj.weight"]
    chosen = wl.AdapterHead(2, 16) if head == "adapter" else wl.DeltaHead(2)
    hyper = zoo.hypernetwork(base, chosen, patterns, freeze_rest=True)
    given = {tensor.data_ptr() for tensor in (*base.parameters(), *base.buffers())}
    for net in (hyper.primary, hyper.bind(CONDITIONS)):
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            generated = name in hyper.spec and net is not hyper.primary
            assert generated or tensor.data_ptr() in given, name
