"""Conditions: tensors, trees of tensors, or features that were made before; and one call for all.

`encode` passes a condition to an encoder and says whether it was a single one. What does not fit is
refused with an error that names the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import GetAttrKey, register_pytree_node

from weightloom.errors import ShapeError

__all__ = ["Condition", "ConditionDims", "Dims", "Features", "encode"]


@dataclass(frozen=True, eq=False)
class Features:
    """What an encoder made of conditions. Takes the place of a condition and skips the encoder.

    `HyperNetwork.encode` returns it: run a slow encoder once, keep the features, use them often.
    Indexing with an int gives the features of a single condition, other indices those of a batch.

    >>> features = Features(torch.zeros(4, 8))
    >>> len(features), features[1:3].values.shape, features[2].single
    (4, torch.Size([2, 8]), True)
    """

    values: Tensor
    """[b, k]; also of a single condition, with b = 1"""
    single: bool = False
    """whether they belong to one condition that was given without a leading dimension"""

    def __post_init__(self) -> None:
        if self.values.dim() != 2:
            raise ShapeError(
                f"features of shape {tuple(self.values.shape)} were given; Features are [b, k], "
                f"one row for each condition (values[None] of one row)"
            )
        if self.single and self.values.shape[0] != 1:
            raise ShapeError(
                f"single=True was given with {self.values.shape[0]} rows; a single condition has "
                f"one row [1, k]"
            )

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, index: int | slice | Tensor) -> Features:
        chosen = self.values[index]
        single = chosen.dim() == 1
        return Features(chosen.unsqueeze(0) if single else chosen, single)

    def to(self, *args: Any, **kwargs: Any) -> Features:
        """On another device or in another type, as `Tensor.to`."""
        return Features(self.values.to(*args, **kwargs), self.single)

    def detach(self) -> Features:
        """Without a graph: no gradient goes from them to the encoder."""
        return Features(self.values.detach(), self.single)

    @staticmethod
    def cat(features: Iterable[Features]) -> Features:
        """One batch of all of them; a single condition counts as one row."""
        values = [each.values for each in features]
        widths = sorted({value.shape[1] for value in values})
        if len(widths) != 1:
            seen = f"widths {' and '.join(map(str, widths))}" if widths else "no features"
            raise ShapeError(f"{seen} were given; cat joins one or more Features of one encoder")
        return Features(torch.cat(values))


def _rebuilt(values: Iterable[Any], single: Any) -> Features:
    features = object.__new__(Features)  # no checks: transforms put other things than tensors there
    object.__setattr__(features, "values", next(iter(values)))
    object.__setattr__(features, "single", single)
    return features


# So torch.export, torch.compile and torch.func take Features as arguments.
register_pytree_node(
    Features,
    lambda features: ([features.values], features.single),
    _rebuilt,
    serialized_type_name="weightloom.Features",
    flatten_with_keys_fn=lambda features: (
        [(GetAttrKey("values"), features.values)],
        features.single,
    ),
)

Condition: TypeAlias = Tensor | Features | Mapping[str, Any] | Sequence[Any]
"""what an encoder takes: a tensor, a tree of tensors; or Features in place of both"""

Dims: TypeAlias = int | Mapping[str, Any] | Sequence[Any] | None
"""of one condition: of its tensor or of its first tensor; by name; by position; or unknown"""


@dataclass(frozen=True)
class ConditionDims:
    """How many dimensions one condition has, to tell a single one from a batch."""

    tensor: int | None = None
    """of a condition that is one tensor; None if unknown"""
    given: Dims = None
    """what the user said, which alone counts for trees; None: every tree is a batch"""

    @classmethod
    def of(cls, dims: ConditionDims | int | None) -> ConditionDims:
        return dims if isinstance(dims, ConditionDims) else cls(dims, None)


# -- calling an encoder --------------------------------------------------------------------------


def encode(
    encoder: nn.Module, condition: Condition, dims: ConditionDims | int | None
) -> tuple[Tensor, bool]:
    """Features [b, k], and whether a single condition (no leading dimension) was given.

    A tensor is passed to the encoder as it is, a dict by keyword, a tuple or list by position.
    `Features` are returned as they are. A frozen encoder needs no `torch.no_grad()`: autograd
    records nothing if neither parameters nor condition need a gradient.
    """
    known = ConditionDims.of(dims)
    if isinstance(condition, Tensor):
        return _encode_tensor(encoder, condition, known.tensor)
    if isinstance(condition, Features):
        return condition.values, condition.single
    return _encode_tree(encoder, condition, known.given)


def _encode_tensor(encoder: nn.Module, condition: Tensor, dims: int | None) -> tuple[Tensor, bool]:
    if dims is not None and condition.dim() not in (dims, dims + 1):
        raise _wrong_dims("condition", condition, dims)
    single = dims is not None and condition.dim() == dims
    features = encoder(condition.unsqueeze(0) if single else condition)
    if not isinstance(features, Tensor):
        raise _not_features(encoder, condition, features)
    if dims is None and features.dim() == 1:
        single, features = True, features.unsqueeze(0)
    if features.dim() != 2:
        raise _wrong_features(features, condition)
    return features, single


def _encode_tree(encoder: nn.Module, condition: Any, dims: Dims) -> tuple[Tensor, bool]:
    tensors = _tensors("condition", condition)
    if not tensors:
        raise ShapeError(
            f"condition is {condition!r:.60}, which holds no tensor; pass what the encoder takes"
        )
    if isinstance(encoder, nn.Identity):
        raise ShapeError(
            f"condition is a {type(condition).__name__}, but there is no encoder, so a condition "
            f"is its features: one tensor [b, k]. Pass encoder= a module that makes them"
        )
    single = dims is not None and _is_single(condition, dims)
    rows = 1 if single else _rows(tensors)
    given = _with_leading(condition) if single else condition
    features = encoder(**given) if isinstance(given, Mapping) else encoder(*given)
    if not isinstance(features, Tensor):
        raise _not_features(encoder, condition, features)
    if features.dim() != 2:
        raise _wrong_features(features, condition)
    if features.shape[0] != rows:
        raise ShapeError(
            f"the encoder returned features of {_count(features.shape[0], 'row')} for a condition "
            f"of {_count(rows, 'row')}; it must return [b, k], one row for each condition"
        )
    return features, single


def _tensors(path: str, tree: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a tree and where they are; None is left out, anything else refused."""
    if isinstance(tree, Tensor):
        return [(path, tree)]
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        parts = [(f"{path}[{key!r}]", part) for key, part in tree.items()]
    elif isinstance(tree, list | tuple):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(tree)]
    else:
        raise _not_a_tensor(path, tree)
    return [leaf for where, part in parts for leaf in _tensors(where, part)]


