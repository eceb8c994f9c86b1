"""Runs networks for a comparison: on copies, in float64, in eval mode, with a fixed seed."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.examples import returned_names

__all__ = ["LARGE", "Arguments", "RunError", "Runner", "leaves"]

_DEEPEST = 8
LARGE = 1 << 20
"""parameters above which networks are run less often"""
_DENSE = 1 << 16  # entries up to which every weight gets a sign of its own


class RunError(Exception):
    """A network that could not be run on an input; the text is the first line of its error."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a network is called with: ``module(*args, **kwargs)``."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Any) -> Arguments:
        """From a tensor, a tuple or list of arguments, or a mapping of keyword arguments."""
        if isinstance(inputs, Arguments):
            return inputs
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        return cls(tuple(inputs)) if isinstance(inputs, tuple | list) else cls((inputs,))

    @property
    def plain(self) -> Any:
        """What a user would pass: one tensor, a tuple, or a dict of keyword arguments."""
        if self.kwargs:
            return dict(self.kwargs)
        return self.args[0] if len(self.args) == 1 else self.args

    @property
    def rows(self) -> int:
        """The size of the first dimension of the first tensor."""
        tensors = leaves((self.args, dict(self.kwargs))) or []
        return next((len(tensor) for tensor in tensors if tensor.dim()), 1)

    def cast(self, dtype: torch.dtype | None, device: torch.device) -> Arguments:
        """The arguments on a device, with numbers in this dtype."""
        moved = {name: _cast(value, dtype, device) for name, value in self.kwargs.items()}
        return Arguments(tuple(_cast(value, dtype, device) for value in self.args), moved)


