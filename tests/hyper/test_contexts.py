"""A hypernetwork under autocast, torch.compile, several processes and other threads."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import weightloom as wl
from tests.hyper.zoo import make
from tests.oracle import close, loop

AUTOCAST = """
import torch, warnings
from tests.hyper.zoo import make
from tests.oracle import loop
from weightloom.errors import SlowPathWarning
warnings.simplefilter("error", SlowPathWarning)
for name in {names}:
    hyper, x, condition = make(name, dtype=torch.float32)
    hyper.eval()
    want = hyper(x, condition)
    with torch.autocast("cpu", torch.bfloat16):
        got = hyper(x, condition)
        single = hyper(x[0], condition[0])
        assert all(w.dtype == torch.float32 for w in hyper.weights(condition).values())
    # bfloat16 has 8 bits: each of a handful of layers may lose one part in 2^8.
    scale = want.abs().max().item()
    assert (got.float() - want).abs().max().item() < 0.1 * scale, name
    assert (single.float() - want[0]).abs().max().item() < 0.1 * scale, name
    if name in ("mlp", "mlp one point"):
        assert got.dtype == torch.bfloat16, name
    with torch.autocast("cpu", torch.bfloat16):
        loss = hyper(x, condition).float().square().mean()
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in hyper.parameters())
    assert any(p.grad is not None for p in hyper.parameters())
print("autocast ok")
"""


def test_autocast():
    """In a process of its own: bfloat16 kills the process on some CPUs without the variable."""
    names = ["mlp", "mlp one point", "conv2d", "custom forward", "layer norm", "attention",
             "transformer layer", "conv2d 1x1", "batch norm"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AUTOCAST).format(names=names)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        capture_output=True,
        text=True,
    )
    assert "autocast ok" in done.stdout, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("mlp one point", "inductor"),
        # The other half of the compiler (tracing, autograd) without minutes of C++ compilation.
        ("mlp", "aot_eager"),
        ("conv2d", "aot_eager"),
        ("custom forward", "aot_eager"),
        ("attention", "aot_eager"),
    ],
)
def test_compile(name, backend):
    hyper, x, condition = make(name, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(hyper, fullgraph=True, backend=backend)
    close(compiled(x, condition), loop(hyper, x, condition), 10)
    loss = compiled(x, condition).square().mean()
    got = torch.autograd.grad(loss, list(hyper.parameters()))
    want = torch.autograd.grad(loop(hyper, x, condition).square().mean(), list(hyper.parameters()))
    for a, b in zip(got, want, strict=True):
        close(a, b, 100)


@pytest.mark.slow
def test_materialized_networks_compile():
    hyper, x, condition = make("mlp", dtype=torch.float32)
    torch._dynamo.reset()
    network = hyper.materialize(condition[0])
    close(torch.compile(network)(x[0]), network(x[0]), 10)


def _distributed(rank, path, results):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6], last_activation=True))
    model = DistributedDataParallel(hyper)
    torch.manual_seed(1)
    x, condition = torch.randn(4, 5, 3), torch.randn(4, 4)
    own_rows = slice(2 * rank, 2 * rank + 2)
    model(x[own_rows], condition[own_rows]).square().mean().backward()
    if rank == 0:
        torch.save({n: p.grad for n, p in hyper.named_parameters()}, results)
    dist.barrier()
    dist.destroy_process_group()
    # DDP's reducer keeps gloo's threads alive, even after the group and the model are gone. If one
    # releases its last tensor while Python shuts down, PyTorch aborts a process that had finished.
    os._exit(0)


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path):
    mp.spawn(_distributed, (str(tmp_path / "rendezvous"), str(tmp_path / "grads.pt")), nprocs=2)
    got = torch.load(tmp_path / "grads.pt", weights_only=True)
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6], last_activation=True))
    torch.manual_seed(1)
    x, condition = torch.randn(4, 5, 3), torch.randn(4, 4)
    hyper(x, condition).square().mean().backward()
    for name, parameter in hyper.named_parameters():
        close(got[name], parameter.grad, 10)


def test_attention_path_is_restored():
    hyper, x, condition = make("attention")
    hyper.eval()
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            hyper(x, condition)
            assert torch.backends.mha.get_fastpath_enabled() is enabled
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
