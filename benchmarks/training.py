"""How much faster is training many seeds at once than one by one, or than a hand-written loop?

The hypernetwork of Figure 3 (a) of "On the Modularity of Hypernetworks": f 1000-100-100-N_g,
g 1000-10-1, batches of 200 pairs, SGD. Every seed has its own target values, data and initial
weights. Times are of training steps alone: making the models and the data is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import describe, sgemm_peak
from timing import Times, median_ratio
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

import weightloom as wl
from weightloom.training import Member, Settings, Split, train

D, HIDDEN, FEATURES, BATCH = 1000, 10, 100, 200
STEPS = 10
"""timed steps of one burst, after as many that are not"""
BAR = 1.5

EXAMPLES = """\
examples:
  python benchmarks/training.py --quick                      does it run?
  python benchmarks/training.py --json out.json --plot seeds.png
"""


@dataclass(frozen=True)
class Pairs:
    """What one seed trains on."""

    x: Tensor  # [n, D]
    condition: Tensor  # [n, D]
    target: Tensor  # [n, 1]


def make_pairs(seed: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    n = BATCH * STEPS

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Pairs(normal(n, D), normal(n, D), 0.1 * normal(n, 1))


# -- who is measured ----------------------------------------------------------------------------


class Plain(nn.Module):
    """As it is usually written: one nn.Linear writes all the weights, bmm applies them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = wl.mlp([D, FEATURES, FEATURES], last_activation=True)
        self.sizes = [HIDDEN * D, HIDDEN, HIDDEN, 1]
        self.head = nn.Linear(FEATURES, sum(self.sizes))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        w1, b1, w2, b2 = self.head(self.encoder(condition)).split(self.sizes, 1)
        hidden = torch.bmm(w1.view(-1, HIDDEN, D), x.unsqueeze(2)).squeeze(2) + b1
        return (w2 * F.relu(hidden)).sum(1, keepdim=True) + b2


