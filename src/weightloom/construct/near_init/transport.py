"""The limit of infinite width: weights moved by a map T, and F_infinity (Theorem 3.14).

    v_j = v_0j + a_j / (rho sqrt(m)) T(v_0j)                                     (3.13, corrected)
    F_infinity(x; T) = E <T(v), x sigma'(v . x)>,   v ~ N(0, I_d)

Then (rho / sqrt m) F_0(x; V) = (rho / sqrt m) F(x; V0) + (1/m) sum_j <T(v_0j), x sigma'(v_0j . x)>.
The sum tends to F_infinity; the first term is noise of size rho, which is why rho has to vanish as
the width grows (rho <= C / ln(1 + m)^2 is enough). Eq. (3.13) prints a_j rho / sqrt(m): the second
term is then rho^2 times as large, and the limit is zero, or rho^2 F_infinity where rho is constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.near_init.shallow import Nonlinearity, Shallow, nonlinearity
from weightloom.errors import ConfigError, ShapeError

__all__ = ["Sampled", "infinite_width", "temperature", "transport"]

Map = Callable[[Tensor], Tensor]

# Numbers drawn at once while sampling: 32 MB in double precision.
BATCH = 2**22


@dataclass(frozen=True)
class Sampled:
    """A mean of independent draws, and its standard error."""

    mean: Tensor
    error: Tensor


def temperature(width: int, constant: float = 1.0) -> float:
    """rho_m = constant / ln(1 + m)^2, the slowest decay that Theorem 3.14 allows.

    >>> round(temperature(1000), 5)
    0.02095
    """
    if width < 1 or not 0 < constant < math.inf:
        raise ConfigError(f"width={width}, constant={constant} were given; both must be positive")
    return constant / math.log(1 + width) ** 2


def transport(net: Shallow, move: Map, *, printed: bool = False) -> Tensor:
    """V [m, d] of Eq. (3.13), corrected: rows v_0j + T(v_0j) / (m out_j).

    ``net`` holds out_j = a_j rho / sqrt(m) (as `Shallow.draw` with ``rho`` makes them), so
    a_j / (rho sqrt m) = 1 / (m out_j). ``move`` is T: rows [n, d] to [n, d]. ``printed=True`` gives
    a_j rho / sqrt(m) T(v_0j) = out_j T(v_0j) instead, to see what it does.

    >>> net = Shallow.draw(2000, 2, rho=0.1)
    >>> V, x = transport(net, lambda v: v.sign()), torch.eye(2, dtype=torch.float64)
    >>> limit = infinite_width(lambda v: v.sign(), x, draws=10_000).mean  # E |sign(g)| / 2 = 1/2
    >>> bool((net.taylor(x, V) - limit).abs().max() < 0.15)
    True
    """
    if not bool((net.out != 0).all()):
        raise ConfigError("an output weight is zero; its row cannot carry any part of T")
    rows = _moved(move, net.hidden)
    factors = net.out if printed else 1 / (net.width * net.out)
    return net.hidden + factors[:, None] * rows


def infinite_width(
    move: Map,
    x: Tensor,
    activation: str | Callable[[Tensor], Tensor] | Nonlinearity = "relu",
    *,
    draws: int = 100_000,
    seed: int = 0,
    smoothness: float | None = None,
) -> Sampled:
    """F_infinity(x; T) at points x [n, d] by Monte Carlo: mean [n] and standard error [n].

    >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> found = infinite_width(lambda v: v, x)  # E relu(g) = 1 / sqrt(2 pi)
    >>> bool((found.mean - 1 / math.sqrt(2 * math.pi)).abs() < 4 * found.error)
    True
    """
    if x.dim() != 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}; wanted points [n, d] as rows")
    sigma = nonlinearity(activation, smoothness)

    def one(v: Tensor) -> Tensor:
        return (_moved(move, v) @ x.double().T) * sigma.slope(v @ x.double().T)

    return average(one, x.shape[1], len(x), draws, seed)


def average(
    one: Callable[[Tensor], Tensor], dims: int, columns: int, draws: int, seed: int
) -> Sampled:
    """Mean and standard error of ``one`` (rows v [b, d] to [b, ...]) over v ~ N(0, I_d)."""
    if draws < 2:
        raise ConfigError(f"draws={draws} was given; at least 2 are needed for a standard error")
    generator = torch.Generator().manual_seed(seed)
    # Welford's way of joining batches: no difference of large sums.
    count, mean, spread = 0, torch.zeros(()), torch.zeros(())
    rows = max(1, BATCH // max(dims, columns))
    while count < draws:
        b = min(rows, draws - count)
        values = one(torch.randn(b, dims, dtype=torch.float64, generator=generator))
        middle = values.mean(0)
        away = middle - mean
        spread = spread + (values - middle).square().sum(0) + away**2 * (count * b / (count + b))
        mean = mean + away * (b / (count + b))
        count += b
    return Sampled(mean, (spread / (count - 1) / count).sqrt())


def _moved(move: Map, rows: Tensor) -> Tensor:
    made = move(rows)
    if made.shape != rows.shape:
        raise ShapeError(
            f"the transport map made {tuple(made.shape)} of rows {tuple(rows.shape)}; it must keep "
            f"the shape: one displacement for each row"
        )
    if not bool(torch.isfinite(made).all()):
        raise ConfigError("the transport map made NaN or infinity of a row; it must be bounded")
    return made
