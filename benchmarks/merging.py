"""How high is the loss between two trained networks, after one was aligned to the other?

Small classifiers of MNIST and CIFAR-10 are trained from three seeds. For each pair, the test loss
is measured on the line from one to the other, after the second was brought into the order of the
first by plain weight matching and plain activation matching (by hand), by rebasin, and by
weightloom.symmetry.align. The barrier is the largest height of the loss above the straight line
between its ends. Trained networks and finished numbers are kept in a folder: stop with Ctrl-C,
start again later.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from machine import describe
from merged.contenders import peers
from merged.measuring import POINTS, Store, measure_merge, measure_pairs
from merged.networks import TASKS

COLUMNS = ("as given", "weight matching", "activation matching", "rebasin")
SAME = 1e-3  # outputs that change by more than this are not those of the same function

Pairs = dict[str, list[dict[str, Any]]]


def cell(pairs: Pairs, name: str) -> str:
    """The mean barrier of all pairs; a star if the contender changed the function."""
    if name not in pairs:
        return ""
    changed = any(pair.get("outputs changed by", 0.0) > SAME for pair in pairs[name])
    return f"{statistics.mean(pair['barrier'] for pair in pairs[name]):.3f}" + "*" * changed


def table(results: dict[str, Pairs]) -> str:
    """Markdown: mean barriers, averages as they are and with statistics measured again."""
    heads = ("networks", "statistics", *COLUMNS, "weightloom", "pairs where no other is lower")
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    for task, pairs in results.items():
        for statistic, suffix, ours in (
            ("averaged", "", "weightloom, not repaired"),
            ("measured again", " + reset", "weightloom"),
        ):
            rivals = [name + suffix for name in COLUMNS]
            wins, count = best(pairs, [name for name in rivals if name in pairs], ours)
            cells = [cell(pairs, name) for name in (*rivals, ours)]
            lines.append("| " + " | ".join((task, statistic, *cells, f"{wins} of {count}")) + " |")
    return "\n".join(lines)


def best(pairs: Pairs, rivals: list[str], ours: str) -> tuple[int, int]:
    """In how many pairs no contender that keeps the function is lower, and how many there are."""
    wins = 0
    for number, own in enumerate(pairs[ours]):
        others = [pairs[name][number] for name in rivals]
        valid = [o["barrier"] for o in others if o.get("outputs changed by", 0.0) <= SAME]
        wins += all(own["barrier"] <= barrier for barrier in valid)
    return wins, len(pairs[ours])


def merges(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| networks | test losses of three | averaged as given | merged | aligned by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task, row in results.items():
        own = ", ".join(f"{loss:.3f}" for loss in row["losses"])
        lines.append(
            f"| {task} | {own} | {row['naive']:.3f} | {row['merged']:.3f} | {row['method']} |"
        )
    return "\n".join(lines)


def plot(results: dict[str, Pairs], path: Path) -> None:
    """A panel for each task: mean test loss on the line, of contenders that keep the function."""
    from weightloom.plotting import COLOURS, MARKERS, new_figure, style

    looks = {"weightloom": 0, "weightloom, not repaired": 4, "weight matching": 1}
    looks |= {"activation matching": 2, "rebasin": 3}
    with style():
        figure, axes = new_figure(2, 3, size=(3.5, 2.9))
        lines: dict[str, Any] = {}
        for axis, (task, pairs) in zip(axes, results.items(), strict=False):
            for name, look in looks.items():
                changed = [p.get("outputs changed by", 0.0) > SAME for p in pairs.get(name, [])]
                if not changed or any(changed):
                    continue
                mean = torch.tensor([pair["losses"] for pair in pairs[name]]).mean(0)
                (lines[name],) = axis.plot(
                    POINTS, mean, marker=MARKERS[look], color=COLOURS[look], markersize=4
                )
            axis.set_title(task)
        for axis in axes[-3:]:
            axis.set_xlabel("t: (1 - t) a + t b")
        for axis in axes[::3]:
            axis.set_ylabel("test loss")
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=5)
        figure.savefig(path, dpi=90, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{'; '.join(TASKS)} (all)")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each task (default 3)")
    parser.add_argument("--folder", type=Path, default=Path(".merging"), help="what is kept")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the losses on the line")
    parser.add_argument("--threads", type=int, default=1, help="threads (default 1)")
    parser.add_argument("--quick", action="store_true", help="3 percent of the training images")
    options = parser.parse_args()
    unknown = [name for name in options.tasks if name not in TASKS]
    if unknown:
        raise SystemExit(f"unknown task {unknown[0]!r}; there are {'; '.join(TASKS)}")
    if options.seeds < 2:
        raise SystemExit(f"--seeds is {options.seeds}; a pair needs at least 2")
    torch.set_num_threads(options.threads)
    print(" ".join(f"{key}: {value};" for key, value in describe().items()))
    share, seeds = 0.03 if options.quick else 1.0, range(options.seeds)
    store = Store(options.folder / "results.json")
    ways = peers()
    names = options.tasks or list(TASKS)
    results = {
        name: measure_pairs(name, seeds, options.folder, share, store, ways) for name in names
    }
    together = {
        name: measure_merge(name, seeds[:3], options.folder, share, store)
        for name in (names if options.seeds > 2 else ())
    }
    print(f"\nbarriers: mean over pairs\n\n{table(results)}")
    print("\n* not the same function as b after its units were permuted\n")
    if together:
        print(merges(together))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
