"""Bound networks: the primary with the weights of given conditions in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound import calls
from weightloom.hyper.bound.calls import Call, Layout, Meeting
from weightloom.hyper.bound.checking import check_rows, quieten
from weightloom.hyper.bound.layers import RowAdapted, RowLayer, RowPart, joined_class, row_class
from weightloom.hyper.bound.owners import Owners
from weightloom.hyper.bound.parameters import RowParameter
from weightloom.hyper.bound.rules import RowTensor
from weightloom.hyper.bound.sharded import gathered_later, present, stand_in_for_parts
from weightloom.hyper.rows.functional import unshared, with_aliases
from weightloom.hyper.rows.fused import transformed
from weightloom.hyper.rows.generated import Factored, Generated, Written
from weightloom.hyper.rows.shells import has_backward_hooks, keep_alive, place, shell, submodule
from weightloom.networks import WeightSpec

__all__ = ["Binding"]


@dataclass
class Binding:
    """What a bound network is made of."""

    primary: nn.Module
    spec: WeightSpec
    generated: Mapping[str, Generated]
    """for each name of the spec, one tensor for each group; a change, where the name has a base"""
    bases: Mapping[str, Tensor | None]
    """the primary's own tensors that are changed; None for a layer that cannot show its weight"""
    owners: Owners
    layout: Layout

    def __post_init__(self) -> None:
        # A bound network is called often: what is not two thin factors is written now, once.
        self.generated = {
            name: value if isinstance(value, Factored) else Written(value.dense())
            for name, value in self.generated.items()
        }

    def network(self, check: bool = False) -> nn.Module:
        """The bound network; for a check without hooks, and with rows even for one condition."""
        layers = self._layers(check)
        modules = {owner: submodule(self.primary, owner) for owner in layers}
        kinds = {owner: self._kind(modules[owner], rows, check) for owner, rows in layers.items()}
        classes = {
            id(modules[owner]): joined_class(kind, type(modules[owner]))
            for owner, kind in kinds.items()
            if kind is not None
        }
        net, shells = shell(self.primary, classes)
        if check:
            stand_in_for_parts(net, self.primary)
        for owner, rows in layers.items():
            module = shells[id(modules[owner])]
            kind = kinds[owner]
            if kind is None:  # one set of weights: ordinary tensors, whatever the layer
                for leaf, row in rows.items():
                    place(module, leaf, row.dense()[0])
                continue
            module.__dict__["generated_rows"] = rows
            if kind is RowPart:
                module.__dict__["original_part"] = (modules[owner],)
                module.__dict__["rows_below"] = _below(owner, layers)
            for leaf, row in rows.items() if kind is not RowAdapted else ():
                _place_rows(module, leaf, row)
        if not check and not torch.compiler.is_dynamo_compiling():
            _guard(net, self)
        return net

    def quiet_network(self) -> nn.Module:
        """A bound network to try something with: no hooks, nothing is updated, rows by size."""
        net = replace(self, layout=Layout()).network(check=True)
        quieten(net)
        return net

    def _layers(self, check: bool) -> dict[str, dict[str, RowTensor]]:
        """The generated parameters by their modules; each once, also under several names."""
        late = _length_first(self.primary)
        done: set[tuple[int, str]] = set()
        layers: dict[str, dict[str, RowTensor]] = {}
        for name in with_aliases(self.spec, {name: name for name in self.spec}):
            owner, _, leaf = name.rpartition(".")
            module = submodule(self.primary, owner)
            if (id(module), leaf) not in done:
                done.add((id(module), leaf))
                dim = 1 if owner.startswith(late) else 0
                holder = None if check else gathered_later(module)
                layers.setdefault(owner, {})[leaf] = self._row(name, dim, holder)
        return layers

    def _kind(
        self, module: nn.Module, rows: dict[str, RowTensor], check: bool
    ) -> type[RowLayer] | None:
        """How a module with generated parameters computes; None: as it always does."""
        if any(self._source(row.name) in self.spec.opaque for row in rows.values()):
            return RowAdapted
        kind = row_class(module)
        if not self.owners.alike or check or any(row.comes_later for row in rows.values()):
            return kind
        # One condition: beside a given matrix its low-rank change is cheaper than writing it.
        weight = rows.get("weight")
        beside = weight is not None and weight.base is not None
        unwritten = beside and weight is not None and isinstance(weight.value, Factored)
        return kind if unwritten and kind is not RowPart else None

    def _source(self, name: str) -> str:
        return self.spec.aliases.get(name, name)

    def _row(self, name: str, dim: int, holder: Mapping[str, Any] | None) -> RowTensor:
        source = self._source(name)
        return RowTensor(
            name,
            self.owners.along(dim),
            self.generated[source],
            self.bases.get(source),
            self.layout,
            holder,
        )

    def check(
        self, kind: object, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int, dim: int
    ) -> dict[Meeting, int] | None:
        """Where the rows are in calls of this kind; found by `check_rows` the first time."""
        layout = self.layout
        known = layout.calls.get(kind)
        if kind in layout.unchecked or (known is not None and kind not in layout.changed):
            return known

        bases = present(self.primary, self.bases)

        def build(generated: Mapping[str, Generated], owners: Owners) -> nn.Module:
            other = replace(self, generated=generated, bases=bases, owners=owners)
            return other.network(check=True)

        dims = check_rows(
            build, self.generated, bases, self.owners, layout, (args, kwargs), rows, dim
        )
        layout.changed.discard(kind)
        if dims is None:
            layout.unchecked.add(kind)
            return known
        layout.calls[kind] = {**(known or {}), **dims}
        return layout.calls[kind]


