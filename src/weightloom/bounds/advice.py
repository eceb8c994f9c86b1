"""What to do about parameter counts, in plain words, and the same counts along the error."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from weightloom.bounds.rates import ParameterRates, Rate, parameter_rates

__all__ = ["advice", "amount", "rates_along"]


def amount(log10: float) -> str:
    """A count, given its logarithm, as people write it.

    >>> amount(3.0), amount(15.25)
    ('1,000', '10^15.2')
    """
    if log10 < 9:
        return f"{max(1, round(10**log10)):,}"
    return f"10^{log10:.1f}"


def advice(
    found: ParameterRates,
    measured: Collection[str] | None = None,
    selector_hint: str = "selector=w",
) -> str:
    """Which network to take, and why: a few sentences.

    ``measured``: the methods whose constants are known (None: none is, all are taken as 1). Then
    only what was measured is compared. ``selector_hint`` is how the reader gives Theorem 6's w.

    >>> advice(parameter_rates(m1=1, m2=2, smoothness=1, eps=0.01))[:58]
    'Take a hypernetwork if the network that sees x has to be s'
    """
    said = []
    ratio = found.advantage
    rivals = "an embedding method's predictor" if found.embedding else "a plain network"
    if measured is not None:
        rivals = "a plain network"
        ratio = 10 ** min(300.0, found.plain.log10 - found.primary.log10)
    if ratio < 2:
        said.append(
            f"At this error the primary of a hypernetwork gains little over {rivals}; take what is "
            f"easier to train."
        )
    else:
        said.append(
            f"Take a hypernetwork if the network that sees x has to be small or quick: one "
            f"condition with many inputs, or a device that runs g alone. Its primary g needs about "
            f"{amount(found.primary.log10)} parameters, {amount(math.log10(ratio))} times fewer "
            f"than {rivals}."
        )
    if measured is None or found.total is None or "total" in measured:
        said.append(_in_all(found, selector_hint))
    else:
        said.append("All of f was not measured for these dimensions.")
    return " ".join(said)


def _in_all(found: ParameterRates, selector_hint: str) -> str:
    total, plain = found.total, found.plain
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
            f"{found.selector} numbers of the condition really decide about the weights."
        )
    compared = "larger" if gain < -math.log10(2) else "hardly smaller"
    return f"In all it is {compared} at this error: {sizes} of a plain network."


def rates_along(found: ParameterRates, errors: Sequence[float]) -> dict[str, list[Rate]]:
    """What every method of ``found`` needs at other errors, everything else equal.

    >>> found = parameter_rates(m1=1, m2=1, smoothness=1, eps=0.5)
    >>> [round(rate.parameters) for rate in rates_along(found, [0.1, 0.01])["primary"]]
    [10, 100]
    """
    every = [
        parameter_rates(found.m1, found.m2, found.smoothness, eps, found.selector, found.constants)
        for eps in errors
    ]
    return {rate.method: [getattr(one, rate.method) for one in every] for rate in found.rates()}
