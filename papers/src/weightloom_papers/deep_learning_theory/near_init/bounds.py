"""How far a shallow network can be from its Taylor model, and how large it is before training.

Each bound has up to three forms: "printed", as in the text; "corrected", as its proof gives it; and
"sharp", a smaller one with its reason:

`smooth_bound`     Prop. 3.4   |F - F_0| for smooth activations, for every x and V
`relu_bound`       Prop. 3.7   the same for the ReLU, for a fixed x, with probability 1 - delta
`near_zero_bound`  Lemma 3.8   how many nodes are near their kink
`row_norm_bound`   in Lemma 3.15, the largest |v_j|
`noise_bound`      Lemma 3.15  |F(x; w0)| at one x
`uniform_noise_bound`          and for all |x| <= 1 at once
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weightloom.errors import ConfigError

__all__ = [
    "near_zero_bound",
    "noise_bound",
    "relu_bound",
    "row_norm_bound",
    "smooth_bound",
    "uniform_noise_bound",
]


def smooth_bound(
    smoothness: float, radius: float, largest_out: float, *, x_norm: float = 1.0
) -> float:
    """|F(x; V) - F_0(x; V)| <= smoothness * largest_out / 2 * (|x| |V - V0|)^2   (Prop. 3.4).

    Printed with F_0(x; (a, V0)), which is F(x; V0): the difference is then of first order in
    V - V0 and no such bound holds. The proof is about F_0(x; V). The bound is attained, by
    sigma(z) = z^2 / 2 with every row of V - V0 along x, so no constant can be saved.

    >>> smooth_bound(0.25, radius=2.0, largest_out=0.1)
    0.05
    """
    _positive(smoothness=smoothness, radius=radius, largest_out=largest_out, x_norm=x_norm)
    return smoothness * largest_out / 2 * (x_norm * radius) ** 2


def relu_bound(
    width: int,
    radius: float,
    delta: float,
    largest_out: float,
    *,
    form: str = "corrected",
    around: str = "any",
) -> float:
    """|F(x; V) - F(x; W) - <dF(x; W), V - W>|, V and W within ``radius`` of V0    (Prop. 3.7).

    For one x with |x| <= 1 and all V, W at once, with probability at least 1 - delta over V0.

    - "printed": largest_out m^(1/3) (4 B^(4/3) + 2 B ln(1/delta)^(1/4));
    - "corrected": the last step of the proof gives 2 sqrt(3) instead of 4;
    - "sharp": the proof before it is simplified. At most N = p m + sqrt(m/2 ln(1/delta)) nodes have
      |v_0j . x| <= tau |x|, p = P(|g| <= tau) = erf(tau / sqrt 2), and B^2/tau^2 rows of each of V
      and W move by tau or more; the error is at most largest_out |V - W| sqrt(N + 2 B^2/tau^2),
      taken at the best tau, and always at most |V - W| sqrt(m).

    ``around="init"`` is the Taylor model itself, W = V0: only V moves, so that |V - W| <= B instead
    of 2 B and one of the two B^2/tau^2 falls away ("sharp" only; the others do not use it).

    >>> relu_bound(10_000, 1.0, 0.01, 0.01) < relu_bound(10_000, 1.0, 0.01, 0.01, form="printed")
    True
    """
    _width(width)
    _probability(delta)
    _positive(radius=radius, largest_out=largest_out)
    if around not in ("any", "init"):
        raise ConfigError(f"around={around!r} is unknown; choose 'any' or 'init'")
    if form == "sharp":
        moving = 2 if around == "any" else 1
        return largest_out * moving * radius * math.sqrt(_switching(width, radius, delta, moving))
    first = {"printed": 4.0, "corrected": 2 * math.sqrt(3)}.get(_form(form))
    second = 2 * radius * math.log(1 / delta) ** 0.25
    return largest_out * width ** (1 / 3) * ((first or 0.0) * radius ** (4 / 3) + second)


def _switching(width: int, radius: float, delta: float, moving: int) -> float:
    """How many nodes can change sides: the smallest bound over tau."""
    if radius == 0:
        return 0.0

    def count(log_tau: float) -> float:
        tau = math.exp(log_tau)
        return near_zero_bound(width, tau, delta, form="sharp") + moving * (radius / tau) ** 2

    return min(float(width), count(_smallest(count, math.log(radius) - 15, math.log(radius) + 10)))


def _smallest(f: Callable[[float], float], low: float, high: float) -> float:
    """Where f is smallest: the best point of a grid, then golden section around it.

    Counts of nodes have a valley and, for large radii, a plateau where all nodes have switched,
    where golden section alone may end. Every tau gives a valid bound, so precision is not critical.
    """
    step = (high - low) / 400
    best = min((low + step * i for i in range(401)), key=f)
    low, high = best - step, best + step
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if f(left) < f(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def near_zero_bound(width: int, tau: float, delta: float, *, form: str = "corrected") -> float:
    """How many of m Gaussian rows have |v_j . x| <= tau |x|, at confidence 1 - delta (Lemma 3.8).

    - "printed": m tau + sqrt(m/2) ln(1/delta);
    - "corrected": m tau + sqrt(m/2 ln(1/delta)), as the proof (Hoeffding) has it: smaller for every
      delta < 1/e;
    - "sharp": m erf(tau / sqrt 2) in the place of m tau, which is the mean itself.

    >>> near_zero_bound(1000, 0.1, 0.01), near_zero_bound(1000, 0.1, 0.01, form="printed")
    (147.98..., 202.97...)
    """
    _width(width)
    _probability(delta)
    _positive(tau=tau)
    log = math.log(1 / delta)
    if _form(form) == "printed":
        return width * tau + math.sqrt(width / 2) * log
    mean = math.erf(tau / math.sqrt(2)) if form == "sharp" else tau
    return width * mean + math.sqrt(width / 2 * log)


def row_norm_bound(width: int, dims: int, delta: float, *, form: str = "corrected") -> float:
    """The largest |v_j| of m rows from N(0, I_d), with probability at least 1 - delta (Lemma 3.15).

    "printed": 1 + sqrt(2 ln(m/delta)), which forgets the dimension; "corrected":
    sqrt(d) + sqrt(2 ln(m/delta)), as the norm is 1-Lipschitz with mean at most sqrt(d).

    >>> row_norm_bound(100, 10, 0.1)
    6.87...
    """
    _width(width)
    _width(dims, "dims")
    _probability(delta)
    _form(form, ("printed", "corrected"))
    return (1 if form == "printed" else math.sqrt(dims)) + math.sqrt(2 * math.log(width / delta))


def noise_bound(
    width: int, delta: float, largest_out: float, *, x_norm: float = 1.0, form: str = "corrected"
) -> float:
    """|F(x; w0)| at one x, with probability at least 1 - delta              (Lemma 3.15, part 1).

    For out_j = +-largest_out with independent fair signs and a 1-Lipschitz sigma, sigma(0) = 0.

    - "printed", "corrected": 4 |x| sqrt(m) ln(2m/delta). The proof drops the factor 2 of two-sided
      inequalities; the constant absorbs it for m >= 2, and for m = 1 the bound is obvious.
    - "sharp": |x| sqrt(2 m ln(2/delta)), without ln(m): a_j sigma(g) is symmetric and at most |g|,
      so E exp(t a_j sigma(g)) = E cosh(t sigma(g)) <= E cosh(t g) = exp(t^2/2), and the sum is
      sub-Gaussian with the variance proxy m.

    >>> noise_bound(10_000, 0.01, 0.01, form="sharp"), noise_bound(10_000, 0.01, 0.01)
    (3.25..., 58.03...)
    """
    _width(width)
    _probability(delta)
    _positive(largest_out=largest_out, x_norm=x_norm)
    scale = largest_out * x_norm * math.sqrt(width)
    if _form(form) == "sharp":
        return scale * math.sqrt(2 * math.log(2 / delta))
    return scale * 4 * math.log(2 * width / delta)


def uniform_noise_bound(
    width: int, dims: int, delta: float, largest_out: float, *, form: str = "corrected"
) -> float:
    """sup of |F(x; w0)| over |x| <= 1, with probability at least 1 - delta   (Lemma 3.15, part 2).

    In the text the probability is 1 - 2 delta; here delta is the whole. With e = delta / 2:

    - "printed": 32 d sqrt(m) ln(m/e);
    - "corrected": the proof with sqrt(d) in the norm of a row and with (1 + 2m)^d points in the net
      of fineness 1/m: 4 sqrt(m) (ln(2m/e) + d ln(1 + 2m)) + sqrt(d) + sqrt(2 ln(m/e));
    - "sharp": sqrt(m) (sqrt(d) + (sqrt(d) + 1) sqrt(2 ln(4/delta))), without a net. By contraction
      E sup_x F <= E |sum_j a_j v_j| <= sqrt(m d). Given the signs, sup_x F is sqrt(m)-Lipschitz in
      V; its mean over V changes by at most 2 sqrt(d) with one sign (bounded differences). Each of
      these two deviations fails with delta/4, and so does each for -F.

    >>> [round(uniform_noise_bound(10_000, 2, 0.01, 0.01, form=f), 1) for f in ("sharp", "printed")]
    [9.8, 928.6]
    """
    _width(width)
    _width(dims, "dims")
    _probability(delta)
    _positive(largest_out=largest_out)
    each = delta / 2
    if _form(form) == "printed":
        return largest_out * 32 * dims * math.sqrt(width) * math.log(width / each)
    if form == "sharp":
        deviation = (math.sqrt(dims) + 1) * math.sqrt(2 * math.log(4 / delta))
        return largest_out * math.sqrt(width) * (math.sqrt(dims) + deviation)
    net = math.log(2 * width / each) + dims * math.log(1 + 2 * width)
    between = row_norm_bound(width, dims, each)
    return largest_out * (4 * math.sqrt(width) * net + between)


def _form(form: str, known: tuple[str, ...] = ("printed", "corrected", "sharp")) -> str:
    if form not in known:
        raise ConfigError(f"form={form!r} is unknown; choose one of {', '.join(known)}")
    return form


def _width(value: int, name: str = "width") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r} was given; wanted a whole number of at least 1")


def _probability(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta} was given; a probability strictly between 0 and 1 wanted")


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            extra = " (for the ReLU there is relu_bound)" if name == "smoothness" else ""
            raise ConfigError(f"{name}={value} was given; wanted a finite number >= 0{extra}")
