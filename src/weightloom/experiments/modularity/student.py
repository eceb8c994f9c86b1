"""Student's t, for the confidence intervals of all experiments here."""

from __future__ import annotations

import math

__all__ = ["quantile"]

_FEW = (12.7062, 4.3027, 3.1824, 2.7764)
_Z = 1.959964


def quantile(freedom: int) -> float:
    """Student's t: what 95 percent of draws stay below in absolute value; infinite for 0.

    Exact to four digits: a table for 1 to 4 degrees of freedom, the Cornish-Fisher expansion
    beyond. (SciPy would be a large dependency for one number.)
    """
    if freedom < 1:
        return math.inf
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))
