"""Adapter folders against PEFT itself, in both directions."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import weightloom as wl
from tests.hyper.adapters.models import (
    MODELS,
    Pictures,
    draw,
    gpt2,
    hypernetwork,
    llama,
    output,
    random_adapter,
)
from tests.oracle import close
from weightloom.errors import CheckpointError, ShapeError

peft = pytest.importorskip("peft")

NAMES = pytest.mark.parametrize("name", MODELS)


def in_peft(base, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT tells us that Conv1D is Conv1D
        return peft.PeftModel.from_pretrained(base, folder)


# -- written here, read by PEFT -------------------------------------------------------------------


@NAMES
def test_peft_computes_what_the_written_network_computes(name, tmp_path):
    hyper, base = hypernetwork(name)
    before = output(base)
    condition = torch.randn(5)
    adapter = hyper.adapter(condition)
    want = output(hyper.materialize(condition))
    merged = output(adapter.merge(base))
    adapter.save(tmp_path)
    got = output(in_peft(base, tmp_path))
    assert (want - before).abs().max() > 1e-3 * before.abs().max()  # the adapter does something
    close(merged, want, 10)
    close(got, want, 10)


@NAMES
def test_peft_finds_every_tensor_and_no_other_layer(name, tmp_path):
    hyper, base = hypernetwork(name)
    adapter = hyper.adapter(torch.randn(5))
    model = in_peft(base, adapter.save(tmp_path))
    own = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert set(own) == set(saved)
    for key, tensor in saved.items():
        assert torch.equal(own[key], tensor)


@NAMES
def test_peft_merges_it_to_the_same_weights(name, tmp_path):
    hyper, base = hypernetwork(name)
    adapter = hyper.adapter(torch.randn(5))
    want = adapter.merge(base).state_dict()
    got = in_peft(base, adapter.save(tmp_path)).merge_and_unload().state_dict()
    assert set(got) == set(want)
    for key, tensor in want.items():
        close(got[key], tensor)


def test_ranks_and_alphas_that_differ(tmp_path):
    torch.manual_seed(0)
    base = wl.mlp([12, 20, 16, 3])
    names = {"0": (20, 12), "2": (16, 20), "4": (3, 16)}
    adapter = wl.Adapter(
        {
            name: random_adapter({name: shape}, rank=rank, alpha=alpha, seed=rank)[name]
            for (name, shape), rank, alpha in zip(
                names.items(), (2, 2, 3), (3.0, 1.0, 3.0), strict=True
            )
        }
    )
    adapter.save(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 3)
    assert config["rank_pattern"] == {"^4": 3}
    assert config["alpha_pattern"] == {"^2": 1}
    x = torch.randn(5, 12)
    want = output(adapter.merge(base), x)
    close(output(in_peft(base, tmp_path), x), want)
    again = wl.Adapter.load(tmp_path)
    assert {n: (a.rank, a.alpha) for n, a in again.items()} == {
        n: (a.rank, a.alpha) for n, a in adapter.items()
    }


def test_names_that_end_alike_are_told_apart(tmp_path):
    """In a list PEFT would read "0" as the first layer of every block too."""
    base = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    )
    adapter = random_adapter({"0": (4, 4)})
    model = in_peft(base, adapter.save(tmp_path))
    changed = [n for n, m in model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    assert changed == ["base_model.model.0"]


def test_tied_embeddings_change_in_both_layers(tmp_path):
    """GPT-2's lm_head is its embedding: the hypernetwork changes both, and so must the adapter."""
    torch.manual_seed(0)
    base = gpt2()
    hyper = wl.HyperNetwork(
        base, None, wl.AdapterHead(2, width=16), generate="transformer.wte.weight", features=5
    )
    draw(hyper.head)
    condition = torch.randn(5)
    adapter = hyper.adapter(condition)
    assert {n: a.kind for n, a in adapter.items()} == {
        "transformer.wte": "embedding",
        "lm_head": "linear",
    }
    want = output(hyper.materialize(condition))
    merged = adapter.merge(base)
    close(output(merged), want, 10)
    assert merged.lm_head.weight is merged.transformer.wte.weight
    close(output(in_peft(base, adapter.save(tmp_path))), want, 10)


