"""From results to statements: the numbers behind the figure of ``legendre-tails``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weightloom.construct.separation import SQUARED_ERROR, crossing_dimension
from weightloom.errors import ConfigError
from weightloom.experiments.verdicts import NO_DATA, Verdict, decide
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = [
    "CONCLUSION",
    "KNOWN",
    "crossings",
    "tails",
    "tails_table",
    "verdicts",
    "widths",
]

#: 1 / (5 e pi): what the slides' conclusion says that P_n F is at least.
CONCLUSION = 1 / (5 * math.e * math.pi)
#: ||P_n F||^2 at n = d^2, from Bessel functions in 30 digits.
KNOWN = {3: 0.495256762, 4: 0.499851274, 5: 0.500000493}
# Both roads are sums of at most a few thousand squares of numbers below 1 in double precision.
AGREE = 1e-11
#: First dimension from which the printed lower bound exceeds one neuron and the printed depth 3.
PRINTED = (19, 41)
LOWER = ("depth 2, printed", "depth 2, lemma", "depth 2, tail")
UPPER = ("depth 3, printed", "depth 3, built")


def tails(results: Sequence[Result], function: str) -> dict[int, Result]:
    """By dimension."""
    found = {
        r.run.config["d"]: r
        for r in results
        if r.run.config.get("part") == "tails"
        and r.run.config["function"] == function
        and r.outcome.status == "done"
    }
    return dict(sorted(found.items()))


def widths(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    """Curves against the dimension; of several results the longest."""
    found = [
        r.outcome.curves
        for r in results
        if r.run.config.get("part") == "widths" and r.outcome.status == "done"
    ]
    if not found:
        return {}
    longest = max(found, key=lambda curves: len(curves["tail"][0]))
    return {name: dict(zip(*curve, strict=True)) for name, curve in longest.items()}


def crossings(curves: Mapping[str, Mapping[int, float]], lower: str) -> dict[str, int | None]:
    """The dimension from which on ``lower`` exceeds one neuron and each width of depth 3.

    None: it does not up to the last dimension that is stored.
    """
    last = max(curves[lower])
    found: dict[str, int | None] = {}
    for name in ("one neuron", *UPPER):
        upper = dict.fromkeys(curves[lower], 0.0) if name == "one neuron" else curves[name]
        try:
            found[name] = crossing_dimension(
                curves[lower].__getitem__, upper.__getitem__, last=last
            )
        except ConfigError:
            found[name] = None
    return found


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Every claim, judged by what is stored."""
    paper, smooth = tails(results, "paper"), tails(results, "smooth")
    curves = widths(results)
    return [
        _roads([*paper.values(), *smooth.values()]),
        _known(paper),
        _lemma(paper, smooth),
        _conclusion(paper, curves),
        _smooth(smooth),
        _printed(curves),
    ]


def _roads(every: Sequence[Result]) -> Verdict:
    claim = "Quadrature and the recurrence of Bessel functions agree"
    if not every:
        return decide(claim, None)
    apart = max(r.outcome.metrics["apart"] for r in every)
    degrees = int(sum(r.outcome.metrics["degrees"] for r in every))
    return decide(claim, apart <= AGREE, f"{degrees:,} tails, at most {apart:.1e} apart")


def _known(paper: Mapping[int, Result]) -> Verdict:
    claim = "Tails at n = d^2 are " + ", ".join(f"{v:.9f} (d = {d})" for d, v in KNOWN.items())
    seen = {
        d: paper[d].outcome.metrics[road]
        for d in KNOWN
        for road in ("tail_quadrature", "tail_recurrence")
        if d in paper
    }
    if not seen:
        return decide(claim, None)
    held = all(abs(value - KNOWN[d]) <= 5.1e-10 for d, value in seen.items())
    return decide(claim, held, ", ".join(f"d = {d}: {value:.9f}" for d, value in seen.items()))


def _lemma(*kinds: Mapping[int, Result]) -> Verdict:
    claim = "Lemma: the tail of sin(pi sqrt(d) m t) is at least (m - k) / (4 e pi m), every k < m"
    every = [(r.outcome.metrics["lemma_ratio"], d) for kind in kinds for d, r in kind.items()]
    if not every:
        return decide(claim, None)
    ratio, d = min(every)
    return decide(claim, ratio >= 1, f"the tail is at least {ratio:.1f} times that, d = {d}")


