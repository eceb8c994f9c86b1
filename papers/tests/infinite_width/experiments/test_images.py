"""Images as functions: samples, both protocols against dense algebra, the trained network."""

from __future__ import annotations

import math

import pytest
import torch

from weightloom.data import ImageSet
from weightloom.errors import ConfigError
from weightloom.kernels import FourierFeatures
from weightloom.training import Report
from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments import images
from weightloom_papers.infinite_width.experiments.images import (
    TASKS,
    _best,
    coordinates,
    kernel_of,
    on_every_pixel,
    on_random_pixels,
    sample_images,
    sample_pixels,
    scores,
    seen_by,
    train_hypernetwork,
)
from weightloom_papers.infinite_width.experiments.table1.experiment import Table1
from weightloom_papers.lab import Run, Workspace

SIDE = 6


def blobs(count: int, seed: int) -> torch.Tensor:
    """Images of a bright spot at a random position."""
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


# -- data and kernel regression -----------------------------------------------------------------


def test_samples_differ_in_one_thing() -> None:
    plain, inpaint = (sample_images(DATA, task, 12, 5, seed=3) for task in TASKS)
    assert torch.equal(plain.train, inpaint.train)
    assert torch.equal(plain.test, inpaint.test)
    assert torch.equal(sample_images(DATA, TASKS[0], 7, 5, seed=3).train, plain.train[:7])
    assert not torch.equal(sample_images(DATA, TASKS[0], 12, 5, seed=4).train, plain.train)
    assert not plain.hidden.any()
    assert inpaint.hidden.view(SIDE, SIDE)[SIDE // 2 :].all()
    assert not inpaint.hidden.view(SIDE, SIDE)[: SIDE // 2].any()
    for pool, sample in ((DATA.train, plain.train), (DATA.test, plain.test)):
        assert all((pool == row).all(dim=1).any() for row in sample)


def test_impossible_samples() -> None:
    with pytest.raises(ConfigError, match="task is 'sharpening'; wanted one of representation"):
        sample_images(DATA, "sharpening", 3, 3, 0)
    with pytest.raises(ConfigError, match="41 training and 3 test images are wanted, blobs has 40"):
        sample_images(DATA, TASKS[0], 41, 3, 0)


def test_f_sees_the_upper_half_at_one_length() -> None:
    sample = sample_images(DATA, "inpainting", 4, 3, 0)
    raw = seen_by(sample, sample.train, normalise=False).view(-1, SIDE, SIDE)
    assert torch.equal(raw[:, : SIDE // 2], sample.train.view(-1, SIDE, SIDE)[:, : SIDE // 2])
    assert not raw[:, SIDE // 2 :].any()
    seen = seen_by(sample, sample.train, normalise=True)
    torch.testing.assert_close(seen.norm(dim=1), torch.full((4,), float(SIDE)))


def test_pixels_are_different_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = sample_pixels(9, 36, 20, generator)
    assert all(len(set(row.tolist())) == 20 for row in pixels)
    assert len({tuple(sorted(row.tolist())) for row in pixels}) > 1
    same = sample_pixels(9, 36, 20, generator, same=True)
    assert (same == same[0]).all()


def test_scores_by_hand() -> None:
    sample = sample_images(DATA, "inpainting", 6, 3, 0)
    guess = torch.rand(3, SIDE**2, generator=torch.Generator().manual_seed(0))
    metrics = scores(guess, sample)
    half = SIDE**2 // 2
    errors = (guess - sample.test) ** 2
    assert metrics["mse"] == pytest.approx(float(errors.mean()))
    assert metrics["mse_hidden"] == pytest.approx(float(errors[:, half:].mean()))
    image = sample.train.sum(0) / 6
    expected = ((image - sample.test) ** 2)[:, half:].mean()
    assert metrics["mean_image_hidden"] == pytest.approx(float(expected))
    level = sample.train.sum() / sample.train.numel()
    assert metrics["mean_pixel"] == pytest.approx(float(((level - sample.test) ** 2).mean()))
    pixels = torch.tensor([[0, 35], [3, 4], [30, 31]])
    at = scores(guess.gather(1, pixels), sample, pixels)
    assert at["mse"] == pytest.approx(float(errors.gather(1, pixels).mean()))
    assert at["mse_hidden"] == pytest.approx(float(errors[[0, 2, 2], [35, 30, 31]].mean()))


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_random_pixels_are_the_average_of_dense_solutions(kind: str) -> None:
    """Eq. 18 and 19, written out with the kernel's matrices in float64."""
    sample = sample_images(DATA, "inpainting", 5, 4, 0)
    metrics, history = on_random_pixels(sample, {**KERNEL, "kind": kind}, seed=2)
    generator = torch.Generator().manual_seed(2 + 1_000_003)
    kernel = kernel_of(kind, FourierFeatures(scale=5.0 / SIDE, count=256, seed=2))
    places = coordinates(SIDE).double()
    tested = sample_pixels(4, SIDE**2, 7, generator)
    x2 = seen_by(sample, sample.test, True).double().repeat_interleave(7, 0)
    x = seen_by(sample, sample.train, True).double().repeat_interleave(20, 0)
    predictions = []
    for _ in range(2):
        pixels = sample_pixels(5, SIDE**2, 20, generator)
        z, y = places[pixels.flatten()], sample.train.gather(1, pixels).flatten().double()
        matrix = kernel(x, z) + 1e-2 * torch.eye(len(z), dtype=torch.float64)
        cross = kernel(x2, places[tested.flatten()], x, z)
        predictions.append((cross @ torch.linalg.solve(matrix, y)).view(4, 7))
    truth = sample.test.gather(1, tested)
    single = float((predictions[0] - truth).square().mean())
    average = float((sum(predictions) / 2 - truth).square().mean())
    assert history == pytest.approx([single, average], rel=1e-3)
    assert metrics["mse"] == pytest.approx(average, rel=1e-3)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_every_pixel_is_the_dense_solution(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_TUNE", 4)  # so that tuning and fitting see different images
    sample = sample_images(DATA, "inpainting", 7, 3, 0)
    model, chosen = on_every_pixel(sample, kind)
    features = FourierFeatures(scale=chosen["chosen_scale"], period=float(SIDE))
    places = coordinates(SIDE).double()
    pairs = [
        (seen_by(sample, rows, True).double().repeat_interleave(SIDE**2, 0), places.repeat(n, 1))
        for rows, n in ((sample.train, 7), (sample.test, 3))
    ]
    kernel = kernel_of(kind, features)
    matrix = kernel(*pairs[0]) + chosen["chosen_ridge"] * torch.eye(7 * SIDE**2).double()
    weights = torch.linalg.solve(matrix, sample.train.double().flatten())
    expected = (kernel(*pairs[1], *pairs[0]) @ weights).view(3, -1)
    query = (seen_by(sample, sample.test, True).double(), places)
    torch.testing.assert_close(model.predict(query), expected, atol=1e-7, rtol=1e-6)
    assert chosen["chosen_scale"] in images._SCALES
    assert chosen["chosen_ridge"] in images._RIDGES


# -- the trained hypernetwork ----------------------------------------------------------------------


def test_the_network_learns_and_reports_its_errors() -> None:
    sample = sample_images(DATA, "inpainting", 30, 5, 0)
    trained = train_hypernetwork(sample, NET, seed=0)
    metrics = trained.metrics
    assert metrics["mse"] < metrics["mean_image"] < metrics["mean_pixel"]
    assert metrics["rate"] == 1e-2
    output = trained.predict(seen_by(sample, sample.test, True))
    after = scores(output, sample)
    # The learning rate falls to 0, so the best evaluation is close to the last.
    assert after["mse"] == pytest.approx(metrics["mse"], rel=0.2)
    assert after["mse_hidden"] == pytest.approx(metrics["mse_hidden"], rel=0.2)


def test_test_images_do_not_select_the_network() -> None:
    config = {**NET, "steps": 10, "subsets": 1}
    sample = sample_images(DATA, "inpainting", 15, 5, 0)
    other = images.ImageSample(sample.train, 1 - sample.test, sample.hidden, SIDE)
    first, second = (train_hypernetwork(s, config, seed=0).metrics for s in (sample, other))
    assert first["validation"] == second["validation"]
    assert first["stopped"] == second["stopped"]
    assert first["mse"] != second["mse"]


def report(validation: list[float], test: list[float]) -> Report:
    steps = list(range(1, len(test) + 1))
    curves = {"validation": (steps, validation), "mse": (steps, test)}
    return Report("done", "", len(test), 1.0, curves, {})


def test_the_best_evaluation_of_the_best_rate() -> None:
    nan = math.nan
    reports = [report([0.5, 0.4, 0.45], [1, 2, 3]), report([0.6, 0.3, nan, 0.9], [4, 5, 6, 7])]
    assert _best(reports) == (1, {"validation": 0.3, "stopped": 0.5, "mse": 5})
    number, metrics = _best([report([nan], [nan])])
    assert number == 0
    assert math.isnan(metrics["mse"])


# -- experiments -----------------------------------------------------------------------------------


def test_execute_reads_the_folder_given(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    monkeypatch.setattr(images, "image_set", lambda folder: folders.append(folder) or DATA)
    run = next(r for r in Table1().runs("smoke") if r.config["method"] == "NNGP")
    done = list(Table1().execute([run], Workspace(data_dir="here")))
    assert folders == ["here"]
    assert done[0][0] == run


def test_digits_are_reported_as_a_stand_in(tmp_path):
    """Experiments that can use digits instead of MNIST report it for each run."""
    stand_ins = {}
    for short in ("fig2", "fig4", "fig5", "table1", "fig3", "scale"):
        name = f"infinite-width/{short}"
        experiment = all_experiments()[name]
        stand_ins[name] = {experiment.stand_in(run, tmp_path) for run in experiment.runs("smoke")}
    assert set(map(frozenset, stand_ins.values())) == {frozenset({True})}
    assert not all_experiments()["infinite-width/thm1"].stand_in(
        Run("infinite-width/thm1", {}, 0), tmp_path
    )
