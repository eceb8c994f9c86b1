"""Operations that know rows: what each takes, and which of the rules does it.

An operation here takes `RowTensor` in place of generated parameters. It returns NotImplemented
where its rule does not apply; then `any_operation` does it for each group of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from weightloom.errors import SlowPathWarning, UnsupportedModuleError
from weightloom.hyper.bound import rules
from weightloom.hyper.bound.calls import current
from weightloom.hyper.bound.rules import RowTensor

__all__ = ["OPERATIONS", "warn_loop"]


def _at(x: Any, operation: str, *weights: Any) -> Any:
    """The weights for an x whose rows are known; None if all rows share x."""
    row = next(weight for weight in weights if isinstance(weight, RowTensor))
    dim = None if isinstance(x, RowTensor) else row.row_dim(x, operation)
    if dim is None:
        return None
    return [weight.along(dim) if isinstance(weight, RowTensor) else weight for weight in weights]


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    own = _at(x, "linear", weight, bias)
    return NotImplemented if own is None else rules.linear(x, *own)


def _addmm(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    own = _at(x, "addmm", weight, bias)
    if own is None:
        return NotImplemented
    weight, bias = own
    return rules.linear(x, weight, bias, transposed=True)


def _embedding(
    ids: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise UnsupportedModuleError(
            f"layer {weight.layer!r} is an embedding with max_norm, scale_grad_by_freq or sparse, "
            f"which treat the table itself; leave it out of generate="
        )
    own = _at(ids, "embedding", weight)
    return NotImplemented if own is None else rules.embedding(ids, own[0], padding_idx)


def _convolution(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def rule(x: Any, weight: Any, bias: Any = None, *options: Any, **named: Any) -> Any:
        own = _at(x, operation.__name__, weight, bias)
        if own is None:
            return NotImplemented
        return rules.convolution(operation, x, *own, *options, **named)

    return rule


def _norm(operation: Callable[..., Tensor], channels: bool) -> Callable[..., Any]:
    """A norm with a scale and a shift: for each channel (axis 1), or for the last dimensions."""

    def rule(x: Any, weight: Any, bias: Any, *options: Any, **named: Any) -> Any:
        own = _at(x, operation.__name__, weight, bias)
        if own is None:
            return NotImplemented
        y = operation(x, *options, **named)
        last = next(w.value.shape for w in own if isinstance(w, RowTensor))
        weight, bias = own
        return rules.normalised(y, weight, bias, 1 if channels else x.dim() - len(last))

    return rule


_layers = _norm(F.layer_norm, channels=False)
_rms = _norm(F.rms_norm, channels=False)
_groups = _norm(F.group_norm, channels=True)
_batches = _norm(F.batch_norm, channels=True)
_instances = _norm(F.instance_norm, channels=True)


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return _layers(x, weight, bias, shape, None, None, eps)


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return _rms(x, weight, None, shape, None, eps)


def _group_norm(
    x: Any, number: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return _groups(x, weight, bias, number, None, None, eps)


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    *options: Any,
    **named: Any,
) -> Any:
    return _batches(input, weight, bias, running_mean, running_var, None, None, *options, **named)


def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    *options: Any,
    **named: Any,
) -> Any:
    statistics = running_mean, running_var
    return _instances(input, weight, bias, *statistics, None, None, *options, **named)


def _expand(row: Any, *sizes: Any) -> Any:
    """``token.expand(batch, -1, -1)``: one token for each row, an ordinary tensor from there on."""
    wanted = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if row.owners.alike:
        return row.dense()[0].expand(*wanted)
    shape = row.value.shape
    rows = wanted[0]
    new = len(wanted) > len(shape)
    if not (new or shape[:1] == (1,)) or rows in (-1, 1) or rows % row.owners.rows:
        return NotImplemented
    values = row.owners.spread(row.dense(), rows)
    if not new:
        values = values.squeeze(1)
    inner = wanted[1:]
    values = values.reshape(rows, *(1,) * (len(inner) + 1 - values.dim()), *values.shape[1:])
    return values.expand(rows, *inner)


def _repeat(row: Any, *sizes: Any) -> Any:
    """``tokens.repeat(batch, 1, 1)``: all tokens once more for each row, rows first."""
    counts = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if row.owners.alike:
        return row.dense()[0].repeat(*counts)
    rows, shape = counts[0], row.value.shape
    if any(count != 1 for count in counts[1:]) or rows == 1 or rows % row.owners.rows:
        return NotImplemented
    values = row.owners.spread(row.dense(), rows)  # [rows, *shape]
    if len(counts) == len(shape):
        return values.flatten(0, 1)
    return values.reshape(rows, *(1,) * (len(counts) - 1 - len(shape)), *shape)


def _recurrent(operation: Callable[..., Any]) -> Callable[..., Any]:
    def rule(x: Any, hidden: Any, weights: Any, *options: Any) -> Any:
        if isinstance(hidden, Tensor) and not hidden.is_floating_point():
            raise UnsupportedModuleError(
                "a recurrent layer with generated weights got a packed sequence, which mixes rows; "
                "pass padded sequences to the bound network"
            )
        given = [getattr(weight, "row", weight) for weight in weights]
        row = next(weight for weight in given if isinstance(weight, RowTensor))
        warn_loop(row, operation.__name__, "recurrent layers have no batched form in PyTorch")
        batch_first = bool(options[-1])
        own = row.owners
        hidden = hidden if isinstance(hidden, tuple | list) else (hidden,)
        dim = 0 if batch_first else 1
        own.check(x.shape[dim], f"layer {row.layer!r}")
        parts = own.along(dim).split(x)
        states = [own.along(1).split(state) for state in hidden]
        outputs, finals = [], []
        for i in range(own.groups):
            state = tuple(each[i].movedim(0, 1) for each in states)
            flat = [w.dense()[i] if isinstance(w, RowTensor) else w for w in given]
            part = parts[i] if batch_first else parts[i].movedim(0, 1)
            result = operation(
                part.contiguous(),
                tuple(s.contiguous() for s in state) if len(state) > 1 else state[0].contiguous(),
                flat,
                *options,
            )
            outputs.append(result[0] if batch_first else result[0].movedim(1, 0))
            finals.append([final.movedim(1, 0) for final in result[1:]])
        output = own.along(dim).join(torch.stack(outputs), x.shape[dim])
        columns = [torch.stack(column) for column in zip(*finals, strict=True)]
        return (output, *(own.along(1).join(column, x.shape[dim]) for column in columns))

    return rule


def _attention(operation: Callable[..., Any]) -> Callable[..., Any]:
    """F.multi_head_attention_forward: rows of q, k, v are in dimension 1, those of masks in 0."""

    def rule(
        query: Any, key: Any, value: Any, dim: int, heads: int, *rest: Any, **named: Any
    ) -> Any:
        names = (
            "in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p",
            "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights",
            "attn_mask", "use_separate_proj_weight", "q_proj_weight", "k_proj_weight",
            "v_proj_weight", "static_k", "static_v", "average_attn_weights", "is_causal",
        )  # fmt: skip
        given = dict(zip(names, rest, strict=False)) | named
        row = next(value for value in given.values() if isinstance(value, RowTensor))
        if query.dim() != 3:
            raise UnsupportedModuleError(
                f"layer {row.layer!r} is an attention layer and got a query of shape "
                f"{tuple(query.shape)}; in a bound network it needs a batch: three dimensions"
            )
        owners = row.owners.along(1)
        rows = query.shape[1]
        owners.check(rows, f"layer {row.layer!r}")
        mapped: dict[str, Tensor] = {}
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            mapped[name] = owners.split(tensor).movedim(1, 2)  # [groups, length, rows, width]
        for name, entry in list(given.items()):
            if isinstance(entry, RowTensor):
                mapped[name] = entry.dense()
            elif name == "key_padding_mask" and entry is not None:
                mapped[name] = row.owners.along(0).split(entry)
            elif name == "attn_mask" and entry is not None and entry.dim() == 3:
                per_row = entry.unflatten(0, (rows, -1))
                mapped[name] = row.owners.along(0).split(per_row).flatten(1, 2)
        shared = {name: entry for name, entry in given.items() if name not in mapped}

        def one_group(tensors: dict[str, Tensor]) -> Any:
            named = {**shared, **tensors}
            inputs = named.pop("query"), named.pop("key"), named.pop("value")
            result = operation(*inputs, dim, heads, **named)
            return result if named.get("need_weights", True) else result[:1]

        output, *weights = vmap(one_group, randomness="different")(mapped)
        output = owners.join(output.movedim(2, 1), rows)
        return output, row.owners.along(0).join(weights[0], rows) if weights else None

    return rule


def warn_loop(row: RowTensor, name: str, reason: str) -> None:
    call = current()
    if call is not None and call.witness is not None:  # the call itself will say so
        return
    warnings.warn(
        f"layer {row.layer!r} runs {name} in a slow loop over {row.owners.groups} groups of rows: "
        f"{reason}. The results are the same; to make it fast, leave {row.name!r} out of "
        f"generate=",
        SlowPathWarning,
        stacklevel=2,
    )


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

OPERATIONS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.rms_norm: _rms_norm,
    Tensor.expand: _expand,
    Tensor.repeat: _repeat,
    F.multi_head_attention_forward: _attention(F.multi_head_attention_forward),
    **{operation: _convolution(operation) for operation in rules.CONVOLUTIONS},
    **{operation: _recurrent(operation) for operation in _RECURRENT},
}