def test_a_layer_without_a_name(tmp_path):
    adapter = random_adapter({"": (4, 3)})
    base = torch.nn.Linear(3, 4)
    close(adapter.merge(base).weight, base.weight + adapter.weights()["weight"])
    with pytest.raises(ShapeError, match=r"put\s+it into an nn.Sequential"):
        adapter.save(tmp_path)


# -- written by PEFT, read here -------------------------------------------------------------------

CONFIGS = {
    "llama": (llama, {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 6}),
    "llama rslora": (llama, {"target_modules": ["q_proj", "o_proj"], "use_rslora": True, "r": 4}),
    "llama patterns": (
        llama,
        {
            "target_modules": "all-linear",
            "r": 2,
            "rank_pattern": {"q_proj": 5, "layers.1.mlp.up_proj": 3},
            "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 7, "down_proj": 1},
        },
    ),
    "llama embedding": (llama, {"target_modules": ["embed_tokens", "k_proj"], "r": 3}),
    "gpt2": (gpt2, {"target_modules": ["c_attn", "c_proj"], "r": 3, "fan_in_fan_out": True}),
    "gpt2 unsaid": (gpt2, {"target_modules": ["c_attn", "c_fc"], "r": 3}),
    "pictures": (Pictures, {"target_modules": ["table", "0", "2", "mix", "out"], "r": 3}),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_reads_what_peft_saves(case, tmp_path):
    torch.manual_seed(0)
    build, options = CONFIGS[case]
    base = build()
    fresh = build()
    fresh.load_state_dict(base.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(base, peft.LoraConfig(**options))
        for key, value in model.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(value, std=0.1)
        model.save_pretrained(tmp_path)
    want = output(model)
    adapter = wl.Adapter.load(tmp_path)
    close(output(adapter.merge(fresh)), want, 10)
    adapter.save(tmp_path / "again")
    close(output(in_peft(fresh, tmp_path / "again")), want, 10)


def saved(tmp_path, **changes):
    """A folder of ours with another configuration."""
    random_adapter({"a.0": (4, 3)}).save(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "has use_dora=True; an Adapter is a change B A"),
        ({"bias": "all"}, "has bias='all'"),
        ({"modules_to_save": ["score"]}, r"has modules_to_save=\['score'\]"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights='pissa'"),
        ({"peft_type": "IA3"}, "describes 'IA3'; .* only peft_type 'LORA' can be read"),
    ],
)
def test_refuses_more_than_a_low_rank_change(changes, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        wl.Adapter.load(saved(tmp_path, **changes))


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no file .*adapter_config.json"):
        wl.Adapter.load(tmp_path / "nowhere")
    saved(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no file .*adapter_model.safetensors"):
        wl.Adapter.load(tmp_path)


def test_damaged_files(tmp_path):
    saved(tmp_path)
    weights, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        wl.Adapter.load(tmp_path)
    tensors = {"base_model.model.a.0.lora_A.weight": torch.ones(2, 3)}
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match=r"has only lora_A of layer 'a.0'"):
        wl.Adapter.load(tmp_path)
    save_file({**tensors, "base_model.model.score.weight": torch.ones(2)}, weights)
    with pytest.raises(CheckpointError, match=r"no factors of a LoRA: 'base_model.model.score.w"):
        wl.Adapter.load(tmp_path)
    config.write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        wl.Adapter.load(tmp_path)


def test_reads_pickled_tensors_without_running_code(tmp_path):
    saved(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    torch.save(load_file(path), tmp_path / "adapter_model.bin")
    want = wl.Adapter.load(tmp_path)
    path.unlink()
    assert torch.equal(wl.Adapter.load(tmp_path)["a.0"].A, want["a.0"].A)
    torch.save({"code": object}, tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="without running code from it"):
        wl.Adapter.load(tmp_path)
