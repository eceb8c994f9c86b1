"""Where training runs: Lightning Fabric with the given precision, device and processes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.errors import MissingDependencyError, TrainingError
from weightloom.training.members import Member, Split
from weightloom.training.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["make_fabric", "own_random_state", "placed", "true_dtype"]

_TRUE = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


def true_dtype(settings: Settings) -> torch.dtype | None:
    """What parameters and data are cast to; None: they stay as they are."""
    return _TRUE.get(settings.precision)


def make_fabric(settings: Settings) -> Fabric:
    """Fabric, joined with the other processes if there are any."""
    try:
        from lightning_fabric import Fabric  # slow to import, and only needed for training
    except ImportError as error:
        raise MissingDependencyError(
            f"training needs Lightning Fabric, which cannot be imported here ({error}); "
            f"pip install 'weightloom[train]'"
        ) from error
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if settings.devices != here:
        raise TrainingError(
            f"devices={settings.devices} was asked for, but {here} "
            f"process{' was' if here == 1 else 'es were'} started on this machine; start it with "
            f"torchrun --nproc-per-node={settings.devices} SCRIPT, or set devices={here}"
        )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=world // here,
        strategy="ddp" if world > 1 else "auto",
        precision=settings.precision,  # type: ignore[arg-type]
    )
    if world > 1:
        _join(fabric)
    return fabric


def _join(fabric: Fabric) -> None:
    """Join the other processes, and leave them before the interpreter shuts down.

    Gloo's threads may hold the last reference to a tensor for a moment after a collective. If they
    release it while Python shuts down, a finished run ends with SIGABRT. Lightning destroys only
    NCCL's groups.
    """
    joined_before = torch.distributed.is_initialized()
    fabric.launch()
    if not joined_before:
        atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def placed(members: list[Member], fabric: Fabric, settings: Settings) -> list[Member]:
    """The members with their data on the device and in the type that the model will have.

    Shared tensors remain shared.
    """
    known: dict[int, Tensor] = {}
    dtype = true_dtype(settings)

    def place(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            cast = dtype if tensor.is_floating_point() else None
            known[id(tensor)] = tensor.to(device=fabric.device, dtype=cast)
        return known[id(tensor)]

    def split(given: Split) -> Split:
        return Split(tuple(map(place, given.inputs)), place(given.target))

    return [
        replace(
            member,
            train=split(member.train),
            held_out={name: split(given) for name, given in member.held_out.items()},
        )
        for member in members
    ]


@contextmanager
def own_random_state(device: torch.device) -> Iterator[None]:
    """Restores the caller's random state afterwards."""
    index = torch.cuda.current_device() if device.type == "cuda" else None
    with torch.random.fork_rng(devices=[] if index is None else [index]):
        yield
