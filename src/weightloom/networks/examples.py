"""Example inputs: what a module can be called with, as far as the module itself says so.

Sequences are longer than one and batches larger than one, so that nothing that depends on them
(softmax over positions, masks) is hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.layers import ANY_CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, is_conv1d

__all__ = [
    "ExampleCall",
    "evaluating",
    "example_call",
    "has_auxiliary",
    "is_auxiliary",
    "returned_names",
]

_BATCH, _LENGTH = 2, 6
_SIDES = (32, 8, 16, 28, 12, 64, 24, 20, 48, 96, 128, 224, 4, 6, 2, *range(3, 41, 2))
_OUTPUTS_OFF = ("use_cache", "output_attentions", "output_hidden_states")
_AUXILIARY = {
    "past_key_values", "hidden_states", "attentions", "cross_attentions", "cache_params",
    "decoder_hidden_states", "decoder_attentions", "encoder_hidden_states", "encoder_attentions",
    "encoder_last_hidden_state",
}  # fmt: skip
_REFUSED = (RuntimeError, IndexError, ValueError, AssertionError, TypeError, NotImplementedError)


@dataclass(frozen=True)
class ExampleCall:
    """Arguments of one call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Any) -> ExampleCall:
        """From what a caller gives: a tensor, a tuple of arguments or a mapping of keywords."""
        if isinstance(inputs, ExampleCall):
            return inputs
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        return cls(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,))


def example_call(module: nn.Module) -> ExampleCall:
    """A call that the module accepts: from its configuration, or from the shapes of its weights.

    >>> example_call(nn.Sequential(nn.Linear(3, 4), nn.ReLU())).args[0].shape
    torch.Size([2, 3])
    """
    if isinstance(module, nn.MultiheadAttention):
        return _of_attention(module)
    configured = _configured(module)
    if configured is not None:
        return configured
    required = _required(module)
    if len(required) > 1:
        raise UnsupportedModuleError(
            f"the network ({type(module).__name__}) takes {len(required)} inputs "
            f"({', '.join(required)}), and what they are is not known; give example inputs"
        )
    with evaluating(module), torch.no_grad(), torch.random.fork_rng():
        for x in _candidates(module):
            try:
                module(x)
            except _REFUSED:
                continue  # torch raises many kinds of errors for a shape that does not fit
            return ExampleCall((x,))
    raise UnsupportedModuleError(
        f"the network ({type(module).__name__}) accepts no input of a shape that its layers "
        "suggest; give example inputs"
    )


def is_auxiliary(name: str) -> bool:
    """Whether a named output of a model is a by-product: caches, hidden states, attention maps.

    They are no part of the function of a model that has an output of its own, such as ``logits``.
    """
    return name in _AUXILIARY


def has_auxiliary(kind: type) -> bool:
    """Whether outputs of this type have by-products: the named outputs of transformers do.

    What a mapping of one's own holds under such a name is an output like any other.
    """
    return any(base.__name__ == "ModelOutput" for base in kind.__mro__)


def returned_names(output: Mapping[str, Any]) -> list[str]:
    """The names of a mapping of outputs that belong to the network's function."""
    own = [name for name in output if not (has_auxiliary(type(output)) and is_auxiliary(name))]
    return own or list(output)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards the mode that every submodule had before."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _of_attention(module: nn.MultiheadAttention) -> ExampleCall:
    like = _like(module)
    x = _normal((_BATCH, _LENGTH, module.embed_dim), like)
    if module.kdim == module.embed_dim == module.vdim:
        return ExampleCall((x, x, x), {"need_weights": False})
    key, value = (_normal((_BATCH, _LENGTH, width), like) for width in (module.kdim, module.vdim))
    return ExampleCall((x, key, value), {"need_weights": False})


# -- models with a configuration (Hugging Face) --------------------------------------------------
def _configured(module: nn.Module) -> ExampleCall | None:
    config, main = getattr(module, "config", None), getattr(module, "main_input_name", None)
    if config is None or not isinstance(main, str):
        return None
    tensor = _main_input(module, config, main)
    if tensor is None:
        return None
    kwargs: dict[str, Any] = {main: tensor}
    known = inspect.signature(module.forward).parameters
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in known:
        kwargs["decoder_input_ids"] = _indices(config, module, _LENGTH - 1)
    for name in _OUTPUTS_OFF:
        if name in known or ("kwargs" in known and getattr(config, name, False)):
            kwargs[name] = False
    return ExampleCall((), kwargs)


def _main_input(module: nn.Module, config: Any, main: str) -> Tensor | None:
    if main == "input_ids" and isinstance(getattr(config, "vocab_size", None), int):
        return _indices(config, module, _LENGTH)
    if main == "pixel_values" and isinstance(getattr(config, "num_channels", None), int):
        size = getattr(config, "image_size", None) or 64
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return _normal((_BATCH, config.num_channels, height, width), _like(module))
    return None


def _indices(config: Any, module: nn.Module, length: int) -> Tensor:
    """Distinct indices where there are enough, without the special ones at the start."""
    generator = torch.Generator().manual_seed(0)
    start = 4 if config.vocab_size > 4 + _BATCH * length else 0
    indices = torch.randperm(config.vocab_size - start, generator=generator) + start
    rows = indices.repeat(-(-_BATCH * length // len(indices)))[: _BATCH * length]
    return rows.reshape(_BATCH, length).to(_like(module).device)


# -- shapes from the weights ---------------------------------------------------------------------
def _required(module: nn.Module) -> list[str]:
    """Arguments of forward that have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = inspect.signature(module.forward).parameters.values()
    return [p.name for p in known if p.kind in kinds and p.default is p.empty]


def _candidates(module: nn.Module) -> Iterator[Tensor]:
    like = _like(module)
    sequences = any(isinstance(part, nn.MultiheadAttention) for part in module.modules())
    for part in module.modules():
        for shape, entries in _shapes(part, sequences):
            if entries:
                generator = torch.Generator().manual_seed(0)
                yield torch.randint(0, entries, shape, generator=generator).to(like.device)
            else:
                yield _normal(shape, like)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            for width in (parameter.shape[-1], parameter.shape[-2]):
                yield from (_normal(shape, like) for shape in _rows(width, sequences))
    if next(module.parameters(), None) is None:
        yield _normal((_BATCH, 3), like)


def _rows(width: int, sequences: bool) -> list[tuple[int, ...]]:
    shapes = [(_BATCH, width), (_BATCH, _LENGTH, width)]
    return shapes[::-1] if sequences else shapes


def _shapes(part: nn.Module, sequences: bool) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes to try for one layer, and the number of indices (0: the inputs are numbers)."""
    weight = getattr(part, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if isinstance(part, nn.Embedding):
        yield (_BATCH, _LENGTH), part.num_embeddings
    elif isinstance(part, ANY_CONVOLUTIONS):
        own = weight.shape[0] if isinstance(part, TRANSPOSED_CONVOLUTIONS) else part.in_channels
        for side in _SIDES:
            yield (_BATCH, own, *(side,) * (weight.dim() - 2)), 0
    elif weight.dim() == 2:
        width = weight.shape[0] if is_conv1d(part) else weight.shape[1]
        yield from ((shape, 0) for shape in _rows(width, sequences))
    elif weight.dim() == 1:
        yield from ((shape, 0) for shape in _rows(len(weight), sequences))
        yield from (((_BATCH, len(weight), side, side), 0) for side in _SIDES[:5])


def _like(module: nn.Module) -> Tensor:
    floats = (p for p in module.parameters() if p.is_floating_point())
    return next(floats, torch.empty(0))


def _normal(shape: tuple[int, ...], like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like)
