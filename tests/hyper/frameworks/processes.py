"""Two processes that talk over gloo, and never outlive the test that started them."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 120
"""seconds after which processes that wait for each other are ended"""


def in_two_processes(function: Callable[[int], Any], folder: Path) -> list[Any]:
    """What ``function(rank)`` returns in each of two processes; errors are raised here."""
    context = mp.spawn(_run, (function, str(folder)), nprocs=2, join=False)
    end = time.monotonic() + LIMIT
    try:
        while not context.join(timeout=1):
            if time.monotonic() > end:
                raise TimeoutError(f"two processes did not end within {LIMIT} s")
    except mp.ProcessExitedException as error:
        reasons = [path.read_text() for path in sorted(folder.glob("*.error"))]
        raise RuntimeError("\n".join(reasons) or str(error)) from error
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def second_fails(rank: int) -> None:
    """For the test of this file: one process fails while the other waits for it for ever."""
    if rank == 1:
        raise ValueError("the second process fails")
    dist.barrier()


def _run(rank: int, function: Callable[[int], Any], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LIMIT),
    )
    try:
        torch.save(function(rank), f"{folder}/{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        # Not raised: the threads of gloo could abort the process before the message is out.
        Path(folder, f"{rank}.error").write_text(traceback.format_exc())
        os._exit(1)
    # DDP's reducer keeps gloo's threads alive. If one releases its last tensor while Python shuts
    # down, PyTorch aborts a process that had finished.
    os._exit(0)
