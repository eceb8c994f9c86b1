"""``weightloom inspect``: what is in a saved network, and whether another is the same function."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.errors import ConfigError

if TYPE_CHECKING:
    from weightloom.symmetry import CheckpointDiff
    from weightloom.symmetry.files.answers import FileVerdict
    from weightloom.symmetry.files.checkpoints import Loaded

__all__ = ["DESCRIPTION", "EPILOG", "EXIT_CODES", "add_arguments", "run"]

EXIT_CODES = {"same": 0, "different": 1, "undecided": 3}

DESCRIPTION = """\
What is in a saved network? Redundant neurons (a network without any is normal), Lipschitz
constants, capacity of its class. With two checkpoints: first what differs, tensor by tensor, for
any architecture; then whether they are the same function, up to permuted, rescaled and
sign-flipped neurons, clones and dead neurons."""

EPILOG = """\
what differs (two checkpoints):
  Files (.safetensors; .pt, .pth, .bin without running code), index.json of shards, folders of
  Hugging Face and of PEFT adapters. Names are matched, also behind prefixes such as "module.".
  Each tensor is identical, cast, scaled, permuted, transposed, quantised, a sparse or low-rank
  change, or other; each claim is checked on every entry. A missing shard is named, and the rest is
  compared. An adapter is merged into the other side, or into --base.

where the architecture comes from:
  `wl.export` writes the layers of a network into its file, and they are read from there. Other
  safetensors files hold names and shapes of weights. From "0.weight", "fc1.weight" or
  "layers.2.weight" a plain chain of Linear and Conv layers is inferred, with --activation between
  any two, or the metadata entry "activation". If nothing says which activation it is, relu, tanh,
  sigmoid and gelu are tried, and the verdict says for which it holds ("if ReLU"). Assumptions are
  printed; an ambiguous file is refused. For everything else (skip connections, norms, attention,
  your own layers) give --module: this imports and RUNS that code, so name only code that you trust.

what is never done:
  Pickles (.pt, .pth, .bin, .ckpt) are not opened for the verdict. For the list of differences
  only their tensors are read (weights_only); what may run code is refused.

exit code:
  0  inspected; with two checkpoints: the same function. All tensors identical under the same names
     is the same for any architecture
  1  two checkpoints: different functions; an input shows it
  2  an error, explained on stderr
  3  two checkpoints: undecided, and what is missing is said
  With --diff-only: 0 all tensors identical, 1 not, 3 all that was read is identical, but a file
  is missing or the configurations differ.

examples:
  weightloom inspect digit.safetensors                            one network
  weightloom inspect a.safetensors b.safetensors                  what differs? the same function?
  weightloom inspect llama/ llama-tuned/ --diff-only              folders, shards
  weightloom inspect llama/ lora/ --diff-only                     an adapter, merged into llama/
  weightloom inspect a.safetensors b.safetensors --activation tanh --json
  weightloom inspect a.safetensors --module nets.py:small_resnet --input-shape 3,32,32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "first", metavar="FILE", type=Path, help="a .safetensors file (two: any checkpoint)"
    )
    parser.add_argument(
        "second", metavar="OTHER", type=Path, nargs="?", help="checkpoint to compare to"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--verdict-only", action="store_true", help="two files: leave out the differences"
    )
    which.add_argument(
        "--diff-only", action="store_true", help="two checkpoints: leave out the verdict"
    )
    parser.add_argument(
        "--base", metavar="CHECKPOINT", type=Path, help="what adapters are merged into"
    )
    parser.add_argument(
        "--activation", metavar="NAME", help="between the layers: relu, tanh, gelu, ..."
    )
    parser.add_argument(
        "--module",
        metavar="CODE",
        help="path.py:factory or package.module:factory; runs it, factory() returns the network",
    )
    parser.add_argument(
        "--input-shape",
        metavar="N,N,N",
        type=_shape,
        help="of one input, for convolutions (with --module)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="T",
        type=_tolerance,
        help="relative deviation of weights that still counts as the same (default: by dtype)",
    )
    parser.add_argument(
        "--no-bounds", action="store_true", help="leave out Lipschitz and capacity (faster)"
    )
    parser.add_argument("--full", action="store_true", help="all norms and bounds of each network")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} was given; whole numbers are wanted, as in 3,32,32"
        )
    return shape


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a number in [0, 1) is wanted")
    return value


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.second is None:
        return _verdict(arguments, None)
    from weightloom.cli.inspect.comparison import compare

    return compare(arguments, _verdict)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.module and arguments.activation:
        raise ConfigError("--activation is for inferred networks; with --module the code decides")
    if arguments.input_shape and not arguments.module:
        raise ConfigError(
            "--input-shape needs --module: strides and pooling are not in the file, so bounds for "
            "inferred convolutions could be those of another network"
        )
    if arguments.second is None:
        for option in ("verdict_only", "diff_only", "base"):
            if getattr(arguments, option):
                name = option.replace("_", "-")
                raise ConfigError(f"--{name} is for two checkpoints, and one was given")


def _verdict(arguments: argparse.Namespace, diff: CheckpointDiff | None) -> int:
    """Examine one network, or two and whether they are the same function."""
    from weightloom.cli.inspect.report import as_text, findings_of
    from weightloom.symmetry.files.checkpoints import as_dict

    comparison, loaded = _compared(arguments)
    bounds = not arguments.no_bounds
    findings = [findings_of(network, bounds, arguments.input_shape) for network in loaded]
    if arguments.json:
        about = {} if diff is None else {"diff": diff.to_dict()}
        print(json.dumps(about | as_dict(findings, comparison), indent=2, allow_nan=False))
    else:
        print(as_text(findings, comparison, arguments.full))
    return 0 if comparison is None else EXIT_CODES[comparison.answer]


def _compared(arguments: argparse.Namespace) -> tuple[FileVerdict | None, list[Loaded]]:
    """The verdict on two files (None for one), and the networks in them."""
    from weightloom.cli.inspect.user_code import load_by_code
    from weightloom.symmetry.files.checkpoints import load_by_names
    from weightloom.symmetry.files.comparing import compare_files, compare_loaded

    paths = [arguments.first] + ([arguments.second] if arguments.second else [])
    if arguments.module:
        loaded = [load_by_code(path, arguments.module) for path in paths]
        if len(loaded) == 1:
            return None, loaded
        return compare_loaded(*loaded, tolerance=arguments.tolerance), loaded
    if len(paths) == 1:
        return None, [load_by_names(paths[0], arguments.activation)]
    first, second = ((path, str(path)) for path in paths)
    return compare_files(first, second, arguments.activation, arguments.tolerance)
