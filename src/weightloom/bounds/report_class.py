"""What of a network a report needs to know: the class of 002 that holds it, and what to warn of."""

from __future__ import annotations

from torch import nn

from weightloom.bounds.chain import Chain
from weightloom.bounds.compare import require_dense
from weightloom.bounds.stages import Conv, Dense, Elementwise
from weightloom.errors import UnsupportedModuleError

__all__ = ["class_of", "exchangeable", "largest_of", "notes_of", "reason_of", "signs_of"]


def class_of(chain: Chain) -> tuple[tuple[float, ...], float]:
    """rho of every hidden layer, and the largest |s(0)|; activations in a row count as one."""
    slopes: list[float] = []
    zeros: list[float] = []
    for stage in chain.stages:
        if isinstance(stage, Dense):
            slopes.append(1.0)
            zeros.append(0.0)
        elif isinstance(stage, Elementwise):
            rho = stage.activation.lipschitz
            slopes[-1] *= rho
            # |t(s(0))| <= |t(0)| + rho_t |s(0)|
            zeros[-1] = abs(stage.activation.at_zero) + rho * zeros[-1]
    return tuple(slopes[:-1]), max(zeros[:-1], default=0.0)


def signs_of(chain: Chain) -> list[bool]:
    """Of each hidden layer, whether its neurons can be flipped."""
    made: list[bool] = []
    for stage in chain.stages:
        if isinstance(stage, Dense | Conv):
            made.append(False)
        elif isinstance(stage, Elementwise) and made:
            made[-1] = stage.activation.signs
    return made[:-1]


def notes_of(chain: Chain, bound: float, largest: float) -> list[str]:
    made = []
    probed = [s.name for s in chain.stages if isinstance(s, Elementwise) and s.activation.probed]
    if probed:
        made.append(
            f"activation of {', '.join(probed)}: slope measured on a grid, so upper bounds are not "
            f"proven"
        )
    if bound < largest:
        made.append(
            f"bound={bound:.6g} is below the largest weight {largest:.6g}: the covered class does "
            f"not hold this network"
        )
    if len({id(layer.module) for layer in chain.affine}) < len(chain.affine):
        made.append("layers share weights: sizes and symmetries are those of separate layers")
    grouped = [s.name for s in chain.affine if getattr(s.module, "groups", 1) > 1]
    if grouped:
        made.append(
            f"channels next to the grouped convolution {', '.join(grouped)} are left out of the "
            f"symmetries"
        )
    if isinstance(chain.stages[-1], Elementwise):
        made.append("002's numbers leave out the activation behind the last layer")
    return made


def reason_of(chain: Chain) -> str | None:
    """Why 002's class does not hold the network; None if it does."""
    try:
        require_dense(chain)
    except UnsupportedModuleError as error:
        return str(error)
    return None


def largest_of(parameter: nn.Parameter) -> float:
    return float(parameter.detach().abs().max()) if parameter.numel() else 0.0


def exchangeable(chain: Chain) -> tuple[int, ...]:
    """Widths, with 1 for hidden layers next to a grouped convolution: not free to permute."""
    groups = [getattr(layer.module, "groups", 1) for layer in chain.affine]
    free = [
        d if before == after == 1 else 1
        for d, before, after in zip(chain.widths[1:-1], groups[:-1], groups[1:], strict=True)
    ]
    return (chain.widths[0], *free, chain.widths[-1])
