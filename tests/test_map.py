"""The map of the code in docs/design.md: drawn from the declared tables, and up to date."""

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests import architecture as table

ROOT = Path(__file__).parent.parent


def load():
    path = ROOT / "docs" / "tools" / "map.py"
    spec = importlib.util.spec_from_file_location("weightloom_map", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


MAP = load()


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.text]


def test_the_committed_picture_is_that_of_the_tables():
    """If this fails: python docs/tools/map.py"""
    assert (ROOT / "docs/images/map.svg").read_text() == MAP.svg(*MAP.packages())


def test_every_folder_and_every_edge_is_drawn():
    svg = MAP.svg(*MAP.packages())
    words = "".join(texts(svg))
    for name in [*table.LEVELS, *table.PAPERS_LEVELS]:
        assert name in words
    edges = [*table.EDGES.values(), *table.PAPERS_EDGES.values()]
    assert svg.count('class="edge"') == sum(map(len, edges))


def test_every_folder_has_a_caption():
    assert set(table.CAPTIONS) == set(table.LEVELS)
    assert set(table.PAPERS_CAPTIONS) == set(table.PAPERS_LEVELS)


def test_rows_are_levels_from_high_to_low():
    svg = MAP.svg(MAP.Package("p", "", {"low": 0, "high": 2, "mid": 1, "also": 1}))
    where = {
        name: float(re.search(rf'y="([\d.]+)">{name}<', svg)[1])
        for name in ("low", "mid", "also", "high")
    }
    assert where["high"] < where["mid"] == where["also"] < where["low"]


def test_an_arrow_starts_at_the_importer():
    levels = {"a": 1, "b": 1}
    forth = MAP.svg(MAP.Package("p", "", levels, {"a": ["b"]}))
    back = MAP.svg(MAP.Package("p", "", levels, {"b": ["a"]}))
    start = [float(re.search(r'url\(#head\)" d="M([\d.]+)', svg)[1]) for svg in (forth, back)]
    assert start[0] < start[1]


def test_text_stays_inside_the_picture():
    """Widths are estimated from above: no caption may need more than its box."""
    for package in MAP.packages():
        for names in rows(package):
            width = (MAP.WIDTH - 2 * (MAP.MARGIN + MAP.PAD) - MAP.LABEL) / len(names) - MAP.GAP
            for name in names:
                words = re.split(r"(?<=_)|\s", f"{name} {package.captions[name]}")
                assert max(map(len, words)) * MAP.LETTER < width - 12, name


def rows(package):
    for level in set(package.levels.values()):
        yield [name for name, its in package.levels.items() if its == level]
