"""``weightloom reproduce``: run experiments, remember every run, draw the figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli import lab_options
from weightloom.cli.arguments import at_least
from weightloom.errors import ConfigError

if TYPE_CHECKING:
    from weightloom.lab import Estimate, Experiment, Result, Store, Summary
    from weightloom.lab.tensorboard import CurveLog

__all__ = ["register"]

DESCRIPTION = """\
Redraw figures and tables of the papers: run what is behind them, remember every run, draw.

Each run (one network, one seed) is stored the moment it is finished, with its configuration,
numbers, curves, and what it was made with. What is stored is not run again: stop the command
whenever you like, start it again, and it goes on."""

EPILOG = """\
what it prints:
  an estimate of the time, then a bar over all runs, then the table behind each figure

what it writes:
  weightloom-lab/results.sqlite     every run (--store FILE); `weightloom results` reads it
  weightloom-lab/figures/           NAME-SCALE.png, .svg, .txt and .csv (--out DIR)
  weightloom-lab/work/              checkpoints of runs under way; removed when they are done

scales:
  smoke     seconds: does it work here? The numbers say little
  laptop    minutes to an hour on two cores: enough to see what the figure shows
  paper     the paper's own numbers; can take days. Prints an estimate and asks first (--yes: not)

Ctrl-C, kill, a power cut:
  nothing that is finished is lost. The same command goes on, in the middle of a training too.
  Two of them on one store share the work.

exit status:
  0 all done; 1 some runs failed (they are stored as failed and tried again next time);
  2 nothing was run, and the message says why; 130 stopped by Ctrl-C

examples:
  weightloom reproduce --list                        what there is, what is stored, how long
  weightloom reproduce fig3a --scale smoke           try it
  weightloom reproduce 'fig3[a-f]' --scale laptop    all panels of the figure
  weightloom reproduce --paper infinite-width        everything that rests on one paper
  weightloom reproduce fig3a --workers 2             two processes instead of one with two threads
  weightloom reproduce fig3a --scale paper --engine ray --address auto      on a Ray cluster
  weightloom figures fig3a                           draw again, without computing
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="run the papers' experiments, remember every run, draw the figures",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="experiments; patterns such as 'fig3*' work"
    )
    parser.add_argument(
        "--paper",
        metavar="PAPER",
        help=f"all experiments of a paper: {', '.join(lab_options.PAPERS)} (or 000 to 004)",
    )
    parser.add_argument(
        "--list", action="store_true", help="show all experiments and what is stored of them"
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "laptop", "paper"),
        default="laptop",
        help="how much (default: %(default)s)",
    )
    lab_options.add_store(parser)
    lab_options.add_out(parser)
    _add_engine_options(parser)
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        help="where data sets are, if an experiment needs one",
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", type=Path, help="also write all curves there as scalars"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before --scale paper")
    parser.add_argument("--no-figures", action="store_true", help="run and store, draw nothing")
    parser.add_argument(
        "--quiet", action="store_true", help="no estimate, no bars: tables and files only"
    )
    parser.set_defaults(run=_run)


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where runs are done: here, or on a Ray cluster (default: %(default)s)",
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


def _run(arguments: argparse.Namespace) -> int:
    from weightloom import experiments

    known = experiments.all_experiments()
    if arguments.paper is not None:
        arguments.names += lab_options.of_paper(arguments.paper, known)
    if arguments.list:
        chosen = lab_options.choose(arguments.names or ["*"], known) if known else []
        _list(chosen, arguments)
        return 0
    if not arguments.names:
        raise ConfigError(
            "which experiment? Name one or more, for instance `weightloom reproduce "
            f"{next(iter(known), 'NAME')} --scale smoke`; `weightloom reproduce --list` shows all"
        )
    chosen = lab_options.choose(arguments.names, known)
    log = _prepare(arguments)
    with lab_options.open_store(arguments.store, create=True) as store:
        if not _agreed(chosen, store, arguments):
            print("nothing was run")
            return 2
        summary = _execute(chosen, store, log, arguments)
        print(_verdict(summary), flush=True)
        if summary.interrupted:
            print("Stopped; what is finished is stored. The same command goes on from here.")
            return 130
        if not arguments.no_figures:
            _draw(chosen, store, arguments)
        return 1 if summary.failed else 0


