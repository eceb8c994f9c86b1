"""A script for torchrun: train, and let the first process write what came out.

torchrun --nproc-per-node=2 tests/training/distributed.py FOLDER
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.training.problems import hyper, member, pairs, points
from weightloom.training import Member, Report, Settings, Split, train
from weightloom.training.engine import TrainingEngine


def scenarios(devices: int) -> dict[str, tuple[list[Member], Settings]]:
    """40 samples in batches of 13: 6 + 7 rows, and in the end one row for two processes."""

    def with_buffers(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    rates = [member(hyper, pairs, seed, rate) for seed, rate in ((0, 0.01), (1, 0.03), (2, 1e250))]
    poisoned = member(with_buffers, points, 3)
    spoilt = poisoned.train.target.clone()
    spoilt[11] = float("nan")
    poisoned.train = Split(poisoned.train.inputs, spoilt)
    common = {"batch_size": 13, "devices": devices, "optimiser": "adam"}
    return {
        "single": ([member(hyper, pairs)], Settings(epochs=3, clip_norm=1.0, **common)),
        "stack": (rates, Settings(epochs=3, schedule="cosine", **common)),
        "one bad row": (
            [member(with_buffers, points, 1), poisoned],
            Settings(epochs=2, patience=3, evaluate_every=2, **common),
        ),
    }


def run(devices: int, folder: Path | None) -> dict[str, tuple[list[Member], list[Report]]]:
    results = {}
    for name, (members, settings) in scenarios(devices).items():
        path = None if folder is None else folder / f"{name}.checkpoint"
        results[name] = (members, train(members, settings, checkpoint=path))
    return results


def interrupted(path: Path, rank: str) -> list[object]:
    """Ctrl-C reaches one process only, in its third step; then once more without it."""
    real = TrainingEngine._over_processes

    def middle(self: TrainingEngine, values: Tensor) -> Tensor:
        if self.step == 2 and rank == "1":
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, values)

    settings = Settings(epochs=2, batch_size=13, devices=2)
    TrainingEngine._over_processes = middle  # type: ignore[method-assign]
    first = train([member()], settings, checkpoint=path)[0]
    TrainingEngine._over_processes = real  # type: ignore[method-assign]
    second = train([member()], settings, checkpoint=path)[0]
    return [first.status, first.steps, second.status, second.steps, second.curves]


def threads_at_the_end(path: Path) -> None:
    """Write what runs beside Python's own thread when it is about to go."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    path.write_text(json.dumps([name for name in names if "gloo" in name]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    # Registered first, so called last.
    atexit.register(threads_at_the_end, folder / f"{os.environ['RANK']}.threads")
    results = run(int(os.environ["WORLD_SIZE"]), folder)
    again = run(int(os.environ["WORLD_SIZE"]), folder)  # reads what the first process wrote
    rank = os.environ["RANK"]
    facts = {}
    for name, (members, reports) in results.items():
        facts[name] = [[r.status, r.message, r.steps, r.curves] for r in reports]
        second = [[r.status, r.message, r.steps, r.curves] for r in again[name][1]]
        assert repr(facts[name]) == repr(second)
        tensors = {
            f"{number}/{key}": tensor.detach().clone()
            for number, member in enumerate(members)
            for key, tensor in member.model.named_parameters()
        }
        save_file(tensors, folder / f"{name}-{rank}.safetensors")
    facts["interrupted"] = interrupted(folder / "interrupted.checkpoint", rank)
    (folder / f"{rank}.json").write_text(json.dumps(facts))
