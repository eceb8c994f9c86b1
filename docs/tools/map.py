"""Draw the map of the code, docs/images/map.svg, from the tables in tests/architecture.py.

    python docs/tools/map.py

A row is a level, a box a folder, an arrow a declared import between siblings. Nothing that changes
with every commit is drawn, so the picture changes only with the architecture. A test compares the
committed file with what `svg` returns.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["Package", "packages", "svg"]

ROOT = Path(__file__).parent.parent.parent
TARGET = ROOT / "docs" / "images" / "map.svg"

WIDTH, MARGIN, PAD = 980, 16, 16
LABEL = 34  # for the level's number, left of the boxes
GAP, LINE = 12, 15  # between boxes; between lines of text
TITLE, NOTE = 44, 30  # height of a package's title, of the sentence at the end
ARC, LANE, PORT = 14, 8, 14  # room below a row for one arrow, for another; between arrows at a box
LETTER, SMALL = 8.0, 6.3  # widths of a letter in a name and in a caption, a little too large

STYLE = """\
text { font-family: system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
.page { fill: #ffffff; }
.panel { fill: #f6f8fa; stroke: #d0d7de; }
.box { fill: #ffffff; stroke: #c3ccd5; }
.title { font-size: 17px; font-weight: 600; fill: #1f2933; }
.note { font-size: 12.5px; fill: #57636f; }
.name { font: 600 13px ui-monospace, Menlo, Consolas, monospace; fill: #12323a; }
.caption { font-size: 11.5px; fill: #4a5763; }
.level { font-size: 12px; fill: #7b8794; }
.edge { fill: none; stroke: #b4530a; stroke-width: 1.6; }
.head { fill: #b4530a; }
.bar { fill: #0f8a83; }
.bar.alt { fill: #5b6ee1; }
@media (prefers-color-scheme: dark) {
  .page { fill: #14181d; }
  .panel { fill: #1b2128; stroke: #343d47; }
  .box { fill: #232b34; stroke: #46525e; }
  .title { fill: #e6edf3; }
  .note { fill: #a3b0bc; }
  .name { fill: #d5f2ef; }
  .caption { fill: #b3c0cc; }
  .level { fill: #8391a0; }
  .edge { stroke: #f0a355; }
  .head { fill: #f0a355; }
  .bar { fill: #35c2b8; }
  .bar.alt { fill: #93a1ff; }
}"""


@dataclass(frozen=True)
class Package:
    """A distribution: its folders by level, and the imports between siblings."""

    title: str
    note: str
    levels: Mapping[str, int]
    edges: Mapping[str, Sequence[str]] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


def svg(*packages: Package) -> str:
    """The picture, packages from top to bottom, each with its highest level on top."""
    parts: list[str] = []
    y = float(MARGIN)
    for number, package in enumerate(packages):
        lines, y = _panel(package, y, "bar" if number % 2 else "bar alt")
        parts += [*lines]
        y += GAP
    words = "A folder imports from the rows below it. Arrows are the only imports within a row."
    parts.append(_text(MARGIN + PAD, y + NOTE - 14, "note", words))
    height = y + NOTE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}" role="img" aria-label="Map of the code">',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="head" d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
            "</defs>",
            f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(package: Package, top: float, bar: str) -> tuple[list[str], float]:
    """One package, and where it ends."""
    inside: list[str] = []
    y = top + TITLE
    for level in sorted(set(package.levels.values()), reverse=True):
        names = [name for name, its in package.levels.items() if its == level]
        lines, y = _row(package, level, names, y, bar)
        inside += lines
        y += GAP
    end = y - GAP + PAD
    width = WIDTH - 2 * MARGIN
    head = [
        f'<rect class="panel" x="{MARGIN}" y="{top:g}" width="{width}" height="{end - top:g}" '
        f'rx="8"/>',
        _text(MARGIN + PAD, top + 28, "title", package.title),
        _text(WIDTH - MARGIN - PAD, top + 28, "note", package.note, anchor="end"),
    ]
    return head + inside, end


def _row(
    package: Package, level: int, names: Sequence[str], y: float, bar: str
) -> tuple[list[str], float]:
    left = MARGIN + PAD + LABEL
    width = (WIDTH - MARGIN - PAD - left - GAP * (len(names) - 1)) / len(names)
    titles = {name: _wrap(name.replace("_", "_ "), width, LETTER) for name in names}
    titles = {name: [line.replace("_ ", "_") for line in titles[name]] for name in names}
    captions = {name: _wrap(package.captions.get(name, ""), width, SMALL) for name in names}
    height = 18 + LINE * max(len(titles[name]) + len(captions[name]) for name in names)
    boxes = {name: Box(left + k * (width + GAP), y, width, height) for k, name in enumerate(names)}
    lines = [_text(MARGIN + PAD + LABEL / 2 - 4, y + height / 2 + 4, "level", str(level), "middle")]
    for name, box in boxes.items():
        lines += _box(box, titles[name], captions[name], bar)
    edges = [(a, b) for a in names for b in package.edges.get(a, ()) if b in boxes]
    lines += _arrows(boxes, edges)
    return lines, y + height + (ARC + LANE * (len(edges) - 1) if edges else 0)


def _box(box: Box, title: Sequence[str], caption: Sequence[str], bar: str) -> list[str]:
    x, y, width, height = (f"{value:.1f}" for value in (box.x, box.y, box.width, box.height))
    lines = [
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>',
        f'<rect class="{bar}" x="{x}" y="{y}" width="4" height="{height}" rx="2"/>',
    ]
    kinds = [("name", text) for text in title] + [("caption", text) for text in caption]
    for k, (kind, text) in enumerate(kinds):
        lines.append(_text(box.x + 12, box.y + 20 + LINE * k, kind, text))
    return lines


def _arrows(boxes: Mapping[str, Box], edges: Sequence[tuple[str, str]]) -> list[str]:
    """From below one box to below another: a lane for each, the shortest nearest to the boxes."""
    middle = {name: box.middle for name, box in boxes.items()}
    ports = {}
    for name in boxes:
        # The ends at one box lie side by side: those that lead to the left, the nearest first, then
        # those that lead to the right, the nearest last, so that arrows do not cross their own.
        ends = [edge for edge in edges if name in edge]
        far = {edge: sum(middle[other] for other in edge) - 2 * middle[name] for edge in ends}
        ends.sort(key=lambda edge: (far[edge] > 0, -far[edge]))
        for k, edge in enumerate(ends):
            ports[name, edge] = middle[name] + PORT * (k - (len(ends) - 1) / 2)
    ordered = sorted(edges, key=lambda edge: abs(middle[edge[0]] - middle[edge[1]]))
    return [
        _arrow(ports[edge[0], edge], ports[edge[1], edge], boxes[edge[0]].bottom, lane)
        for lane, edge in enumerate(ordered)
    ]


def _arrow(x1: float, x2: float, bottom: float, lane: int) -> str:
    turn = 6 if x2 > x1 else -6
    y = bottom + 12 + LANE * lane
    return (
        f'<path class="edge" marker-end="url(#head)" d="M{x1:.1f} {bottom:.1f} V{y - 6:.1f} '
        f"Q{x1:.1f} {y:.1f} {x1 + turn:.1f} {y:.1f} H{x2 - turn:.1f} "
        f'Q{x2:.1f} {y:.1f} {x2:.1f} {y - 6:.1f} V{bottom + 1:.1f}"/>'
    )


def _wrap(text: str, width: float, letter: float) -> list[str]:
    return textwrap.wrap(text, max(6, int((width - 18) / letter)), break_long_words=False)


def _text(x: float, y: float, kind: str, text: str, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{where}>{escape(text)}</text>'


def packages() -> list[Package]:
    """The two distributions, as tests/architecture.py declares them."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        import architecture as table
    finally:
        sys.path.pop(0)
    papers = Package(
        "weightloom_papers",
        "papers/src: the research, which uses the library",
        table.PAPERS_LEVELS,
        table.PAPERS_EDGES,
        table.PAPERS_CAPTIONS,
    )
    library = Package("weightloom", "src: the library", table.LEVELS, table.EDGES, table.CAPTIONS)
    return [papers, library]


if __name__ == "__main__":
    TARGET.write_text(svg(*packages()))
    print(f"written: {TARGET}")