def hand_written(pairs: Sequence[Pairs]) -> float:
    """Seconds of STEPS steps of every seed, one seed after the other, in a plain loop."""
    total = 0.0
    for seed, data in enumerate(pairs):
        torch.manual_seed(seed)
        model = Plain()
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
        for epoch in range(2):
            begin = time.perf_counter()
            for rows in torch.randperm(len(data.x)).split(BATCH):
                output = model(data.x[rows], data.condition[rows])
                loss = F.mse_loss(output, data.target[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if epoch == 1:
                total += time.perf_counter() - begin
    return total


def together(pairs: Sequence[Pairs]) -> float:
    """Seconds of STEPS steps of every seed, all at once."""
    members = [_member(seed, data) for seed, data in enumerate(pairs)]
    marks: list[float] = []
    settings = Settings(epochs=2, batch_size=BATCH, learning_rate=1e-4)
    train(members, settings, on_evaluation=lambda *_: marks.append(time.perf_counter()))
    # Two marks, one per epoch, for every group that was trained at once; the second epoch counts.
    return sum(after - before for before, after in zip(marks[::2], marks[1::2], strict=True))


def one_by_one(pairs: Sequence[Pairs]) -> float:
    return sum(together([data]) for data in pairs)


def _member(seed: int, data: Pairs) -> Member:
    torch.manual_seed(seed)
    encoder = wl.mlp([D, FEATURES, FEATURES], last_activation=True)
    model = wl.HyperNetwork(wl.mlp([D, HIDDEN, 1]), encoder, init="default")
    return Member(model, Split((data.x, data.condition), data.target), seed=seed)


WAYS: dict[str, Callable[[Sequence[Pairs]], float]] = {
    "weightloom, together": together,
    "weightloom, one by one": one_by_one,
    "hand-written loop": hand_written,
}


# -- measuring ----------------------------------------------------------------------------------


def compare(
    pairs: Sequence[Pairs], counts: Sequence[int], rounds: int
) -> dict[int, dict[str, Times]]:
    """{seeds: {way: seconds of one step of one seed}}.

    Every way runs with every number of seeds in every round, in an order drawn anew: a slow minute
    of the machine hits all alike.
    """
    order = random.Random(0)
    both = [(count, name) for count in counts for name in WAYS]
    seconds: dict[tuple[int, str], list[float]] = {pair: [] for pair in both}
    for _ in tqdm(range(rounds), desc="rounds", leave=False):
        for count, name in order.sample(both, len(both)):
            seconds[count, name].append(WAYS[name](pairs[:count]) / (STEPS * count))
    return {count: {name: Times(tuple(seconds[count, name])) for name in WAYS} for count in counts}


def where_time_goes(pairs: Sequence[Pairs]) -> dict[str, float]:
    """Share of CPU time by kind of operation, of all seeds trained together; set-up included."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        together(pairs)
    shares = dict.fromkeys([*KINDS, "other"], 0.0)
    for event in profiled.key_averages():
        kind = next((k for k, names in KINDS.items() if event.key in names), "other")
        shares[kind] += event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: value / total for kind, value in shares.items()}


KINDS = {
    "matrix products": ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"),
    "gathering batches": ("aten::index_select", "aten::index"),
    "elementwise, sums, SGD": (
        *("aten::mul", "aten::mul_", "aten::add", "aten::add_", "aten::sum", "aten::clamp_min"),
        *("aten::threshold_backward", "aten::sub", "aten::pow", "aten::div", "aten::div_"),
    ),
    "copies and filling": ("aten::copy_", "aten::fill_", "aten::zero_", "aten::cat"),
}


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    seeds = [1, 2] if options.quick else [1, 2, 4, 8, 16]
    rounds = 2 if options.quick else options.rounds
    record: dict[str, Any] = {"machine": describe(), "rounds": rounds, "seeds": {}}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    pairs = [make_pairs(seed) for seed in range(seeds[-1])]
    peak = sgemm_peak()
    timings = compare(pairs, seeds, rounds)
    for count, times in timings.items():
        print(_table(count, times))
        record["seeds"][count] = {name: list(t.seconds) for name, t in times.items()}
    record["sgemm_peak"] = max(peak, sgemm_peak())
    record["shares"] = where_time_goes(pairs)
    print("\nwhere the time of training together goes (profiler, self time):")
    for kind, share in sorted(record["shares"].items(), key=lambda item: -item[1]):
        print(f"  {kind:<24}{share:6.1%}")
    print(
        f"sgemm peak in this run: {record['sgemm_peak'] / 1e9:.0f} GFLOP/s; "
        f"{_share(timings, record)}"
    )
    print(_bar(timings[seeds[-1]], seeds[-1]))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    if options.plot:
        _plot(timings, options.plot)


def _share(timings: dict[int, dict[str, Times]], record: dict[str, Any]) -> str:
    """How near the stacked step comes to it. Products of forward and backward, by hand."""
    contracted = 2 * BATCH * D * HIDDEN * FEATURES * 2  # x with the table; the table's gradient
    encoder = 2 * BATCH * (D * FEATURES * 2 + FEATURES * FEATURES * 3)
    median = timings[max(timings)]["weightloom, together"].median
    return f"together reaches {(contracted + encoder) / median / record['sgemm_peak']:.0%} of it"


def _table(count: int, times: dict[str, Times]) -> str:
    lines = [f"\n{count} seed{'s' if count > 1 else ''}: time of one step of one seed"]
    for name, value in times.items():
        low, high = value.quartiles
        ratio = median_ratio(value, times["weightloom, together"])
        lines.append(
            f"  {name:<26}{value.median * 1e3:7.2f} ms  [{low * 1e3:6.2f} .. {high * 1e3:6.2f}]  "
            f"{ratio[0]:5.2f} x together  [{ratio[1]:.2f} .. {ratio[2]:.2f}]"
        )
    return "\n".join(lines)


def _bar(times: dict[str, Times], count: int) -> str:
    ratio, low, high = median_ratio(times["hand-written loop"], times["weightloom, together"])
    verdict = "met    " if ratio >= BAR else "NOT MET"
    return (
        f"{verdict} {count} seeds together against the hand-written loop, per seed: {ratio:.2f} "
        f"[{low:.2f} .. {high:.2f}], wanted >= {BAR}"
    )


def _plot(timings: dict[int, dict[str, Times]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    counts = sorted(timings)
    for name, marker in zip(WAYS, "osD", strict=True):
        values = [timings[count][name] for count in counts]
        middle = [value.median * 1e3 for value in values]
        low = [m - value.quartiles[0] * 1e3 for m, value in zip(middle, values, strict=True)]
        high = [value.quartiles[1] * 1e3 - m for m, value in zip(middle, values, strict=True)]
        axes.errorbar(counts, middle, yerr=[low, high], marker=marker, capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seeds")
    axes.set_ylabel("milliseconds for one step of one seed")
    axes.set_title("Training many seeds of one hypernetwork", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="of each measurement (default 9)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number to this file")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw cost per seed against seeds")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 2 rounds: does it run?")
    return parser


if __name__ == "__main__":
    main()