def _conclusion(paper: Mapping[int, Result], curves: Mapping[str, Mapping[int, float]]) -> Verdict:
    claim = f"Conclusion, for the square: ||P_n F||^2 >= 1/(5 e pi) = {CONCLUSION:.4f} at n = d^2"
    seen = {d: r.outcome.metrics["tail_recurrence"] for d, r in paper.items()}
    seen.update(curves.get("tail", {}))
    if not seen:
        return decide(claim, None)
    least = min(seen, key=seen.__getitem__)
    text = f"d = {min(seen)} to {max(seen)}: at least {seen[least]:.4f}, at d = {least}"
    lemma = [d for d, bound in curves.get("lemma", {}).items() if bound >= CONCLUSION * (1 - 1e-12)]
    known = f"; the lemma alone gives it from d = {min(lemma)} on" if lemma else ""
    return decide(claim, seen[least] >= CONCLUSION, text + known)


def _smooth(smooth: Mapping[int, Result]) -> Verdict:
    claim = "sin(pi sqrt(d) t) has no such tail: at n = d^2 it is below the squared error asked for"
    if not smooth:
        return decide(claim, None)
    seen = {d: r.outcome.metrics["tail_recurrence"] for d, r in smooth.items()}
    above = {d: value for d, value in seen.items() if value >= SQUARED_ERROR}
    text = ", ".join(f"d = {d}: {value:.1e}" for d, value in seen.items())
    text += f"; asked for: {SQUARED_ERROR:.1e}"
    last = max(seen)
    if above and last not in above:
        text += f"; from d = {max(above) + 1} on"
    return decide(claim, last not in above, text)


def _printed(curves: Mapping[str, Mapping[int, float]]) -> Verdict:
    claim = (
        f"The printed width of depth 2 exceeds one neuron from d = {PRINTED[0]} and the printed "
        f"width of depth 3 from d = {PRINTED[1]}"
    )
    if not curves:
        return decide(claim, None)
    found = crossings(curves, LOWER[0])
    seen = (found["one neuron"], found["depth 3, printed"])
    last = max(curves["tail"])
    text = f"{_at(seen[0])} and {_at(seen[1])}, looked at up to d = {last}"
    if last < PRINTED[1] and seen[1] is None and seen[0] in (None, PRINTED[0]):
        return Verdict(claim, NO_DATA, text)
    return decide(claim, seen == PRINTED, text)


def _at(d: int | None) -> str:
    return "not reached" if d is None else f"d = {d}"


def tails_table(results: Sequence[Result], title: str) -> Table:
    """One row for each function and dimension; crossings and verdicts below."""
    rows: list[list[Cell]] = []
    for function in ("paper", "smooth"):
        for d, result in tails(results, function).items():
            seen = result.outcome.metrics
            name = "sin(pi d^3 t)" if function == "paper" else "sin(pi sqrt(d) t)"
            both = [f"{seen[f'tail_{road}']:.9g}" for road in ("quadrature", "recurrence")]
            rows.append([name, d, d * d, *both, seen["apart"], seen["lemma"], seen["squared_norm"]])
    columns = [
        "function", "d", "n", "tail, quadrature", "tail, recurrence", "largest difference",
        "lemma's bound", "squared norm",
    ]  # fmt: skip
    notes = [
        "largest difference: between both roads, over all degrees. Quadrature subtracts from the "
        "squared norm, so of a tail below 1e-15 it knows nothing.",
        *_crossing_notes(results),
    ]
    return Table(columns, rows, title, [*notes, *(one.text() for one in verdicts(results))])


def _crossing_notes(results: Sequence[Result]) -> list[str]:
    curves = widths(results)
    if not curves:
        return []
    notes = []
    for name in LOWER:
        found = crossings(curves, name)
        said = "; ".join(f"{upper}: {_at(d)}" for upper, d in found.items())
        notes.append(f"lower bound on {name} exceeds {said}.")
    return notes
