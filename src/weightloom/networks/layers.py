"""The kinds of layers that torch has, each list written once.

All code that reads networks (symmetries, bounds, affine pieces, initialisation, batched rules)
builds on these lists.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

__all__ = [
    # Layers with weights
    "AFFINE",
    "ANY_CONVOLUTIONS",
    "BATCH_NORMS",
    "CONVOLUTIONS",
    "TRANSPOSED_CONVOLUTIONS",
    "Affine",
    "Convolution",
    # Layers without weights
    "ADAPTIVE_AVERAGE_POOLS",
    "ADAPTIVE_MAX_POOLS",
    "AVERAGE_POOLS",
    "DROPOUTS",
    "MAX_POOLS",
    "SOFTMAXES",
    # The class that a layer is
    "kind_of",
    "is_conv1d",
]

Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""for annotations; for isinstance use AFFINE"""

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
"""for annotations; for isinstance use CONVOLUTIONS"""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
AFFINE = (nn.Linear, *CONVOLUTIONS)
# torch has no public base class of convolutions. Lazy ones become plain ones in their first call.
TRANSPOSED_CONVOLUTIONS = (_ConvTransposeNd,)
ANY_CONVOLUTIONS = (_ConvNd,)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
ADAPTIVE_MAX_POOLS = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_AVERAGE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
SOFTMAXES = (nn.Softmax, nn.LogSoftmax)


def kind_of(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> type[nn.Module] | None:
    """The class in ``kinds`` whose forward the module uses; None if there is none.

    A subclass that overrides forward does not count, nor does a layer whose forward was replaced.

    >>> kind_of(nn.Conv2d(1, 1, 3), AFFINE).__name__
    'Conv2d'
    """
    if "forward" in vars(module):
        return None
    for kind in kinds:
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return kind
    return None


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is a ``transformers.pytorch_utils.Conv1D``: a Linear that stores [in, out].

    Told by its name and attributes, so that transformers need not be installed.
    """
    named = any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)
    return named and hasattr(module, "nf") and hasattr(module, "nx")
