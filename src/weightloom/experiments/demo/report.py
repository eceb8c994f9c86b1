"""Write the page, the numbers behind it, and one generated network."""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import weightloom
from weightloom.experiments.demo import figures, scenes, table
from weightloom.experiments.demo.measure import verdict
from weightloom.experiments.demo.run import BATCH, LEARNING_RATE, REACH, Result
from weightloom.files import whole
from weightloom.lab.output import check_folder

__all__ = ["NUMBERS", "PAGE", "write"]

PAGE = "report.html"
NUMBERS = "results.json"
SAVED_DIGIT = 3  # the first held-out image of this digit gives the network that is saved


def write(result: Result, folder: Path) -> list[Path]:
    """Write report.html, one network as safetensors and results.json; return their paths.

    Each file appears whole or not at all; files of an earlier run are replaced.
    """
    check_folder(folder, "--out")
    row = result.data.held_out_labels.tolist().index(SAVED_DIGIT)
    network = result.hyper.model.materialize(result.data.held_out[row])
    about = {
        "made by": f"weightloom {weightloom.__version__}, weightloom demo",
        "load into": "weightloom.experiments.demo.coordinate_network()",
        "digit": str(SAVED_DIGIT),
        "image": f"{int(result.data.held_out_index[row])} of sklearn.datasets.load_digits()",
    }
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    saved = folder / f"digit-{SAVED_DIGIT}.safetensors"
    page, numbers = folder / PAGE, folder / NUMBERS
    _put(saved, save(state, metadata=about))
    _put(numbers, (json.dumps(_numbers(result), indent=2) + "\n").encode())
    _put(page, _page(result, saved, row).encode())
    return [page, saved, numbers]


def _put(path: Path, content: bytes) -> None:
    with whole(path) as part:
        part.write_bytes(content)


def _numbers(result: Result) -> dict[str, Any]:
    return {
        "command": command(result),
        "smoke": result.settings.smoke,
        "stopped early": result.interrupted,
        "verdict": verdict(result.hyper, result.rival),
        "images": {"train": len(result.data.train), "held out": len(result.data.held_out)},
        "variance of held-out pixels": result.variance,
        "networks": {
            one.name: {
                "mse": one.mse,
                "mse over variance": one.ratio,
                "primary": one.primary,
                "trainable": one.trainable,
                "training seconds": one.history.seconds,
                "epochs": one.history.done,
                "epochs asked for": one.history.epochs,
                "train mse by epoch": one.history.train,
                "held-out mse by epoch": one.history.evaluation,
            }
            for one in result.contenders
        },
        "baselines": {
            guess.name: {"mse": guess.mse, "mse over variance": guess.ratio}
            for guess in result.baselines
        },
        "where": where(result),
    }


def where(result: Result) -> dict[str, str]:
    """What the numbers depend on beside the code."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "weightloom": weightloom.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(result.threads),
    }


def command(result: Result) -> str:
    """The command that makes these numbers again."""
    settings = result.settings
    parts = ["weightloom demo", f"--epochs {settings.rounds}", f"--seed {settings.seed}"]
    parts.append(f"--threads {result.threads}")
    return " ".join(parts + (["--smoke"] if settings.smoke else []))


def _page(result: Result, saved: Path, row: int) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("weightloom.experiments.demo", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = result.data.first_of_each()
    return environment.get_template("report.html.j2").render(
        result=result,
        settings=result.settings,
        verdict=verdict(result.hyper, result.rival),
        header=table.HEADER,
        cells=table.cells(result),
        reconstructions=scenes.reconstructions(result, shown),
        hardest=scenes.reconstructions(result, scenes.hardest(result)),
        fine=scenes.super_resolution(result, shown),
        interpolation=scenes.interpolation(result),
        pair=scenes.PAIR,
        curves=Markup(figures.curves(result.contenders, result.variance)),
        saved=saved.name,
        saved_bytes=saved.stat().st_size,
        saved_digit=SAVED_DIGIT,
        saved_index=int(result.data.held_out_index[row]),
        command=command(result),
        where=where(result),
        batch=BATCH,
        learning_rate=LEARNING_RATE,
        reach=REACH,
    )
