"""R^2 as scikit-learn counts it, for points and grids."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from weightloom.errors import KernelError, ShapeError

__all__ = ["r2_score"]


def r2_score(y: Any, prediction: Any, weight: Any, squeeze: bool) -> float:
    """1 - sum (y - p)^2 / sum (y - mean y)^2, weighted, then the mean over channels.

    A channel that is constant scores 1 when it is predicted exactly, else 0 (as scikit-learn).

    >>> r2_score([1.0, 2.0, 3.0], [1.0, 2.0, 2.0], None, squeeze=True)
    0.5
    """
    y, prediction = _array(y), _array(prediction)
    if y.shape != prediction.shape:
        raise ShapeError(
            f"y has shape {y.shape}, the predictions {prediction.shape}; they must be the same"
        )
    channels = 1 if squeeze else y.shape[-1]
    y, prediction = y.reshape(-1, channels), prediction.reshape(-1, channels)
    w = np.ones(len(y)) if weight is None else _array(weight).reshape(-1)
    if len(w) != len(y):
        raise ShapeError(f"sample_weight has {len(w)} entries; wanted one for each of {len(y)}")
    y, prediction, w = y[w != 0], prediction[w != 0], w[w != 0, None]  # a mask may hide NaN
    if not len(y) or not np.isfinite(y).all():
        raise KernelError(
            "y has NaN or infinite entries, or every weight is 0; score needs finite values "
            "(give those that are missing the weight 0)"
        )
    missed = (w * (y - prediction) ** 2).sum(0)
    spread = (w * (y - (w * y).sum(0) / w.sum()) ** 2).sum(0)
    constant = np.where(missed == 0, 1.0, 0.0)
    safe = np.where(spread == 0, 1.0, spread)
    return float(np.where(spread == 0, constant, 1 - missed / safe).mean())


def _array(values: Any) -> np.ndarray:
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return plain.astype(np.float64)
