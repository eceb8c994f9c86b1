"""A program that trains and kills itself; `test_checkpoint.py` runs it and reads what it leaves.

    python -m tests.training.killed FOLDER

For every scenario and every place to die it forks a child that trains with a checkpoint and sends
itself SIGKILL there, then forks children that pick it up (and perhaps die again) until one ends.
Forks, because starting PyTorch a hundred times takes minutes. What each run ends with is
written to FOLDER as safetensors and JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  (once, not in every child)
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.training.problems import hyper, member, pairs, plain, points
from weightloom.training import Member, Settings, train
from weightloom.training.engine import TrainingEngine
from weightloom.training.update import Update


def noisy(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """What vmap cannot do: members are trained in turn."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.lstm = nn.LSTM(6, 3, batch_first=True)
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.unsqueeze(1))[0][:, 0])


def single(make: Callable[[int], nn.Module], data: Any, seed: int, rate: float | None) -> Member:
    """Float32, as people train."""
    built = member(make, data, seed, rate)
    built.model.float()
    for split in (built.train, *built.held_out.values()):
        split.inputs = tuple(column.float() for column in split.inputs)
        split.target = split.target.float()
    return built


def wildly(seed: int) -> Member:
    """Diverges after a few steps."""
    return single(hyper, pairs, seed, 50.0)


SCENARIOS: dict[str, Callable[[float], tuple[list[Member], Settings]]] = {
    "dropout, adam, cosine": lambda every: (
        [single(noisy, points, 0, None)],
        Settings(3, 12, optimiser="adam", schedule="cosine", checkpoint_every=every),
    ),
    "stack with dropout": lambda every: (
        [single(noisy, points, seed, None) for seed in range(3)],
        Settings(3, 12, optimiser="momentum", evaluate_every=3, checkpoint_every=every),
    ),
    "rates, one diverges": lambda every: (
        [single(hyper, pairs, 0, 0.01), wildly(1), single(hyper, pairs, 2, 0.003)],
        Settings(3, 12, clip_norm=None, evaluate_every=5, checkpoint_every=every),
    ),
    "plateau, clipped adam": lambda every: (
        [single(plain, points, seed, rate) for seed, rate in ((0, 1e-9), (1, 0.02))],
        Settings(
            3, 12, optimiser="adam", clip_norm=1.0, evaluate_every=2, patience=2,
            min_improvement=1e-4, checkpoint_every=every,
        ),
    ),
    "in turn": lambda every: (
        [single(Recurrent, points, seed, None) for seed in range(2)],
        Settings(2, 12, optimiser="adam", checkpoint_every=every),
    ),
}  # fmt: skip

# (checkpoint_every, where each process dies: before its n-th step of training, in the middle of
# its n-th step, or before its n-th checkpoint is moved into place)
DEATHS: list[tuple[float, list[tuple[str, int]]]] = [
    (0.0, [("step", 1)]),
    (0.0, [("step", 2)]),
    (0.0, [("step", 4), ("middle", 3)]),
    (0.0, [("middle", 7)]),
    (0.0, [("step", 9), ("step", 2)]),
    (0.0, [("write", 1)]),
    (0.0, [("write", 6), ("write", 3)]),
    (30.0, [("step", 6)]),  # nothing was saved: from the beginning
    (0.002, [("step", 8), ("middle", 5)]),
]


def die_at(place: str, number: int) -> None:
    """From now on this process kills itself there."""
    left = [number]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    if place == "step":
        TrainingEngine.advance = counted(TrainingEngine.advance)  # type: ignore[method-assign]
    elif place == "middle":
        Update.step = counted(Update.step)  # type: ignore[method-assign]
    else:
        os.replace = counted(os.replace)


def run(scenario: str, every: float, checkpoint: Path | None, out: Path) -> None:
    members, settings = SCENARIOS[scenario](every)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reports = train(members, settings, checkpoint=checkpoint)
    tensors = {
        f"{number}/{name}": tensor.detach().clone()
        for number, built in enumerate(members)
        for name, tensor in (*built.model.named_parameters(), *built.model.named_buffers())
    }
    save_file(tensors, out.with_suffix(".safetensors"))
    plain = [
        [r.status, r.message, r.steps, r.curves, r.final]  # all but the seconds
        for r in reports
    ]
    out.with_suffix(".json").write_text(json.dumps(plain))


def in_child(work: Callable[[], None]) -> int:
    """Run in a process of its own; how it ended, as `os.waitpid` says."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main(folder: Path) -> None:
    ends: dict[str, list[int]] = {}
    for at, scenario in enumerate(SCENARIOS):
        whole = folder / f"{at}-whole"
        assert in_child(lambda: run(scenario, 30.0, None, whole)) == 0  # noqa: B023
        for number, (every, deaths) in enumerate(DEATHS):
            name = f"{at}-{number}"
            checkpoint = folder / f"{name}.checkpoint"

            def work(death: tuple[str, int] | None) -> None:
                if death is not None:
                    die_at(*death)
                run(scenario, every, checkpoint, folder / name)  # noqa: B023

            ends[name] = [in_child(lambda: work(death)) for death in (*deaths, None)]  # noqa: B023
    (folder / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
