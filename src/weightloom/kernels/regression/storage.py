"""A fitted regressor as one safetensors file: tensors as they are, the rest as JSON, no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.errors import CheckpointError, WeightloomError
from weightloom.files import atomic_write, own_version, read_safetensors
from weightloom.kernels.inputs import unique_rows
from weightloom.kernels.regression.problem import GridProblem, PointProblem, Problem
from weightloom.kernels.regression.system import Options, System

if TYPE_CHECKING:
    from weightloom.kernels.regression.regressor import HyperKernelRegressor

__all__ = ["load", "save"]

FORMAT = 1
KEY = "weightloom.kernels.regression"


def save(model: HyperKernelRegressor, path: Path) -> None:
    """Write a fitted model to ``path``, atomically."""
    system = model.system_
    tensors = {f"state.{name}": tensor for name, tensor in system.state().items()}
    tensors |= {f"data.{name}": tensor for name, tensor in _tensors(system.problem).items()}
    _write(path, tensors, _header(model, system))


def load(cls: type[HyperKernelRegressor], path: Path) -> HyperKernelRegressor:
    """The model in a file that `save` wrote, ready to predict."""
    about, tensors = _read(path)
    try:
        return _rebuild(cls, about, tensors)
    except (LookupError, TypeError, ValueError, AttributeError, WeightloomError) as error:
        raise CheckpointError(
            f"{path} cannot be made into a regressor ({type(error).__name__}: {error}); it was "
            f"written by weightloom {about.get('weightloom', 'unknown')}: load it with that "
            "version, or fit again"
        ) from error


# -- what is written -----------------------------------------------------------------------------


def _header(model: HyperKernelRegressor, system: System[Any]) -> dict[str, Any]:
    from weightloom.linalg import Solution

    arguments = model.get_params(deep=False)
    del arguments["kernel"]
    arguments["ridge"] = float(arguments["ridge"])
    if model.dtype is not None:
        arguments["dtype"] = str(model.dtype).removeprefix("torch.")
    numbers = [field.name for field in fields(Solution) if field.name != "value"]
    return {
        "format": FORMAT,
        "weightloom": own_version(),
        "torch": torch.__version__,
        "arguments": arguments,
        "kernel": _config(model.kernel),
        # The fitted kernel can differ from the one that is set now.
        "fitted": {
            "kernel": _config(system.kernel),
            "ridge": system.ridge,
            "options": asdict(system.options),
            "system": system.name,
            "reason": model.reason_,
            "plan": asdict(system.plan),
            "solution": {name: getattr(system.solution, name) for name in numbers},
            "squeeze": system.problem.squeeze,
        },
    }


def _config(kernel: Any) -> dict[str, Any]:
    try:
        config = json.loads(json.dumps(kernel.config()))
        # A setting that JSON cannot store would give another kernel later.
        if type(kernel).from_config(config).config() != config:
            raise ValueError("its config gives another kernel")
    except (TypeError, ValueError, WeightloomError) as error:
        raise CheckpointError(
            f"the kernel {kernel!r} cannot be written to a file: {error}; use activations "
            "that have a name, or keep the training data and fit again"
        ) from error
    return config


def _tensors(problem: Problem) -> dict[str, Tensor]:
    tensors = {name: value for name, value in vars(problem).items() if isinstance(value, Tensor)}
    tensors.pop("observed", None)  # derived from the mask
    if isinstance(problem, PointProblem):
        rows, index = unique_rows(problem.x)
        if 2 * len(rows) < len(index):  # the same images at many points: a far smaller file
            tensors |= {"x": rows, "index": index}
    return tensors


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    if not path.parent.is_dir():
        raise CheckpointError(
            f"the folder {str(path.parent)!r} does not exist; create it before saving {path.name!r}"
        )
    # Copies: safetensors refuses tensors that are views of one memory.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    try:
        with atomic_write(path) as part:
            save_file(plain, part, metadata={"format": "pt", KEY: json.dumps(about)})
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error}. What was there before, if anything, is still "
            "whole; make room or choose another place"
        ) from error


# -- what is read --------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError

    if not path.is_file():
        raise CheckpointError(f"there is no file {str(path)!r}; check the path")
    try:
        about, tensors = read_safetensors(path, KEY)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no file of HyperKernelRegressor.save, or it is damaged "
            f"({type(error).__name__}: {error}); save the model again"
        ) from error
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was written in format {about.get('format')}, this version of weightloom reads "
            f"{FORMAT}; load it with weightloom {about.get('weightloom')}"
        )
    return about, tensors


def _rebuild(
    cls: type[HyperKernelRegressor], about: dict[str, Any], tensors: dict[str, Tensor]
) -> HyperKernelRegressor:
    from weightloom.kernels.hyperkernel import HyperKernel
    from weightloom.kernels.regression.choice import system_class
    from weightloom.linalg import Solution, SolverPlan

    arguments, fitted = dict(about["arguments"]), about["fitted"]
    if arguments["dtype"] is not None:
        arguments["dtype"] = getattr(torch, arguments["dtype"])
    model = cls(HyperKernel.from_config(about["kernel"]), **arguments)
    state = _part(tensors, "state.")
    system = system_class(fitted["system"]).from_state(
        HyperKernel.from_config(fitted["kernel"]),
        _problem(_part(tensors, "data."), fitted["squeeze"]),
        fitted["ridge"],
        Options(**fitted["options"]),
        state,
        SolverPlan(**fitted["plan"]),
        Solution(value=state.get("alpha", torch.empty(0)), **fitted["solution"]),
    )
    model._keep(system, fitted["reason"])
    return model


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _problem(data: dict[str, Tensor], squeeze: bool) -> Problem:
    if "images" in data:
        return GridProblem(**data, squeeze=squeeze)
    if "index" in data:
        data["x"] = data["x"][data.pop("index")]
    return PointProblem(**data, squeeze=squeeze)
