"""The kernels of a hypernetwork at infinite width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.assembly import Assembly
from weightloom.kernels.covariance import ConditionPart, Covariance, cross, product, symmetric
from weightloom.kernels.features import FourierFeatures
from weightloom.kernels.inputs import check_rows, input_covariance, paired_covariance
from weightloom.kernels.parameters import Parameters
from weightloom.kernels.tower import Tower, check_columns, check_kind, check_types
from weightloom.linalg import memory as room

__all__ = ["ConditionPart", "HyperKernel"]


class HyperKernel(Parameters):
    """NNGP or tangent kernel ("hyperkernel") of h(x, z) = g(z; f(x)), f and g infinitely wide.

    f writes every weight and bias of g. With S and Theta_f the two kernels of f at (x, x'), and
    Q^0 = z.z'/d or the covariance of `features`:

        A^l = sigma_w^2 Q^(l-1) + sigma_b^2,   Lam^l = S A^l,   (u, v) ~ N(0, Lam^l),
        Q^l = gain^2 E[s(u) s(v)],   D^l = gain^2 E[s'(u) s'(v)],
        T^1 = A^1,   T^(l+1) = A^(l+1) + S sigma_w^2 D^l T^l,
        nngp = Lam^H,   hyperkernel = Theta_f T^H,

    numbers and s of g. This corrects "On Infinite-Width Hypernetworks": S is the covariance of
    f's output (the paper prints one layer more), and each backward step carries a factor S,
    because the weights for x and for x' are correlated (Lemma 6 drops it). Both were decided
    against sampled networks. Several outputs of g are independent with this same kernel each: the
    kernel of c outputs is K kron I_c.

    Accuracy, relative to sqrt(K_ii K_jj): 1e-14 in float64 and 1e-6 in float32, also for points
    that almost coincide, where arccos would leave half of the digits. Between inputs that are
    almost but not exactly opposite, activations with kinks keep half of the digits only (errors
    up to about 1e-8 in float64, 3e-4 in float32): the distance from correlation -1 is not carried.

    >>> kernel = HyperKernel(Tower(3), Tower(2), kind="ntk")
    >>> x, z = torch.eye(3), torch.ones(3, 2)
    >>> kernel(x, z).shape
    torch.Size([3, 3])
    """

    def __init__(
        self, f: Tower, g: Tower, kind: str = "ntk", features: FourierFeatures | None = None
    ) -> None:
        check_kind(kind)
        for name, tower in (("f", f), ("g", g)):
            if not isinstance(tower, Tower):
                raise KernelError(f"{name} is {tower!r}; pass a Tower")
        if features is not None and not isinstance(features, FourierFeatures):
            raise KernelError(f"features are {features!r}; pass FourierFeatures(...) or None")
        self.f, self.g, self.kind, self.features = f, g, kind, features

    def condition_part(self, x: Tensor, x2: Tensor | None = None) -> ConditionPart:
        """S and Theta_f for all pairs of conditions: x [n, dx], x2 [m, dx] (None: x again)."""
        check_rows(x, "x")
        if x2 is not None:
            check_columns(x, check_rows(x2, "x2"), "x", "x2")
        part = self.from_conditions(input_covariance(x, x2))
        if x2 is not None:
            return part
        cov, ntk = part.covariance, part.ntk
        cov = Covariance(cov.left, cov.right, symmetric(cov.gap))
        return ConditionPart(cov, None if ntk is None else symmetric(ntk))

    def point_part(self, z: Tensor, z2: Tensor | None = None) -> Covariance:
        """Q^0 for all pairs of points, features applied: z [n, dz], z2 [m, dz] (None: z again)."""
        check_rows(z, "z")
        if z2 is not None:
            check_columns(z, check_rows(z2, "z2"), "z", "z2")
        return self.from_points(z, z2)

    def join(self, condition: ConditionPart, points: Covariance) -> Tensor:
        """The kernel from its two parts, elementwise; their shapes broadcast together."""
        g, weights = self.g, condition.covariance
        cov = g.affine(points)
        if condition.ntk is None:
            for _ in range(1, g.depth):
                cov = g.affine(g.activate(product(weights, cov), derivative=False)[0])
            return cross(product(weights, cov))
        shared, tangent = g.sigma_w**2 * cross(weights), cross(cov)
        for _ in range(1, g.depth):
            activated, slope = g.activate(product(weights, cov), derivative=True)
            cov = g.affine(activated)
            tangent = cross(cov) + shared * slope * tangent  # type: ignore[operator]
        return condition.ntk * tangent

    def from_points(self, z: Tensor, z2: Tensor | None = None) -> Covariance:
        """`point_part` without checks."""
        if self.features is not None:
            return self.features.covariance(z, z2)
        return input_covariance(z, z2)

    def from_conditions(self, cov: Covariance) -> ConditionPart:
        """S and Theta_f from the covariance of the conditions themselves, any shape."""
        kernel = self.f.propagate(cov, ntk=self.kind == "ntk")
        return ConditionPart(kernel.nngp, kernel.ntk)

    def __call__(
        self,
        x: Tensor,
        z: Tensor,
        x2: Tensor | None = None,
        z2: Tensor | None = None,
        *,
        memory: int | str | None = None,
    ) -> Tensor:
        """Kernel matrix [n, m] of the points (x_i, z_i) with (x2_j, z2_j).

        Without x2 and z2 the Gram matrix: exactly symmetric, its upper half computed. `memory`
        (bytes or "2 GB") bounds what is needed beside the result and copies of the inputs
        (activations by quadrature keep a few MB of tables of their own). When
        gradients are needed everything is kept for the backward pass and `memory` has no effect.
        """
        self._check(x, z, x2, z2)
        if self._differentiable(x, z, x2, z2):
            return self._with_graph(x, z, x2, z2)
        n, m = len(x), len(x if x2 is None else x2)
        room.check(
            n * m * x.element_size(),
            f"the kernel matrix of {n} x {m} points",
            "go through it with blocks(), or fit a grid of images and coordinates",
        )
        return Assembly(self, x, z, x2, z2, memory).matrix()

    def blocks(
        self,
        x: Tensor,
        z: Tensor,
        x2: Tensor | None = None,
        z2: Tensor | None = None,
        *,
        memory: int | str | None = None,
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """The kernel matrix in pieces (rows, columns, block), without gradients.

        Of a Gram matrix (without x2 and z2) only blocks of the upper half, diagonal blocks whole.
        `memory` bounds what is stored at once.
        """
        self._check(x, z, x2, z2)
        return Assembly(self, x, z, x2, z2, memory).blocks()

    def _differentiable(self, *inputs: Tensor | None) -> bool:
        if not torch.is_grad_enabled():
            return False
        own = (self.f, self.g, self.features)
        return any(part is not None and part.requires_grad for part in (*inputs, *own))

    def _with_graph(self, x: Tensor, z: Tensor, x2: Tensor | None, z2: Tensor | None) -> Tensor:
        """The matrix in one piece, for autograd."""
        if x2 is not None:
            return self.join(self.from_conditions(input_covariance(x, x2)), self.from_points(z, z2))
        if not (self.f.nonlinearity.homogeneous and self.g.nonlinearity.homogeneous):
            # Other activations may have costly moments per row: do not repeat rows for each pair.
            return symmetric(self.join(self.condition_part(x), self.from_points(z)))
        i, j = torch.triu_indices(len(x), len(x), device=x.device)
        condition, points = input_covariance(x), self.from_points(z, None)
        half = self.join(self.from_conditions(_upper(condition, i, j)), _upper(points, i, j))
        result = half.new_zeros(len(x), len(x)).index_put((i, j), half)
        return result + result.triu(1).mT

    def paired(self, x: Tensor, z: Tensor, x2: Tensor, z2: Tensor) -> Tensor:
        """The kernel of (x_i, z_i) with (x2_i, z2_i), for every i: [n]."""
        self._check(x, z, x2, z2)
        if len(x) != len(x2):
            raise ShapeError(
                f"x has {len(x)} rows but x2 has {len(x2)}; paired() takes row i with row i"
            )
        condition = self.from_conditions(paired_covariance(x, x2))
        if self.features is not None:
            return self.join(condition, self.features.paired(z, z2))
        return self.join(condition, paired_covariance(z, z2))

    def diagonal(self, x: Tensor, z: Tensor) -> Tensor:
        """The kernel of every point with itself: [n]."""
        return self.paired(x, z, x, z)

    def _check(self, x: Tensor, z: Tensor, x2: Tensor | None, z2: Tensor | None) -> None:
        _check_points(x, z, "x", "z")
        if (x2 is None) != (z2 is None):
            given, missing = ("x2", "z2") if z2 is None else ("z2", "x2")
            raise ShapeError(
                f"{given} was given without {missing}; pass both, or neither for the Gram matrix"
            )
        if x2 is not None and z2 is not None:
            _check_points(x2, z2, "x2", "z2")
            check_columns(x, x2, "x", "x2")
            check_columns(z, z2, "z", "z2")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> HyperKernel:
        """The kernel that `config()` described."""
        features = config.get("features")
        return cls(
            Tower.from_config(config["f"]),
            Tower.from_config(config["g"]),
            kind=config["kind"],
            features=None if features is None else FourierFeatures.from_config(features),
        )


def _check_points(x: Tensor, z: Tensor, first: str, second: str) -> None:
    check_rows(x, first)
    check_rows(z, second)
    if len(x) != len(z):
        raise ShapeError(
            f"{first} has {len(x)} rows but {second} has {len(z)}; a point is one row of each "
            "(for all pairs of images and coordinates see HyperKernelRegressor's grid form)"
        )
    check_types(x, z, first, second)


def _upper(cov: Covariance, i: Tensor, j: Tensor) -> Covariance:
    """The pairs i <= j of a square covariance, as vectors."""
    return Covariance(cov.left[i, 0], cov.right[0, j], cov.gap[i, j])
