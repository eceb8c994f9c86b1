"""Does a hypernetwork train with the learning rate that one would try first?

Fifteen small tasks of the kinds that hypernetworks are used for, each learned by the same
hypernetwork with different starts: weightloom's default, the older hyperfan_in, PyTorch's, those of
hyperlight and hypnettorch, and the recipe of the task's own paper. Every run takes a few seconds on
one thread. Finished runs are kept in a file and not repeated: stop with Ctrl-C, start again later.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

# Each run has one thread; the libraries below read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from start_suite.base import Problem
from start_suite.contenders import CONTENDERS, OPTIONAL, OURS
from start_suite.health import Checkup, check
from start_suite.health import render as render_health
from start_suite.leaderboard import leaderboard
from start_suite.plot import plot
from start_suite.report import collect, render
from start_suite.rivals import MODELS
from start_suite.runs import RATES, Job, Result, run
from start_suite.store import Store
from start_suite.tasks import TASKS, load
from tqdm import tqdm

from weightloom.data import MissingDataError

EXAMPLES = """\
examples:
  python benchmarks/start.py --list                         the tasks and the contenders
  python benchmarks/start.py --steps 5 --only emoji shapes  a few seconds: see that it runs
  python benchmarks/start.py --only siren weightloom mip    one task, two contenders
  python benchmarks/start.py --workers 2 --seeds 3          everything; a few hours
  python benchmarks/start.py --table --plot start.png       show what is in the store
  python benchmarks/start.py --only weightloom --again      after the default has changed
  python benchmarks/start.py --rivals --only emoji          hypernetworks against other models
  python benchmarks/start.py --diagnose                     what wl.diagnose says; half a minute

how to read the table:
  Errors are on held-out data, means over seeds. 1 is to predict the mean, or to guess.
  * is the best of all contenders and rates of a task, + is within 10% of it.
  MNIST, CIFAR-10 and emoji are looked for in the folder that WEIGHTLOOM_DATA names;
  tasks whose data are missing are skipped.
"""


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.list:
        print(listing())
        return
    if options.diagnose:
        print(render_health(checkups(options)))
        return
    store = Store(options.store, commit())
    jobs = chosen(options)
    if not options.table:
        execute(jobs, store, options.workers, options.again)
    wanted = set(jobs)
    tasks = collect(result for result in store.results() if result.job in wanted)
    about = {name: task.about for name, task in TASKS.items()}
    print(leaderboard(tasks, about) if options.rivals else render(tasks, about))
    if options.plot and not options.rivals:
        plot(tasks, options.plot, options.optimiser or "adam")
        print(f"wrote {options.plot}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name tasks and contenders, and stop")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", choices=[*TASKS, *CONTENDERS, *MODELS],
        help="tasks and contenders to take; without any of a kind, all of it",
    )  # fmt: skip
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="WORD", choices=[*TASKS, *CONTENDERS],
        help="tasks and contenders to leave out",
    )  # fmt: skip
    parser.add_argument("--optimiser", choices=RATES, help="one of them; without it, all")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        metavar="RATE",
        help="those learning rates; without it, all",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (default 1)")
    parser.add_argument("--steps", type=int, help="of each run; without it, what the task needs")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("start-results/runs.sqlite"),
        help="where results are kept",
    )
    parser.add_argument(
        "--again", action="store_true", help="repeat the chosen runs that are there"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw error against rate")
    parser.add_argument(
        "--rivals", action="store_true", help="compare with other models at equal size, not starts"
    )
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="count the warnings of wl.diagnose (Adam at 1e-3; our default, or those in --only)",
    )
    return parser


def listing() -> str:
    lines = [f"{name:13} {task.about}" for name, task in TASKS.items()]
    for name, contender in CONTENDERS.items():
        first = (contender.__doc__ or "").splitlines()[0]
        note = " (only if --only names it)" if name in OPTIONAL else ""
        lines.append(f"{name:13} {first}{note}")
    return "\n".join(lines)


def checkups(options: argparse.Namespace) -> list[Checkup]:
    """Diagnoses of the chosen contenders, the default alone if none is named."""
    named = [name for name in CONTENDERS if name in options.only] or [OURS]
    results: list[Checkup] = []
    for task in words(TASKS, options):
        problem = available(task)
        for contender in named if problem else []:
            results += check(task, problem, contender)
    return results


def chosen(options: argparse.Namespace) -> list[Job]:
    """All runs that were asked for: the first rate of everything first."""
    tasks = words(TASKS, options)
    contenders = words(MODELS if options.rivals else CONTENDERS, options)
    if not any(word in CONTENDERS for word in options.only):
        contenders = [name for name in contenders if name not in OPTIONAL]
    kinds = [
        (optimiser, rate)
        for optimiser, rates in RATES.items()
        for rate in rates
        if options.optimiser in (None, optimiser)
        and (not options.rivals or (optimiser == "adam" and rate >= 1e-3))
        and (options.rates is None or rate in options.rates)
    ]
    kinds.sort(key=lambda kind: kind != ("adam", 1e-3))
    problems = {name: problem for name in tasks if (problem := available(name))}
    return [
        Job(task, contender, *kind, seed, options.steps or problem.steps)
        for seed in range(options.seeds)
        for kind in kinds
        for task, problem in problems.items()
        if problem.field is not None or not options.rivals
        for contender in contenders
    ]


def words(known: dict, options: argparse.Namespace) -> list[str]:
    named = [name for name in known if name in options.only]
    return [name for name in named or known if name not in options.without]


def available(name: str) -> Problem | None:
    try:
        return load(name)
    except MissingDataError as error:
        print(f"{name} is skipped: {error}", file=sys.stderr)
        return None


def execute(jobs: list[Job], store: Store, workers: int, again: bool) -> None:
    """Run what is not in the store yet; results are stored one by one."""
    if again:
        store.forget(jobs)
    done = {result.job for result in store.results()}
    waiting = [job for job in jobs if job not in done]
    if len(waiting) < len(jobs):
        print(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are in the store")
    bar = tqdm(total=len(waiting), unit="run", mininterval=1.0, disable=not waiting)
    try:
        for result in finished(waiting, workers):
            store.write(result)
            bar.set_postfix_str(str(result.job), refresh=False)
            bar.update()
    except KeyboardInterrupt:
        print("\nstopped; finished runs are in the store, the same command goes on from here")
    finally:
        bar.close()


def finished(jobs: list[Job], workers: int) -> Iterator[Result]:
    if workers == 1:
        yield from map(run, jobs)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interrupts)
    try:
        for future in as_completed([pool.submit(run, job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the parent, which lets the runs under way end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def commit() -> str:
    """The state of the checkout that results come from."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or time.strftime("%Y-%m-%d")


if __name__ == "__main__":
    main()
