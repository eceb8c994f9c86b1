"""The demo end to end: what it writes, that it can be repeated, that it can be stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from weightloom.cli import main
from weightloom.data import load_digits, pixel_centres
from weightloom.demo import DemoResult, DemoSettings, coordinate_network, run_demo, write_report
from weightloom.demo import training as demo_training
from weightloom.demo.pictures import STEPS, between_embeddings, between_networks, hardest
from weightloom.demo.report import compared, verdict
from weightloom.demo.training import DemoHistory, Shifted

SECTIONS = [
    "results",
    "reconstructions",
    "hardest",
    "super-resolution",
    "interpolation",
    "curves",
    "network",
    "method",
]
VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """The parts of a page that tests look at; asserts that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append(attributes["id"] or "")
        if tag == "img":
            self.images.append(attributes)
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            if name in attributes:
                self.links.append(attributes[name] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return run_demo(DemoSettings(smoke=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke run by the command line in a process of its own."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "out"
    done = subprocess.run(
        [sys.executable, "-m", "weightloom", "demo", "--smoke", "--out", str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_the_terminal_shows_the_table_and_the_verdict(folder: Path, result: DemoResult) -> None:
    out, err = (folder / "stdout").read_text(), (folder / "stderr").read_text()
    assert "equal size (561, 571 and 565 weights for each point" in out
    row = next(line for line in out.splitlines() if line.startswith("hypernetwork  "))
    assert f"{result.hyper.mse:.5f}" in row
    assert f"{result.hyper.ratio:.4f}" in row
    assert "226,609" in row
    for name in ("FiLM network  ", "embedding network  ", "mean image  ", "mean brightness  "):
        assert f"\n{name}" in out
    assert verdict(result) in out
    assert str(folder / "report.html") in out
    assert "3/3" in err  # the progress bars


def test_the_page_is_complete_and_self_contained(folder: Path) -> None:
    page = Page((folder / "report.html").read_text())
    assert page.sections == SECTIONS
    # 4 strips of 10, twice; 5 strips of 10; 5 strips of 9.
    assert len(page.images) == 40 + 40 + 50 + 5 * STEPS
    assert all(image["alt"] for image in page.images)
    assert page.links
    assert all(link.startswith(("data:", "#")) for link in page.links)
    text = (folder / "report.html").read_text()
    assert "url(http" not in text
    assert "@import" not in text
    assert "<script" not in text
    assert "A smoke run" in text
    assert text.count("<svg") == 1
    curves = text[text.index("<svg") : text.index("</svg>")]
    assert all(colour in curves for colour in ("var(--hyper)", "var(--film)", "var(--rival)"))


def test_only_the_files_it_names(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()} - {"stdout", "stderr"}
    assert names == {"report.html", "results.json", "digit-3.safetensors"}


def test_saved_network_draws_the_digit(folder: Path, result: DemoResult) -> None:
    state = load_file(folder / "digit-3.safetensors")
    weights = [value.numel() for name, value in state.items() if name != "0.matrix"]
    assert sum(weights) == result.hyper.primary
    network = coordinate_network()
    network.load_state_dict(state)
    row = result.data.held_out_labels.tolist().index(3)
    with torch.no_grad():
        drawn = network(pixel_centres(8)).squeeze(-1)
    torch.testing.assert_close(drawn, result.hyper.drawn[row], atol=1e-5, rtol=1e-4)
    other = result.hyper.drawn[row + 1]
    assert (drawn - other).abs().max() > 0.05


def test_same_seed_same_numbers_across_processes(folder: Path, result: DemoResult) -> None:
    numbers = json.loads((folder / "results.json").read_text())
    for contender in result.contenders:
        stored = numbers["networks"][contender.name]
        assert stored["mse"] == contender.mse
        assert stored["held-out mse by epoch"] == contender.history.evaluation
        assert stored["train mse by epoch"] == contender.history.train


def test_other_seed_other_numbers_same_images(result: DemoResult) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    other = run_demo(DemoSettings(smoke=True, epochs=1, seed=1))
    assert other.hyper.history.train[0] != result.hyper.history.train[0]
    assert torch.equal(other.data.held_out, result.data.held_out)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_numbers_equal_the_plain_formulas(result: DemoResult) -> None:
    truth = load_digits().held_out.double()
    for contender in result.contenders:
        mse = (contender.drawn.double() - truth).square().mean().item()
        assert contender.mse == pytest.approx(mse, rel=1e-5)
        assert contender.ratio == pytest.approx(mse / truth.var(correction=0).item(), rel=1e-5)
        assert contender.history.evaluation[-1] == pytest.approx(mse, rel=1e-4)
    image, grey = result.baselines
    assert 0.3 < image.ratio < 0.7
    assert grey.ratio == pytest.approx(1.0, abs=0.01)


def test_a_few_epochs_already_beat_the_mean_image(result: DemoResult) -> None:
    assert result.hyper.ratio < 0.5 * result.baselines[0].ratio


def test_equal_sizes(result: DemoResult) -> None:
    assert result.film is not None
    assert result.embedding is not None
    own = result.hyper
    for rival in (result.film, result.embedding):
        assert abs(rival.primary - own.primary) < 0.02 * own.primary
        assert abs(rival.trainable - own.trainable) < 0.01 * own.trainable
        assert rival.trainable == sum(p.numel() for p in rival.model.parameters())
        assert result.sizes[rival.name]["primary"] == rival.primary
    network = coordinate_network()
    assert own.primary == sum(p.numel() for p in network.parameters())
    predictor = result.embedding.model.predictor
    assert result.embedding.primary == sum(p.numel() for p in predictor.parameters())
    # Both hidden layers have one scale and one shift for each of 15 features.
    film = result.film.model
    assert film.spec.size == 4 * 15
    weights = sum(p.numel() for p in film.materialize(result.data.held_out[0]).parameters())
    assert result.film.primary == weights + 4 * 15


def test_all_networks_see_the_same_waves(result: DemoResult) -> None:
    assert result.film is not None
    assert result.embedding is not None
    own = result.hyper.model.primary[0].matrix
    assert torch.equal(own, result.film.model.primary[0].matrix)
    assert torch.equal(own, result.embedding.model.predictor.waves.matrix)
    assert torch.equal(own, coordinate_network()[0].matrix)
    assert not torch.equal(own, coordinate_network(seed=1)[0].matrix)


def test_batches_move_points_with_the_image() -> None:
    ramp = pixel_centres(8)[:, 0] * 0.1 + 0.5  # brightness is a function of x alone
    images = ramp.expand(64, 64).contiguous()
    generator = torch.Generator().manual_seed(0)
    (points, conditions), targets = Shifted(8)((images,), images, generator)
    inner = (pixel_centres(8).abs() < 0.8).all(dim=1)  # the edge lets darkness in
    assert torch.equal(points[:32], pixel_centres(8).expand(32, -1, -1))
    assert torch.equal(targets[:32], conditions[:32])
    by = (points - pixel_centres(8))[:, 0]
    assert by[32:].abs().max() <= 0.125
    assert by[32:].std() > 0.05
    # A moved ramp at x is the old one at x - by: so are the targets, at the moved points.
    moved = 0.1 * (pixel_centres(8)[:, 0] - by[32:, :1]) + 0.5
    torch.testing.assert_close(conditions[32:, inner], moved[:, inner])
    torch.testing.assert_close(targets[32:], ramp.expand(32, 64))


def test_lines_between_weights(result: DemoResult) -> None:
    first, last = result.data.held_out[:2]
    assert result.film is not None
    for contender in (result.hyper, result.film):
        model = contender.model
        drawn = between_networks(model, first, last, 8)
        assert drawn.shape == (STEPS, 64)
        torch.testing.assert_close(drawn[0], contender.drawn[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(drawn[-1], contender.drawn[1], atol=1e-5, rtol=1e-4)
        weights = model.weights(torch.stack([first, last]))
        with torch.no_grad():
            mean = {name: value.mean(0) for name, value in weights.items()}
            middle = model.run(pixel_centres(8), mean).squeeze(-1)
        torch.testing.assert_close(drawn[STEPS // 2], middle, atol=1e-5, rtol=1e-4)


def test_line_between_embeddings_ends_at_the_images(result: DemoResult) -> None:
    rival = result.embedding
    assert rival is not None
    drawn = between_embeddings(rival.model, *result.data.held_out[:2], side=8)
    torch.testing.assert_close(drawn[0], rival.drawn[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(drawn[-1], rival.drawn[1], atol=1e-5, rtol=1e-4)


def test_hardest_images_have_the_largest_errors(result: DemoResult) -> None:
    rows = hardest(result, 5)
    errors = result.hyper.errors
    rest = [i for i in range(len(errors)) if i not in rows]
    assert errors[rows].min() >= errors[rest].max()
    assert errors[rows[0]] == errors.max()


def test_verdict_follows_the_numbers(result: DemoResult) -> None:
    hyper, _, rival = result.contenders
    low, high = torch.full((360,), 0.01), torch.full((360,), 0.04)
    first, second = replace(hyper, errors=low), replace(rival, errors=high)
    text = compared(first, second)
    assert text.startswith(
        "The hypernetwork has a lower held-out MSE than the embedding network: 0.01000 against"
    )
    assert "4.0 times lower" in text
    assert "360 of 360" in text
    swapped = compared(replace(hyper, errors=high), replace(rival, errors=low))
    assert swapped.startswith("The embedding network has a lower")
    noise = torch.randn(360, generator=torch.Generator().manual_seed(0)) * 0.02
    noise = noise - noise.mean() + 1e-4
    close = compared(first, replace(rival, errors=low + noise))
    assert close.startswith("No clear difference")
    short = replace(second, history=DemoHistory(3, train=[1.0]))
    assert "This is no fair comparison" in compared(first, short)
    assert len(verdict(result).splitlines()) == 2
    assert "nothing to compare" in verdict(replace(result, film=None, embedding=None))


def interrupt_in(monkeypatch: pytest.MonkeyPatch, network: int, after: int) -> None:
    """Press Ctrl-C when the given network (0, 1 or 2) has made so many epochs."""
    real, calls = demo_training.train, []

    def train(*args: Any, on_evaluation: Any, **kwargs: Any) -> Any:
        calls.append(0)
        done = []

        def press(*values: Any) -> None:
            on_evaluation(*values)
            done.append(0)
            if len(calls) == network + 1 and len(done) == after:
                raise KeyboardInterrupt

        return real(*args, on_evaluation=press, **kwargs)

    monkeypatch.setattr(demo_training, "train", train)


@pytest.mark.parametrize("network", [0, 1, 2])
def test_interrupt_keeps_what_was_done(
    network: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: DemoResult,
) -> None:
    interrupt_in(monkeypatch, network, after=1)
    assert main(["demo", "--smoke", "--out", str(tmp_path)]) == 130
    out = capsys.readouterr().out
    name = result.contenders[network].name
    assert f"Stopped after 1 of 3 epochs of the {name}." in out
    text = (tmp_path / "report.html").read_text()
    assert Page(text).sections == SECTIONS
    assert "Stopped early" in text
    assert text.count("was not trained") == 2 - network
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert numbers["stopped early"] is True
    assert len(numbers["networks"]) == network + 1
    stopped = numbers["networks"][name]
    # The first epoch of an interrupted run is the first epoch of a whole one.
    assert stopped["held-out mse by epoch"] == result.contenders[network].history.evaluation[:1]
    assert (tmp_path / "digit-3.safetensors").exists()


def test_second_interrupt_quits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_in(monkeypatch, 0, after=1)

    def again(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_training, "squared_errors", again)
    assert main(["demo", "--smoke", "--out", str(tmp_path)]) == 130
    assert "weightloom: stopped" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_quiet_prints_no_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--smoke", "--epochs", "1", "--quiet", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Handwritten digits" not in out
    assert "MSE/variance" in out
    assert "report.html" in out


def test_writing_replaces_an_earlier_run(result: DemoResult, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    written = write_report(result, tmp_path)
    assert [path.name for path in written] == ["report.html", "digit-3.safetensors", "results.json"]
    assert (tmp_path / "report.html").read_text() != "old"
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not list(tmp_path.glob("*.part"))
