"""Adapter: a low-rank change of a given network, by layer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.hyper.adapters.factors import AdapterLayer
from weightloom.hyper.adapters.merging import merge
from weightloom.hyper.adapters.peft_format import read_folder, write_folder

__all__ = ["Adapter"]


class Adapter(Mapping[str, AdapterLayer]):
    """A low-rank change (LoRA) of some layers of a base network: ``{layer name: AdapterLayer}``.

    `HyperNetwork.adapter` writes one for a condition, `load` reads one that PEFT saved. It holds no
    weights of the base.

    >>> import torch
    >>> layer = AdapterLayer(A=torch.ones(1, 3), B=torch.ones(2, 1), alpha=2.0)
    >>> adapter = Adapter({"0": layer})
    >>> adapter
    Adapter(1 layer, rank 1, alpha 2, 5 numbers)
    >>> adapter.merge(nn.Sequential(nn.Linear(3, 2)))[0].weight.shape
    torch.Size([2, 3])
    """

    def __init__(
        self, layers: Mapping[str, AdapterLayer], errors: Mapping[str, float] | None = None
    ) -> None:
        if not layers:
            raise ShapeError("an adapter without layers was asked for; it needs at least one")
        self.layers: Mapping[str, AdapterLayer] = MappingProxyType(dict(layers))
        self.errors: Mapping[str, float] = MappingProxyType(dict(errors or {}))
        """what `combine` lost by truncation, by layer: relative Frobenius error of the change"""

    def __getitem__(self, layer: str) -> AdapterLayer:
        return self.layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def rank(self) -> int:
        """The rank that most layers have."""
        return Counter(layer.rank for layer in self.values()).most_common(1)[0][0]

    @property
    def alpha(self) -> float:
        """The alpha that most layers have; the change of a layer is alpha / rank times B A."""
        return Counter(layer.alpha for layer in self.values()).most_common(1)[0][0]

    @property
    def size(self) -> int:
        """How many numbers all factors have together."""
        return sum(layer.A.numel() + layer.B.numel() for layer in self.values())

    def weights(self) -> dict[str, Tensor]:
        """The changes written out: ``{parameter name: tensor of that parameter's shape}``."""
        return {_parameter(name): layer.change() for name, layer in self.items()}

    def merge(self, base: nn.Module) -> nn.Module:
        """A copy of ``base`` whose weights are W + (alpha / rank) B A.

        The copy has new tensors for the layers of the adapter, and buffers of its own. Parameters
        that do not change are shared with ``base``, so a large model is not held twice; call
        ``copy.deepcopy`` on the result before you train it on. ``base`` is not changed.
        """
        return merge(base, self.layers)

    def to(self, *args: object, **kwargs: object) -> Adapter:
        """The same on another device or in another type, as `torch.Tensor.to`."""
        moved = {name: layer.to(*args, **kwargs) for name, layer in self.items()}
        return Adapter(moved, self.errors)

    # -- PEFT's files ----------------------------------------------------------------------------

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        base_model: str | None = None,
        task_type: str | None = None,
    ) -> Path:
        """Write ``adapter_config.json`` and ``adapter_model.safetensors``, as PEFT reads them.

        ``base_model`` is the name or path of the base on the hub, ``task_type`` PEFT's, such as
        "CAUSAL_LM"; `peft.PeftModel.from_pretrained(base, folder)` needs neither.
        """
        return write_folder(Path(folder), self.layers, base_model, task_type)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Adapter:
        """The adapter that a folder holds, saved here or by PEFT's ``save_pretrained``.

        Per-layer ranks and alphas and rank-stabilised scaling are read. What a change B A cannot
        express is refused: DoRA, trained biases, ``modules_to_save``.
        """
        return cls(read_folder(Path(folder)))

    def __repr__(self) -> str:
        ranks = sorted({layer.rank for layer in self.values()})
        alphas = sorted({layer.alpha for layer in self.values()})
        lost = f", error up to {max(self.errors.values()):.2g}" if any(self.errors.values()) else ""
        return (
            f"Adapter({len(self)} layer{'s' * (len(self) > 1)}, rank {_span(ranks)}, "
            f"alpha {_span(alphas)}, {self.size:,} numbers{lost})"
        )


def _parameter(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"


def _span(values: list[int] | list[float]) -> str:
    low, high = f"{values[0]:g}", f"{values[-1]:g}"
    return low if low == high else f"{low} to {high}"
