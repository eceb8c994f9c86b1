"""Table 1: its protocols against dense algebra, its network, its numbers and its verdicts."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from weightloom.data import ImageSet
from weightloom.errors import ConfigError
from weightloom.experiments import all_experiments
from weightloom.experiments.infinite_width import fig3, protocol
from weightloom.experiments.infinite_width.protocol import (
    TASKS,
    coordinates,
    draw_images,
    draw_pixels,
    kernel_of,
    on_every_pixel,
    on_random_pixels,
    scores,
    seen_by,
)
from weightloom.experiments.infinite_width.table1 import (
    METHODS,
    VARIATIONS,
    Table1,
    feature_scale,
    measure,
)
from weightloom.experiments.infinite_width.table1_net import _best, train_hypernetwork
from weightloom.experiments.infinite_width.table1_numbers import (
    averaging,
    compared,
    entries,
    set_name,
    verdicts,
)
from weightloom.kernels import FourierFeatures
from weightloom.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom.lab.drawing import style
from weightloom.training import Report

SIDE = 6


def blobs(count: int, seed: int) -> torch.Tensor:
    """Bright spots at random places: images that have something in common."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1 + (SIDE - 3) * torch.rand(count, 1, 2, generator=generator)
    return (-(coordinates(SIDE) - centres).square().sum(-1) / 3).exp()


def small_set() -> ImageSet:
    train, test = blobs(40, 0), blobs(20, 1)
    labels = torch.zeros(40, dtype=torch.int64)
    return ImageSet("blobs", train, labels, test, labels[:20], SIDE, 1, "blobs")


DATA = small_set()
KERNEL = {
    "kind": "nngp", "subsets": 2, "scale": 5.0, "ridge": 1e-2, "normalise": True,
    "pixels": "random", "test_pixels": 7,
}  # fmt: skip
NET = {"subsets": 0, "scale": 5.0, "steps": 60, "rates": [1e-2]}


# -- protocol --------------------------------------------------------------------------------------


