"""The slow, plain oracle: one condition after the other with torch.func.functional_call."""

import torch
from torch.func import functional_call
from torch.utils._pytree import tree_map

from weightloom.hyper.rows.functional import forget_weights


def loop(hyper, x, condition, *args, **kwargs):
    """What hyper(x, condition) must equal; differentiable, and blind to every fast path."""
    weights = hyper.weights(condition)
    outputs = []
    for i in range(len(condition)):
        row = {name: value[i] for name, value in weights.items()}
        for alias, name in hyper.spec.aliases.items():
            if hyper.primary.get_submodule(alias.rpartition(".")[0]) is not (
                hyper.primary.get_submodule(name.rpartition(".")[0])
            ):
                row[alias] = row[name]
        pick = lambda leaf, i=i: leaf[i] if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
        mine, named = tree_map(pick, (args, kwargs))
        forget_weights(hyper.primary)
        outputs.append(functional_call(hyper.primary, row, (x[i], *mine), named))
    if isinstance(outputs[0], tuple):
        return tuple(torch.stack(column) if isinstance(column[0], torch.Tensor) else column[0]
                     for column in zip(*outputs, strict=True))  # fmt: skip
    return torch.stack(outputs)


def gradients(output, tensors):
    """d(sum of a fixed random combination of the output) / d(tensors)."""
    output = output[0] if isinstance(output, tuple) else output
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
    return torch.autograd.grad((output * mix).sum(), tensors, allow_unused=True)


def close(a, b, factor=1.0):
    """Equal to rounding: relative to the largest entry, in the type's epsilon."""
    if a is None or b is None:
        assert a is None
        assert b is None
        return
    assert a.shape == b.shape
    scale = max(float(b.detach().abs().max()) if b.numel() else 0.0, 1e-30)
    error = float((a - b).detach().abs().max()) if b.numel() else 0.0
    tolerance = factor * 200 * torch.finfo(b.dtype).eps * scale
    assert error <= tolerance, f"differs by {error:.3e}, allowed {tolerance:.3e}"
