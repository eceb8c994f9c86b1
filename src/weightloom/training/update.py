"""A group's optimiser: each member has its own learning rate and clipped gradient norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.training.choices import make_optimiser
from weightloom.training.settings import Settings
from weightloom.training.stack import Group, Stacked

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Update", "rows_of"]

State = dict[nn.Parameter, dict[str, Any]]
"""the state of an optimiser for each parameter"""


class Update:
    """A group's optimiser, both handed to Fabric. ``rates``: each member's learning rate."""

    def __init__(
        self,
        group: Group,
        rates: Sequence[float],
        settings: Settings,
        fabric: Fabric,
        state: State | None = None,
    ) -> None:
        self.group = group
        self.clip_norm = settings.clip_norm
        self.optimiser = make_optimiser(
            settings.optimiser, group.trained, settings.optimiser_options
        )
        for parameter, values in (state or {}).items():
            self.optimiser.state[parameter] = values
        group.mode(train=True)
        self.module, self._fabric_optimiser = fabric.setup(group, self.optimiser)
        self._rate = max(rates)
        self._ratios: list[Tensor] | None = None
        if len(set(rates)) > 1:
            # Updates are linear in the learning rate: a share of the step is the step at that
            # share of the rate.
            shares = torch.tensor([rate / self._rate for rate in rates], dtype=torch.float64)
            self._ratios = [_over(shares.to(p), p) for p in group.trained]
            self._before = [torch.empty_like(p) for p in group.trained]

    def zero_grad(self) -> None:
        """Clear the gradients of the last step."""
        self.optimiser.zero_grad()

    def step(self, factor: float) -> None:
        """Move every member by its learning rate times ``factor``."""
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate * factor
        if self._ratios is None:
            self._fabric_optimiser.step()
            return
        parameters = self.group.trained
        with torch.no_grad():
            torch._foreach_copy_(self._before, list[Tensor](parameters))
            self._fabric_optimiser.step()
            for before, after, ratio in zip(self._before, parameters, self._ratios, strict=True):
                torch.lerp(before, after, ratio, out=after)

    @torch.no_grad()
    def clip(self) -> dict[int, str | None]:
        """Scale each member's gradient down to the norm allowed, if one is set.

        Returns the members whose norm is not finite, with the name of the parameter at fault (None
        if it is the norm itself that overflows).
        """
        if self.clip_norm is None:
            return {}
        grads = self._gradients()
        norms = [torch.linalg.vector_norm(rows_of(g), dim=1).double() for g in grads.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        bad = [i for i, good in enumerate(torch.isfinite(norm).tolist()) if not good]
        named = {i: first_bad_tensor(grads, i) for i in bad}
        scale = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        if bool((scale < 1.0).any()):
            for grad in grads.values():
                grad.mul_(_over(scale.to(grad), grad))
        return named

    def _gradients(self) -> dict[str, Tensor]:
        """By name, [s, ...]."""
        stacked = isinstance(self.group, Stacked)
        return {
            name: p.grad if stacked else p.grad.unsqueeze(0)
            for name, p in zip(self.group.names, self.group.trained, strict=True)
            if p.grad is not None
        }

    def select(self, kept: Group, keep: Tensor) -> State:
        """The state of the members ``keep``, by parameter of their new group ``kept``."""
        selected: State = {}
        for before, after in zip(self.group.trained, kept.trained, strict=True):
            selected[after] = {
                key: value.index_select(0, keep)
                if isinstance(value, Tensor) and value.shape == before.shape
                else value
                for key, value in self.optimiser.state.get(before, {}).items()
            }
        return selected

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, by "key/parameter"."""
        return {
            f"{key}/{name}": value
            for name, parameter in zip(self.group.names, self.group.trained, strict=True)
            for key, value in self.optimiser.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        by_name = dict(zip(self.group.names, self.group.trained, strict=True))
        for stored, value in tensors.items():
            key, name = stored.split("/", 1)
            # Steps are counted on the CPU, unless the optimiser is fused on another device.
            place = value if value.dim() == 0 else value.to(by_name[name].device)
            self.optimiser.state[by_name[name]][key] = place


def rows_of(tensor: Tensor) -> Tensor:
    """[s, ...] -> [s, n]: all numbers of each member."""
    return tensor.reshape(len(tensor), -1)


def first_bad_tensor(tensors: Mapping[str, Tensor], member: int) -> str | None:
    """The name of the first tensor in which the member has a number that is not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor[member]).all()):
            return name
    return None


def _over(rows: Tensor, like: Tensor) -> Tensor:
    """[s] made to broadcast over ``like`` [s, ...]."""
    return rows.view(-1, *(1,) * (like.dim() - 1))
