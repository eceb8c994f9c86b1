"""FiLM: one network for all conditions, its features scaled and shifted by the condition.

Perez et al. 2018, "FiLM: visual reasoning with a general conditioning layer". The features h of a
hidden layer become (1 + gamma) h + beta, one gamma and one beta for each feature. It is the
hypernetwork that writes nothing but these: so rows, bound networks, starts and files are those of
`HyperNetwork`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weightloom.errors import CheckpointError, PatternError, UnsupportedModuleError
from weightloom.hyper.encoders import Condition, Dims
from weightloom.hyper.heads import Head
from weightloom.hyper.hypernetwork import HyperNetwork
from weightloom.hyper.rows.shells import shell
from weightloom.networks.layers import ANY_CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, is_conv1d

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FiLMNetwork", "Modulated"]

SCALE, SHIFT = "film_scale", "film_shift"
_SHOWN = 8


class Modulated(nn.Module):
    """A linear or convolution layer with a scale and a shift for each of its output features.

    ``film_scale`` is gamma, zero where nothing is scaled. Code that reads ``weight`` and ``bias``
    in place of calling the layer, as PyTorch's fused transformers do, gets them with the modulation
    inside: W x + b scaled and shifted is another linear layer.
    """

    film_scale: nn.Parameter
    film_shift: nn.Parameter

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        options = _like(layer)
        self.film_scale = nn.Parameter(torch.zeros(_outputs(layer), **options))
        self.film_shift = nn.Parameter(torch.zeros(_outputs(layer), **options))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        features: Tensor = self.layer(*args, **kwargs)
        behind = (1,) * (-1 - _feature_dim(self.layer))
        scale, shift = (t.reshape(-1, *behind) for t in (self.film_scale, self.film_shift))
        # Under autocast features are in half precision; they leave in the type they came in.
        return ((1 + scale) * features + shift).to(features.dtype)

    @property
    def weight(self) -> Tensor:
        """The layer's own weight, each output scaled."""
        own: Tensor = self.layer.weight  # type: ignore[assignment]
        if not own.is_floating_point():
            raise UnsupportedModuleError(
                f"the weight of a modulated {type(self.layer).__name__} was asked for; it is held "
                f"as {own.dtype} and cannot be scaled. Call the layer, or leave it out of layers="
            )
        return own * _for_weight(self.layer, 1 + self.film_scale, own)

    @property
    def bias(self) -> Tensor:
        """The layer's own bias, scaled and shifted."""
        own: Tensor | None = self.layer.bias  # type: ignore[assignment]
        return self.film_shift if own is None else (1 + self.film_scale) * own + self.film_shift

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """The layer itself, with the modulation in its weights."""
        weight, bias = self.weight.clone(), self.bias.clone()
        self.layer.weight = nn.Parameter(weight)
        self.layer.bias = nn.Parameter(bias)
        return self.layer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("layer", SCALE, SHIFT) or name.startswith("__"):
                raise
            return getattr(self.layer, name)


class FiLMNetwork(HyperNetwork):
    """FiLM, called as a `HyperNetwork` is: the condition scales and shifts features of ``primary``.

    ``encoder`` maps conditions [b, *c] to features [b, k] (None: the condition is the features).
    One learned linear map of them gives gamma and beta of every modulated layer: h becomes
    (1 + gamma) h + beta, before the activation. At the start gamma and beta are zero, so that the
    network is the given one. The primary is copied and learned, or kept as it is with
    ``freeze_rest=True``.

    ``layers`` says, by glob patterns over module names, which linear and convolution layers are
    modulated. The default is all of them but the last one. In transformers those are the layers
    of the MLPs and not what is inside `nn.MultiheadAttention`, which calls no layer.

    `bind`, `materialize`, `encode`, `weights` and the rest are those of a `HyperNetwork`;
    ``materialize(condition)`` has the modulation in the weights of ordinary layers.

    >>> import weightloom as wl
    >>> film = wl.FiLMNetwork(wl.mlp([2, 16, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> film(torch.randn(3, 100, 2), torch.randn(3, 5)).shape
    torch.Size([3, 100, 1])
    >>> {name: tuple(value.shape) for name, value in film.weights(torch.randn(3, 5)).items()}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'0.film_scale': (3, 16), '0.film_shift': (3, 16),
     '2.film_scale': (3, 16), '2.film_shift': (3, 16)}
    """

    def __init__(
        self,
        primary: nn.Module,
        encoder: nn.Module | None = None,
        *,
        layers: str | Iterable[str] | None = None,
        features: int | None = None,
        freeze_rest: bool = False,
        feature_moment: float | None = None,
        calibration: Condition | None = None,
        condition_dims: Dims = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        names = _chosen(primary, layers)
        super().__init__(
            _modulated(primary, names),
            encoder,
            "full",
            generate=[
                f"{escape(name)}.{leaf}".lstrip(".") for name in names for leaf in (SCALE, SHIFT)
            ],
            features=features,
            freeze_rest=freeze_rest,
            feature_moment=feature_moment,
            calibration=calibration,
            condition_dims=condition_dims,
            device=device,
            dtype=dtype,
        )
        self.layers = tuple(names)
        scaled = self.initialisation.partition("; ")[2]
        self.initialisation = f"mup: the given primary, neither scaled nor shifted; {scaled}"

    def materialize(self, condition: Condition) -> nn.Module:
        """The network of one condition: the primary as it was given, with other weights."""
        network = super().materialize(condition)
        modulated = {id(m): Modulated.folded for m in network.modules() if isinstance(m, Modulated)}
        return shell(network, wrapped=modulated)[0]  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        primary: nn.Module,
        encoder: nn.Module | None = None,
        *,
        head: Head | None = None,
        revision: str | None = None,
    ) -> Self:
        """The FiLM network that `save_pretrained` wrote; see `HyperNetwork.from_pretrained`."""
        from weightloom.hyper.saving.folders import find_folder, read_config

        saved = read_config(find_folder(folder, revision))["generate"]["shapes"]
        names = [name.removesuffix(SCALE).rstrip(".") for name in saved if name.endswith(SCALE)]
        if not names:
            raise CheckpointError(
                f"{str(folder)!r} holds a HyperNetwork that is no FiLMNetwork (it writes "
                f"{', '.join(list(saved)[:3])}); load it with HyperNetwork.from_pretrained"
            )
        _chosen(primary, [escape(name) for name in names])
        loaded = HyperNetwork.from_pretrained(
            folder, _modulated(primary, names), encoder, head=head, revision=revision
        )
        film = cls.__new__(cls)
        film.__dict__.update(loaded.__dict__)
        film.layers = tuple(names)
        return film


