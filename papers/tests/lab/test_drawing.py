"""The house style: readable, captions that fit, the same bytes each time; drawing from a store."""

from __future__ import annotations

import subprocess
import sys

import pytest

from papers.tests.lab.toy import Toy, outcome
from weightloom.errors import MissingDependencyError, OutputError
from weightloom_papers.errors import StoreError
from weightloom_papers.lab import Result, Run, Store, draw, drawing

matplotlib = pytest.importorskip("matplotlib")

LONG = "The error of a hypernetwork is lower than that of an embedding method, " * 8


def contrast(colour):
    """Of a colour against white, as the web's guidelines compute it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def drawn(figure):
    """The renderer of ``figure`` after a full layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def example(text=LONG):
    with drawing.style():
        figure, (left, right) = drawing.new_figure(1, 2, sharey=True)
        left.plot([1, 2, 3], label="hypernetwork")
        right.errorbar([1, 2], [3, 4], [0.5, 0.5], label="embedding")
        for axes in (left, right):
            axes.set_xlabel("depth")
            axes.set_ylabel("MSE / variance")
            axes.set_title("a title")
            axes.legend()
        drawing.caption(figure, text)
    return figure


def test_the_readers_settings_are_untouched():
    before = dict(matplotlib.rcParams)
    example()
    assert dict(matplotlib.rcParams) == before


