"""Find out where rows are in a bound network, and prove it on the call itself.

Before the first call of each kind, the network is run with random weights in place of the generated
ones: once with the whole batch, and for a few rows alone. A tensor that is as large alone as in the
batch is shared by all rows; one that grew with the number of rows has rows. Then what belongs to a
row in the batch must be what that row alone gives, at every place where a generated parameter is
used and in the output. A primary that sorts, mixes or selects rows on the way, such as a mixture of
experts, is refused here instead of being silently wrong.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound import calls
from weightloom.hyper.bound.calls import SHARED, Call, Layout, Meeting
from weightloom.hyper.bound.owners import Owners
from weightloom.hyper.bound.samples import alike, grown, sample_of
from weightloom.hyper.rows.generated import Factored, Generated

__all__ = ["check_rows", "quieten", "random_weights"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Build = Callable[[Mapping[str, Generated], Owners], nn.Module]
"""makes a bound network of such weights, one tensor for each group"""

_ROWS_ALONE = 3
"""how many rows are run alone: the first, the second and the last group's"""
_MOST_PASSES = 12
_DISTURBED = 4
"""of 400 small networks that select by value, two tries missed 2 wrong ones, four missed none"""


class _Seen(NamedTuple):
    """A tensor as it was met: its shape and some of its values."""

    shape: tuple[int, ...]
    values: Tensor


class _Alone:
    """Looks on while one row runs alone."""

    def __init__(self, group: int, row: int, known: Mapping[Meeting, int]) -> None:
        self.group, self.row = group, row
        self.known = known
        self.seen: dict[Meeting, _Seen] = {}
        self.output: list[Any] = []

    def meet(self, meeting: Meeting, tensor: Tensor, owners: Owners) -> int | None:
        dim = self.known.get(meeting)
        if dim == SHARED:
            return None
        self.seen[meeting] = _Seen(tuple(tensor.shape), sample_of(tensor, dim or 0))
        if dim is not None:
            return dim
        return min(owners.dim, tensor.dim() - 1) if tensor.dim() else None


