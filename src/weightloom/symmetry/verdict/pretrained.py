"""Inputs of Hugging Face models, from their configuration and the arguments of forward."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.symmetry.verdict.running import Arguments

__all__ = ["arguments", "is_pretrained"]

_PARTS = ("text_config", "vision_config", "encoder", "decoder", "audio_config")
_SIDES = (64, 32, 224)


def is_pretrained(module: nn.Module) -> bool:
    """Whether a module has a configuration and names its main input, as in transformers."""
    return hasattr(getattr(module, "config", None), "to_dict") and isinstance(
        getattr(module, "main_input_name", None), str
    )


def arguments(module: nn.Module) -> Iterator[list[Arguments]]:
    """Candidates: short and longer sequences, with and without positions that a mask hides."""
    accepted = set(inspect.signature(module.forward).parameters)
    generator = torch.Generator().manual_seed(0)
    config = module.config
    longest = _setting(config, "max_position_embeddings", "n_positions", default=1 << 30)
    options = [(side, values) for side in _sides(config) for values in (False, True)]
    for side, dense in options:
        for batch, length, masked in ((2, 7, False), (3, 12, True)):
            length = min(length, longest)
            make = _Maker(config, accepted, generator, batch, length, masked)
            kwargs = make.images(side) | make.text() | make.sound(dense)
            if kwargs:
                yield [Arguments((), kwargs | make.flags())]
        if "pixel_values" not in accepted and "input_values" not in accepted:
            return


class _Maker:
    """The arguments of one call."""

    def __init__(
        self,
        config: Any,
        accepted: set[str],
        generator: torch.Generator,
        batch: int,
        length: int,
        masked: bool,
    ) -> None:
        self.config, self.accepted, self.generator = config, accepted, generator
        self.batch, self.length, self.masked = batch, length, masked

    def text(self) -> dict[str, Tensor]:
        entries = _setting(self.config, "vocab_size", default=0)
        if not entries or "input_ids" not in self.accepted:
            return self._decoder(entries)
        inputs = {"input_ids": self._indices(entries, self.length)}
        kinds = _setting(self.config, "type_vocab_size", default=0)
        if self.masked and "attention_mask" in self.accepted:
            inputs["attention_mask"] = self._mask()
        if self.masked and kinds > 1 and "token_type_ids" in self.accepted:
            inputs["token_type_ids"] = self._indices(kinds, self.length)
        return inputs | self._decoder(entries)

    def _decoder(self, entries: int) -> dict[str, Tensor]:
        if not entries or "decoder_input_ids" not in self.accepted:
            return {}
        return {"decoder_input_ids": self._indices(entries, max(2, self.length - 2))}

    def _indices(self, entries: int, length: int) -> Tensor:
        return torch.randint(0, entries, (self.batch, length), generator=self.generator)

    def _mask(self) -> Tensor:
        """The second row hides its last positions, further rows their first ones."""
        mask = torch.ones(self.batch, self.length, dtype=torch.long)
        hidden = self.length // 3
        if hidden:
            mask[1, -hidden:] = 0
            mask[2:, :hidden] = 0
        return mask

    def images(self, side: tuple[int, int]) -> dict[str, Tensor]:
        if "pixel_values" not in self.accepted:
            return {}
        channels = _setting(self.config, "num_channels", "in_channels", default=3)
        return {"pixel_values": self._normal(channels, *side)}

    def sound(self, dense: bool) -> dict[str, Tensor]:
        if "input_features" in self.accepted:
            bins = _setting(self.config, "num_mel_bins", "feature_size", default=80)
            steps = 2 * _setting(self.config, "max_source_positions", default=50)
            return {"input_features": self._normal(bins, steps)}
        if "input_values" in self.accepted:
            return {"input_values": self._normal(4000 if dense else 1600)}
        return {}

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, *shape, generator=self.generator)

    def flags(self) -> dict[str, Any]:
        return {"use_cache": False} if "use_cache" in self.accepted else {}


def _sides(config: Any) -> list[tuple[int, int]]:
    size = _setting(config, "image_size", default=None)
    if isinstance(size, int):
        return [(size, size)]
    if isinstance(size, tuple | list) and len(size) == 2:
        return [(size[0], size[1])]
    return [(side, side) for side in _SIDES]


def _setting(config: Any, *names: str, default: Any) -> Any:
    """An entry of a configuration, or of the configurations inside it."""
    for owner in (config, *(getattr(config, part, None) for part in _PARTS)):
        for name in names:
            value = getattr(owner, name, None)
            if value is not None:
                return value
    return default
