"""How many parameters are needed, by the theorems of "On the Modularity of Hypernetworks".

A target y(x, I) on [-1, 1]^m1 x [-1, 1]^m2, m = m1 + m2, from the unit ball of W_{r,m} (r
continuous derivatives, Sobolev norm at most 1) is to be approximated within eps in the sup norm:

    plain network of (x, I)            eps^-(m/r)            Theorem 2, lower bound; attained
    embedding method, N_q, k = O(1)    eps^-(m1+m2)          Theorem 3, r = 1 only, lower bound
    embedding method, N_q, any k       eps^-min(m, 2 m1)     Theorem 4, r = 1 only, lower bound
    hypernetwork's primary, N_g        eps^-(m1/r)           Theorem 5, upper bound
    hypernetwork in all, N_f           w^(1+m2/r) eps^-(m2/r) + w N_g    Theorem 6, upper bound

The theorems fix exponents, not constants: every line has an unknown factor, taken as 1 unless
given. `weightloom.construct` builds networks that attain the upper bounds for r = 1 and 2; the
experiment ``rates`` of weightloom-papers measures their constants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from weightloom.errors import ConfigError

__all__ = [
    "METHODS",
    "ParameterRates",
    "Rate",
    "advice",
    "amount",
    "parameter_rates",
    "rates_along",
]


METHODS = {
    "plain": "plain network of (x, I)",
    "embedding": "embedding method: q, k fixed",
    "embedding_any": "embedding method: q, any k",
    "primary": "hypernetwork: g",
    "total": "hypernetwork: all of f",
}


_COMMON = (
    "y has r continuous derivatives on [-1, 1]^m and Sobolev norm at most 1; eps is the largest "
    "error anywhere (sup norm), for the hardest such y.",
    "The theorems fix the exponent of eps. The constant in front is not theirs: it is {constants}.",
    "What a network can be, not what training finds.",
)


_LOWER = (
    "Lower bounds (plain, embedding) rest on the paper's Assumptions 1 and 2 (a unique best "
    "approximator, and every added neuron helps) and on targets that no network equals. For very "
    "deep ReLU networks, whose weights may jump when the target moves a little, fewer are known to "
    "suffice: of order eps^-(m/(2r)) (Yarotsky 2018).",
)


_EMBEDDING = (
    "Embedding method q(x, e(I)), with k numbers in e(I): the parameters are those of q; e may be "
    "as large as it needs to be. e and q have bounded spectral complexity (so e cannot pack more "
    "and more into a number by stretching it), and where k may grow, q's first layer is bounded "
    "and counted as a full matrix.",
)


_SILENT = (
    "Embedding method: Theorems 3 and 4 are about r = 1 only and say nothing for r = {r}; no "
    "number is given rather than a guessed one."
)


_PRIMARY = (
    "Hypernetwork g(x; f(I)): the parameters are the weights of g; f may be as large as it needs "
    "to be."
)


_TOTAL = (
    "All of f (Theorem 6): only if the weights that g needs are S(I) = W h(I) with h of w = {w} "
    "numbers, each with r derivatives and norm at most 1, and W bounded. The plain network's bound "
    "is for the hardest y in the whole class, which need not have such an S: for a y that has one, "
    "a plain network that can multiply may be small as well."
)


_NO_TOTAL = (
    "All of f: without a selector of few numbers (selector=w) the theorems say nothing; the "
    "network of Theorem 5 built by hand needs eps^-(m/r) there, as a plain one does."
)


@dataclass(frozen=True)
class Rate:
    """The parameters of one method: constant * eps^-exponent (Theorem 6: two such terms)."""

    method: str
    theorem: str
    kind: str
    """"lower bound": no fewer suffice; "upper bound": this many suffice; up to the constant"""
    exponent: float
    """slope of log parameters against log 1/eps, for small eps"""
    log10: float
    """log10 of the number of parameters, which may be too large for a float"""

    @property
    def name(self) -> str:
        return METHODS[self.method]

    @property
    def parameters(self) -> float:
        """At least 1; infinite if it does not fit into a float."""
        return 10.0**self.log10 if self.log10 < 308 else math.inf


@dataclass(frozen=True)
class ParameterRates:
    """What Theorems 2 to 6 give for one (m1, m2, r, eps); None where they say nothing."""

    m1: int
    m2: int
    smoothness: int
    eps: float
    selector: int | None
    plain: Rate
    embedding: Rate | None
    embedding_any: Rate | None
    primary: Rate
    total: Rate | None
    assumptions: tuple[str, ...]
    constants: Mapping[str, float] = field(default_factory=dict)

    def rates(self) -> list[Rate]:
        """Those that are not None, in the order of `METHODS`."""
        every = (getattr(self, method) for method in METHODS)
        return [rate for rate in every if rate is not None]

    @property
    def advantage(self) -> float:
        """How many times smaller g is than the smallest known rival (embedding or plain)."""
        known = [rate for rate in (self.embedding, self.embedding_any) if rate is not None]
        rival = min((rate.log10 for rate in known), default=self.plain.log10)
        return 10.0 ** min(300.0, max(-300.0, rival - self.primary.log10))


def parameter_rates(
    m1: int,
    m2: int,
    smoothness: int,
    eps: float,
    selector: int | None = None,
    constants: Mapping[str, float] | None = None,
) -> ParameterRates:
    """How many parameters a plain network, an embedding method and a hypernetwork need.

    ``eps`` is the largest error allowed and ``smoothness`` r. ``selector`` is w of Theorem 6 (None:
    no such structure is known), which adds the total size of f. ``constants`` are factors by method
    ("plain", "embedding", "embedding_any", "primary", "total"), 1 where not given.

    >>> rates = parameter_rates(m1=1, m2=2, smoothness=1, eps=0.01)
    >>> [(rate.method, round(rate.parameters)) for rate in rates.rates()]
    [('plain', 1000000), ('embedding', 1000000), ('embedding_any', 10000), ('primary', 100)]
    """
    _check(m1, m2, smoothness, eps, selector)
    known = _constants(constants)
    m, r, one_over = m1 + m2, smoothness, -math.log10(eps)

    def rate(method: str, theorem: str, kind: str, exponent: float) -> Rate:
        log10 = math.log10(known[method]) + exponent * one_over
        return Rate(method, theorem, kind, exponent, max(0.0, log10))

    primary = rate("primary", "Theorem 5", "upper bound", m1 / r)
    embedding = embedding_any = total = None
    if r == 1:
        embedding = rate("embedding", "Theorem 3", "lower bound", m)
        embedding_any = rate("embedding_any", "Theorem 4", "lower bound", min(m, 2 * m1))
    if selector is not None:
        total = _total(m1, m2, r, one_over, selector, known, primary)
    return ParameterRates(
        m1=m1,
        m2=m2,
        smoothness=r,
        eps=eps,
        selector=selector,
        plain=rate("plain", "Theorem 2", "lower bound", m / r),
        embedding=embedding,
        embedding_any=embedding_any,
        primary=primary,
        total=total,
        assumptions=_assumptions(r, selector, constants),
        constants=known,
    )


def _total(
    m1: int,
    m2: int,
    r: int,
    one_over: float,
    w: int,
    known: Mapping[str, float],
    primary: Rate,
) -> Rate:
    """Theorem 6: w^(1 + m2/r) eps^-(m2/r) for h, and the matrix W of w N_g entries."""
    of_h = (1 + m2 / r) * math.log10(w) + m2 / r * one_over
    of_w = math.log10(w) + primary.log10 - math.log10(known["primary"])
    larger, smaller = max(of_h, of_w), min(of_h, of_w)
    log10 = math.log10(known["total"]) + larger + math.log10(1 + 10.0 ** (smaller - larger))
    return Rate("total", "Theorem 6", "upper bound", max(m1, m2) / r, max(0.0, log10))


def _assumptions(
    r: int, selector: int | None, constants: Mapping[str, float] | None
) -> tuple[str, ...]:
    value = "1 here" if not constants else "the one given"
    texts = [text.format(constants=value) for text in _COMMON]
    texts += _LOWER
    texts += _EMBEDDING if r == 1 else (_SILENT.format(r=r),)
    texts.append(_PRIMARY)
    texts.append(_NO_TOTAL if selector is None else _TOTAL.format(w=selector))
    return tuple(texts)


def _constants(given: Mapping[str, float] | None) -> dict[str, float]:
    given = {} if given is None else given
    unknown = [name for name in given if name not in METHODS]
    bad = [name for name in given if name in METHODS and not 0 < given[name] < math.inf]
    if unknown or bad:
        raise ConfigError(
            f"constants={dict(given)} was given; wanted positive numbers under the names "
            f"{', '.join(METHODS)}"
        )
    return {name: float(given.get(name, 1.0)) for name in METHODS}


def _check(m1: int, m2: int, smoothness: int, eps: float, selector: int | None) -> None:
    """Raise one error that lists every problem."""
    whole = {"m1": m1, "m2": m2, "smoothness": smoothness}
    if selector is not None:
        whole["selector"] = selector
    problems = [
        f"{name}={value} (wanted a whole number of at least 1)"
        for name, value in whole.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]
    if not 0 < eps < 1:
        problems.append(f"eps={eps} (wanted a number between 0 and 1: targets have norm at most 1)")
    if problems:
        raise ConfigError(f"cannot say how many parameters: {'; '.join(problems)}")


def amount(log10: float) -> str:
    """A readable count from its log10.

    >>> amount(3.0), amount(15.25)
    ('1,000', '10^15.2')
    """
    if log10 < 9:
        return f"{max(1, round(10**log10)):,}"
    return f"10^{log10:.1f}"


def advice(
    rates: ParameterRates,
    measured: Collection[str] | None = None,
    selector_hint: str = "selector=w",
) -> str:
    """Which network to use, and why, in a few sentences.

    ``measured`` names the methods whose constants are known; only those are compared (None: no
    constant is known, all are taken as 1). ``selector_hint`` tells the reader how to pass w of
    Theorem 6.

    >>> advice(parameter_rates(m1=1, m2=2, smoothness=1, eps=0.01))[:58]
    'Take a hypernetwork if the network that sees x has to be s'
    """
    sentences = []
    ratio = rates.advantage
    rivals = "an embedding method's predictor" if rates.embedding else "a plain network"
    if measured is not None:
        rivals = "a plain network"
        ratio = 10 ** min(300.0, rates.plain.log10 - rates.primary.log10)
    if ratio < 2:
        sentences.append(
            f"At this error the primary of a hypernetwork gains little over {rivals}; take what is "
            f"easier to train."
        )
    else:
        sentences.append(
            f"Take a hypernetwork if the network that sees x has to be small or quick: one "
            f"condition with many inputs, or a device that runs g alone. Its primary g needs about "
            f"{amount(rates.primary.log10)} parameters, {amount(math.log10(ratio))} times fewer "
            f"than {rivals}."
        )
    if measured is None or rates.total is None or "total" in measured:
        sentences.append(_in_all(rates, selector_hint))
    else:
        sentences.append("All of f was not measured for these dimensions.")
    return " ".join(sentences)


def _in_all(rates: ParameterRates, selector_hint: str) -> str:
    total, plain = rates.total, rates.plain
    if total is None:
        return (
            "In all it is not smaller: what g saves is in f, unless the weights that g needs are "
            f"linear in few numbers of the condition ({selector_hint})."
        )
    sizes = f"about {amount(total.log10)} parameters against {amount(plain.log10)}"
    gain = plain.log10 - total.log10
    if gain > math.log10(2):
        return (
            f"In all it is smaller too, {sizes} of a plain network for the hardest y, if "
            f"{rates.selector} numbers of the condition really decide about the weights."
        )
    compared = "larger" if gain < -math.log10(2) else "hardly smaller"
    return f"In all it is {compared} at this error: {sizes} of a plain network."


def rates_along(rates: ParameterRates, errors: Sequence[float]) -> dict[str, list[Rate]]:
    """The rates of every method in ``rates`` at other errors, everything else equal.

    >>> rates = parameter_rates(m1=1, m2=1, smoothness=1, eps=0.5)
    >>> [round(rate.parameters) for rate in rates_along(rates, [0.1, 0.01])["primary"]]
    [10, 100]
    """
    along = [
        parameter_rates(rates.m1, rates.m2, rates.smoothness, eps, rates.selector, rates.constants)
        for eps in errors
    ]
    return {rate.method: [getattr(at, rate.method) for at in along] for rate in rates.rates()}
