"""Members as one module: one model as it is, or many with their parameters stacked.

A stack holds every parameter of s models of one architecture as one tensor [s, ...]. Calling it is
one batched computation: `torch.vmap` over `functional_call`. The stack is an `nn.Module`, so
optimisers, Lightning Fabric and DDP can use it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from weightloom.errors import ShapeError
from weightloom.hyper.rows.fused import under_autocast
from weightloom.training.choices import Objective
from weightloom.training.linear import LARGE, OrderedGradients

__all__ = ["Group", "Single", "Stacked", "own_tensors"]


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model: parameters, and buffers, persistent or not."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class Group(nn.Module):
    """Members that are computed together. Its parameters are theirs."""

    members: int
    names: list[str]
    """of the trained parameters, in the order of `trained`"""
    losses: Tensor
    """of the last forward pass, [s]; Fabric may return them in another type"""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def outputs(self, inputs: Sequence[Tensor], shared: Sequence[bool]) -> Tensor:
        """Every member's output, [s, b, ...]."""

    @abstractmethod
    def named(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, trained or not, with a leading dimension of members: [s, ...]."""

    @abstractmethod
    def mode(self, train: bool) -> None:
        """Training or evaluation mode."""

    @property
    @abstractmethod
    def trained(self) -> list[nn.Parameter]: ...

    @abstractmethod
    def give_back(self, member: int, model: nn.Module) -> None:
        """Copy one member's weights into ``model``."""

    def samples(self, columns: Sequence[Tensor], shared: Sequence[bool]) -> Tensor:
        """The objective's value for each sample of each member, [s, b]."""
        output = self.outputs(columns[:-1], shared[:-1])
        if not isinstance(output, Tensor):
            raise ShapeError(
                f"the model returned {type(output).__name__}; training needs one tensor, so wrap "
                f"the model in a module that returns it"
            )
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()
        target = columns[-1].unsqueeze(0) if shared[-1] else columns[-1]
        return self.objective(output, target)

    def forward(self, columns: Sequence[Tensor], shared: Sequence[bool], share: float) -> Tensor:
        """The mean loss of each member, [s], times ``share``, the part of the batch that is here.

        The sum over processes is then the mean over the whole batch.
        """
        losses = self.samples(columns, shared).mean(1)
        losses = losses if share == 1.0 else losses * share
        self.losses = losses.detach()
        return losses


class Single(Group):
    """One member: its own model, called plainly, so any module works."""

    members = 1

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__(objective)
        self.model = model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._types = {name: (t.dtype, t.device) for name, t in own_tensors(model).items()}

    @property
    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def outputs(self, inputs: Sequence[Tensor], shared: Sequence[bool]) -> Tensor:
        output = self.model(*inputs)
        return output.unsqueeze(0) if isinstance(output, Tensor) else output

    def named(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in own_tensors(self.model).items():
            yield name, tensor.detach().unsqueeze(0)

    def mode(self, train: bool) -> None:
        self.model.train(train)

    def give_back(self, member: int, model: nn.Module) -> None:
        """The model was trained in place; restore the types and devices it had."""
        for name, tensor in own_tensors(self.model).items():
            dtype, device = self._types[name]
            tensor.grad = None
            if (tensor.dtype, tensor.device) != (dtype, device):
                tensor.data = tensor.data.to(dtype=dtype, device=device)


class Stacked(Group):
    """Many members of one architecture. ``template`` is called with every member's tensors."""

    def __init__(
        self, template: nn.Module, tensors: dict[str, Tensor], objective: Objective
    ) -> None:
        super().__init__(objective)
        # In a tuple: as a submodule its own parameters would be trained too.
        self._template = (template,)
        wanted = {name for name, p in template.named_parameters() if p.requires_grad}
        self.names = [name for name in tensors if name in wanted]
        self.members = len(next(iter(tensors.values())))
        self._large = any(t.numel() >= LARGE * self.members for t in tensors.values())
        self._keys: dict[str, str] = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            self._keys[name] = key = f"t{number}"
            if name in wanted:
                self.register_parameter(key, nn.Parameter(tensor))
            else:
                self.register_buffer(key, tensor)

    @classmethod
    def of(cls, models: Sequence[nn.Module], objective: Objective) -> Stacked:
        each = [own_tensors(model) for model in models]
        tensors = {name: torch.stack([own[name].detach() for own in each]) for name in each[0]}
        return cls(models[0], tensors, objective)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [getattr(self, self._keys[name]) for name in self.names]

    def outputs(self, inputs: Sequence[Tensor], shared: Sequence[bool]) -> Tensor:
        (template,) = self._template
        state: dict[str, Tensor] = {name: getattr(self, key) for name, key in self._keys.items()}

        def one_member(state: dict[str, Tensor], *inputs: Tensor) -> tuple[Any, dict[str, Tensor]]:
            state = dict(state)
            output = functional_call(template, state, inputs)  # leaves in state what it changed
            return output, {name: state[name] for name in changing}

        changing = [name for name, key in self._keys.items() if key in self._buffers]
        dims = tuple(None if common else 0 for common in shared)
        mapped = vmap(one_member, in_dims=(0, *dims), randomness="different")
        with OrderedGradients() if self._large and not under_autocast(inputs[0]) else nullcontext():
            output, changed = mapped(state, *inputs)
        if template.training:
            for name, value in changed.items():
                _keep(state[name], value)
        return output

    def named(self) -> Iterator[tuple[str, Tensor]]:
        for name, key in self._keys.items():
            yield name, getattr(self, key).detach()

    def mode(self, train: bool) -> None:
        self._template[0].train(train)

    def select(self, keep: Tensor) -> Stacked:
        """The stack of some of its members."""
        tensors = {name: tensor.index_select(0, keep) for name, tensor in self.named()}
        return Stacked(self._template[0], tensors, self.objective)

    def give_back(self, member: int, model: nn.Module) -> None:
        own = own_tensors(model)
        with torch.no_grad():
            for name, tensor in self.named():
                own[name].copy_(tensor[member])


@torch.no_grad()
def _keep(buffer: Tensor, value: Tensor) -> None:
    """Store the new value of a buffer, unless it was changed in place."""
    if value.data_ptr() != buffer.data_ptr():
        buffer.copy_(value)
