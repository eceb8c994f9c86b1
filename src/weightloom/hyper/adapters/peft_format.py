"""PEFT's adapter folders: ``adapter_config.json`` and ``adapter_model.safetensors``.

Written and read without PEFT, in the format of its version 0.21. Loading never runs code.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import CheckpointError, ShapeError
from weightloom.files import atomic_write, check_folder, own_version
from weightloom.hyper.adapters.factors import AdapterLayer

__all__ = ["read_folder", "write_folder"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.(lora_(?:embedding_)?[AB])(?:\.weight)?")
_SHOWN = 4

# -- writing -------------------------------------------------------------------------------------


def write_folder(
    folder: Path,
    layers: Mapping[str, AdapterLayer],
    base_model: str | None = None,
    task_type: str | None = None,
) -> Path:
    """Write both files, each whole or not at all; returns the folder, which is made if missing."""
    from safetensors.torch import save_file

    if "" in layers:
        raise ShapeError(
            "the base is itself the layer that changes, and PEFT's files have no name for it; put "
            "it into an nn.Sequential, or use adapter.merge(base)"
        )
    config = _config(layers, base_model, task_type)
    tensors = {key: value for name in layers for key, value in _tensors(name, layers[name])}
    check_folder(folder, "the adapter's folder")
    with atomic_write(folder / WEIGHTS) as part:
        save_file(tensors, part, {"format": "pt", "weightloom_version": own_version()})
    with atomic_write(folder / CONFIG) as part:
        part.write_text(json.dumps(config, indent=2) + "\n")
    return folder


def _tensors(name: str, layer: AdapterLayer) -> list[tuple[str, Tensor]]:
    stem, tail = ("lora_embedding_", "") if layer.kind == "embedding" else ("lora_", ".weight")
    return [
        (f"{_PREFIX}{name}.{stem}{label}{tail}", factor.detach().cpu().contiguous().clone())
        for label, factor in (("A", layer.A), ("B", layer.B))
    ]


def _config(
    layers: Mapping[str, AdapterLayer], base_model: str | None, task_type: str | None
) -> dict[str, Any]:
    ranks = {name: layer.rank for name, layer in layers.items()}
    alphas = {name: _plain(layer.alpha) for name, layer in layers.items()}
    rank, alpha = _usual(ranks), _usual(alphas)
    return {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": _pattern(ranks, rank),
        "alpha_pattern": _pattern(alphas, alpha),
        "target_modules": _targets(list(layers)),
        "fan_in_fan_out": any(layer.kind == "transposed" for layer in layers.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _targets(names: list[str]) -> list[str] | str:
    """The layers, so that PEFT finds them and no others.

    A list of full names, as people and other tools expect it. PEFT reads a name in a list as the
    end of a path too, which for "0" is every first layer: then an expression for whole names.
    """
    if all("." in name for name in names):
        return names
    return "|".join(re.escape(name) for name in names)


def _pattern(values: Mapping[str, Any], usual: Any) -> dict[str, Any]:
    """Exceptions by layer. PEFT reads the keys as expressions for the end of a path."""
    return {f"^{re.escape(name)}": value for name, value in values.items() if value != usual}


def _usual(values: Mapping[str, Any]) -> Any:
    return Counter(values.values()).most_common(1)[0][0]


def _plain(alpha: float) -> float | int:
    return int(alpha) if float(alpha).is_integer() else alpha


# -- reading -------------------------------------------------------------------------------------


def read_folder(folder: Path) -> dict[str, AdapterLayer]:
    """The layers of an adapter that PEFT or `write_folder` saved."""
    config = _read_config(folder / CONFIG)
    factors = _by_layer(folder / WEIGHTS, _read_tensors(folder))
    layers = {}
    for name, matrices in factors.items():
        if len(matrices) != 2:
            raise CheckpointError(
                f"{str(folder / WEIGHTS)!r} has only {next(iter(matrices))} of layer {name!r}; an "
                f"adapter needs A and B. Save it again"
            )
        A, B = (matrices[key] for key in sorted(matrices))
        layers[name] = AdapterLayer(A, B, _alpha(config, name, A.shape[0]), _kind(config, matrices))
    return layers


def _kind(config: Mapping[str, Any], matrices: Mapping[str, Tensor]) -> str:
    if "lora_embedding_A" in matrices:
        return "embedding"
    if next(iter(matrices.values())).dim() > 2:
        return "convolution"
    return "transposed" if config.get("fan_in_fan_out") else "linear"


def _alpha(config: Mapping[str, Any], name: str, rank: int) -> float:
    """The alpha with which alpha / rank is PEFT's scaling of this layer."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            alpha = value
            break
    return float(alpha) * (math.sqrt(rank) if config.get("use_rslora") else 1.0)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(
            f"there is no file {str(path)!r}; pass the folder that PEFT's save_pretrained or "
            f"Adapter.save wrote"
        )
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is not JSON ({error}); copy it again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(
            f"{str(path)!r} describes {kind!r}; an Adapter is a change B A of each layer, so only "
            f"peft_type 'LORA' can be read"
        )
    _refuse(path, config)
    return config


# PEFT's options that make an adapter more than W + scaling B A with the base as it is.
_OPTIONS = (
    "use_dora", "use_qalora", "lora_bias", "modules_to_save", "trainable_token_indices",
    "layer_replication", "target_parameters", "alora_invocation_tokens", "arrow_config",
    "use_bdlora",
)  # fmt: skip
# Starts that leave the base as it is; others (PiSSA, OLoRA, LoftQ, CorDA) move a part of it.
_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")


def _refuse(path: Path, config: Mapping[str, Any]) -> None:
    options = [f"{name}={config[name]!r}" for name in _OPTIONS if config.get(name)]
    if config.get("bias", "none") != "none":
        options.append(f"bias={config['bias']!r}")
    if config.get("init_lora_weights", True) not in _STARTS:
        options.append(f"init_lora_weights={config['init_lora_weights']!r}")
    if options:
        raise CheckpointError(
            f"{str(path)!r} has {', '.join(options)}; an Adapter is a change B A of the weights of "
            f"the base and nothing else. Load it with PEFT, merge it there (merge_and_unload), or "
            f"train it without these options"
        )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path, pickled = folder / WEIGHTS, folder / "adapter_model.bin"
    if not path.is_file() and pickled.is_file():
        return _read_pickled(pickled)
    if not path.is_file():
        raise CheckpointError(f"there is no file {str(path)!r}; copy the whole folder")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read: it is damaged or incomplete ({error}). Copy it again"
        ) from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken archive shows as RuntimeError, EOFError, KeyError, ...
        raise CheckpointError(
            f"{str(path)!r} cannot be read without running code from it, or is damaged; save the "
            f"adapter as safetensors (PEFT's default)"
        ) from error
    return tensors


def _by_layer(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{layer: {"lora_A": ..., "lora_B": ...}}"""
    layers: dict[str, dict[str, Tensor]] = {}
    unknown = []
    for name, tensor in tensors.items():
        match = _FACTOR.fullmatch(name)
        if match:
            layers.setdefault(match[1], {})[match[2]] = tensor
        elif not name.endswith(".base_layer.weight"):  # PEFT adds the base's frozen embeddings
            unknown.append(name)
    if unknown or not layers:
        shown = ", ".join(map(repr, unknown[:_SHOWN])) or "none"
        raise CheckpointError(
            f"{str(path)!r} holds tensors that are no factors of a LoRA: {shown}. An Adapter has "
            f"two factors for each layer; load the folder with PEFT instead"
        )
    return layers
