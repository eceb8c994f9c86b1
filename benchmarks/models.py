"""How fast are weightloom's hypernetworks? Against peers, torch.func and hand-written PyTorch.

Three workloads; each contender starts from the same weights, is verified against a plain loop
over conditions in double precision (outputs, and how they change by training), and is then timed:
forward without gradients, and a training step (forward, mean squared error, backward, SGD).
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages

import torch
from contenders import collect
from entries import Entry, prepare
from floor import Floor
from machine import describe, flops, peak_memory, sgemm_peak
from report import Bar, Row, Section, bars, render, render_bars, to_json
from timing import measure
from tqdm import tqdm
from workloads import WORKLOADS, Workload, reference

EXAMPLES = """\
examples:
  python benchmarks/models.py --quick                  a few minutes: check that everything runs
  python benchmarks/models.py --workload a --no-peers  one workload, ours and hand-written only
  python benchmarks/models.py --json results.json      the full measurement, on a quiet machine

how to read the tables:
  median, quartiles   time of one call over rounds
  ratio, quartiles    time over the best hand-written version's, within a round, then the median
  peak                share of the machine's sgemm peak, measured in the same run
  memory              peak of what a step holds beyond parameters and data
A bar that is met narrowly on a busy machine proves nothing: look at the quartiles.
"""


def main() -> None:
    options = _parser().parse_args()
    rounds = options.rounds or (5 if options.quick else 40)
    compiled = not options.quick if options.compile is None else options.compile
    _settle(options.threads)
    record: dict[str, Any] = {"machine": describe(), "rounds": rounds, "sections": []}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    results: list[Bar] = []
    try:
        for key in options.workload:
            sections, notes = run(WORKLOADS[key], rounds, options.peers, compiled)
            for section in sections:
                results += bars(section)
                record["sections"].append({**to_json(section), "not_measured": notes})
                print(render(section))
            for name, reason in notes.items():
                print(f"not measured: {name}: {reason}")
            _save(options.json, record)
    except KeyboardInterrupt:
        print("\nstopped; what was finished is above")
    print(render_bars(results))
    if options.check and not (results and all(bar.met for bar in results)):
        raise SystemExit(1)


def run(
    workload: Workload, rounds: int, peers: bool, compiled: bool
) -> tuple[list[Section], dict[str, str]]:
    """Both sections of a workload, and {contender: reason} for those that could not be measured."""
    start = workload.start()
    answer = reference(workload, start, workload.data())
    contenders, missing = collect(workload.key, peers, compiled)
    entries, failed = prepare(contenders, workload, start, answer)
    kinds = ["forward", "step"]
    memory = {e.contender.label: peak_memory(e) for e in tqdm(entries, "memory", leave=False)}
    floor = Floor(workload, start) if workload.key == "a" else None
    sections = [_section(workload, entries, kind, rounds, memory, floor) for kind in kinds]
    return sections, {**missing, **failed}


def _section(
    workload: Workload,
    entries: list[Entry],
    kind: str,
    rounds: int,
    memory: dict[str, int],
    floor: Floor | None,
) -> Section:
    before = sgemm_peak()
    marks = [floor] if floor is not None and kind == "step" else []
    times = measure([*entries, *marks], kind, rounds, f"({workload.key}) {kind}")
    rows = [
        Row(mark.contender, times[mark.contender.label], mark.flops, None, "no hypernetwork")
        for mark in marks
    ]
    for entry in entries:
        label = entry.contender.label
        held = memory[label] if kind == "step" else None
        rows.append(Row(entry.contender, times[label], flops(entry, kind), held, entry.checked))
    title = f"({workload.key}) {workload.title}"
    return Section(workload.key, title, kind, max(before, sgemm_peak()), rows)


def _settle(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    # Several contenders are instances of one class, and dynamo counts recompilations by code:
    # with the default limit the ninth would silently run eagerly and be reported as compiled.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    warnings.filterwarnings("ignore", category=FutureWarning)  # hyper-nn calls old functorch names
    warnings.filterwarnings("ignore", module="functorch")


def _save(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(record, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    keys = list(WORKLOADS)
    titles = "; ".join(f"({w.key}) {w.title}" for w in WORKLOADS.values())
    add("--workload", nargs="+", choices=keys, default=keys, help=f"which ones: {titles}")
    add("--rounds", type=int, help="rounds of each measurement (default 40; with --quick 5)")
    yes_no = argparse.BooleanOptionalAction
    add("--peers", action=yes_no, default=True, help="measure the other hypernetwork libraries")
    add("--compile", action=yes_no, help="measure torch.compile'd versions (not with --quick)")
    add("--threads", type=int, default=2, help="threads that torch may use (default 2)")
    add("--json", type=Path, metavar="OUT", help="also write every number to this file")
    add("--quick", action="store_true", help="few rounds, nothing compiled: does it run?")
    add("--check", action="store_true", help="exit with 1 if a bar is not met")
    return parser


if __name__ == "__main__":
    main()