class _Together:
    """Looks on while the whole batch runs, and compares."""

    def __init__(
        self,
        rows: int,
        alone: list[_Alone],
        known: dict[Meeting, int],
        layout: Layout,
        compare: bool,
    ) -> None:
        self.rows, self.alone, self.known, self.layout = rows, alone, known, layout
        self.compares = compare
        self.news = False
        """whether a tensor turned out to have its rows elsewhere, or none"""

    def meet(self, meeting: Meeting, tensor: Tensor, owners: Owners) -> int | None:
        shape = tuple(tensor.shape)
        dim = self.known.get(meeting)
        if dim is None:
            dim = self._learn(meeting, tensor, owners)
        self.layout.learn(meeting, shape, dim)
        if dim == SHARED:
            return None
        if self.compares and not self.news:
            self._compare(meeting, tensor, owners.along(dim))
        return dim

    def _learn(self, meeting: Meeting, tensor: Tensor, owners: Owners) -> int:
        seen = [witness.seen[meeting].shape for witness in self.alone if meeting in witness.seen]
        shape = tuple(tensor.shape)
        if not seen:  # a mask that a row alone does not need, or ``token.expand(1, ...)``
            dim = calls.by_size(tensor, owners, self.rows)
            return SHARED if dim is None else dim
        if len(set(seen)) != 1:
            raise _by_value(meeting, seen)
        dim = grown(shape, seen[0], self.rows)
        if dim is None:
            if self.news:  # behind a shared tensor: the next pass will know
                return 0
            raise _unknown_rows(meeting, shape, seen[0], self.rows)
        self.known[meeting] = dim
        # What was met alone was taken for rows in dimension 0; another pass with what is known now.
        self.news = self.news or dim != 0
        return dim

    def _compare(self, meeting: Meeting, tensor: Tensor, owners: Owners) -> None:
        size = tensor.shape[owners.dim]
        if size % self.rows:
            raise _unknown_rows(meeting, tuple(tensor.shape), None, self.rows)
        for witness in self.alone:
            if meeting not in witness.seen:
                continue  # the output will tell
            part = owners.split(tensor)[witness.group][: size // self.rows]
            if not alike(witness.seen[meeting].values, sample_of(part, 0), tensor.dtype):
                raise _other_rows(meeting)

    def compare_outputs(self, output: Any) -> None:
        leaves = tree_flatten(output)[0] if self.compares else []
        for position, leaf in enumerate(leaves):
            for witness in self.alone:
                single = witness.output[position] if position < len(witness.output) else None
                if not isinstance(leaf, Tensor) or not isinstance(single, Tensor):
                    continue
                dim = grown(tuple(leaf.shape), tuple(single.shape), self.rows)
                if dim is None or dim == SHARED:
                    continue
                own = leaf.narrow(dim, witness.row * single.shape[dim], single.shape[dim])
                if not alike(sample_of(single, 0), sample_of(own, 0), leaf.dtype):
                    raise _other_outputs()


def check_rows(
    build: Build,
    generated: Mapping[str, Generated],
    bases: Mapping[str, Tensor | None],
    owners: Owners,
    layout: Layout,
    arguments: Arguments,
    rows: int,
    dim: int,
) -> dict[Meeting, int] | None:
    """Where the rows are in calls like this one; None if a call with one row is not possible.

    ``dim`` is the dimension of the arguments in which their rows are.
    """
    weights = random_weights(generated, bases)

    def run_alone(witness: _Alone) -> Any:
        own = {name: _of_group(value, witness.group) for name, value in weights.items()}
        picked = _picked(arguments, witness.row, rows, dim)
        return _run(build(own, Owners(1)), picked, Call(1, witness=witness))

    def run_disturbed(witness: _Alone) -> Any:
        own = {name: _of_group(value, witness.group) for name, value in weights.items()}
        picked = _picked(_disturbed(arguments, rows, dim), witness.row, rows, dim)
        return _run(build(own, Owners(1)), picked, Call(1, witness=witness))

    def run_together(witness: _Together) -> Any:
        batch = _picked(arguments, None, rows, dim)
        return _run(build(weights, owners), batch, Call(rows, witness=witness))

    known: dict[Meeting, int] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        compare = True
        for _ in range(_MOST_PASSES):
            alone = [_Alone(group, row, known) for group, row in _representatives(owners, rows)]
            together = _Together(rows, alone, known, layout, compare)
            try:
                for witness in alone:
                    witness.output = tree_flatten(run_alone(witness))[0]
            except UnsupportedModuleError:
                raise
            except Exception as error:  # whatever the primary's own code may raise
                _warn_unchecked(f"a call with one row failed ({_first_line(error)})")
                return None
            try:
                output = run_together(together)
                if not together.news:
                    together.compare_outputs(output)
                    _refuse_choices_by_value(alone[0], run_disturbed)
                    return known
            except _RowsDifferError as error:
                if not _is_random(alone[0], run_alone):
                    raise UnsupportedModuleError(str(error)) from None
                _warn_unchecked("it uses random numbers even in evaluation mode")
                compare = False
            except UnsupportedModuleError:
                raise
            except Exception:
                if not together.news:
                    return None  # the call itself is wrong, and will say so
    return known


def _refuse_choices_by_value(witness: _Alone, run: Callable[[_Alone], Any]) -> None:
    """Raise if other values in the same row give other shapes: then this call says nothing."""
    for _ in range(_DISTURBED):
        other = _Alone(witness.group, witness.row, witness.known)
        try:
            run(other)
        except Exception:  # such values need not make sense to the primary
            continue
        for meeting in witness.seen.keys() & other.seen.keys():
            seen = [each.seen[meeting].shape for each in (witness, other) if meeting in each.seen]
            if len(set(seen)) > 1:
                raise _by_value(meeting, seen)


def _is_random(witness: _Alone, run: Callable[[_Alone], Any]) -> bool:
    """Whether the same call gives something else each time."""
    again = _Alone(witness.group, witness.row, witness.known)
    run(again)
    pairs = [(witness.seen[key], again.seen[key]) for key in witness.seen if key in again.seen]
    return any(not torch.equal(first.values, second.values) for first, second in pairs)


def _representatives(owners: Owners, rows: int) -> list[tuple[int, int]]:
    """Some groups, and for each the first of its rows."""
    groups = sorted({0, 1, owners.groups - 1})[:_ROWS_ALONE]
    if owners.row_groups is None:
        each = rows // owners.groups
        return [(group, group * each) for group in groups]
    each = rows // owners.rows
    first = [int((owners.row_groups == group).nonzero()[0]) for group in groups]
    return [(group, row * each) for group, row in zip(groups, first, strict=True)]


def _run(net: nn.Module, arguments: Arguments, call: Call) -> Any:
    quieten(net)
    args, kwargs = arguments
    calls.begin(call)
    try:
        return net(*args, **kwargs)
    finally:
        calls.end()


# -- arguments -----------------------------------------------------------------------------------


def _picked(arguments: Arguments, row: int | None, rows: int, dim: int) -> Arguments:
    """Copies of the arguments: of one row, or whole."""

    def own(tensor: Tensor) -> Tensor:
        has_rows = tensor.dim() > dim and tensor.shape[dim] == rows
        if row is None or not has_rows:
            return tensor.detach().clone()
        return tensor.detach().narrow(dim, row, 1).clone()

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return own(leaf)
        # An object with tensors inside, such as a cache: the same object around other tensors.
        tensors: dict[int, Tensor] = {}
        _tensors_in(leaf, tensors, set())
        return copy.deepcopy(leaf, {key: own(tensor) for key, tensor in tensors.items()})

    picked: Arguments = tree_map(pick, arguments)
    return picked


def _disturbed(arguments: Arguments, rows: int, dim: int) -> Arguments:
    """The arguments with their values in another order, so that each stays in its range."""

    def shuffle(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() <= dim or leaf.shape[dim] != rows:
            return leaf
        order = torch.randperm(leaf.numel()).to(leaf.device)
        return leaf.detach().reshape(-1)[order].reshape(leaf.shape)

    shuffled: Arguments = tree_map(shuffle, arguments)
    return shuffled


def _tensors_in(value: Any, tensors: dict[int, Tensor], visited: set[int]) -> None:
    if id(value) in visited or isinstance(value, int | float | str | bytes | type | None):
        return
    visited.add(id(value))
    if isinstance(value, Tensor):
        tensors[id(value)] = value
        return
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, list | tuple | set):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    for part in list(parts):
        _tensors_in(part, tensors, visited)


# -- weights -------------------------------------------------------------------------------------


def random_weights(
    generated: Mapping[str, Generated], bases: Mapping[str, Tensor | None]
) -> dict[str, Generated]:
    """Weights of the same scale, clearly different in each group, whatever the head has learned."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: _randomised(value, bases.get(name), generator) for name, value in generated.items()
    }


def _randomised(value: Generated, base: Tensor | None, generator: torch.Generator) -> Generated:
    size = 0.5 * _rms(base) if base is not None else 0.02
    parts = value.batched()
    if isinstance(value, Factored):
        size = math.sqrt(size) / value.left.shape[-1] ** 0.25
    moved = []
    for part in parts:
        part = part.detach()
        noise = torch.randn(part.shape, generator=generator).to(part)
        moved.append(part + max(0.5 * _rms(part), size) * noise)
    return value.rebuild(tuple(moved))


def _of_group(value: Generated, group: int) -> Generated:
    return value.rebuild(tuple(part[group : group + 1] for part in value.batched()))


def _rms(tensor: Tensor) -> float:
    square = tensor.detach().float().square().mean().item() if tensor.numel() else 0.0
    return math.sqrt(square) if math.isfinite(square) else 1.0


# -- a run that leaves no trace ------------------------------------------------------------------

_NEEDED_HOOKS = ("WeightNorm", "SpectralNorm")
_SMALL = 1 << 16


def quieten(net: nn.Module) -> None:
    """Evaluation mode, no hooks of users, buffers and containers of its own."""
    for module in net.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        module.training = False
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [k for k, hook in hooks.items() if type(hook).__name__ not in _NEEDED_HOOKS]:
                del hooks[key]
        for name, buffer in module._buffers.items():
            # Large buffers are weights in a form of their own (int8), which nobody writes to.
            if buffer is not None and buffer.numel() <= _SMALL:
                module._buffers[name] = buffer.clone()
        for name, value in module.__dict__.items():
            if type(value) in (list, dict, set) and not name.startswith("_"):
                module.__dict__[name] = value.copy()


class _RowsDifferError(UnsupportedModuleError):
    """A row in the batch is not what the row is alone."""


# -- messages ------------------------------------------------------------------------------------

_REMEDY = (
    "Leave it out of generate=, or use hyper(x, condition), which runs each condition by itself"
)


def _by_value(meeting: Meeting, shapes: list[tuple[int, ...]]) -> UnsupportedModuleError:
    seen = " or ".join(map(str, dict.fromkeys(shapes)))
    return UnsupportedModuleError(
        f"rows cannot be followed to {meeting[0][1]} of the generated parameter {meeting[0][0]!r}: "
        f"in a call with one row it got {seen}, depending on the values in that row. The primary "
        f"selects rows or positions, as a mixture of experts does. {_REMEDY}"
    )


def _unknown_rows(
    meeting: Meeting, shape: tuple[int, ...], alone: tuple[int, ...] | None, rows: int
) -> UnsupportedModuleError:
    single = f", and {alone} in a call with one row" if alone is not None else ""
    return UnsupportedModuleError(
        f"rows cannot be followed to {meeting[0][1]} of the generated parameter {meeting[0][0]!r}: "
        f"it got a tensor of shape {shape} in a call with {rows} rows{single}. {_REMEDY}"
    )


def _other_rows(meeting: Meeting) -> UnsupportedModuleError:
    return _RowsDifferError(
        f"the rows that reach {meeting[0][1]} of the generated parameter {meeting[0][0]!r} are not "
        f"the rows of the batch in their order: the primary mixes or rearranges them on the way. "
        f"{_REMEDY}"
    )


def _other_outputs() -> UnsupportedModuleError:
    return _RowsDifferError(
        f"a row of the output is not what its condition's network gives for that row alone: the "
        f"primary mixes or rearranges rows. {_REMEDY.replace('it', 'what does so', 1)}"
    )


def _warn_unchecked(why: str) -> None:
    warnings.warn(
        f"whether rows of the batch stay in their order inside the bound network was not checked: "
        f"{why}. Compare with hyper.materialize(condition[i]) for some i",
        stacklevel=2,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