def _place_rows(module: nn.Module, leaf: str, row: RowTensor) -> None:
    """Let ``module.leaf`` be a RowParameter.

    `parameters()` finds an ordinary tensor of the same shape, type and device, for code that asks
    the first parameter for these. Its values are NaN: no mistake with them can stay unseen.
    """
    if torch.compiler.is_dynamo_compiling():  # it knows no tensors of our own
        module._parameters.pop(leaf)
        return
    parameter = RowParameter.make(row)
    nothing = torch.full((), math.nan, dtype=parameter.dtype, device=parameter.device)
    nothing = nothing.expand(row.value.shape)
    place(module, leaf, nn.Parameter(nothing, requires_grad=False))
    module.__dict__[leaf] = parameter
    if isinstance(module, nn.RNNBase):
        names = module._flat_weights_names
        module.__dict__["_flat_weights"] = [getattr(module, name, None) for name in names]


def _below(owner: str, layers: Mapping[str, dict[str, RowTensor]]) -> dict[str, RowTensor]:
    """The generated parameters of a module and of all inside it, by their names in it."""
    prefix = f"{owner}." if owner else ""
    return {
        f"{name}.{leaf}"[len(prefix) :].lstrip(".") if name else leaf: row
        for name, rows in layers.items()
        if name == owner or name.startswith(prefix)
        for leaf, row in rows.items()
    }


# -- around a call ------------------------------------------------------------------------------


def _guard(net: nn.Module, binding: Binding) -> None:
    """Hooks that know how many rows a call has, and that no result escapes without its rows."""
    dim = _row_dimension(net)
    owners = binding.owners.along(dim)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return None
        call = Call(0)
        calls.begin(call)
        args, kwargs = unshared(args, kwargs)
        rows = calls.rows_of(args, kwargs, owners)
        if rows is not None:
            call.rows = rows
            if not binding.owners.alike and rows > 1 and not transformed():
                call.kind = calls.signature(args, kwargs, rows, dim)
                call.dims = binding.check(call.kind, args, kwargs, rows, dim)
        return args, kwargs

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        calls.end()
        # Not `net`: a cycle would keep the weights until Python next looks for cycles.
        if torch.is_grad_enabled() and has_backward_hooks(module):
            keep_alive(module, output)
        for leaf in tree_leaves(output):
            if isinstance(leaf, RowParameter):
                raise UnsupportedModuleError(
                    f"the bound network returned the generated parameter {leaf.row.name!r}, or a "
                    f"function of it alone: it has another value for each condition and no rows. "
                    f"Use hyper.weights(condition), or leave it out of generate="
                )

    net.register_forward_pre_hook(before, with_kwargs=True)
    net.register_forward_hook(after, with_kwargs=True, always_call=True)
    net.register_state_dict_pre_hook(_no_state)


def _no_state(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    if keep_vars:  # torch.export asks for the tensors themselves
        return
    raise UnsupportedModuleError(
        "a bound network has no state dict: its weights are results, different for each row. "
        "hyper.state_dict() has what is learned; hyper.materialize(condition[i]) is the network of "
        "one condition; hyper.adapter(condition[i]) its adapter"
    )


# -- layers that take [length, batch, ...] ------------------------------------------------------

_TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def _length_first(net: nn.Module) -> tuple[str, ...]:
    """Prefixes of the modules inside PyTorch's transformers whose rows are in dimension 1."""
    prefixes = []
    for name, module in net.named_modules():
        if isinstance(module, _TRANSFORMERS) and _row_dimension(module):
            prefixes.append(f"{name}." if name else "")
    return tuple(prefixes)


def _row_dimension(module: nn.Module) -> int:
    """Where a module takes the rows of a batch: 0, or 1 for PyTorch's batch_first=False."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return 0 if module.batch_first else 1
    if isinstance(module, _TRANSFORMERS):
        for part in module.modules():
            if isinstance(part, nn.MultiheadAttention):
                return 0 if part.batch_first else 1
    return 0