def _cast(value: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        if dtype is None or not (value.is_floating_point() or value.is_complex()):
            return value.to(device)
        return value.to(device, dtype.to_complex() if value.is_complex() else dtype)
    if isinstance(value, tuple | list):
        return type(value)(_cast(item, dtype, device) for item in value)
    if isinstance(value, dict):
        return {key: _cast(item, dtype, device) for key, item in value.items()}
    return value


class Runner:
    """A copy of a network that can be run, also with its weights moved at random.

    ``dtype``: what the copy is cast to; None: its own. It costs the memory of the copy, twice the
    network's in float64.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = torch.float64) -> None:
        self.dtype = dtype
        try:
            self.copy = copy.deepcopy(module).eval()
        except Exception as error:  # copying runs the module's own code
            raise UnsupportedModuleError(
                f"the network ({type(module).__name__}) cannot be copied, and the comparison runs "
                f"copies ({type(error).__name__}: {str(error)[:200]}); make it copyable with "
                f"copy.deepcopy"
            ) from error
        self.copy.requires_grad_(False)
        if dtype is not None:
            _convert(self.copy, dtype)
        first = next(iter(self.copy.parameters()), None)
        self.device = torch.device("cpu") if first is None else first.device
        self.size = sum(parameter.numel() for parameter in self.copy.parameters())
        self._pairs = list(_weights(self.copy, module))
        self._places: dict[int, Tensor] | None = None

    def run(self, arguments: Arguments, seed: int = 0) -> list[Tensor]:
        """All numbers of the output, as tensors on the CPU in float64."""
        given = arguments.cast(self.dtype, self.device)
        args = given.args
        if isinstance(self.copy, nn.MultiheadAttention) and len(args) == 1 and not given.kwargs:
            args = args * 3
        try:
            with torch.no_grad(), _seeded(seed, self.device):
                tensors = leaves(self.copy(*args, **given.kwargs))
        except Exception as error:  # the module's own code may raise anything
            text = str(error).strip().splitlines() or [""]
            raise RunError(f"{type(error).__name__}: {text[0][:200]}") from error
        if not tensors:
            raise RunError("the output holds no tensors, so it cannot be compared")
        return [_numbers(tensor) for tensor in tensors]

    def run_with_unit(self, arguments: Arguments) -> tuple[list[Tensor], float]:
        """`run`, and the unit roundoff of the coarsest dtype that the network computes in."""
        with _Precision() as precision:
            outputs = self.run(arguments)
        return outputs, precision.unit

    def restricted(self, places: Mapping[str, Tensor]) -> Runner:
        """The runner, which now moves only the weights at these places."""
        named = self._named()
        self._places = {id(named[name]): place for name, place in places.items()}
        return self

    def replaced(self, tensors: Mapping[str, Tensor]) -> Runner:
        """The runner, with other values in the tensors of these names."""
        values = {id(own): tensors[name] for name, own in self._named().items() if name in tensors}
        self._pairs = [(own, values.get(id(own), given)) for own, given in self._pairs]
        for own, given in self._pairs:
            own.copy_(given)
        return self

    def _named(self) -> dict[str, Tensor]:
        return {**dict(self.copy.named_parameters()), **dict(self.copy.named_buffers())}

    @contextmanager
    def moved(self, amount: float, seed: int) -> Iterator[None]:
        """Every weight w is w (1 + amount) or w (1 - amount), at random, inside the block."""
        generator = torch.Generator().manual_seed(seed)
        try:
            for own, given in self._pairs:
                place = None if self._places is None else self._places.get(id(own))
                if self._places is not None and place is None:
                    continue
                _move(own, given, amount, generator)
                if place is not None:
                    own.copy_(torch.where(place.to(own.device), own, given.to(own)))
            yield
        finally:
            for own, given in self._pairs:
                own.copy_(given)


def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast in place, complex tensors to the complex dtype of the same precision.

    `nn.Module.to` makes complex tensors real, and `double` leaves complex64 as it is.
    """

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(dtype.to_complex())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    module._apply(cast)


def _weights(copied: nn.Module, given: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of the state dict, of the copy and of the original; each tensor once."""
    original = {**dict(given.named_parameters()), **dict(given.named_buffers())}
    saved = set(copied.state_dict(keep_vars=True))
    for name, tensor in [*copied.named_parameters(), *copied.named_buffers()]:
        source = original.get(name)
        numeric = tensor.is_floating_point() or tensor.is_complex()
        if name in saved and source is not None and numeric and source.shape == tensor.shape:
            yield tensor, source.detach()


def _move(tensor: Tensor, given: Tensor, amount: float, generator: torch.Generator) -> None:
    """Writes given (1 + amount signs), with random signs.

    Large tensors get the product of a sign for each row and one for each position in a row: such
    products are as uncorrelated as signs, and much cheaper to sample.
    """
    real = tensor.real.dtype if tensor.is_complex() else tensor.dtype

    def signs(*shape: int) -> Tensor:
        bits = torch.randint(0, 2, shape, generator=generator)
        return (2 * bits - 1).to(tensor.device, real)

    tensor.copy_(given)
    if tensor.numel() <= _DENSE or tensor.dim() < 2:
        tensor.mul_(1 + amount * signs(*tensor.shape))
        return
    rows = signs(len(tensor), *(1,) * (tensor.dim() - 1))
    columns = signs(1, math.prod(tensor.shape[1:])).reshape(1, *tensor.shape[1:])
    tensor.mul_(columns).mul_(amount * rows).add_(given)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The same random numbers for every run; the caller's random state does not change."""
    if device.type == "cpu":
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)
            yield
    else:
        with torch.random.fork_rng([device], device_type=device.type):
            torch.manual_seed(seed)
            yield


class _Precision(TorchDispatchMode):
    """Notes the coarsest dtype of the results of floating-point operations."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = 2.0**-53

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                self.unit = max(self.unit, torch.finfo(tensor.dtype).eps / 2)
        return result


# -- outputs -------------------------------------------------------------------------------------
def leaves(value: Any, depth: int = 0) -> list[Tensor] | None:
    """All tensors in an output, in order: in tuples, mappings, dataclasses, caches."""
    if isinstance(value, Tensor):
        return [value]
    if value is None or isinstance(value, bool | int | float | str) or depth > _DEEPEST:
        return None
    parts: Any
    if isinstance(value, Mapping):
        parts = [value[name] for name in returned_names(value)]
    elif isinstance(value, tuple | list):
        parts = value
    elif isinstance(value, nn.Module):
        return None
    else:
        parts = getattr(value, "__dict__", {}).values()
    inside = (leaves(part, depth + 1) for part in parts)
    return [tensor for tensors in inside if tensors for tensor in tensors]


def _numbers(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to("cpu", torch.float64)
