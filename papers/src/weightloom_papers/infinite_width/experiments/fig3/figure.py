"""The figure of ``fig3``: images, reconstructions and their standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.images import set_name
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import caption, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_fig3"]


def draw_fig3(results: Sequence[Result], rows: Mapping[str, str]) -> Mapping[str, Figure]:
    """A column for each image and a row for each of ``rows`` (name of the curve -> label)."""
    if not results:
        return {}
    result = max(results, key=lambda result: result.outcome.metrics["side"])
    shown, side = int(result.run.config["shown"]), int(result.outcome.metrics["side"])
    figure, axes = new_figure(len(rows), shown, size=(1.0, 1.0))
    for row, (name, label) in enumerate(rows.items()):
        values = result.outcome.curves[name][1]
        top = max(values) if name == "deviation" else 1.0
        for column in range(shown):
            panel = axes[row * shown + column]
            part = values[column * side**2 : (column + 1) * side**2]
            picture = [part[i * side : (i + 1) * side] for i in range(side)]
            panel.imshow(picture, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.grid(False)
            for spine in panel.spines.values():  # the largest deviation is white on white
                spine.set(visible=True, color="0.6", linewidth=0.5)
        axes[row * shown].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    metrics = result.outcome.metrics
    caption(
        figure,
        f"{set_name([result])}, {result.run.config['images']} training images, every pixel; f sees "
        "the upper half. The last row is the standard deviation of the NNGP's posterior, 0 is "
        f"black, white {max(result.outcome.curves['deviation'][1]):.2f}; on a torus it is the same "
        "at every pixel of an image, seen or not. Error on the hidden half:"
        f" hypernetwork {metrics['hypernetwork_hidden']:.4f}, hyperkernel "
        f"{metrics['hyperkernel_hidden']:.4f}, NNGP {metrics['nngp_hidden']:.4f}; "
        f"{metrics['inside_95']:.0%} of its pixels are inside the posterior's 95 percent interval.",
    )
    return {"": figure}
