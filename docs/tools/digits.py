"""Draw images/digits.png from a report of the demo.

weightloom demo --out weightloom-demo
python docs/tools/digits.py weightloom-demo/report.html
"""

from __future__ import annotations

import base64
import io
import sys
from html.parser import HTMLParser
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "images" / "digits.png"
SECTION = "super-resolution"
TILE = 0.86  # inches


class Strips(HTMLParser):
    """The labelled strips of one section of the report: [(label, PNG of each picture)]."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.strips: list[tuple[str, list[bytes]]] = []
        self.inside = self.caption = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self.inside = given.get("id") == SECTION
        self.caption = self.inside and tag == "figcaption"
        if self.inside and tag == "img":
            data = (given["src"] or "").partition(",")[2]
            self.strips[-1][1].append(base64.b64decode(data))

    def handle_data(self, data: str) -> None:
        if self.caption:
            self.strips.append((data.strip(), []))
            self.caption = False


def draw(strips: list[tuple[str, list[bytes]]], path: Path) -> None:
    from matplotlib import image
    from matplotlib.figure import Figure

    columns = len(strips[0][1])
    figure = Figure(figsize=(TILE * columns, (TILE + 0.28) * len(strips)))
    axes = figure.subplots(len(strips), columns, squeeze=False)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.95, wspace=0.06, hspace=0.36)
    for (label, pictures), row in zip(strips, axes, strict=True):
        row[0].set_title(label, loc="left", fontsize=9, color="0.35", pad=4)
        for axis, picture in zip(row, pictures, strict=True):
            axis.imshow(image.imread(io.BytesIO(picture)), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set_color("0.85")
    figure.savefig(path, dpi=108, metadata={"Software": None})


if __name__ == "__main__":
    draw(Strips(Path(sys.argv[1]).read_text()).strips, PICTURE)
