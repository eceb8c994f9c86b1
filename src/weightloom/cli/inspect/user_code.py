"""``--module``: networks built by the user's own code, with the weights of a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import ConfigError, NonFiniteWeightsError, WeightloomError

if TYPE_CHECKING:
    from torch import nn

    from weightloom.symmetry.files.checkpoints import Loaded

__all__ = ["load_by_code"]


def load_by_code(path: Path, factory: str) -> Loaded:
    """The network that the user's ``factory`` returns, with the weights of a file."""
    import torch

    from weightloom.hyper.saving import load
    from weightloom.symmetry.files.checkpoints import Loaded, read_state

    state, _ = read_state(path)
    module = _build(factory)
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:  # otherwise float64 weights would be rounded, and small differences lost
        module = module.to(dtypes.pop())
    load(module, path)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise NonFiniteWeightsError(f"{str(path)!r}: tensor {name!r} holds NaN or infinity")
    return Loaded(path, module.eval(), None, False, ())


def _build(spec: str) -> nn.Module:
    """Call ``path.py:factory`` or ``package.module:factory``."""
    from torch import nn

    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"--module {spec}: wanted path.py:factory or package.module:factory, where factory() "
            f"returns the network"
        )
    factory = getattr(_import(where, spec), name, None)
    if not callable(factory):
        raise ConfigError(f"--module {spec}: {where} has no function {name!r}")
    try:
        network = factory()
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"--module {spec}: {name}() failed with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"--module {spec}: {name}() returned a {type(network).__name__}; wanted an nn.Module"
        )
    return network


def _import(where: str, spec: str) -> Any:
    path = Path(where)
    try:
        if path.suffix != ".py":
            return importlib.import_module(where)
        if not path.is_file():
            raise ConfigError(f"--module {spec}: there is no file {where!r}; check the path")
        source = importlib.util.spec_from_file_location(f"_weightloom_{path.stem}", path)
        if source is None or source.loader is None:
            raise ConfigError(f"--module {spec}: {where!r} cannot be imported")
        module = importlib.util.module_from_spec(source)
        sys.modules[source.name] = module  # dataclasses and pickle look it up there
        source.loader.exec_module(module)
    except WeightloomError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"--module {spec}: importing {where} failed with {type(error).__name__}: {error}"
        ) from error
    return module
