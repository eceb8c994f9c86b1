"""How fast are networks with generated adapters? Against PEFT and the best hand-written batch.

A Llama and a GPT-2 (512 wide, 6 layers) with one LoRA for each row of the batch, written by one
hypernetwork. forward: 64 tokens for each condition, adapters in place. step: write the adapters,
forward, backward to the hypernetwork, SGD. decode: `generate` of 32 tokens, greedy, with a cache.
serving: requests per second of one thread and of eight. Everybody is first compared with every
condition's network by itself in double precision: outputs, tokens, and the change by training.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages

import torch
import transformers
from adapted.contenders import MANY, Adapting, check, make
from adapted.reference import Reference
from adapted.results import Measured, Results, ServingResults
from adapted.rounds import together
from adapted.serving import serve
from adapted.settings import AXES, NEW, Setting, Start, chosen
from machine import describe, peak_memory
from report import Bar, render_bars
from tqdm import tqdm

QUICK = ("rank8", "8")
FEW = 8  # conditions with which there are --rounds rounds; with more, calls are longer and fewer
SERVED = (8, 8)  # conditions and rank of the settings that are served
TOGETHER = (1, 4)  # conditions of one request
WORDS = [word for words in AXES.values() for word in words]

EXAMPLES = """\
examples:
  python benchmarks/adapters.py --quick                 a few minutes: check that everything runs
  python benchmarks/adapters.py --only gpt2 all decode  one network, all its layers, decoding
  python benchmarks/adapters.py --json adapters.json    the full measurement, on a quiet machine

how to read the tables:
  median, quartiles   time of one call over rounds
  ratio, quartiles    time over the best hand-written version's, within a round, then the median
  memory              peak of what a step holds beyond parameters and data
A bar that is met narrowly on a busy machine proves nothing: look at the quartiles.
"""


def main() -> None:
    options = _parser().parse_args()
    _settle(options.threads)
    settings, kinds = chosen([*options.only, *(QUICK if options.quick else ())])
    record: dict[str, Any] = {"machine": _machine(), "sections": []}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    bars: list[Bar] = []
    try:
        for setting in settings:
            for section in run(setting, kinds, options):
                bars += section.bars()
                record["sections"].append(section.to_json())
                print(section.render(), flush=True)
                if options.json:  # what was measured is kept if the next section fails
                    options.json.write_text(json.dumps(record, indent=1))
    except KeyboardInterrupt:
        print("\nstopped; what was finished is above")
    print(render_bars(bars))
    if options.check and not (bars and all(bar.met for bar in bars)):
        raise SystemExit(1)


def run(
    setting: Setting, kinds: tuple[str, ...], options: argparse.Namespace
) -> Iterator[Results | ServingResults]:
    start = setting.start()
    rounds = options.rounds or (3 if options.quick else 24)
    timed = [kind for kind in kinds if kind != "serving"]
    if timed:
        ready, failed = _prepare(start)
        clock = time.process_time if options.cpu_time else time.perf_counter
        fewer = max(rounds * FEW // setting.conditions, 3)
        for kind in timed:
            yield _measure(setting, kind, ready, failed, fewer, clock)
    if "serving" in kinds and (setting.conditions, setting.rank) == SERVED:
        threads, bursts = sorted({1, torch.get_num_threads()}), max(rounds // 3, 2)
        served = [serve(start, rows, bursts, n) for n in threads for rows in TOGETHER]
        yield ServingResults(setting, served)


def _prepare(start: Start) -> tuple[dict[Adapting, str], dict[str, str]]:
    """{contender: what was verified}, and {label: reason} for those that are not right."""
    answer = Reference(start)
    ready: dict[Adapting, str] = {}
    failed: dict[str, str] = {}
    for contender in tqdm(make(start), desc=f"verify {start.setting}", leave=False):
        try:
            ready[contender] = check(contender, answer)
        except Exception as error:  # one contender's failure is a result, not the end of the run
            text = str(error).strip().splitlines() or [""]
            failed[contender.label] = f"{type(error).__name__}: {text[0][:200]}"
    return ready, failed


def _measure(
    setting: Setting,
    kind: str,
    ready: dict[Adapting, str],
    failed: dict[str, str],
    rounds: int,
    clock: Callable[[], float],
) -> Results:
    entries = {c.label: c for c in ready if kind in c.kinds}
    for contender in ready:  # a step writes its own
        contender.release() if kind == "step" else contender.write()
    actions = {label: c.action(kind, NEW) for label, c in entries.items()}
    times = together(actions, rounds, f"{kind} of {setting}", clock)
    rows = []
    for label, contender in entries.items():
        memory = None
        if kind == "step" and (contender.lean or setting.conditions <= MANY):
            memory = peak_memory(contender)
        rows.append(Measured(label, type(contender), times[label], memory, ready[contender]))
    return Results(setting, kind, rows, failed)


def _settle(threads: int) -> None:
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", category=FutureWarning)  # transformers about its own names
    warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet")
    transformers.logging.set_verbosity_error()


def _machine() -> dict[str, Any]:
    return {**describe(), **{name: version(name) for name in ("transformers", "peft")}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    axes = "; ".join(f"{axis}: {', '.join(words)}" for axis, words in AXES.items())
    add("--only", nargs="+", default=[], choices=WORDS, metavar="WORD", help=f"{axes} (all)")
    add("--rounds", type=int, help="with 8 conditions; fewer with more (default 24; --quick 3)")
    add("--threads", type=int, default=2, help="threads that torch may use (default 2)")
    add("--cpu-time", action="store_true", help="for a busy machine, with --threads 1")
    add("--json", type=Path, metavar="OUT", help="also write every number to this file")
    add("--quick", action="store_true", help="8 conditions, rank 8, few rounds: does it run?")
    add("--check", action="store_true", help="exit with 1 if a bar is not met")
    return parser


if __name__ == "__main__":
    main()
