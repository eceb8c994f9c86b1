"""A fully connected network of infinite width, in NTK parametrisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.activations import GaussianActivation, activation
from weightloom.kernels.covariance import Covariance, cross, positive, root, symmetric
from weightloom.kernels.inputs import check_rows, input_covariance
from weightloom.kernels.parameters import Parameters

# The builder, under a name that the argument `activation` does not hide.
_build = activation

__all__ = ["Tower", "TowerKernel"]

Number = float | Tensor
_SQRT2 = math.sqrt(2)


@dataclass(frozen=True)
class TowerKernel:
    """The two kernels of a tower's output."""

    nngp: Covariance  # of one output before training, the Gaussian process
    ntk: Tensor | None  # tangent kernel of one output, or None when it was not asked for


class Tower(Parameters):
    """`depth` weight matrices with activations between them, infinitely wide.

        y^l = sigma_w W^l q^(l-1) / sqrt(n) + sigma_b b^l,   q^l = gain * s(y^l),   q^0 = input,

    entries of W and b independent N(0, 1), all of them trained. gain = sqrt(2), sigma_w = 1,
    sigma_b = 0 is the setting of "On Infinite-Width Hypernetworks"; numbers may be 0-dim tensors
    that require gradients. Several outputs are independent, with this same kernel each.

    >>> Tower(depth=3, activation="relu")
    Tower(depth=3)
    """

    def __init__(
        self,
        depth: int,
        activation: (
            str | Mapping[str, Any] | GaussianActivation | Callable[[Tensor], Tensor]
        ) = "relu",
        *,
        gain: Number = _SQRT2,
        sigma_w: Number = 1.0,
        sigma_b: Number = 0.0,
    ) -> None:
        if isinstance(depth, bool) or not hasattr(depth, "__index__") or depth < 1:
            raise KernelError(
                f"depth is {depth!r}; it counts weight matrices and must be an integer >= 1"
            )
        for name, value, low in (
            ("gain", gain, "> 0"),
            ("sigma_w", sigma_w, "> 0"),
            ("sigma_b", sigma_b, ">= 0"),
        ):
            _check_number(name, value, low)
        self.depth = depth
        self.activation = activation
        self.gain, self.sigma_w, self.sigma_b = gain, sigma_w, sigma_b
        self.nonlinearity: GaussianActivation = _build(activation)

    @property
    def homogeneous(self) -> bool:
        """Whether scaling the input by k > 0 scales the output by k."""
        return (self.nonlinearity.homogeneous or self.depth == 1) and _plain(self.sigma_b) == 0

    @property
    def requires_grad(self) -> bool:
        """Whether one of the numbers requires a gradient."""
        numbers = (self.gain, self.sigma_w, self.sigma_b)
        return any(isinstance(number, Tensor) and number.requires_grad for number in numbers)

    def affine(self, cov: Covariance) -> Covariance:
        """Second moments of sigma_w W q / sqrt(n) + sigma_b b: sigma_w^2 E[qq'] + sigma_b^2.

        With k = sqrt(E q^2 E q'^2) before and k' after, the new gap is
        (sigma_w^2 k gap + e) / k', where e = k' - sigma_w^2 k - sigma_b^2 is written as a quotient
        of positive terms: nothing cancels.
        """
        w2, b2 = self.sigma_w**2, self.sigma_b**2
        left, right = w2 * cov.left + b2, w2 * cov.right + b2
        if not isinstance(self.sigma_b, Tensor) and self.sigma_b == 0:
            return Covariance(left, right, cov.gap)
        root_left, root_right = root(cov.left), root(cov.right)
        # Before anything is multiplied or added: a difference must be taken of what came in.
        apart = (cov.left - cov.right) / positive(root_left + root_right)
        before, after = w2 * (root_left * root_right), root(left) * root(right)
        excess = w2 * b2 * apart**2 / positive(after + before + b2)
        return Covariance(left, right, (before * cov.gap + excess) / positive(after))

    def activate(self, cov: Covariance, derivative: bool) -> tuple[Covariance, Tensor | None]:
        """Second moments of gain * s, and with `derivative` gain^2 E[s' s']."""
        moments = self.nonlinearity.moments(cov, derivative)
        factor, value = self.gain**2, moments.value
        slope = None if moments.slope is None else factor * moments.slope
        return Covariance(factor * value.left, factor * value.right, value.gap), slope

    def propagate(self, cov: Covariance, *, ntk: bool = True) -> TowerKernel:
        """The kernels of the tower's output for a given covariance of its input.

        With Q^l = gain^2 E[s s] and D^l = gain^2 E[s' s'] under S^l:
        S^(l+1) = sigma_w^2 Q^l + sigma_b^2,  T^(l+1) = S^(l+1) + sigma_w^2 D^l T^l,  T^1 = S^1.
        """
        cov = self.affine(cov)
        tangent = cross(cov) if ntk else None
        for _ in range(1, self.depth):
            activated, slope = self.activate(cov, derivative=ntk)
            cov = self.affine(activated)
            if tangent is not None:
                tangent = cross(cov) + self.sigma_w**2 * slope * tangent  # type: ignore[operator]
        return TowerKernel(cov, tangent)

    def __call__(self, x: Tensor, x2: Tensor | None = None, *, kind: str = "ntk") -> Tensor:
        """Kernel matrix of the tower as a network of its own: x [n, d], x2 [m, d] to [n, m].

        >>> import torch
        >>> Tower(2)(torch.eye(2), kind="nngp")
        tensor([[0.5000, 0.1592],
                [0.1592, 0.5000]])
        """
        check_kind(kind)
        check_rows(x, "x")
        if x2 is not None:
            check_columns(x, check_rows(x2, "x2"), "x", "x2")
        kernel = self.propagate(input_covariance(x, x2), ntk=kind == "ntk")
        matrix = cross(kernel.nngp) if kernel.ntk is None else kernel.ntk
        return symmetric(matrix) if x2 is None else matrix

    def config(self) -> dict[str, Any]:
        """The arguments as plain numbers and names, fit for JSON; an error for a callable."""
        return {**super().config(), "activation": self.nonlinearity.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Tower:
        """The tower that `config()` described."""
        return cls(**config)


def check_kind(kind: str) -> None:
    """Raise unless ``kind`` is one of the two kernels."""
    if kind not in ("ntk", "nngp"):
        raise KernelError(f'kind is {kind!r}; wanted "ntk" (tangent kernel) or "nngp" (prior)')


def check_columns(first: Tensor, second: Tensor, name: str, other: str) -> None:
    """Raise unless both have as many columns, one type and one device."""
    if first.shape[1] != second.shape[1]:
        raise ShapeError(
            f"{name} has {first.shape[1]} columns but {other} has {second.shape[1]}; they must be "
            "rows of the same kind"
        )
    check_types(first, second, name, other)


def check_types(first: Tensor, second: Tensor, name: str, other: str) -> None:
    """Raise unless both have one type and one device."""
    if first.dtype != second.dtype or first.device != second.device:
        raise KernelError(
            f"{name} is {first.dtype} on {first.device} but {other} is {second.dtype} on "
            f"{second.device}; convert one of them"
        )


def _plain(value: Number) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _check_number(name: str, value: Number, low: str) -> None:
    if isinstance(value, Tensor) and value.ndim:
        raise KernelError(f"{name} has shape {list(value.shape)}; pass one number")
    number = _plain(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and low == "> 0"):
        raise KernelError(f"{name} is {number}; it must be finite and {low}")