# -- which layers, and where their features are ---------------------------------------------------


def _chosen(primary: nn.Module, layers: str | Iterable[str] | None) -> list[str]:
    """The names of the layers to modulate."""
    possible = [name for name, module in primary.named_modules() if _can_be_modulated(module)]
    inside = _inside_attention(primary)
    known = [name for name in possible if name not in inside]
    if layers is None:
        if len(known) < 2:
            raise UnsupportedModuleError(
                f"FiLM modulates the hidden layers: all linear and convolution layers but the "
                f"last. This primary ({type(primary).__name__}) has {len(known) or 'no'} such "
                f"layer. Choose layers= by name, or give a primary with hidden layers"
            )
        layers = [escape(name) for name in known[:-1]]
    chosen: set[str] = set()
    for pattern in [layers] if isinstance(layers, str) else layers:
        matched = {name for name in known if fnmatchcase(name, pattern)}
        if not matched:
            raise _no_layer(pattern, known, [name for name in inside if fnmatchcase(name, pattern)])
        chosen |= matched
    if not chosen:
        raise _no_layer("", known, [])
    _refuse_lazy(primary, chosen)
    return [name for name in known if name in chosen]


def _can_be_modulated(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return isinstance(module, (nn.Linear, *ANY_CONVOLUTIONS)) or is_conv1d(module)


def _inside_attention(primary: nn.Module) -> list[str]:
    """Linear layers that are never called: attention reads their weights."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, part in primary.named_modules()
        if isinstance(part, nn.MultiheadAttention)
        for name, module in part.named_modules()
        if _can_be_modulated(module)
    ]


def _no_layer(pattern: str, known: list[str], inside: list[str]) -> PatternError:
    if inside:
        return PatternError(
            f"layers={pattern!r} selects {inside[0]!r}, which is inside nn.MultiheadAttention: its "
            f"weights are read and it is never called, so there are no features to modulate. "
            f"Choose other layers, such as those of the MLP behind it"
        )
    shown = ", ".join(map(repr, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
    return PatternError(
        f"layers={pattern!r} selects no linear or convolution layer of the primary; it has "
        f"{shown or 'none'}. Patterns are shell globs over module names, such as '*' or 'blocks.*'"
    )


def _refuse_lazy(primary: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        if any(map(is_lazy, primary.get_submodule(name).parameters())):
            raise UnsupportedModuleError(
                f"layer {name!r} is lazy: its shape is not known yet. Run the primary once on an "
                f"example input, then build the FiLMNetwork"
            )


def _outputs(layer: nn.Module) -> int:
    if is_conv1d(layer):
        return int(layer.nf)  # type: ignore[arg-type]
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # type: ignore[return-value]


def _feature_dim(layer: nn.Module) -> int:
    """Where the features of the layer's output are, counted from the end."""
    return -1 - len(layer.kernel_size) if isinstance(layer, ANY_CONVOLUTIONS) else -1


def _for_weight(layer: nn.Module, scale: Tensor, weight: Tensor) -> Tensor:
    """One number for each output in the shape in which it multiplies the weight."""
    if isinstance(layer, TRANSPOSED_CONVOLUTIONS):  # [in, out of its group, *kernel]
        rows = scale.reshape(layer.groups, 1, -1).expand(-1, weight.shape[0] // layer.groups, -1)
        return rows.reshape(weight.shape[0], -1, *(1,) * (weight.dim() - 2))
    if is_conv1d(layer):
        return scale
    return scale.reshape(-1, *(1,) * (weight.dim() - 1))


def _like(layer: nn.Module) -> dict[str, Any]:
    """Type and device of a layer; float32 if its weight is in a form of its own."""
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return {"dtype": weight.dtype, "device": weight.device}
    first = next(iter([*layer.parameters(), *layer.buffers()]), torch.empty(0))
    return {"dtype": torch.float32, "device": first.device}


# -- the primary with modulated layers ------------------------------------------------------------


def _modulated(primary: nn.Module, names: list[str]) -> nn.Module:
    """A copy of the primary around the same tensors, with `Modulated` around these layers."""
    wrapped = {id(primary.get_submodule(name)): Modulated for name in names}
    return shell(primary, wrapped=wrapped)[0]
