"""Linear assignment: the exchange with the largest total score.

SciPy's solver is used where SciPy is installed; the solver below gives the same total without it,
in O(n^3) steps of which the inner ones are vectorised (a second for n = 500).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["assign", "shortest_paths"]


def assign(scores: Tensor) -> Tensor:
    """Column of each row [n], every column once, such that the sum of scores[i, column] is largest.

    >>> assign(torch.tensor([[1.0, 5.0], [0.0, 2.0]]))
    tensor([1, 0])
    """
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise ShapeError(f"scores have shape {list(scores.shape)}; a square matrix is wanted")
    if not bool(torch.isfinite(scores).all()):
        raise ShapeError("scores hold NaN or infinity; the weights must be finite")
    cost = -scores.double().numpy()
    try:
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        columns = shortest_paths(cost)
    else:
        columns = linear_sum_assignment(cost)[1]
    return torch.from_numpy(np.asarray(columns, dtype=np.int64))


def shortest_paths(cost: np.ndarray) -> np.ndarray:
    """Column of each row of a square cost matrix with the smallest total.

    Rows join one at a time along a shortest augmenting path (Jonker and Volgenant 1987, as in
    Crouse 2016). Potentials u, v keep cost[i, j] - u[i] - v[j] >= 0, with 0 on matched pairs.
    """
    size = len(cost)
    u, v = np.zeros(size), np.zeros(size)
    row_of = np.full(size, -1)
    column_of = np.full(size, -1)
    for start in range(size):
        distance = np.full(size, np.inf)
        before = np.full(size, -1)
        done = np.zeros(size, dtype=bool)
        rows = [start]
        row, reached, sink = start, 0.0, -1
        while sink < 0:
            through = reached + cost[row] - u[row] - v
            better = ~done & (through < distance)
            distance[better] = through[better]
            before[better] = row
            column = int(np.where(done, np.inf, distance).argmin())
            reached = float(distance[column])
            done[column] = True
            if row_of[column] < 0:
                sink = column
            else:
                row = int(row_of[column])
                rows.append(row)
        u[start] += reached
        for other in rows[1:]:
            u[other] += reached - distance[column_of[other]]
        v[done] -= reached - distance[done]
        while True:  # swap along the path, back to the row that joined
            row = int(before[sink])
            row_of[sink] = row
            sink, column_of[row] = int(column_of[row]), sink
            if row == start:
                break
    return column_of
