"""Tails, widths, verdicts and the table of ``legendre-tails``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weightloom.errors import ConfigError
from weightloom_papers.depth_separation.separable import SQUARED_ERROR, crossing_dimension
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import NO_DATA, Verdict, decide

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
# Both sum a few thousand squares of numbers below 1; Bessel functions are off by up to 3e-13.
AGREE = 1e-11
#: First dimension from which the printed lower bound exceeds one neuron and the printed depth 3.
PRINTED = (19, 41)
LOWER = ("depth 2, printed", "depth 2, lemma", "depth 2, tail")
UPPER = ("depth 3, printed", "depth 3, built")


def tails(results: Sequence[Result], function: str) -> dict[int, Result]:
    """The finished runs for one function, by dimension."""
    by_dimension = {
        r.run.config["d"]: r
        for r in results
        if r.run.config.get("part") == "tails"
        and r.run.config["function"] == function
        and r.outcome.status == "done"
    }
    return dict(sorted(by_dimension.items()))


def widths(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    """The longest stored curves: name -> dimension -> value."""
    curves_of_runs = [
        r.outcome.curves
        for r in results
        if r.run.config.get("part") == "widths" and r.outcome.status == "done"
    ]
    if not curves_of_runs:
        return {}
    longest = max(curves_of_runs, key=lambda curves: len(curves["tail"][0]))
    return {name: dict(zip(*curve, strict=True)) for name, curve in longest.items()}


def crossings(curves: Mapping[str, Mapping[int, float]], lower: str) -> dict[str, int | None]:
    """The dimension from which on ``lower`` exceeds one neuron and each width of depth 3.

    None: it does not up to the last dimension that is stored.
    """
    last = max(curves[lower])
    dimensions: dict[str, int | None] = {}
    for name in ("one neuron", *UPPER):
        upper = dict.fromkeys(curves[lower], 0.0) if name == "one neuron" else curves[name]
        try:
            dimensions[name] = crossing_dimension(
                curves[lower].__getitem__, upper.__getitem__, last=last
            )
        except ConfigError:
            dimensions[name] = None
    return dimensions


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Every claim, judged by what is stored."""
    paper, smooth = tails(results, "paper"), tails(results, "smooth")
    curves = widths(results)
    return [
        _methods_agree([*paper.values(), *smooth.values()]),
        _known(paper),
        _lemma(paper, smooth),
        _conclusion(paper, curves),
        _smooth(smooth),
        _printed(curves),
    ]


def _methods_agree(every: Sequence[Result]) -> Verdict:
    claim = "Quadrature and Bessel functions agree"
    if not every:
        return decide(claim, None)
    apart = max(r.outcome.metrics["apart"] for r in every)
    degrees = int(sum(r.outcome.metrics["degrees"] for r in every))
    return decide(claim, apart <= AGREE, f"{degrees:,} tails, at most {apart:.1e} apart")


def _known(paper: Mapping[int, Result]) -> Verdict:
    claim = "Tails at n = d^2 are " + ", ".join(f"{v:.9f} (d = {d})" for d, v in KNOWN.items())
    seen = {
        d: paper[d].outcome.metrics[name]
        for d in KNOWN
        for name in ("tail_quadrature", "tail_recurrence")
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
    crossed = crossings(curves, LOWER[0])
    seen = (crossed["one neuron"], crossed["depth 3, printed"])
    last = max(curves["tail"])
    text = f"{_at(seen[0])} and {_at(seen[1])}, computed up to d = {last}"
    if last < PRINTED[1] and seen[1] is None and seen[0] in (None, PRINTED[0]):
        return Verdict(claim, NO_DATA, text)
    return decide(claim, seen == PRINTED, text)


def _at(d: int | None) -> str:
    return "not reached" if d is None else f"d = {d}"


def tails_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each function and dimension; crossings and verdicts below."""
    rows: list[list[Cell]] = []
    for function in ("paper", "smooth"):
        for d, result in tails(results, function).items():
            seen = result.outcome.metrics
            name = "sin(pi d^3 t)" if function == "paper" else "sin(pi sqrt(d) t)"
            both = [f"{seen[f'tail_{method}']:.9g}" for method in ("quadrature", "recurrence")]
            rows.append([name, d, d * d, *both, seen["apart"], seen["lemma"], seen["squared_norm"]])
    columns = [
        "function", "d", "n", "tail, quadrature", "tail, Bessel", "largest difference",
        "lemma's bound", "squared norm",
    ]  # fmt: skip
    notes = [
        "largest difference: between both methods, over all degrees. Quadrature subtracts from the "
        "squared norm, so it cannot resolve a tail below 1e-15.",
        *_crossing_notes(results),
    ]
    notes += [verdict.text() for verdict in verdicts(results)]
    return ResultTable(columns, rows, title, notes)


def _crossing_notes(results: Sequence[Result]) -> list[str]:
    curves = widths(results)
    if not curves:
        return []
    notes = []
    for name in LOWER:
        crossed = crossings(curves, name)
        text = "; ".join(f"{upper}: {_at(d)}" for upper, d in crossed.items())
        notes.append(f"lower bound on {name} exceeds {text}.")
    return notes