def _with_leading(tree: Any) -> Any:
    """The tree with a leading dimension of 1 in every tensor."""
    if isinstance(tree, Tensor):
        return tree.unsqueeze(0)
    if isinstance(tree, Mapping):
        return {key: _with_leading(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_with_leading(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def _rows(tensors: list[tuple[str, Tensor]]) -> int:
    first, reference = tensors[0]
    for path, tensor in tensors:
        if tensor.dim() == 0:
            raise ShapeError(
                f"{path} has no rows: its shape is (); the tensors of a condition are [b, ...] "
                f"(condition_dims= makes a single condition known)"
            )
        if tensor.shape[0] != reference.shape[0]:
            raise ShapeError(
                f"{first} has {_count(reference.shape[0], 'row')}, {path} has {tensor.shape[0]}; "
                f"all tensors of a batch of conditions are [b, ...] with one b"
            )
    return reference.shape[0]


def _is_single(condition: Any, dims: Dims) -> bool:
    known = _with_dims("condition", condition, dims)
    for path, tensor, wanted in known:
        if tensor.dim() not in (wanted, wanted + 1):
            raise _wrong_dims(path, tensor, wanted)
    singles = {path: tensor.dim() == wanted for path, tensor, wanted in known}
    if len(set(singles.values())) > 1:
        seen = (
            f"{path} {tuple(tensor.shape)} is {'a single one' if singles[path] else 'a batch'}"
            for path, tensor, _ in known
        )
        raise ShapeError(
            f"parts of the condition disagree: {', '.join(seen)} by condition_dims={dims!r}; give "
            f"all of them a leading dimension b, or none"
        )
    return all(singles.values())


def _with_dims(path: str, tree: Any, dims: Any) -> list[tuple[str, Tensor, int]]:
    """The tensors of which the number of dimensions is known, with that number."""
    if isinstance(dims, int):
        return [(where, tensor, dims) for where, tensor in _tensors(path, tree)[:1]]
    by_name = isinstance(dims, Mapping)
    if isinstance(tree, Mapping) != by_name or not isinstance(tree, Mapping | list | tuple):
        raise ShapeError(
            f"condition_dims={dims!r} describes a {type(dims).__name__}, but {path} is a "
            f"{type(tree).__name__}; give condition_dims= the structure of a condition, or one int "
            f"for its first tensor"
        )
    if not by_name:
        parts = [(f"{path}[{i}]", tree[i], each) for i, each in enumerate(dims[: len(tree)])]
    else:
        parts = [(f"{path}[{key!r}]", tree[key], dims[key]) for key in dims if key in tree]
    if not parts:
        raise ShapeError(
            f"condition_dims={dims!r} was given, but {path} has none of these parts; it has "
            f"{list(tree)}"
        )
    return [leaf for part in parts for leaf in _with_dims(*part)]


# -- what is wrong -------------------------------------------------------------------------------


def _wrong_dims(path: str, tensor: Tensor, dims: int) -> ShapeError:
    return ShapeError(
        f"{path} has shape {tuple(tensor.shape)}, but one condition has "
        f"{_count(dims, 'dimension')} here; pass [b, ...] with {dims + 1} dimensions, "
        f"or a single condition with {dims} (condition_dims= sets this by hand)"
    )


def _not_a_tensor(path: str, value: Any) -> ShapeError:
    if isinstance(value, Features):
        return ShapeError(
            f"{path} is Features; pass what hyper.encode returned by itself, in place of a "
            f"condition (Features.cat joins several)"
        )
    hint = "one task id is torch.tensor(3), several are torch.tensor([3, 5])"
    if path != "condition":
        hint = "a tokenizer returns tensors with return_tensors='pt'"
    return ShapeError(
        f"{path} is {value!r:.60}, not a tensor; pass torch.tensor(...) of it ({hint})"
    )


def _wrong_features(features: Tensor, condition: Condition) -> ShapeError:
    return ShapeError(
        f"the encoder returned features of shape {tuple(features.shape)} for a condition of "
        f"shape {_shapes(condition)}; it must return [b, k], one row for each condition"
    )


def _not_features(encoder: nn.Module, condition: Condition, output: Any) -> ShapeError:
    """How features are made of such an output is the user's to say: show where to say it."""
    stars = "**" if isinstance(condition, Mapping) else "" if isinstance(condition, Tensor) else "*"
    return ShapeError(
        f"the encoder ({type(encoder).__name__}) returned {_described(output)}; features are one "
        f"tensor [b, k], one row for each condition. Wrap the encoder, with a pooling that you "
        f"choose (a field of [b, k], or a masked mean over positions):\n"
        f"    class Encoder(nn.Module):\n"
        f"        def __init__(self, model): super().__init__(); self.model = model\n"
        f"        def forward(self, {stars}condition): return pool(self.model({stars}condition))"
    )


def _described(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        fields = [f"{name} {_shapes(value)}" for name, value in output.items()]
        return f"{kind} with {', '.join(fields)}"
    if isinstance(output, tuple | list) and any(isinstance(part, Tensor) for part in output):
        return f"a {kind} of {' and '.join(_shapes(part) for part in output)}"
    if isinstance(output, tuple | list):
        return f"a {kind} of {_count(len(output), 'item')}"
    return f"a {kind}"


def _shapes(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape))
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shapes(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "[" + ", ".join(map(_shapes, tree)) + "]"
    return type(tree).__name__


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
