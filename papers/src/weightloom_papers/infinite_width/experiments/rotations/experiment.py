"""Figures 2 and 4: training hypernetworks to predict rotations, by width, depth and learning rate.

Section 5.2: f is fully connected with depth 4 and width 200; g has several depths and widths. The
paper does not say how they are initialised, and it matters here:

- "default": PyTorch's `nn.Linear` in f and its last layer. The weights of g then have the same size
  whatever g is. They are too small for a narrow g, whose signal fades from layer to layer; that
  alone could make a wider or shallower g look better.
- "hyperfan_in": He et al. in f, and a last layer that gives each layer of g weights of the right
  size. The effect of width and depth is then not one of scale.
- "ntk": the parametrisation of the paper's Section 2, without biases. With the learning rates of
  standard parametrisations it learns much more slowly.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from weightloom.data import has_images
from weightloom.errors import ConfigError
from weightloom.hyper import HyperNetwork, mlp
from weightloom.training import Member, Settings
from weightloom_papers.infinite_width.experiments.rotations.task import (
    CLASSES,
    Voter,
    both,
    classified,
    make_task,
    marked,
)
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members
from weightloom_papers.lab.runs import digest_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INITS", "RotationRates", "RotationTask", "Rotations", "build", "generated_weights"]

INITS = ("default", "hyperfan_in", "ntk")


def generated_weights(config: Mapping[str, Any], inputs: int) -> int:
    """N_g, the number of generated weights.

    >>> generated_weights({"depth": 3, "width": 100, "init": "ntk"}, 784)
    89600
    """
    width, hidden = config["width"], config["depth"] - 2
    weights: int = inputs * width + hidden * width**2 + width * CLASSES
    return weights + (0 if config["init"] == "ntk" else (hidden + 1) * width + CLASSES)


def build(config: Mapping[str, Any], inputs: int, seed: int) -> HyperNetwork:
    """The untrained hypernetwork of a configuration, called as model(z, x)."""
    init, bias = config["init"], config["init"] != "ntk"
    if init not in INITS:
        raise ConfigError(f"init={init!r} is unknown; choose one of {', '.join(INITS)}")
    if min(config["depth"], config["f_depth"]) < 2:
        raise ConfigError(
            f"depth={config['depth']} and f_depth={config['f_depth']} were given; both networks "
            "have at least two weight matrices"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        primary = mlp([inputs, *[config["width"]] * (config["depth"] - 1), CLASSES], bias=bias)
        hidden = [config["f_width"]] * (config["f_depth"] - 1)
        encoder = mlp([inputs, *hidden], last_activation=True, bias=bias)
        if init == "hyperfan_in":
            _he_normal(encoder)
        # The features' moment is measured on standard normal conditions; pixels are standardised.
        return HyperNetwork(primary, encoder, init=init)


def _he_normal(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# -- what both figures share -----------------------------------------------------------------------

#: At most this many parameters are trained in one stack: 160 MB, and as much for gradients.
STACK_PARAMETERS = 40_000_000
CHANNELS = {"mnist": 1, "cifar10": 3}
OBJECTIVE = "cross_entropy"
#: Entries of a plan: what is varied, and what all runs have in common.
VARIED = ("sets", "widths", "depths", "inits", "rates", "seeds", "side")
FIXED = ("train_images", "test_images", "epochs", "batch_size", "f_width", "f_depth")


class RotationTask(Experiment):
    """Base class of Figures 2 and 4. ``choices`` replace entries of the plan.

    ``sets``, ``widths``, ``depths``, ``inits`` and ``rates`` are tuples of the values to run.
    ``widths`` and ``side`` may be mappings from sets, and ``rates`` one from initialisations.
    """

    main_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "mean_accuracy", "test_loss")

    def __init__(self, **choices: Any) -> None:
        known = {*VARIED, *FIXED}
        unknown = sorted(set(choices) - known)
        if unknown:
            raise ConfigError(
                f"{self.name} was given {', '.join(unknown)}; what can be chosen is "
                f"{', '.join(sorted(known))}"
            )
        self.choices = choices

    def configurations(self, scale: Mapping[str, Any]) -> list[Run]:
        """Runs for every combination of the varied entries, in the order of the plan."""
        plan = {**scale, **self.choices}
        fixed = {name: plan[name] for name in FIXED}
        runs = []
        for images, init, depth in itertools.product(plan["sets"], plan["inits"], plan["depths"]):
            widths, rates = _of(plan["widths"], images), _of(plan["rates"], init)
            for width, rate in itertools.product(widths, rates):
                config = {
                    **fixed,
                    "images": images,
                    "side": _of(plan["side"], images),
                    "init": init,
                    "depth": depth,
                    "width": width,
                    "learning_rate": rate,
                }
                runs += [Run(self.name, config, seed) for seed in range(plan["seeds"])]
        return runs

    def group(self, run: Run) -> str:
        """Runs that differ in the seed alone, as many as fit into one stack."""
        at_once = max(1, STACK_PARAMETERS // _parameters(run.config))
        return f"{digest_of(run.config)}-{run.seed // at_once}"

    def cost(self, run: Run) -> float:
        """Approximate seconds on two cores: three products with the head's matrix in each step."""
        config = run.config
        rows = config["epochs"] * config["train_images"]
        products = 6.0 * _parameters(config) * rows
        steps = rows / config["batch_size"]
        # Reading and writing the head, its gradient and its update: 20 bytes for each number.
        return 0.2 + products / 8e10 + steps * (0.004 + 20.0 * _parameters(config) / 1.5e10)

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits replace the image set of the run."""
        return not has_images(run.config["images"], data_dir)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        started = time.perf_counter()
        config = runs[0].config
        task = make_task(config, workspace.data_dir)
        train, held_out = marked(task.train, False), both(task.test)
        members = [
            Member(
                Voter(build(run.config, task.inputs, 1_000_003 + run.seed), OBJECTIVE),
                train,
                held_out,
                seed=run.seed,
                learning_rate=run.config["learning_rate"],
                name=f"seed {run.seed} rate {run.config['learning_rate']:g}",
            )
            for run in runs
        ]
        settings = Settings(
            epochs=config["epochs"], batch_size=config["batch_size"], objective=OBJECTIVE
        )
        setup = (time.perf_counter() - started) / len(runs)
        label = (
            f"{self.name} {config['images']} {config['init']} depth {config['depth']} "
            f"width {config['width']} (x{len(runs)})"
        )
        common = {
            "chance": task.chance,
            "digits": float(task.digits),
            "generated": generated_weights(config, task.inputs),
        }
        for run, report in zip(
            runs, train_members(members, settings, workspace, label), strict=True
        ):
            outcome = classified(report, OBJECTIVE, CLASSES, common)
            outcome.seconds += setup
            yield run, outcome


def _of(choice: Any, name: str) -> Any:
    """The entry for ``name``, if a choice is a mapping; else the choice itself."""
    return choice[name] if isinstance(choice, Mapping) else choice


def _parameters(config: Mapping[str, Any]) -> int:
    """Approximate number of parameters: those of the last layer of f dominate."""
    inputs = CHANNELS[config["images"]] * config["side"] ** 2
    return int(config["f_width"]) * generated_weights(config, inputs)


# -- Figure 2 --------------------------------------------------------------------------------------

#: The paper's networks, in two initialisations because the paper does not name one.
FIG2_PAPER: dict[str, Any] = {
    "sets": ("mnist", "cifar10"),
    "widths": {"mnist": (10, 50, 100), "cifar10": (100, 200, 300)},
    "depths": (3, 6, 8),
    "inits": ("default", "hyperfan_in"),
    "rates": (0.01,),
    "seeds": 100,
    "side": {"mnist": 28, "cifar10": 32},
    "train_images": 10_000,
    "test_images": 10_000,
    "epochs": 100,
    "batch_size": 100,
    "f_width": 200,
    "f_depth": 4,
}


FIG2_PLANS: dict[str, dict[str, Any]] = {
    "smoke": {
        **FIG2_PAPER,
        "widths": (4, 12),
        "depths": (3, 6),
        "inits": ("default",),
        "seeds": 2,
        "side": {"mnist": 7, "cifar10": 4},
        "train_images": 200,
        "test_images": 200,
        "epochs": 2,
        "f_width": 20,
    },
    # Coarser images (means over 2 x 2 and 4 x 4 pixels), because the cost of f's last layer grows
    # with the pixels. CIFAR-10's widths are a third of the paper's. 420 steps instead of 10,000.
    # In these the default initialisation learns nothing at the paper's rate, so it gets ten times
    # that rate (hyperfan_in does learn at 0.01, and diverges at 0.1).
    "laptop": {
        **FIG2_PAPER,
        "rates": {"default": (0.1,), "hyperfan_in": (0.01,)},
        "widths": {"mnist": (10, 50, 100), "cifar10": (33, 66, 100)},
        "seeds": 3,
        "side": {"mnist": 14, "cifar10": 8},
        "train_images": 3_000,
        "test_images": 2_000,
        "epochs": 14,
        "f_width": 100,
    },
    "paper": FIG2_PAPER,
}


class Rotations(RotationTask):
    """Figure 2: accuracy over epochs for every width and depth of g, in two initialisations."""

    name = "infinite-width/fig2"
    title = "Predicting rotations: width and depth of the primary network"
    claim = (
        "A hypernetwork with a wider and shallower primary network g trains faster and achieves "
        "better test performance on the rotation prediction task."
    )
    paper = "infinite-width, Figure 2"

    def runs(self, scale: str) -> list[Run]:
        return self.configurations(FIG2_PLANS[scale])

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.rotations.figure import draw_epochs

        return draw_epochs(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.rotations.analysis import (
            accuracy_table,
            epoch_verdicts,
        )

        return accuracy_table(results, self.title, epoch_verdicts(results))


# -- Figure 4 --------------------------------------------------------------------------------------

#: Appendix B.1 says "the same architectures", but gives other widths, the same for both sets.
FIG4_PAPER: dict[str, Any] = {
    **FIG2_PAPER,
    "widths": (50, 100, 200),
    "rates": tuple(10.0**j for j in range(-7, 1)),
    "epochs": 40,
}
FIG4_PLANS: dict[str, dict[str, Any]] = {
    "smoke": {
        **FIG4_PAPER,
        "sets": ("mnist",),
        "widths": (4, 12),
        "depths": (3,),
        "inits": ("default",),
        "rates": (1e-4, 1e-2, 1.0),
        "seeds": 2,
        "side": 7,
        "train_images": 200,
        "test_images": 200,
        "epochs": 1,
        "f_width": 20,
    },
    # Coarser images, a narrower f, the ends of widths and depths, 240 steps instead of 4,000.
    "laptop": {
        **FIG4_PAPER,
        "widths": (20, 60),
        "depths": (3, 8),
        "seeds": 3,
        "side": {"mnist": 14, "cifar10": 8},
        "train_images": 2_000,
        "test_images": 2_000,
        "epochs": 12,
        "f_width": 50,
    },
    "paper": FIG4_PAPER,
}


class RotationRates(RotationTask):
    """Figure 4: accuracy at the end of training, over the learning rate."""

    name = "infinite-width/fig4"
    title = "Predicting rotations at learning rates from 10^-7 to 1"
    claim = (
        "For every learning rate at which the networks learn anything, test performance improves "
        "as g gets wider; a deeper g trains more slowly and ends lower."
    )
    paper = "infinite-width, Figure 4"

    def runs(self, scale: str) -> list[Run]:
        return self.configurations(FIG4_PLANS[scale])

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.rotations.figure import draw_rates

        return draw_rates(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.rotations.analysis import (
            accuracy_table,
            rate_verdicts,
        )

        return accuracy_table(results, self.title, rate_verdicts(results))
