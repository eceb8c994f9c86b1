"""What ``depth-separation`` says about depth and training, as verdicts from stored numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from weightloom.experiments.modularity.fig3_statistics import differences
from weightloom.experiments.separation.depth_numbers import Point, by_hand, longer, points, usual
from weightloom.experiments.verdicts import (
    FAILS,
    HOLDS,
    PARTLY,
    UNCLEAR,
    Verdict,
    decide,
)
from weightloom.lab import Result

__all__ = ["FOUND", "LEARNED", "verdicts"]

#: Below half of the variance a function counts as learned.
LEARNED = 0.5
#: A represented function counts as found if training is as good as the network by hand, or this.
FOUND = 0.05
#: Differences below a tenth of the error are not called better or worse.
LITTLE = 0.1


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Every claim, judged by what is stored."""
    every = points(results)
    sphere, sawtooth = usual(every, "sphere"), usual(every, "sawtooth")
    built = by_hand(results)
    made = [_better("sin(pi w <x, x'>)", sphere, 3), _papers(sphere)]
    made.append(_found("sin(pi w <x, x'>) by depth 3", [p for p in sphere if p.depth == 3], built))
    for depth in sorted({point.depth for point in sawtooth if point.depth > 2}) or [3]:
        made.append(_better("Delta^k", sawtooth, depth))
    made.append(_found("Delta^k", sawtooth, built))
    made.append(_pieces(every))
    made += [_patience(before, after) for before, after in longer(every)]
    return made


def _better(what: str, every: Sequence[Point], depth: int) -> Verdict:
    """Function by function, against depth 2, seed by seed.

    Each function has its own variance: errors of 1e-5 vary by factors, those near 1 hardly at all.
    """
    claim = f"Depth {depth} learns {what} to a lower error than depth 2 with as many parameters"
    shallow = {(p.d, p.level): p for p in every if p.depth == 2}
    deep = {(p.d, p.level): p for p in every if p.depth == depth}
    both = sorted(shallow.keys() & deep.keys())
    logs = {i: _logs(shallow[key], deep[key]) for i, key in enumerate(both)}
    gaps = {i: differences({0: each})[0] for i, each in logs.items() if each}  # > 0: deep is better
    little = -math.log(1 - LITTLE)
    won = [both[i] for i, gap in gaps.items() if gap.low > 0 and gap.mean > little]
    lost = [both[i] for i, gap in gaps.items() if gap.high < 0 and gap.mean < -little]
    if not gaps:
        return decide(claim, None)
    said = [f"{word} at {_names(shallow[k] for k in keys)}" for word, keys in
            (("lower", won), ("higher", lost)) if keys]  # fmt: skip
    rest = len(gaps) - len(won) - len(lost)
    said += [f"no clear difference of {LITTLE:.0%} at {rest} of {len(gaps)}"] if rest else []
    word = PARTLY if won and lost else HOLDS if won else FAILS if lost else UNCLEAR
    return Verdict(claim, word, " - ".join(said))


def _logs(one: Point, other: Point) -> list[float]:
    """log error of ``one`` minus that of ``other``, for the seeds that both have finished."""
    return [
        math.log(max(one.errors[seed], 1e-12)) - math.log(max(other.errors[seed], 1e-12))
        for seed in sorted(one.errors.keys() & other.errors.keys())
        if math.isfinite(one.errors[seed]) and math.isfinite(other.errors[seed])
    ]


def _papers(sphere: Sequence[Point]) -> Verdict:
    claim = f"The paper's frequency d^3 is learned by depth 3 (error below {LEARNED:g})"
    here = [p for p in sphere if p.depth == 3 and p.level == p.d**3]
    if not here:
        return decide(claim, None)
    text = "; ".join(f"d = {p.d}: {_text(p)}" for p in here)
    if all(p.estimate.high < LEARNED for p in here):
        return Verdict(claim, HOLDS, text)
    missed = any(p.estimate.low > LEARNED or not p.finite for p in here)
    return Verdict(claim, FAILS if missed else UNCLEAR, text)


def _found(
    what: str,
    every: Sequence[Point],
    built: Mapping[tuple[str, int, int, int], Mapping[str, float]],
) -> Verdict:
    claim = f"Gradient descent finds {what} wherever the same layers, by hand, represent it"
    hands = [(p, built.get((p.task, p.d, p.level, p.depth))) for p in every]
    there = [(p, hand) for p, hand in hands if hand is not None and hand["fits"]]
    if not there:
        return decide(claim, None)
    goals = [(p, max(hand["relative"], FOUND)) for p, hand in there]
    missed = [p for p, goal in goals if p.estimate.low > goal or not p.finite]
    reached = [p for p, goal in goals if p.estimate.high <= goal]
    text = f"found {len(reached)} of {len(there)}"
    if missed:
        worst = max(missed, key=lambda p: p.estimate.mean if p.finite else math.inf)
        hand = next(hand for p, hand in there if p is worst)
        text += f", missed {len(missed)}; worst: {worst.name}, depth {worst.depth}: {_text(worst)}"
        text += f" where {hand['relative']:.2g} is written by hand"
    word = FAILS if missed else HOLDS if len(reached) == len(there) else UNCLEAR
    return Verdict(claim, word, text)


def _pieces(every: Sequence[Point]) -> Verdict:
    claim = "No network is nearer to Delta^k in L1 than its number of pieces allows"
    slack = [p.slack for p in every if math.isfinite(p.slack)]
    if not slack:
        return decide(claim, None)
    count = sum(len(p.errors) for p in every if math.isfinite(p.slack))
    # Distances are finite sums in double precision.
    return decide(claim, min(slack) >= -1e-12, f"{count} networks, nearest {min(slack):.2g} above")


def _patience(before: Point, after: Point) -> Verdict:
    """Whether more steps make the difference between not learned and learned."""
    factor = after.steps / before.steps
    claim = (
        f"{factor:g} times as many steps are enough to learn {after.name} with depth {after.depth}"
    )
    text = f"{_text(before)} before, {_text(after)} after"
    estimate = after.estimate
    if not after.finite or estimate.low > LEARNED:
        return Verdict(claim, FAILS, text)
    return Verdict(claim, HOLDS if estimate.high < LEARNED else UNCLEAR, text)


def _text(point: Point) -> str:
    if not point.finite:
        return "diverged"
    estimate = point.estimate
    spread = f" ± {estimate.high - estimate.mean:.2g}" if math.isfinite(estimate.high) else ""
    return f"{estimate.mean:.3g}{spread}"


def _names(every: Iterable[Point]) -> str:
    """d = 2, frequency 1, 2; d = 3, frequency 1."""
    kinds: dict[str, list[str]] = {}
    for point in every:
        kind = f"d = {point.d}, frequency" if point.task == "sphere" else "k ="
        kinds.setdefault(kind, []).append(str(point.level))
    return "; ".join(f"{kind} {', '.join(levels)}" for kind, levels in kinds.items())