def test_no_backend_is_chosen_and_pyplot_stays_away():
    code = """
import sys
from weightloom_papers.lab import drawing
figure, _ = drawing.new_figure()
drawing.caption(figure, "a caption")
figure.canvas.draw()
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fonts_can_be_read():
    figure = example()
    drawn(figure)
    texts = figure.findobj(matplotlib.text.Text)
    sizes = [text.get_fontsize() for text in texts if text.get_text()]
    assert len(sizes) > 10
    assert min(sizes) >= 10


def test_colours_are_distinguishable():
    assert len(set(drawing.COLOURS)) == len(drawing.COLOURS) == len(drawing.MARKERS)
    assert all(contrast(colour) > 2 for colour in drawing.COLOURS)
    assert contrast("#ffffff") == pytest.approx(1.0)
    figure = example()
    assert figure.axes[0].lines[0].get_color() == drawing.COLOURS[0]


def test_the_caption_is_under_the_axes_and_inside_the_figure():
    figure = example()
    renderer = drawn(figure)
    width, height = figure.bbox.width, figure.bbox.height
    (text,) = figure.texts
    box = text.get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    lowest = min(axes.get_tightbbox(renderer).y0 for axes in figure.axes)
    assert box.y1 <= lowest
    assert box.width > 0.85 * width  # the lines are filled
    assert height > figure.dpi * 4.0  # the figure has grown


def test_the_axes_do_not_shrink():
    plain = example("short")
    long = example(LONG * 2)
    drawn(plain)
    drawn(long)
    for a, b in zip(plain.axes, long.axes, strict=True):
        assert b.get_window_extent().height == pytest.approx(a.get_window_extent().height, abs=1)


def test_a_second_caption_is_a_paragraph_below():
    figure = example("One.")
    drawing.caption(figure, "Two: 3 of 4 runs, $not$ mathematics.")
    (text,) = figure.texts
    assert text.get_text() == "One.\nTwo: 3 of 4 runs, $not$ mathematics."
    assert drawing.captioned(figure, "3 of  4 runs")
    assert not drawing.captioned(figure, "4 of 4 runs")
    both = example("One.\n")
    drawing.caption(both, LONG)
    drawing.caption(both, LONG)
    at_once = example(LONG)
    drawing.caption(at_once, LONG)
    drawing.caption(at_once, "One.")
    assert both.get_size_inches() == pytest.approx(at_once.get_size_inches())


def test_equal_figures_give_equal_bytes(tmp_path):
    first = drawing.save(example(), tmp_path / "one.v1")
    second = drawing.save(example(), tmp_path / "two.v1")
    assert [path.name for path in first] == ["one.v1.png", "one.v1.svg"]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    svg = first[1].read_text()
    assert "<dc:date>" not in svg
    assert "Matplotlib v" not in svg
    other = drawing.save(example("another caption"), tmp_path / "other")
    assert other[1].read_bytes() != first[1].read_bytes()


def test_png_has_150_dots_per_inch(tmp_path):
    image = pytest.importorskip("PIL.Image")
    figure = example()
    png, _ = drawing.save(figure, tmp_path / "figure")
    width, height = figure.get_size_inches()
    with image.open(png) as picture:
        assert picture.size == (int(width * 150), int(height * 150))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom\[plot\]'"):
        drawing.require_matplotlib()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results.sqlite") as store:
        yield store


def fill(store, toy, scale, count=None):
    for run in toy.runs(scale)[:count]:
        store.add(Result(run, outcome(run)))


def test_draw_writes_all_files_from_the_store_alone(store, tmp_path):
    toy = Toy()
    toy.execute = None  # cannot run anything
    fill(store, toy, "smoke")
    drawn = draw(toy, store, tmp_path / "out", "smoke")
    names = [f"toy-smoke.{ending}" for ending in ("png", "svg", "txt", "csv")]
    assert [path.name for path in drawn.files] == names
    assert (drawn.stored, drawn.wanted) == (6, 6)
    text = (tmp_path / "out" / "toy-smoke.txt").read_text()
    assert toy.claim in text
    assert "Scale smoke, all 6 runs." in text
    values = (tmp_path / "out" / "toy-smoke.csv").read_text().splitlines()
    assert values[0] == "depth,seed,mse"
    for line, run in zip(values[1:], toy.runs("smoke"), strict=True):
        assert float(line.split(",")[2]) == outcome(run).metrics["mse"]  # all digits
    again = draw(toy, store, tmp_path / "again", "smoke")
    for a, b in zip(drawn.files, again.files, strict=True):
        assert a.read_bytes() == b.read_bytes()


class Captions(Toy):
    """Keeps its figures; with or without a caption of its own."""

    def figures(self, results):
        figure, _ = drawing.new_figure()
        if self.limit == 1:
            drawing.caption(figure, f"What we see. {self.claim}")
        self.kept = figure
        self.seen = results
        return {"-more": figure}


@pytest.mark.parametrize(
    ("limit", "start"),
    [(1, "What we see. The paper says"), (2, "The paper (modularity, Figure 1): The")],
)
def test_the_claim_is_in_the_caption_once(store, tmp_path, limit, start):
    toy = Captions(limit=limit)
    fill(store, toy, "smoke")
    drawn = draw(toy, store, tmp_path / "out", "smoke")
    caption = " ".join(toy.kept.texts[0].get_text().split())
    assert caption.startswith(start)
    assert caption.count(toy.claim) == 1
    assert caption.endswith("Scale smoke, all 6 runs.")
    assert drawn.files[0].name == "toy-smoke-more.png"


def test_partial_results_say_so_and_failures_are_left_out(store, tmp_path):
    toy = Captions()
    fill(store, toy, "laptop", 5)
    failed = outcome(toy.runs("laptop")[5])
    failed.status = "failed"
    store.add(Result(toy.runs("laptop")[5], failed))
    drawn = draw(toy, store, tmp_path / "out", "laptop")
    assert (drawn.stored, drawn.wanted) == (5, 12)
    assert [result.run for result in toy.seen] == toy.runs("laptop")[:5]
    caption = " ".join(toy.kept.texts[0].get_text().split())
    assert "Scale laptop, unfinished: 5 of 12 runs are stored" in caption


def test_the_scale_of_which_most_is_stored(store, tmp_path):
    toy = Toy()
    fill(store, toy, "smoke")
    assert draw(toy, store, tmp_path).scale == "smoke"  # of 12 and 18 there are 6 too: incomplete
    fill(store, toy, "laptop")
    assert draw(toy, store, tmp_path).scale == "laptop"


def test_nothing_stored(store, tmp_path):
    with pytest.raises(StoreError, match=r"`weightloom reproduce toy --scale laptop` runs it"):
        draw(Toy(), store, tmp_path / "out", "laptop")
    assert not (tmp_path / "out").exists()
    run = Toy().runs("laptop")[0]
    store.add(Result(Run("toy", {**run.config, "old": True}, 0), outcome(run)))
    with pytest.raises(
        StoreError, match=r"\(1 results of it have other settings: another scale or"
    ):
        draw(Toy(), store, tmp_path / "out", "laptop")


def test_a_place_that_cannot_be_written(store, tmp_path):
    fill(store, Toy(), "smoke")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot be written into .* the results are safe"):
        draw(Toy(), store, tmp_path / "file", "smoke")
