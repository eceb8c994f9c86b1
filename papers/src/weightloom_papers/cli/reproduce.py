"""``weightloom reproduce``: run experiments, store every run, draw the figures."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli.arguments import at_least
from weightloom.errors import ConfigError
from weightloom_papers.cli import options
from weightloom_papers.papers import PAPERS

if TYPE_CHECKING:
    from weightloom_papers.lab import CostEstimate, Experiment, Result, Run, Store, Summary
    from weightloom_papers.lab.export import CurveLog

    #: What `wanted` has returned for each experiment, by name.
    Runs = Mapping[str, Sequence[Run]]

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Reproduce figures and tables of the papers: run the experiments, store every run, draw.

Each run (one network, one seed) is stored as soon as it is finished, with its configuration,
metrics, curves and provenance. Stored runs are not repeated: stop the command whenever you like,
and start it again to continue."""

EPILOG = """\
what it prints:
  an estimate of the time, a progress bar over all runs, and the numbers of each figure

what it writes:
  weightloom-lab/results.sqlite     every run (--store FILE); `weightloom results` reads it
  weightloom-lab/figures/           PAPER/NAME-SCALE.png, .svg, .txt and .csv (--out DIR)
  weightloom-lab/work/              checkpoints of unfinished runs; removed when they are done

scales:
  smoke     seconds: checks that it works here; the numbers mean little
  laptop    minutes to an hour on two cores: enough to see what the figure shows
  paper     the paper's own sizes; can take days. Asks first, with an estimate (--yes: does not ask)

Ctrl-C, kill, a power cut:
  finished runs are never lost. The same command continues, also in the middle of a training.
  Two commands on one store share the work.

exit status:
  0 all done; 1 some runs failed (they are stored as failed and repeated next time);
  2 nothing was run, and the message says why; 130 stopped by Ctrl-C

examples:
  weightloom reproduce --list                                   all experiments, and what is stored
  weightloom reproduce modularity/fig3a --scale smoke           a quick try
  weightloom reproduce fig3a --scale smoke                      the same, as the name is unique
  weightloom reproduce 'modularity/fig3[a-f]' --scale laptop    all panels of the figure
  weightloom reproduce --paper infinite-width                   all experiments of a paper
  weightloom reproduce modularity/fig3a --workers 2             two processes, not two threads
  weightloom reproduce modularity/fig3a --scale paper --engine ray --address auto     on a cluster
  weightloom figures modularity/fig3a                           draw again, without training
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="experiments, PAPER/NAME; patterns such as 'modularity/*' work",
    )
    parser.add_argument(
        "--paper",
        metavar="PAPER",
        help=f"all experiments of a paper: {', '.join(PAPERS)}",
    )
    parser.add_argument(
        "--list", action="store_true", help="show all experiments and what is stored of them"
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "laptop", "paper"),
        default="laptop",
        help="how much to run (default: %(default)s)",
    )
    options.add_store(parser)
    options.add_out(parser)
    _add_engine_options(parser)
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        help="folder with data sets, for experiments that need one",
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", type=Path, help="also log all curves for TensorBoard"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before --scale paper")
    parser.add_argument("--no-figures", action="store_true", help="run and store, without figures")
    parser.add_argument(
        "--quiet", action="store_true", help="print tables and files, no estimate or progress"
    )


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="run on this machine or on a Ray cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of a running Ray cluster: auto, or HOST:PORT (default: one is started here)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=at_least(1),
        help="processes (default: 1, this one; with ray: as many as fit)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=at_least(1),
        help="CPU threads, shared by the workers (default: all cores); with ray: of each job "
        "(default: 1)",
    )


def run(arguments: argparse.Namespace) -> int:
    from weightloom_papers import experiments
    from weightloom_papers.lab import wanted

    known = experiments.all_experiments()
    if arguments.paper is not None:
        arguments.names += options.of_paper(arguments.paper, known)
    if arguments.list:
        chosen = options.choose(arguments.names or ["*"], known) if known else []
        _list(chosen, arguments)
        return 0
    if not arguments.names:
        raise ConfigError(
            "which experiment? Name one or more, for instance `weightloom reproduce "
            f"{next(iter(known), 'NAME')} --scale smoke`; `weightloom reproduce --list` shows all"
        )
    chosen = options.choose(arguments.names, known)
    runs = {experiment.name: wanted(experiment, arguments.scale) for experiment in chosen}
    log = _prepare(arguments)
    with options.open_store(arguments.store, create=True) as store:
        if not _agreed(chosen, runs, store, arguments):
            print("nothing was run")
            return 2
        summary = _execute(chosen, runs, store, log, arguments)
        print(_verdict(summary), flush=True)
        if summary.interrupted:
            print("Stopped; finished runs are stored. The same command continues from here.")
            return 130
        if not arguments.no_figures:
            _draw(chosen, runs, store, arguments)
        return 1 if summary.failed else 0


def _list(chosen: Sequence[Experiment], arguments: argparse.Namespace) -> None:
    from weightloom_papers.lab import ResultTable, duration, estimate

    store = None
    if arguments.store.exists():
        store = options.open_store(arguments.store, create=False)
    rows = []
    for experiment in chosen:
        seen = estimate(experiment, arguments.scale, store, arguments.data_dir)
        failed = f", {seen.failed} failed" if seen.failed else ""
        time = duration(seen.seconds) if seen.missing else "done"
        rows.append(
            (
                experiment.name,
                experiment.paper,
                experiment.title,
                f"{seen.stored} of {seen.wanted}{failed}",
                time,
            )
        )
    columns = ("name", "paper", "title", f"stored at {arguments.scale}", "time for the rest")
    print(ResultTable(columns, rows).text())
    if store is not None:
        store.close()


def _prepare(arguments: argparse.Namespace) -> CurveLog | None:
    """Check folders and packages before anything runs; return the log for TensorBoard, if any."""
    from weightloom.files import check_folder
    from weightloom_papers.lab import drawing
    from weightloom_papers.lab.export import CurveLog

    if not arguments.no_figures:
        drawing.require_matplotlib()
        check_folder(arguments.out, "--out")
    if arguments.data_dir is not None and not arguments.data_dir.is_dir():
        raise ConfigError(f"--data-dir {arguments.data_dir} is not a folder")
    if arguments.tensorboard is None:
        return None
    return CurveLog(check_folder(arguments.tensorboard, "--tensorboard"))


def _agreed(
    chosen: Sequence[Experiment], runs: Runs, store: Store, arguments: argparse.Namespace
) -> bool:
    """Print how long it will take; at paper scale, ask whether to start."""
    from weightloom_papers.lab import duration, estimate

    estimates = [
        estimate(each, arguments.scale, store, arguments.data_dir, runs[each.name])
        for each in chosen
    ]
    parallel = arguments.workers or 1
    asking = arguments.scale == "paper" and any(each.missing for each in estimates)
    if asking or not arguments.quiet:
        for each in estimates:
            print(_estimate_text(each, parallel, arguments), flush=True)
    if not asking:
        return True
    total = duration(sum(each.seconds for each in estimates) / parallel)
    return options.confirm(
        f"Start? It will take about {total}.",
        arguments.yes,
        f"--scale paper will take about {total}",
    )


def _estimate_text(each: CostEstimate, parallel: int, arguments: argparse.Namespace) -> str:
    from weightloom_papers.lab import duration

    text = f"{each.name}: {each.stored} of {each.wanted} runs are stored"
    if not each.missing:
        return f"{text}, nothing to do"
    measured = f"measured on {each.measured_on} stored runs"
    basis = measured if each.measured_on else "a guess: none stored"
    if arguments.engine == "ray" and arguments.workers is None:
        basis += "; for one worker, less on a cluster"
    return f"{text}; the rest takes about {duration(each.seconds / parallel)} ({basis})"


def _execute(
    chosen: Sequence[Experiment],
    runs: Runs,
    store: Store,
    log: CurveLog | None,
    arguments: argparse.Namespace,
) -> Summary:
    from weightloom_papers.lab import make_engine, run_experiments

    def logged(result: Result) -> None:
        if log is not None:
            log.write(result)

    engine = make_engine(
        arguments.engine,
        workers=arguments.workers,
        threads=arguments.threads,
        address=arguments.address,
    )
    try:
        summary = run_experiments(
            chosen,
            arguments.scale,
            store,
            engine,
            progress=not arguments.quiet,
            data_dir=arguments.data_dir.absolute() if arguments.data_dir else None,
            runs=runs,
            tensorboard=arguments.tensorboard.absolute() if arguments.tensorboard else None,
            on_result=logged,
            say=options.warn,
        )
    finally:
        engine.close()
    if log is not None:  # runs that were stored before too, so that the folder is complete
        for experiment in chosen:
            for result in store.of(runs[experiment.name]):
                logged(result)
    return summary


def _verdict(summary: Summary) -> str:
    from weightloom_papers.lab import duration

    done = sum(summary.statuses.values())
    if not done and summary.stored == summary.wanted:
        return f"All {summary.wanted} runs were stored already."
    before = f"{summary.stored} of {summary.wanted} were stored before."
    if not done:
        return f"No run was finished here; {before}"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.statuses.items()))
    runs = "1 run" if done == 1 else f"{done} runs"
    text = f"{runs} in {duration(summary.seconds)}: {counts}; {before}"
    if summary.failed:
        text += " Failed runs are repeated next time; see `weightloom results --status failed`."
    return text


def _draw(
    chosen: Sequence[Experiment], runs: Runs, store: Store, arguments: argparse.Namespace
) -> None:
    from weightloom_papers.cli.figures import draw_and_print

    for experiment in chosen:
        own = runs[experiment.name]
        if any(not result.outcome.failed for result in store.of(own)):
            draw_and_print(experiment, store, arguments.out, arguments.scale, own)
        else:
            print(f"{experiment.name}: no run has succeeded, so there is nothing to draw")
