"""The loops of `fused`, compiled by numba. Imported only when needed.

One file, because numba's cache on disk notices changes in the file of a function and nowhere else.

Every entry costs three table look-ups, one root and one polynomial (H = 2, no biases), or one
root and two polynomials for each hidden layer. With w = min(gap, 2 - gap) = 1 - cos a, a the acute
angle between u and v, all functions of the angle are sqrt(w) times a function that is analytic for
|w| < 2, so a short polynomial on [0, 1] replaces arccos, sin and cos: no branches, and the
compiler turns the loops into vector instructions. Near coincident inputs nothing is lost, because
the input is the gap, not the correlation.

The polynomials interpolate at Chebyshev points (a test fits them again); their errors are at most
3e-17, rounding not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numba import njit

__all__ = ["TILE", "angle", "fill", "lift", "pair"]

Array = np.ndarray[Any, Any]
Side = tuple[Array, Array, Array, Array]
Function = TypeVar("Function", bound=Callable[..., Any])

TILE = 128
"""rows and columns worked on together; a tile (139 KB) stays in the second-level cache"""

_PAD = 8
# Rows of a tile a multiple of 1 KB apart would share few lines of the first-level cache.

# Fused multiply-add, no care for the sign of zero; NaN, infinity and the order of sums are kept.
_FAST = {"contract", "nsz"}


def _compiled(function: Function) -> Function:
    compiler: Any = njit(nogil=True, fastmath=_FAST, error_model="numpy")
    compiled = compiler(function)
    # Without a place for the cache, every process compiles again.
    with suppress(RuntimeError):
        compiled.enable_caching()
    return compiled


# a / (pi sqrt(w))
ANGLE = (
    0.45015815807855303,
    0.03751317983987564,
    0.00844046546442507,
    0.0025120432714529307,
    0.0008547930425932389,
    0.00031471098117365757,
    0.00012213551482788204,
    4.8544795153372625e-05,
    2.3195458675430442e-05,
    -2.2873114960199797e-06,
    3.460419989822555e-05,
    -6.525326994907856e-05,
    0.00011080327258598078,
    -0.00013687625959514212,
    0.00012754304139369471,
    -8.557648187341667e-05,
    3.955053770370357e-05,
    -1.1261280138402475e-05,
    1.527104740182858e-06,
)
# (sin a - a cos a) / (pi w^(3/2))
LIFT = (
    0.30010543871903533,
    0.015005271935952597,
    0.0024115615610460976,
    0.0005582318466287261,
    0.0001554167357869515,
    4.841945348910864e-05,
    1.6263806339262657e-05,
    5.84070847629788e-06,
    1.857888431389364e-06,
    1.7398143778622169e-06,
    -1.9457839673763177e-06,
    4.3081759394265986e-06,
    -5.713317168339133e-06,
    5.894828158021196e-06,
    -4.290219170809671e-06,
    2.153383299693181e-06,
    -6.609434495385855e-07,
    9.759058594307168e-08,
)
# (sin a - 2 a cos a) / (pi sqrt(w))
PAIR = (
    -0.45015815807855303,
    0.7127504169577045,
    0.04407798631240157,
    0.008339983706553684,
    0.0022154832669795425,
    0.0006954805614487776,
    0.00024118021538396174,
    8.85338533870478e-05,
    3.8042038768640736e-05,
    8.00438789524097e-07,
    4.2888149434014445e-05,
    -7.802069312299635e-05,
    0.0001334967728137917,
    -0.00016469342427465799,
    0.0001536257551468256,
    -0.00010311527899592575,
    4.770391768653569e-05,
    -1.3596286913454387e-05,
    1.8479991523774146e-06,
)


@_compiled
def _four(c0: float, c1: float, c2: float, c3: float, w: float, w2: float) -> float:
    return (c0 + w * c1) + w2 * (c2 + w * c3)


@_compiled
def angle(w: float) -> float:
    """a / pi for w = 1 - cos a, 0 <= a <= pi/2."""
    # Written out in groups of four: a loop over the coefficients would not become vector
    # instructions, and one long chain of products would wait for itself.
    c, w2 = ANGLE, w * w
    w4 = w2 * w2
    tail = _four(c[12], c[13], c[14], c[15], w, w2) + w4 * ((c[16] + w * c[17]) + w2 * c[18])
    tail = _four(c[8], c[9], c[10], c[11], w, w2) + w4 * tail
    tail = _four(c[4], c[5], c[6], c[7], w, w2) + w4 * tail
    return math.sqrt(w) * (_four(c[0], c[1], c[2], c[3], w, w2) + w4 * tail)


@_compiled
def lift(w: float) -> float:
    """(sin a - a cos a) / pi."""
    c, w2 = LIFT, w * w
    w4 = w2 * w2
    tail = _four(c[12], c[13], c[14], c[15], w, w2) + w4 * (c[16] + w * c[17])
    tail = _four(c[8], c[9], c[10], c[11], w, w2) + w4 * tail
    tail = _four(c[4], c[5], c[6], c[7], w, w2) + w4 * tail
    return math.sqrt(w) * w * (_four(c[0], c[1], c[2], c[3], w, w2) + w4 * tail)


@_compiled
def pair(w: float) -> float:
    """(sin a - 2 a cos a) / pi."""
    c, w2 = PAIR, w * w
    w4 = w2 * w2
    tail = _four(c[12], c[13], c[14], c[15], w, w2) + w4 * ((c[16] + w * c[17]) + w2 * c[18])
    tail = _four(c[8], c[9], c[10], c[11], w, w2) + w4 * tail
    tail = _four(c[4], c[5], c[6], c[7], w, w2) + w4 * tail
    return math.sqrt(w) * (_four(c[0], c[1], c[2], c[3], w, w2) + w4 * tail)


@_compiled
def _two_layers(shared: Array, gap: Array, even: float, out: Array) -> None:
    """T^2 / scale, for H = 2 without biases, a function of the product of the correlations alone.

    For ReLU (sin t + 2 (pi - t) cos t) / pi; for c < 0 the two terms beside `pair` then cancel
    exactly.
    """
    for j in range(len(out)):
        g = shared[j] + gap[j] * (1.0 - shared[j])
        c = 1.0 - g
        w = g if g <= 1.0 else abs(2.0 - g)
        out[j] = c * (2.0 - 2.0 * even) + 2.0 * even * (abs(c) + pair(w))


@_compiled
def _affine(gap: Array, u: float, v: float, u2: Array, v2: Array) -> None:
    """Gap of sigma_w^2 Q + sigma_b^2 from that of Q; (u, v) and (u2, v2) are unit vectors."""
    for j in range(len(gap)):
        du, dv = u - u2[j], v - v2[j]
        gap[j] = u * u2[j] * gap[j] + 0.5 * (du * du + dv * dv)


@_compiled
def _moments(shared: Array, gap: Array, slope: Array, even: float, tangent: bool) -> None:
    """From the gap of A^l to that of Q^l; E[s' s'] goes to `slope`, as a share of its largest."""
    for j in range(len(gap)):
        g = shared[j] + gap[j] * (1.0 - shared[j])
        w = g if g <= 1.0 else abs(2.0 - g)
        gap[j] = (1.0 - even) * g + even * abs(w - 2.0 * lift(w))
        if tangent:
            signs = 1.0 - 2.0 * angle(w)
            slope[j] = (1.0 - even) + even * (signs if g <= 1.0 else -signs)


@_compiled
def _carry(shared: Array, gap: Array, slope: Array, u: float, u2: Array, theta: Array) -> None:
    """From T^l / scale to T^(l+1) / scale."""
    for j in range(len(gap)):
        theta[j] = (1.0 - gap[j]) + (1.0 - shared[j]) * slope[j] * (u * u2[j]) * theta[j]


@_compiled
def _correlation(gap: Array, out: Array) -> None:
    for j in range(len(out)):
        out[j] = 1.0 - gap[j]


@_compiled
def _deep(
    shared: Array,
    gap: Array,
    slope: Array,
    out: Array,
    place: tuple[Array, int, Array, int],
    even: float,
    flags: tuple[bool, bool],
) -> None:
    """T^H / scale, or the correlation of A^H, for any H."""
    tangent, biases = flags
    layers, i, layers2, j = place
    end = j + len(out)
    if biases:
        _affine(gap, layers[0, i], layers[1, i], layers2[0, j:end], layers2[1, j:end])
    _correlation(gap, out)
    for k in range(2, len(layers), 2):
        _moments(shared, gap, slope, even, tangent)
        if biases:
            _affine(gap, layers[k, i], layers[k + 1, i], layers2[k, j:end], layers2[k + 1, j:end])
        if tangent:
            _carry(shared, gap, slope, layers[k, i], layers2[k, j:end], out)
        else:
            _correlation(gap, out)


@_compiled
def _look_up(row: Array, index: Array, out: Array) -> None:
    for j in range(len(out)):
        out[j] = row[index[j]]


@_compiled
def _scale(out: Array, table: Array, left: float, right: Array, tangent: bool) -> None:
    """Times Theta_f, or times the correlation of S, and the scales of both points."""
    for j in range(len(out)):
        part = table[j] if tangent else 1.0 - table[j]
        out[j] = out[j] * part * (left * right[j])


@_compiled
def _write(
    out: Array,
    stride: int,
    tile: Array,
    place: tuple[int, int],
    size: tuple[int, int],
    mirror: bool,
) -> None:
    """The tile goes to its place; on the diagonal its upper half is mirrored within it."""
    i, j = place
    height, width = size
    if mirror and i == j:
        for r in range(height):
            for c in range(r):
                tile[r, c] = tile[c, r]
    for r in range(height):
        start = (i + r) * stride + j
        row, source = out[start : start + width], tile[r]
        for c in range(width):
            row[c] = source[c]
    if mirror and i < j:
        for c in range(width):
            start = (j + c) * stride + i
            row = out[start : start + height]
            for r in range(height):
                row[r] = tile[r, c]


@_compiled
def fill(
    out: Array,
    stride: int,
    tables: tuple[Array, Array, Array],
    rows: Side,
    columns: Side,
    even: float,
    flags: tuple[bool, bool],
    symmetric: bool,
    start: int,
) -> None:
    """Rows start .. start + TILE of the matrix, and with `symmetric` those columns as well.

    out is the matrix from its first number to its last, rows `stride` apart.
    """
    shared_gap, tangent_table, point_gap = tables
    condition, point, factor, layers = rows
    condition2, point2, factor2, layers2 = columns
    tangent, biases = flags
    stop = min(start + TILE, len(condition))
    tile, buffers = np.empty((TILE, TILE + _PAD)), np.empty((4, TILE))
    for j in range(start if symmetric else 0, len(condition2), TILE):
        end = min(j + TILE, len(condition2))
        width = end - j
        shared, gap = buffers[0, :width], buffers[1, :width]
        slope, theta = buffers[2, :width], buffers[3, :width]
        for i in range(start, stop):
            a = condition[i]
            # Points often come image by image: then this is looked up once for all of them.
            if i == start or a != condition[i - 1]:
                _look_up(shared_gap[a], condition2[j:end], shared)
                if tangent:
                    _look_up(tangent_table[a], condition2[j:end], theta)
            _look_up(point_gap[point[i]], point2[j:end], gap)
            row = tile[i - start, :width]
            if tangent and len(layers) == 4 and not biases:
                _two_layers(shared, gap, even, row)
            else:
                _deep(shared, gap, slope, row, (layers, i, layers2, j), even, flags)
            _scale(row, theta if tangent else shared, factor[i], factor2[j:end], tangent)
        _write(out, stride, tile, (start, j), (stop - start, width), symmetric)