def test_draws_differ_in_one_thing() -> None:
    plain, inpaint = (draw_images(DATA, task, 12, 5, seed=3) for task in TASKS)
    assert torch.equal(plain.train, inpaint.train)
    assert torch.equal(plain.test, inpaint.test)
    assert torch.equal(draw_images(DATA, TASKS[0], 7, 5, seed=3).train, plain.train[:7])
    assert not torch.equal(draw_images(DATA, TASKS[0], 12, 5, seed=4).train, plain.train)
    assert not plain.hidden.any()
    assert inpaint.hidden.view(SIDE, SIDE)[SIDE // 2 :].all()
    assert not inpaint.hidden.view(SIDE, SIDE)[: SIDE // 2].any()
    for images, drawn in ((DATA.train, plain.train), (DATA.test, plain.test)):
        assert all((images == row).all(dim=1).any() for row in drawn)


def test_impossible_draws() -> None:
    with pytest.raises(ConfigError, match="task is 'sharpening'; wanted one of representation"):
        draw_images(DATA, "sharpening", 3, 3, 0)
    with pytest.raises(ConfigError, match="41 training and 3 test images are wanted, blobs has 40"):
        draw_images(DATA, TASKS[0], 41, 3, 0)


def test_f_sees_the_upper_half_at_one_length() -> None:
    draw = draw_images(DATA, "inpainting", 4, 3, 0)
    raw = seen_by(draw, draw.train, normalise=False).view(-1, SIDE, SIDE)
    assert torch.equal(raw[:, : SIDE // 2], draw.train.view(-1, SIDE, SIDE)[:, : SIDE // 2])
    assert not raw[:, SIDE // 2 :].any()
    seen = seen_by(draw, draw.train, normalise=True)
    torch.testing.assert_close(seen.norm(dim=1), torch.full((4,), float(SIDE)))


def test_pixels_are_different_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = draw_pixels(9, 36, 20, generator)
    assert all(len(set(row.tolist())) == 20 for row in drawn)
    assert len({tuple(sorted(row.tolist())) for row in drawn}) > 1
    same = draw_pixels(9, 36, 20, generator, same=True)
    assert (same == same[0]).all()


def test_scores_by_hand() -> None:
    draw = draw_images(DATA, "inpainting", 6, 3, 0)
    guess = torch.rand(3, SIDE**2, generator=torch.Generator().manual_seed(0))
    found = scores(guess, draw)
    half = SIDE**2 // 2
    errors = (guess - draw.test) ** 2
    assert found["mse"] == pytest.approx(float(errors.mean()))
    assert found["mse_hidden"] == pytest.approx(float(errors[:, half:].mean()))
    image = draw.train.sum(0) / 6
    expected = ((image - draw.test) ** 2)[:, half:].mean()
    assert found["mean_image_hidden"] == pytest.approx(float(expected))
    level = draw.train.sum() / draw.train.numel()
    assert found["mean_pixel"] == pytest.approx(float(((level - draw.test) ** 2).mean()))
    pixels = torch.tensor([[0, 35], [3, 4], [30, 31]])
    at = scores(guess.gather(1, pixels), draw, pixels)
    assert at["mse"] == pytest.approx(float(errors.gather(1, pixels).mean()))
    assert at["mse_hidden"] == pytest.approx(float(errors[[0, 2, 2], [35, 30, 31]].mean()))


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_random_pixels_are_the_average_of_dense_solutions(kind: str) -> None:
    """Eq. 18 and 19, written out with the kernel's matrices in float64."""
    draw = draw_images(DATA, "inpainting", 5, 4, 0)
    found, history = on_random_pixels(draw, {**KERNEL, "kind": kind}, seed=2)
    generator = torch.Generator().manual_seed(2 + 1_000_003)
    kernel = kernel_of(kind, FourierFeatures(scale=5.0 / SIDE, count=256, seed=2))
    places = coordinates(SIDE).double()
    asked = draw_pixels(4, SIDE**2, 7, generator)
    x2 = seen_by(draw, draw.test, True).double().repeat_interleave(7, 0)
    x = seen_by(draw, draw.train, True).double().repeat_interleave(20, 0)
    predictions = []
    for _ in range(2):
        pixels = draw_pixels(5, SIDE**2, 20, generator)
        z, y = places[pixels.flatten()], draw.train.gather(1, pixels).flatten().double()
        matrix = kernel(x, z) + 1e-2 * torch.eye(len(z), dtype=torch.float64)
        cross = kernel(x2, places[asked.flatten()], x, z)
        predictions.append((cross @ torch.linalg.solve(matrix, y)).view(4, 7))
    truth = draw.test.gather(1, asked)
    single = float((predictions[0] - truth).square().mean())
    average = float((sum(predictions) / 2 - truth).square().mean())
    assert history == pytest.approx([single, average], rel=1e-3)
    assert found["mse"] == pytest.approx(average, rel=1e-3)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_every_pixel_is_the_dense_solution(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_TUNE", 4)  # so that tuning and fitting see different images
    draw = draw_images(DATA, "inpainting", 7, 3, 0)
    model, chosen = on_every_pixel(draw, kind)
    features = FourierFeatures(scale=chosen["chosen_scale"], period=float(SIDE))
    places = coordinates(SIDE).double()
    pairs = [
        (seen_by(draw, images, True).double().repeat_interleave(SIDE**2, 0), places.repeat(n, 1))
        for images, n in ((draw.train, 7), (draw.test, 3))
    ]
    kernel = kernel_of(kind, features)
    matrix = kernel(*pairs[0]) + chosen["chosen_ridge"] * torch.eye(7 * SIDE**2).double()
    weights = torch.linalg.solve(matrix, draw.train.double().flatten())
    expected = (kernel(*pairs[1], *pairs[0]) @ weights).view(3, -1)
    query = (seen_by(draw, draw.test, True).double(), places)
    torch.testing.assert_close(model.predict(query), expected, atol=1e-7, rtol=1e-6)
    assert chosen["chosen_scale"] in protocol._SCALES
    assert chosen["chosen_ridge"] in protocol._RIDGES


# -- the trained hypernetwork ----------------------------------------------------------------------


def test_the_network_learns_and_says_its_errors() -> None:
    draw = draw_images(DATA, "inpainting", 30, 5, 0)
    trained = train_hypernetwork(draw, NET, seed=0)
    found = trained.metrics
    assert found["mse"] < found["mean_image"] < found["mean_pixel"]
    assert found["rate"] == 1e-2
    output = trained.predict(seen_by(draw, draw.test, True))
    after = scores(output, draw)
    # The rate falls to nothing: what was best is close to what is left at the end.
    assert after["mse"] == pytest.approx(found["mse"], rel=0.2)
    assert after["mse_hidden"] == pytest.approx(found["mse_hidden"], rel=0.2)


def test_test_images_choose_nothing() -> None:
    config = {**NET, "steps": 10, "subsets": 1}
    draw = draw_images(DATA, "inpainting", 15, 5, 0)
    other = protocol.Draw(draw.train, 1 - draw.test, draw.hidden, SIDE)
    one, two = (train_hypernetwork(d, config, seed=0).metrics for d in (draw, other))
    assert one["validation"] == two["validation"]
    assert one["stopped"] == two["stopped"]
    assert one["mse"] != two["mse"]


def report(validation: list[float], test: list[float]) -> Report:
    steps = list(range(1, len(test) + 1))
    curves = {"validation": (steps, validation), "mse": (steps, test)}
    return Report("done", "", len(test), 1.0, curves, {})


def test_the_best_moment_of_the_best_rate() -> None:
    nan = math.nan
    reports = [report([0.5, 0.4, 0.45], [1, 2, 3]), report([0.6, 0.3, nan, 0.9], [4, 5, 6, 7])]
    assert _best(reports) == (1, {"validation": 0.3, "stopped": 0.5, "mse": 5})
    number, found = _best([report([nan], [nan])])
    assert number == 0
    assert math.isnan(found["mse"])


# -- the experiment --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["table1", "fig3"])
def test_runs_are_complete_and_unique(name: str, scale: str) -> None:
    experiment = all_experiments()[name]
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    if name == "table1":
        assert {(run.config["method"], run.config["task"]) for run in runs} == {
            (method, task) for method in METHODS for task in TASKS
        }


def test_the_paper_scale_is_the_papers() -> None:
    runs = [run for run in Table1().runs("paper") if run.config["vary"] is None]
    assert {run.config["images"] for run in runs} == {50, 100, 200, 500}
    kernels = [run for run in runs if run.config["method"] == "HK20"]
    assert {run.config["subsets"] for run in kernels} == {10}
    assert {run.config["ridge"] for run in kernels} == {1e-3}
    assert len({run.seed for run in kernels}) == 20
    varied = {run.config["vary"] for run in Table1().runs("laptop")}
    assert varied == {None, *VARIATIONS}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_its_error(method: str) -> None:
    base = next(r for r in Table1().runs("smoke") if r.config["method"] == method)
    config = {**base.config, "images": 10, "tests": 4}
    config |= {"steps": 3} if "steps" in config else {}
    config |= {"test_pixels": 9} if "test_pixels" in config else {}
    first, again = (measure(config, 0, DATA) for _ in range(2))
    assert first.status == "done"
    assert first.metrics == again.metrics
    assert first.metrics["mse"] != measure(config, 1, DATA).metrics["mse"]
    assert {"mse", "mean_image", "mean_pixel", "side"} <= set(first.metrics)


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match="method is 'RBF'; wanted one of HK20, NNGP20"):
        measure({"method": "RBF"}, 0, DATA)
    assert feature_scale(28) == 10.0


def test_execute_reads_the_folder_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from weightloom.experiments.infinite_width import on_digits

    asked = []
    monkeypatch.setattr(on_digits, "image_set", lambda folder: asked.append(folder) or DATA)
    run = next(r for r in Table1().runs("smoke") if r.config["method"] == "NNGP")
    found = list(Table1().execute([run], Workspace(data_dir="here")))
    assert asked == ["here"]
    assert found[0][0] == run


# -- numbers and verdicts --------------------------------------------------------------------------


def fake(method: str, task: str, images: int, seed: int, mse: float, **extra: float) -> Result:
    config = {"method": method, "task": task, "images": images, "tests": 5, "vary": None}
    config |= {"subsets": 10} if method.endswith("20") else {}
    metrics = {
        "mse": mse, "side": 28.0, "mean_image": 0.07, "mean_pixel": 0.1, "mean_image_hidden": 0.08,
        "mse_hidden": mse * 1.5, **extra,
    }  # fmt: skip
    curves = {"mse": ([1, 2], [extra.get("mse_single", mse), mse])}
    return Result(Run("table1", config, seed), Outcome("done", metrics, curves))


def story(**levels: float) -> list[Result]:
    """Errors of each method around its level, the same wobble for all on the same images."""
    found = []
    for task in TASKS:
        for images in (50, 100):
            for seed in range(3):
                wobble = 1 + 0.1 * (seed - 1)
                for number, (method, level) in enumerate(levels.items()):
                    noise = 1 + 0.004 * (-1) ** (seed + number)
                    single = {"mse_single": 0.06 * wobble * noise} if method[-2:] == "20" else {}
                    value = level * wobble * noise
                    found.append(fake(method, task, images, seed, value, **single))
    return found


AS_PRINTED = {"HK20": 0.05, "NNGP20": 0.045, "HN20": 0.1, "HK": 0.03, "NNGP": 0.02, "HN": 0.05}
THE_OTHER_WAY = {"HK20": 0.05, "NNGP20": 0.055, "HN20": 0.03, "HK": 0.1, "NNGP": 0.2, "HN": 0.02}


def test_verdicts_come_out_either_way() -> None:
    assert {one.verdict for one in verdicts(story(**AS_PRINTED))} == {"holds"}
    assert {one.verdict for one in verdicts(story(**THE_OTHER_WAY))} == {"fails"}
    assert {one.verdict for one in verdicts([])} == {"no data"}
    single = [
        one for one in story(**AS_PRINTED) if one.run.seed == 0 and one.run.config["images"] == 50
    ]
    assert "unclear" in {one.verdict for one in verdicts(single)}


def test_one_task_against_the_other_fails_consistency() -> None:
    mixed = [
        fake(method, task, 50, seed, level * (1 + 0.01 * seed * (method == "HK20")))
        for task in TASKS
        for seed in range(3)
        for method, level in (("HK20", 0.05), ("NNGP20", 0.04 if task == TASKS[0] else 0.06))
    ]
    claim = verdicts(mixed)[2]
    assert (claim.verdict, claim.claim) == (
        "fails", "the NNGP consistently beats the hyperkernel (20 pixels)",
    )  # fmt: skip


def test_entries_by_hand() -> None:
    results = [
        fake("HK20", TASKS[0], 50, s, v, mse_single=0.06) for s, v in enumerate((0.05, 0.06))
    ]
    (entry,) = entries(results)
    assert entry.mse == pytest.approx(0.055)
    assert entry.standard_error == pytest.approx(0.005)
    assert (entry.printed, entry.count, entry.single) == (0.055, 2, pytest.approx(0.06))
    assert math.isnan(entries(results[:1])[0].standard_error)
    ratio = compared([*results, fake("NNGP20", TASKS[0], 50, 0, 0.025)], "NNGP20", "HK20")
    assert ratio.value == pytest.approx(math.log(0.5))
    assert ratio.count == 1  # seed 1 has no partner


def test_averaging_compares_gains() -> None:
    results = [
        fake("HK20", TASKS[0], 50, 0, 0.05, mse_single=0.06),
        fake("NNGP20", TASKS[0], 50, 0, 0.04, mse_single=0.06),
    ]
    assert averaging(results).value == pytest.approx(math.log(0.8))


def test_sets_are_told_apart() -> None:
    small = fake("HK20", TASKS[0], 50, 0, 0.5, side=8.0)
    large = fake("HK20", TASKS[0], 50, 1, 0.05)
    assert entries([small, large])[0].mse == pytest.approx(0.05)
    assert "digits (8 x 8)" in set_name([small])
    assert set_name([large]) == "MNIST"
    assert "digits" in Table1().table([small]).text()


def test_figure_and_table_are_drawn_from_results_alone() -> None:
    results = story(**AS_PRINTED)
    varied = fake("HK20", TASKS[0], 100, 0, 0.07)
    config = {**varied.run.config, "vary": "finer features"}
    results.append(Result(Run("table1", config, 0), varied.outcome))
    with style():
        (figure,) = Table1().figures(results).values()
        assert Table1().figures([]) == {}
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[2] == "inpainting: the hidden half alone"
    text = Table1().table(results).text()
    assert "0.055" in text  # the paper's
    assert "finer features (100 images, 10 draws): representation HK20 0.0700" in text
    assert "HOLDS" in text
    assert len(Table1().table(results).rows) == 2 * 6 * 2  # the variation is not in the table


def test_picture_from_a_tiny_run() -> None:
    config = {"images": 12, "shown": 3, "steps": 3, "rates": [1e-2]}
    outcome = fig3.measure(config, 0, DATA)
    draw = draw_images(DATA, "inpainting", 12, 3, 0)
    rows = {name: torch.tensor(curve[1]).view(3, -1) for name, curve in outcome.curves.items()}
    assert set(rows) == set(fig3.ROWS)
    assert not rows["seen"][:, draw.hidden].any()
    error = (rows["nngp"] - draw.test).square()[:, draw.hidden].mean()
    assert outcome.metrics["nngp_hidden"] == pytest.approx(float(error), rel=1e-2, abs=1e-5)
    assert rows["deviation"].min() >= 0
    result = Result(Run("fig3", config, 0), outcome)
    experiment = fig3.InfiniteFig3()
    with style():
        (figure,) = experiment.figures([result]).values()
        assert experiment.figures([]) == {}
    assert len(figure.axes) == 3 * len(fig3.ROWS)
    assert "hidden half" in experiment.table([result]).text()


def test_digits_are_known_as_a_stand_in(tmp_path):
    """Every experiment that can make do with digits says so, for each of its runs."""
    found = {}
    for name in ("fig2", "fig4", "fig5", "table1", "fig3", "scale"):
        experiment = all_experiments()[name]
        found[name] = {experiment.stand_in(run, tmp_path) for run in experiment.runs("smoke")}
    assert set(map(frozenset, found.values())) == {frozenset({True})}
    assert not all_experiments()["thm1"].stand_in(Run("thm1", {}, 0), tmp_path)
