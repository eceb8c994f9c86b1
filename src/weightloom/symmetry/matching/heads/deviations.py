"""How far factors are from each other, every entry on the scale of a single weight in its place.

A weight in row i and column j of a factor is typically as large as r_i g_j: the root mean square of
its row times the profile of its column. Its *own scale* is that or its own size, whichever is
larger. It does not grow with the number of columns.

Rounding moves a weight by half a spacing. If a matrix A has to be applied to b before it can be
compared with a, the rounding of b is mixed: entry (i, j) of A L_b has the error of
sqrt(sum_k |A_ik|^2 |b_kj|^2), which may be more than the own scale of a_ij. So deviations are
relative to the larger of the two, but where that would excuse a change that anyone can see
(`VISIBLE` of a weight's own scale), the answer is "undecided" and not "same".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["VISIBLE", "Deviations", "Factor", "deviations", "difference"]

#: A weight that moved by this share of its own scale has visibly changed, whatever the dtype.
VISIBLE = 1 / 16


@dataclass(frozen=True)
class Factor:
    """A factor [n, r, d, columns] with rows of unit mean square, and what made them so.

    ``rows`` [n, r, d, 1]: root mean squares of the rows (1 for rows of zeros) over the first
    ``weights`` columns; a last column may hold a bias. ``columns`` [n, r, 1, columns]: root mean
    squares of the columns of the scaled rows.
    """

    scaled: Tensor
    rows: Tensor
    columns: Tensor
    weights: int

    @classmethod
    def of(cls, tensor: Tensor, weights: int) -> Factor:
        """The factor of a tensor, which is overwritten."""
        norms = torch.linalg.vector_norm(tensor[..., :weights], dim=-1, keepdim=True)
        rows = norms / max(weights, 1) ** 0.5
        rows = torch.where(rows > 0, rows, torch.ones_like(rows))
        scaled = tensor.div_(rows)
        # A norm along this dimension takes seven times as long as a sum of squares.
        columns = scaled.square().mean(-2, keepdim=True).sqrt()
        return cls(scaled, rows, columns, weights)

    def between(self, matrix: Tensor, other: Factor) -> Tensor:
        """A matrix from rows of ``other`` to rows of this one, for the scaled rows of both."""
        return matrix.unsqueeze(1) * other.rows.mT / self.rows

    def part(self, used: slice) -> Factor:
        """Some of the columns."""
        return Factor(self.scaled[..., used], self.rows, self.columns[..., used], self.weights)

    def select(self, chosen: Tensor) -> Factor:
        """The factor of some groups."""
        return Factor(self.scaled[chosen], self.rows[chosen], self.columns[chosen], self.weights)


@dataclass(frozen=True)
class Deviations:
    """The largest deviation of each block [n, r]: as it counts, and as rounding alone may explain.

    ``counted`` is what the tolerance is compared with. ``explained`` is smaller where `VISIBLE`
    cuts what mixed rounding would excuse. ``places`` [n, r]: flat index of the largest, where it is
    beyond the tolerance.
    """

    counted: Tensor
    explained: Tensor
    places: Tensor

    def over(self, function: Callable[[Tensor, Tensor], Tensor], other: Deviations) -> Deviations:
        """A function of the fields of two."""
        pairs = zip(
            (self.counted, self.explained, self.places),
            (other.counted, other.explained, other.places),
            strict=True,
        )
        return Deviations(*(function(*pair) for pair in pairs))


def difference(wanted: Factor, given: Factor, matrix: Tensor, keep: Tensor | None = None) -> Tensor:
    """The given factor moved by ``matrix`` [n, d, d], minus the wanted one, with a's scaled rows.

    It is the difference of float64 numbers, as float32: its own digits do not matter. ``keep``
    [n, d, d] projects the wanted factor on the part that counts.
    """
    target = wanted.scaled if keep is None else wanted.between(keep, wanted) @ wanted.scaled
    return torch.matmul(wanted.between(matrix, given), given.scaled).sub_(target).float()


def deviations(
    gap: Tensor, wanted: Factor, given: Factor, matrix: Tensor, tolerance: float
) -> Deviations:
    """How large a difference of scaled rows [n, r, d, columns] is; ``matrix`` made the given one.

    Within the tolerance, deviations are relative to r_i g_j, the smallest of the scales above, and
    so upper bounds; beyond it they are exact.
    """
    over = (1 / wanted.columns.clamp_min(1e-30)).float()
    top = (gap * over).abs_().amax((-1, -2)).double().nan_to_num(float("inf"))
    counted, explained, places = top.clone(), top.clone(), torch.zeros_like(top, dtype=torch.long)
    for n, r in (~(top <= tolerance)).nonzero().tolist():
        own = torch.maximum(wanted.scaled[n, r].abs(), wanted.columns[n, r])
        mixing = matrix[n] * given.rows[n, r].mT / wanted.rows[n, r]
        mixed = torch.hypot(own, (mixing.square() @ given.scaled[n, r].square()).sqrt())
        counted[n, r], explained[n, r], places[n, r] = _exact(gap[n, r], own, mixed, tolerance)
    return Deviations(counted, explained, places)


def _exact(gap: Tensor, own: Tensor, mixed: Tensor, tolerance: float) -> tuple[float, float, int]:
    """Counted and explained deviation of one block and the flat index of the first."""
    wrong = ~torch.isfinite(gap)
    if bool(wrong.any()):
        return float("inf"), float("inf"), int(wrong.int().argmax())
    most = own * max(1.0, VISIBLE / max(tolerance, 1e-300))
    ratio = gap.abs() / torch.minimum(mixed, most).clamp_min(1e-300)
    explained = float((gap.abs() / mixed.clamp_min(1e-300)).max())
    return float(ratio.max()), explained, int(ratio.argmax())