def _list(chosen: Sequence[Experiment], arguments: argparse.Namespace) -> None:
    from weightloom.lab import Table, duration, estimate

    store = None
    if arguments.store.exists():
        store = lab_options.open_store(arguments.store, create=False)
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
    print(Table(columns, rows).text())
    if store is not None:
        store.close()


def _prepare(arguments: argparse.Namespace) -> CurveLog | None:
    """Whatever can be complained about is complained about before anything runs."""
    from weightloom.lab import drawing
    from weightloom.lab.output import check_folder
    from weightloom.lab.tensorboard import CurveLog

    if not arguments.no_figures:
        drawing.require_matplotlib()
        check_folder(arguments.out, "--out")
    if arguments.data_dir is not None and not arguments.data_dir.is_dir():
        raise ConfigError(f"--data-dir {arguments.data_dir} is not a folder")
    if arguments.tensorboard is None:
        return None
    return CurveLog(check_folder(arguments.tensorboard, "--tensorboard"))


def _agreed(chosen: Sequence[Experiment], store: Store, arguments: argparse.Namespace) -> bool:
    """Show how long it will take; ask, if it is the paper's scale and there is something to do."""
    from weightloom.lab import duration, estimate

    estimates = [
        estimate(experiment, arguments.scale, store, arguments.data_dir) for experiment in chosen
    ]
    parallel = arguments.workers or 1
    asking = arguments.scale == "paper" and any(each.missing for each in estimates)
    if asking or not arguments.quiet:
        for each in estimates:
            print(_estimate_text(each, parallel, arguments), flush=True)
    if not asking:
        return True
    total = duration(sum(each.seconds for each in estimates) / parallel)
    return lab_options.confirm(
        f"Start? It will take about {total}.",
        arguments.yes,
        f"--scale paper will take about {total}",
    )


def _estimate_text(each: Estimate, parallel: int, arguments: argparse.Namespace) -> str:
    from weightloom.lab import duration

    text = f"{each.name}: {each.stored} of {each.wanted} runs are stored"
    if not each.missing:
        return f"{text}, nothing to do"
    measured = f"measured on {each.measured_on} stored runs"
    basis = measured if each.measured_on else "a guess: none stored"
    if arguments.engine == "ray" and arguments.workers is None:
        basis += "; for one worker, the cluster shares it"
    return f"{text}; the rest takes about {duration(each.seconds / parallel)} ({basis})"


def _execute(
    chosen: Sequence[Experiment],
    store: Store,
    log: CurveLog | None,
    arguments: argparse.Namespace,
) -> Summary:
    from weightloom.lab import make_engine, run_experiments, wanted

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
            tensorboard=arguments.tensorboard.absolute() if arguments.tensorboard else None,
            on_result=logged,
            say=lab_options.warn,
        )
    finally:
        engine.close()
    if log is not None:  # also what was stored before, so that the folder is complete
        for experiment in chosen:
            for result in store.of(wanted(experiment, arguments.scale)):
                logged(result)
    return summary


def _verdict(summary: Summary) -> str:
    from weightloom.lab import duration

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
        text += " Failed runs are tried again next time; `weightloom results --status failed`."
    return text


def _draw(chosen: Sequence[Experiment], store: Store, arguments: argparse.Namespace) -> None:
    from weightloom.cli.figures import draw_and_tell
    from weightloom.lab import wanted

    for experiment in chosen:
        results = store.of(wanted(experiment, arguments.scale))
        if any(not result.outcome.failed for result in results):
            draw_and_tell(experiment, store, arguments.out, arguments.scale)
        else:
            print(f"{experiment.name}: no run has succeeded, so there is nothing to draw")
