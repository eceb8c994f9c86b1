"""What the demo reports: a table, a verdict, a page, the numbers behind it, and one network."""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import weightloom
from weightloom.demo import pictures
from weightloom.demo.training import BATCH, LEARNING_RATE, REACH, Contender, DemoResult
from weightloom.files import atomic_write, check_folder
from weightloom.hyper.saving.described import about
from weightloom.tables import aligned

__all__ = ["HEADER", "NUMBERS", "PAGE", "cells", "compared", "table", "verdict", "write_report"]

PAGE = "report.html"
NUMBERS = "results.json"
SAVED_DIGIT = 3  # the network of the first held-out image of this digit is saved

HEADER = ("", "MSE", "MSE/variance", "primary", "trainable", "time")


def cells(result: DemoResult) -> list[tuple[str, ...]]:
    """One row for each network and each baseline, under `HEADER`."""
    rows: list[tuple[str, ...]] = []
    for contender in result.contenders:
        history = contender.history
        seconds = f"{history.seconds:.1f} s"
        if contender.stopped_early:
            seconds += f" ({history.done} of {history.epochs} epochs)"
        sizes = f"{contender.primary:,}", f"{contender.trainable:,}"
        errors = f"{contender.mse:.5f}", f"{contender.ratio:.4f}"
        rows.append((contender.name, *errors, *sizes, seconds))
    for name in result.untrained:
        counts = result.sizes[name]
        rows.append((name, "", "", f"{counts['primary']:,}", f"{counts['trainable']:,}", "none"))
    for guess in result.baselines:
        rows.append((guess.name, f"{guess.mse:.5f}", f"{guess.ratio:.4f}", "", "", ""))
    return rows


def table(result: DemoResult) -> str:
    """The table as text for the terminal."""
    lines = aligned([HEADER, *cells(result)], "lr")
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def verdict(result: DemoResult) -> str:
    """The hypernetwork against each of its rivals."""
    first, *rivals = result.contenders
    if not rivals:
        return (
            f"The {first.name} alone was trained: there is nothing to compare. On held-out images "
            f"its MSE is {first.mse:.5f}, {first.ratio:.4f} of the variance."
        )
    return "\n".join(compared(first, rival) for rival in rivals)


def compared(first: Contender[Any], second: Contender[Any]) -> str:
    """Which of two networks has the lower held-out error, and whether the difference is clear."""
    better, worse = (first, second) if first.mse <= second.mse else (second, first)
    difference = worse.errors - better.errors
    standard_error = (difference.std() / len(difference) ** 0.5).item()
    wins = int((difference > 0).sum())
    if difference.mean().item() < 2.0 * standard_error:
        text = (
            f"No clear difference: the {better.name} has a lower held-out MSE than the "
            f"{worse.name} ({better.mse:.5f} against {worse.mse:.5f}), but by less than two "
            f"standard errors of the difference over {len(difference)} images."
        )
    else:
        text = (
            f"The {better.name} has a lower held-out MSE than the {worse.name}: {better.mse:.5f} "
            f"against {worse.mse:.5f}, {worse.mse / better.mse:.1f} times lower. It is the closer "
            f"one on {wins} of {len(difference)} images."
        )
    if first.history.done != second.history.done:
        text += (
            f" This is no fair comparison: training was stopped, and the {first.name} had "
            f"{first.history.done} epochs, the {second.name} {second.history.done}."
        )
    return text


# -- files ---------------------------------------------------------------------------------------


def write_report(result: DemoResult, folder: Path) -> list[Path]:
    """Write report.html, one network as safetensors and results.json; return their paths.

    Each file appears whole or not at all; files of an earlier run are replaced.
    """
    check_folder(folder, "--out")
    row = result.data.held_out_labels.tolist().index(SAVED_DIGIT)
    network = result.hyper.model.materialize(result.data.held_out[row])
    notes = {
        "made by": f"weightloom {weightloom.__version__}, weightloom demo",
        "load into": "weightloom.demo.coordinate_network()",
        "digit": str(SAVED_DIGIT),
        "image": f"{int(result.data.held_out_index[row])} of sklearn.datasets.load_digits()",
    } | about(network)
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    saved = folder / f"digit-{SAVED_DIGIT}.safetensors"
    page, numbers = folder / PAGE, folder / NUMBERS
    _write_whole(saved, save(state, metadata=notes))
    _write_whole(numbers, (json.dumps(_numbers(result), indent=2) + "\n").encode())
    _write_whole(page, _page(result, saved, row).encode())
    return [page, saved, numbers]


def _write_whole(path: Path, content: bytes) -> None:
    with atomic_write(path) as part:
        part.write_bytes(content)


def _numbers(result: DemoResult) -> dict[str, Any]:
    return {
        "command": _command(result),
        "smoke": result.settings.smoke,
        "stopped early": result.interrupted,
        "verdict": verdict(result),
        "images": {"train": len(result.data.train), "held out": len(result.data.held_out)},
        "variance of held-out pixels": result.variance,
        "networks": {
            contender.name: {
                "mse": contender.mse,
                "mse over variance": contender.ratio,
                "primary": contender.primary,
                "trainable": contender.trainable,
                "training seconds": contender.history.seconds,
                "epochs": contender.history.done,
                "epochs asked for": contender.history.epochs,
                "train mse by epoch": contender.history.train,
                "held-out mse by epoch": contender.history.evaluation,
            }
            for contender in result.contenders
        },
        "baselines": {
            guess.name: {"mse": guess.mse, "mse over variance": guess.ratio}
            for guess in result.baselines
        },
        "where": _environment(result),
    }


def _environment(result: DemoResult) -> dict[str, str]:
    """What the numbers depend on besides the code."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "weightloom": weightloom.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(result.threads),
    }


def _command(result: DemoResult) -> str:
    """The command that reproduces these numbers."""
    settings = result.settings
    parts = ["weightloom demo", f"--epochs {settings.rounds}", f"--seed {settings.seed}"]
    parts.append(f"--threads {result.threads}")
    return " ".join(parts + (["--smoke"] if settings.smoke else []))


def _page(result: DemoResult, saved: Path, row: int) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("weightloom.demo", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = result.data.first_of_each()
    return environment.get_template("report.html.j2").render(
        result=result,
        settings=result.settings,
        verdicts=verdict(result).splitlines(),
        header=HEADER,
        cells=cells(result),
        reconstructions=pictures.reconstructions(result, shown),
        hardest=pictures.reconstructions(result, pictures.hardest(result)),
        fine=pictures.super_resolution(result, shown),
        interpolation=pictures.interpolation(result),
        pair=pictures.PAIR,
        curves=Markup(pictures.learning_curves(result.contenders, result.variance)),
        saved=saved.name,
        saved_bytes=saved.stat().st_size,
        saved_digit=SAVED_DIGIT,
        saved_index=int(result.data.held_out_index[row]),
        command=_command(result),
        where=_environment(result),
        batch=BATCH,
        learning_rate=LEARNING_RATE,
        reach=REACH,
    )
