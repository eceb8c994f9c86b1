"""The example that writes LoRA adapters from text: tasks, rivals, encoder and adapter."""

import random
import re

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

import weightloom as wl
from tests.examples.scripts import load, numbers


@pytest.fixture(scope="module")
def example():
    return load("text_to_lora")


def test_models_that_read_text_learn_as_many_numbers(run):
    """Hidden widths are whole numbers: one more or less is 1.3 percent at this small size."""
    text, _ = run("text_to_lora")
    text = text[text.index("answers that are right") :]
    hyper, *prompts = (
        numbers(text, row)[-1] for row in ("text to LoRA", "prompt, base f", "prompt, base t")
    )
    assert all(abs(learned / hyper - 1) < 0.015 for learned in prompts)
    assert numbers(text, "no adapter")[-1] == 0
    shared, each = (
        numbers(text, f"one LoRA {which}")[-1] for which in ("for all tasks", "per task")
    )
    assert each == 48 * shared == 48 * 2 * 2 * 8 * (32 + 32)  # layers, q and v, rank, both factors


def test_peft_reads_the_adapter(run, example):
    """It is equal up to rounding, and not because the adapter is zero."""
    text, out = run("text_to_lora")
    ours, base = re.search(r"ours: (\S+), the base's: (\S+)", text).groups()
    assert float(ours) < 1e-4 < 1e-2 < float(base)
    adapter = wl.Adapter.load(out / "text_to_lora_adapter")
    assert (len(adapter), adapter.rank) == (4, example.RANK)


def test_answers_of_tasks(example):
    answers = {
        ("reverse", ""): "enots", ("ends", ""): "etons", ("three", ""): "sto",
        ("middle", ""): "stne", ("stretch", ""): "stoneee", ("hyphen", ""): "st-one",
        ("", "capitals"): "STONE", ("", "next"): "tupof", ("", "stars"): "st*n*",
        ("", "digits"): "st0n3", ("", "brackets"): "(stone)", ("", "cry"): "stone!",
        ("reverse", "digits"): "3n0ts", ("stretch", "brackets"): "(stoneee)",
    }  # fmt: skip
    assert {task: example.answer(task, "stone") for task in answers} == answers
    assert {name for task in answers for name in task if name} == set(example.PHRASES)


def test_what_is_held_out_was_not_seen(example):
    """New tasks are no task of training, and new wordings share no phrase with it."""
    trained, groups = example.draw(3, example.Size())
    spoken = " ".join(trained.texts).lower()
    phrases = [p for each in example.PHRASES.values() for p in each]
    unheard = {phrase for phrase in phrases if phrase.lower() not in spoken}
    assert len(trained.tasks) == len(set(trained.texts)) == 38 * 32
    assert set(groups["trained"].texts) <= set(trained.texts)
    for name, group in groups.items():
        new = set(group.tasks) - set(trained.tasks)
        assert len(new) == (10 if name in ("new tasks", "both new") else 0), name
        unknown = [any(p.lower() in text.lower() for p in unheard) for text in group.texts]
        assert all(unknown) if name in ("new wording", "both new") else not any(unknown), name
        assert name == "trained" or not set(group.texts) & set(trained.texts)
    parts = {part for task in trained.tasks for part in task}
    assert all(part in parts for task in groups["new tasks"].tasks for part in task)


def test_rows_ask_and_answer(example):
    tasks = [("reverse", "cry"), ("", "next")]
    ids, labels = example.rows(tasks, 3, random.Random(0))
    for row, (line, label) in enumerate(zip(ids, labels, strict=True)):
        text = "".join(example.VOCABULARY[i] for i in line).rstrip("_")
        word, reply = text[:5], text[6:]
        assert text[5] == ">"
        assert reply == example.answer(tasks[row // 3], word) + "."
        ignored = [-100] * 6, [-100] * (16 - len(text))
        assert label.tolist() == [*ignored[0], *line[6 : len(text)].tolist(), *ignored[1]]


def test_the_encoder_runs_once_and_is_that_of_sentence_transformers(example, monkeypatch):
    encoder = example.MiniLM()
    base = example.llama(32, 1)
    head = wl.AdapterHead(2, 8)
    hyper = example.adapted(base, head, encoder, features=384, feature_moment=1.0).train()
    texts = ["Reverse the word.", "Write it backwards, please.", "Use capital letters."]
    requests = example.encoded(hyper, example.Requests([None] * 3, texts))
    values = requests.features.values
    assert not values.requires_grad
    peer = SentenceTransformer(str(example.get_model_path()), device="cpu")
    want = peer.encode(texts, normalize_embeddings=True, convert_to_tensor=True)
    assert torch.allclose(values, 384**0.5 * want, atol=1e-4)
    # One by one, without padding, and in training mode: frozen, it has no dropout.
    alone = torch.cat([hyper.encode(encoder.read([text])).values for text in texts])
    assert torch.allclose(values, alone, atol=1e-4)
    monkeypatch.setattr(encoder, "forward", None)
    assert hyper.bind(requests.features)(base.dummy_inputs["input_ids"][:3]).logits.isfinite().all()


def test_prompts_stand_before_their_rows(example):
    """Against the base alone, fed with one prompt and one row at a time."""
    base = example.llama(32, 2).eval()
    model = example.Prompted(base, 60_000, train_base=False, tokens=3)
    features = wl.Features(torch.randn(2, 384))
    ids, labels = example.rows([("reverse", ""), ("", "cry")], 2, random.Random(0))
    with torch.no_grad():
        net = model.bind(features)
        got = net(input_ids=ids, labels=labels).loss
        written = example.decode(net, ids[:, :6])
        prompts = model.write(features.values).unflatten(1, (3, 32))
        logits = []
        for row in range(4):
            whole = torch.cat([prompts[row // 2], base.get_input_embeddings()(ids[row])])
            logits.append(base(inputs_embeds=whole[None]).logits[0, 3:])
        want = F.cross_entropy(torch.stack(logits)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert torch.allclose(got, want, atol=1e-5)
    assert torch.equal(written[:, :6], ids[:, :6])
    assert torch.equal(written[:, 6], torch.stack(logits)[:, 5].argmax(1))


def test_training_makes_adapters_follow_their_descriptions(example):
    """The loss with the other task's description is much higher; at the start it is the same."""
    tasks, rng = [("", "cry"), ("", "capitals")], random.Random(0)
    base = example.llama(32, 2)
    torch.nn.init.normal_(base.lm_head.weight)  # or logits are small, whatever the adapters do
    hyper = example.adapted(base, wl.AdapterHead(4, 32), features=384, feature_moment=1.0)
    requests = example.Requests(tasks, tasks, wl.Features(torch.randn(2, 384)))
    rival = example.from_text(hyper, requests, 3e-3)
    ids, labels = example.rows(tasks, 8, random.Random(1))

    def losses():
        given = requests.features, requests.features[torch.tensor([1, 0])]
        with torch.no_grad():
            return [hyper.bind(f)(input_ids=ids, labels=labels).loss.item() for f in given]

    right, wrong = losses()
    assert right == pytest.approx(wrong)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    example.train("", rival, 40, rng, count=8)
    right, wrong = losses()
    assert wrong > right + 0.5  # five seeds: 1.1 to 4.8
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
