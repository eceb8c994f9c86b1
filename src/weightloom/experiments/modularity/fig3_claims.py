"""Section 6's claims, each as a function from errors to a verdict and the evidence for it.

Errors are compared as logarithms, pair by pair: both models of a repetition had the same target and
the same data. "Clearly" means outside a 95 percent confidence interval. A claim "holds" or "fails"
only clearly; everything else is "unclear", which is what few repetitions often give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from weightloom.experiments.modularity.fig3_statistics import Estimate, change, differences

__all__ = ["LITTLE", "beats", "hardly_improves", "improves", "learned"]

#: An improvement below this share of the error is "slight" or "not significant".
LITTLE = 0.10

# {point of the sweep: {seed: log(MSE / variance)}}; NaN where the run diverged.
Errors = Mapping[int, Mapping[int, float]]


def beats(hyper: Errors, embedding: Errors) -> tuple[str, str]:
    """Claim 1, depth by depth."""
    depths = [depth for depth in hyper if depth >= 3 and depth in embedding]
    if not depths:
        return "no data", "no common depth of 3 or more"
    pairs = {
        depth: [
            embedding[depth][seed] - value
            for seed, value in hyper[depth].items()
            if not math.isnan(value) and not math.isnan(embedding[depth].get(seed, math.nan))
        ]
        for depth in depths
    }
    estimates = differences(pairs)
    said, wins, losses = [], 0, 0
    for depth in depths:
        text, won = _compare(estimates.get(depth), hyper[depth], embedding[depth])
        said.append(f"depth {depth}: {text}")
        wins, losses = wins + (won > 0), losses + (won < 0)
    verdict = "fails" if losses else "holds" if wins == len(depths) else "unclear"
    return verdict, "; ".join(said)


def _compare(
    gap: Estimate | None, hyper: Mapping[int, float], embedding: Mapping[int, float]
) -> tuple[str, int]:
    """What happened at one depth, and who clearly won: 1 the hypernetwork, -1 its rival, 0 none."""
    count, rivals = _diverged(hyper), _diverged(embedding)
    said = f"diverged: hypernetwork {count} of {len(hyper)}, embedding {rivals} of {len(embedding)}"
    if _lost(hyper) or _lost(embedding):
        return said, _lost(embedding) - _lost(hyper)
    if gap is None:
        return "no common repetition", 0
    word = "lower" if gap.mean > 0 else "higher"
    # exp(-gap): the hypernetwork's error as a share of its rival's.
    text = f"{abs(1 - math.exp(-gap.mean)):.0%} {word} ({_errors_text(gap)})"
    if count or rivals:
        text += f", {said}"
    return text, 1 if gap.low > 0 else -1 if gap.high < 0 else 0


def _sweep(errors: Errors) -> tuple[Estimate | None, str, bool]:
    """Change from the first to the last point that was not lost to divergence, in words too, and
    whether a point after the first one was lost."""
    clean = [point for point, seeds in errors.items() if not _lost(seeds)]
    notes = "".join(
        f"; {point}: {_diverged(seeds)} of {len(seeds)} diverged"
        for point, seeds in errors.items()
        if _diverged(seeds)
    )
    finite = [{s for s, v in errors[point].items() if not math.isnan(v)} for point in clean]
    common = set.intersection(*finite) if finite else set()
    broken = any(point > clean[0] for point in errors if point not in clean) if clean else False
    if len(clean) < 2 or not common:
        return None, f"fewer than two points to compare{notes}", broken
    estimate = change([[errors[point][seed] for seed in sorted(common)] for point in clean])
    gain = 1 - math.exp(-estimate.mean)
    text = (
        f"from {clean[0]} to {clean[-1]} the error {'falls' if gain >= 0 else 'grows'} by "
        f"{abs(gain):.0%} ({_errors_text(estimate)})"
    )
    return estimate, text + notes, broken


def improves(errors: Errors, sweep: str) -> tuple[str, str]:
    """Claim 2: clearly lower at the deepest than at the shallowest, no divergence on the way."""
    if len(errors) < 2:
        return "no data", f"fewer than two points of {sweep}"
    estimate, text, broken = _sweep(errors)
    if broken:
        return "fails", text
    if estimate is None:
        return "unclear", text
    if estimate.low > 0:
        return "holds", text
    # Not clearly better: it fails if any improvement that could hide in the interval is slight.
    return ("fails" if estimate.high < -math.log(1 - LITTLE) else "unclear"), text


def hardly_improves(errors: Errors, sweep: str) -> tuple[str, str]:
    """Claims 3 and 4: any improvement from the first to the last point is below `LITTLE`."""
    if len(errors) < 2:
        return "no data", f"fewer than two points of {sweep}"
    estimate, text, _ = _sweep(errors)
    if estimate is None:
        return "unclear", text
    slight = -math.log(1 - LITTLE)
    return (
        "holds" if estimate.high < slight else "fails" if estimate.low > slight else "unclear"
    ), text


def learned(points: Sequence[Mapping[int, float]]) -> tuple[str, str]:
    """Whether the best point is clearly below 1.0, or even the best is not below it."""
    clean = [
        [value for value in seeds.values() if not math.isnan(value)]
        for seeds in points
        if not _lost(seeds)
    ]
    if not points:
        return "no data", "no runs"
    if not clean:
        return "fails", "diverged everywhere"
    # Not pooled over points: how hard a repetition's target is shows at all of them.
    best = min(clean, key=statistics.fmean)
    estimate = differences({0: best})[0]
    text = f"best {math.exp(estimate.mean):.3f} of the target's variance"
    if estimate.mean >= 0:
        return "fails", text
    return ("holds" if estimate.high < 0 else "unclear"), text


def _diverged(seeds: Mapping[int, float]) -> int:
    return sum(1 for value in seeds.values() if math.isnan(value))


def _lost(seeds: Mapping[int, float]) -> bool:
    """Whether half of the repetitions or more diverged; fewer are mentioned, and left out."""
    return 2 * _diverged(seeds) >= len(seeds)


def _errors_text(estimate: Estimate) -> str:
    return f"{estimate.errors:+.1f} s.e." if estimate.freedom else "one repetition"
