"""Weight specs: names, shapes and order of the tensors that are generated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weightloom.errors import PatternError, ShapeError, UnsupportedModuleError

__all__ = ["WeightSpec"]


@dataclass(frozen=True)
class WeightSpec:
    """Names and shapes of generated tensors, in the order in which a flat vector holds them.

    ``aliases`` maps the other names of tied parameters to the name under which they are generated:
    a tied parameter is generated once and shared.

    >>> spec = WeightSpec.from_module(nn.Linear(3, 2))
    >>> spec.size, dict(spec.shapes)
    (8, {'weight': (2, 3), 'bias': (2,)})
    """

    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    opaque: frozenset[str] = frozenset()
    """weights of layers that do not show them (quantised ones): a change can stand beside them"""

    def __post_init__(self) -> None:
        _ = self.size, self._sizes  # now: torch.compile cannot enter the lock of cached_property

    @classmethod
    def from_module(
        cls, module: nn.Module, generate: str | Iterable[str] = "*", opaque: bool = False
    ) -> WeightSpec:
        """The parameters of ``module`` whose dotted names match one of the glob patterns.

        ``opaque=True`` adds the weights of linear layers that hold them in another form.
        """
        patterns = [generate] if isinstance(generate, str) else list(generate)
        canonical = _canonical_names(module)
        hidden = _opaque_shapes(module) if opaque else {}
        canonical = {**canonical, **{name: name for name in hidden}}
        selected = _select(list(canonical), patterns)
        generated = {canonical[name] for name in selected}
        parameters = dict(module.named_parameters())
        shapes = {
            name: _checked_shape(name, parameter)
            for name, parameter in parameters.items()
            if name in generated and name not in hidden
        }
        shapes |= {name: shape for name, shape in hidden.items() if name in generated}
        aliases = {
            name: first for name, first in canonical.items() if name != first and first in generated
        }
        return cls(shapes, aliases, frozenset(hidden) & frozenset(shapes))

    @cached_property
    def size(self) -> int:
        """N_g, the number of scalars that are generated for one condition."""
        return sum(self.sizes.values())

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @cached_property
    def _sizes(self) -> list[int]:
        return list(self.sizes.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def subset(self, names: Iterable[str]) -> WeightSpec:
        """The spec of these names only, in the same order."""
        keep = set(names)
        shapes = {name: shape for name, shape in self.shapes.items() if name in keep}
        aliases = {name: first for name, first in self.aliases.items() if first in keep}
        return WeightSpec(shapes, aliases, self.opaque & keep)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector [..., size] as views [..., *shape] by name."""
        if flat.shape[-1] != self.size:
            raise ShapeError(
                f"a flat vector of {flat.shape[-1]} weights was given, but this network has "
                f"{self.size}; pass a tensor whose last dimension is {self.size}"
            )
        rows = flat.shape[:-1]
        pieces = flat.split_with_sizes(self._sizes, -1)
        return {
            name: piece if len(shape) == 1 else piece.reshape(rows + shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def flatten(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`: tensors [..., *shape] as one flat vector [..., size]."""
        self.check(weights)
        return torch.cat(
            [
                weights[name].reshape(*weights[name].shape[: -len(shape) or None], -1)
                for name, shape in self.shapes.items()
            ],
            dim=-1,
        )

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise unless ``weights`` has exactly these names, each with its shape at the end.

        `torch.func.functional_call` accepts misspelt names and broadcastable shapes silently.
        """
        missing = [name for name in self.shapes if name not in weights]
        unknown = [name for name in weights if name not in self.shapes]
        if missing or unknown:
            raise ShapeError(
                f"weights do not belong to this network: missing {missing or 'none'}, unknown "
                f"{unknown or 'none'}; it generates {list(self.shapes)}"
            )
        for name, shape in self.shapes.items():
            got = tuple(weights[name].shape)
            if got[max(len(got) - len(shape), 0) :] != shape:
                raise ShapeError(
                    f"weight {name!r} has shape {got}, but must end in {shape}: one tensor of that "
                    f"shape, or one for each condition"
                )


def _canonical_names(module: nn.Module) -> dict[str, str]:
    """Every parameter name, tied ones included, mapped to the first name of that parameter."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first_name[id(parameter)] for name, parameter in every}


def _opaque_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """[out, in] of linear layers that have no floating-point ``weight`` (int8, 4-bit, packed)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for prefix, part in module.named_modules():
        out, inner = getattr(part, "out_features", None), getattr(part, "in_features", None)
        weight = getattr(part, "weight", None)
        shown = isinstance(weight, Tensor) and weight.is_floating_point()
        if isinstance(out, int) and isinstance(inner, int) and not shown and not _children(part):
            shapes[f"{prefix}.weight" if prefix else "weight"] = (out, inner)
    return shapes


def _children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _select(names: list[str], patterns: list[str]) -> set[str]:
    selected: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise PatternError(
                f"generate={pattern!r} selects no parameter of the primary; its parameters are "
                f"{shown or 'none at all'}. Patterns are shell globs over dotted names, "
                f"such as '*', 'head.*' or '*.bias'"
            )
        selected |= matched
    return selected


def _checked_shape(name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    if is_lazy(parameter):
        raise UnsupportedModuleError(
            f"parameter {name!r} is lazy: its shape is not known yet. Run the primary once on an "
            f"example input, then build the HyperNetwork"
        )
    if not parameter.is_floating_point():
        raise UnsupportedModuleError(
            f"parameter {name!r} has dtype {parameter.dtype}; only floating-point parameters can "
            f"be generated. Leave it out with a narrower generate= pattern"
        )
    return tuple(parameter.shape)
