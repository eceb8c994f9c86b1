"""Every example runs at a small size, prints its table and draws its figure; and checks of each."""

import re

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

import weightloom as wl
from tests.examples.scripts import EXAMPLES, NOWHERE, USES_IMAGES, load, numbers
from weightloom.data import load_mnist_or_digits, pixel_centres

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_it_says_and_draws_what_it_found(name, run):
    text, out = run(name)
    assert f"wrote {out / name}.png" in text
    assert not re.search(r"\b(nan|inf)\b", text)
    assert ("scikit-learn's digits, 8 x 8, instead of MNIST" in text) == (name in USES_IMAGES)
    picture = (out / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert 5_000 < len(picture) < 150_000


@pytest.mark.parametrize("name", NAMES)
def test_help_explains(name, capsys):
    with pytest.raises(SystemExit) as stop:
        load(name).main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--smoke", "--out", "--seed"))
    assert ("--data-dir" in text) == (name in USES_IMAGES)


# -- implicit images -------------------------------------------------------------------------------


def test_the_hypernetwork_draws_better_than_what_looks_at_no_image(run):
    """Seen to hold for five seeds, by a factor of two or more."""
    text, _ = run("implicit_images")
    hyper, embedding, mean = (
        numbers(text, row) for row in ("hypernetwork", "embedding network", "mean image")
    )
    assert hyper[0] < 0.8 * mean[0]
    assert abs(hyper[2] / embedding[2] - 1) < 0.05  # primaries of equal size, up to a neuron


def test_the_written_network_draws_a_digit(run):
    """What was exported is whole: it loads, and is closer to its own digit than to most others."""
    _, out = run("implicit_images")
    example = load("implicit_images")
    network = wl.load(example.network(waves=8, hidden=16), out / "digit.safetensors")
    data = load_mnist_or_digits(NOWHERE, test=100)
    truth = data.test[data.test_labels.tolist().index(3)]
    with torch.no_grad():
        drawn = network(pixel_centres(8)).squeeze(-1)
    errors = (drawn - data.test).square().mean(1)
    assert (drawn - truth).square().mean() < errors.median()  # five seeds: than 78% or more


def test_training_sees_pixels_at_their_places():
    example = load("implicit_images")
    images, generator = torch.rand(5, 64), torch.Generator().manual_seed(0)
    small = example.halved(images, 8)
    (points, same), values = example.some_pixels((small,), images, generator, 20, 8)
    assert same is small
    centres = pixel_centres(8)
    for i in range(5):
        place = [int((centres == point).all(1).nonzero()) for point in points[i]]
        assert torch.equal(values[i], images[i, place])


def test_interpolation_begins_and_ends_at_the_two_networks():
    example = load("implicit_images")
    small = torch.rand(2, 16)
    hyper = example.build(16, waves=2, hidden=8, width=8)["hypernetwork"]
    drawn = example.between(hyper, *small, 8, 3)
    assert torch.allclose(drawn[[0, -1]], example.draw(hyper, small, 8), atol=1e-6)
    middle, last = (hyper.materialize(condition) for condition in small)
    other = last.state_dict()
    middle.load_state_dict({n: (w + other[n]) / 2 for n, w in middle.state_dict().items()})
    with torch.no_grad():
        want = middle(pixel_centres(8)).squeeze(-1)
    assert torch.allclose(drawn[1], want, atol=1e-6)


# -- few shots -------------------------------------------------------------------------------------


def test_nothing_beats_the_exact_kernel(run):
    """On the same tasks: the others are hardly trained at this size, and it needs no training."""
    text, _ = run("few_shot_regression")
    table = {name: numbers(text, name) for name in ("hypernetwork ", "CNP ", "exact kernel", "0 ")}
    floor = np.array(table.pop("exact kernel"))[::2]
    assert all((np.array(row)[::2] > floor).all() for row in table.values())
    assert (np.diff(floor) < 0).all()  # more shots, less error
    sizes = [numbers(text, f"{name}:")[0] for name in ("hypernetwork", "CNP")]
    assert abs(sizes[0] / sizes[1] - 1) < 0.02


def test_the_exact_kernel_is_gaussian_process_regression():
    """Against scikit-learn's, with the same kernel and noise."""
    example = load("few_shot_regression")
    seen, x, _ = example.draw_tasks(3, 7, 5, torch.Generator().manual_seed(0))
    got = example.exact(seen, x).squeeze(-1)
    for task in range(3):
        model = GaussianProcessRegressor(
            RBF(example.LENGTH), alpha=example.NOISE**2, optimizer=None
        ).fit(seen[task, :, :1].double(), seen[task, :, 1].double())
        # Places were rounded to float32 before either saw them.
        np.testing.assert_allclose(got[task], model.predict(x[task].double()), atol=1e-8)


# -- a hyperparameter as the condition -------------------------------------------------------------


def test_the_closed_form_is_ridge_regression_and_the_least_loss():
    example = load("hyperparameter_conditioned")
    (x, y), _, _ = example.load(0, squares=True)
    for strength in (0.01, 1.0):
        weights = example.ridge(x, y, strength)
        want = Ridge(alpha=len(x) * strength, fit_intercept=False).fit(x.double(), y.double())
        np.testing.assert_allclose(weights, want.coef_, rtol=1e-6)  # rounded to float32

        written = weights.double()[None, None].requires_grad_()  # as a head would write it
        output = (x.double() @ written[0, 0])[None, :, None]
        loss = example.penalised(
            output, y.double(), {"weight": written}, torch.tensor([strength]).double()
        )
        (slope,) = torch.autograd.grad(loss.sum(), written)
        # Curvature is at most 2 (10 + strength), and rounding moves 65 weights by 3e-8 of 0.5.
        assert slope.abs().max() < 1e-5


def test_the_path_comes_near_the_closed_form_where_it_matters(run):
    """Validation errors at strength 1 differ by 0.009 at most over five seeds, of about 0.6."""
    text, _ = run("hyperparameter_conditioned")
    _, path, exact, _ = next(
        [float(v.rstrip("%")) for v in line.split()]
        for line in text.splitlines()
        if line.strip().startswith("0.0 ")
    )
    assert abs(path - exact) < 0.03


# -- continual learning ----------------------------------------------------------------------------


def test_the_penalty_prevents_forgetting(run):
    """Seen for five seeds: at most 6 percent are forgotten with it, at least 13 without."""
    text, _ = run("continual_learning")
    held, free = (numbers(text, f"hypernetwork, {how}") for how in ("held", "not held"))
    assert held[2] < 0.10 < free[2]
    assert held[1] > free[1] > 0.10  # chance


def test_the_penalty_is_the_movement_of_old_weights():
    example = load("continual_learning")
    model = example.TaskHypernetwork([4, 5, 3], tasks=3, beta=0.5, chunk=8)
    model.begin(2)
    assert model.penalty(2).item() == 0.0
    with torch.no_grad():
        model.hyper.encoder.weight[2] += 1.0  # the new task may move as it likes
        assert model.penalty(2).item() == 0.0
        model.hyper.encoder.weight[0] += 1.0
    moved = model.hyper.materialize(torch.tensor(0)).state_dict()
    want = sum((moved[name] - model.stored[name][0]).square().sum() for name in moved)
    assert model.penalty(2).item() == pytest.approx(0.5 / 2 * want.item(), rel=1e-5)
    assert want > 0


# -- low-rank deltas -------------------------------------------------------------------------------


def test_at_the_start_nothing_has_changed(run):
    text, _ = run("low_rank_deltas")
    assert "before training, largest change of any weight: 0.0\n" in text
    example = load("low_rank_deltas")
    network = wl.mlp([64, 16, 16, 10])
    hyper = example.adapter(network, rank=2)
    x, angles = torch.randn(6, 64), example.conditions(torch.linspace(0, 300, 6))
    assert torch.equal(hyper(x, angles[1]), network(x))
    assert torch.allclose(hyper(x, angles), network(x), atol=1e-6)


def test_changes_are_of_low_rank_and_the_given_network_stays():
    example = load("low_rank_deltas")
    network = wl.mlp([64, 16, 16, 10])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    hyper = example.adapter(network, rank=2)
    tasks = {a: (torch.randn(32, 64), torch.randint(10, (32,))) for a in (0, 90)}
    example.adapt(hyper, tasks, epochs=2, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    written = hyper.materialize(example.conditions(torch.tensor([90.0]))[0])
    change = (written[0].weight - network[0].weight).detach().double()
    values = torch.linalg.svdvals(change)
    # Rounding 16 x 64 weights of about 0.1 to float32 leaves (4 + 8) times 4e-9 in norm.
    assert values[2] < 1e-6 < 1e-3 < values[1]
    assert example.largest_change(hyper, network, 90) == pytest.approx(
        max((w - before[n]).abs().max().item() for n, w in written.state_dict().items())
    )


def test_adaptation_learns(run):
    """Five seeds: 26 to 30 percent before, 53 to 65 with deltas, 33 to 36 with copies."""
    text, _ = run("low_rank_deltas")
    deltas, copies, given = (
        numbers(text, row)[0]
        for row in ("low-rank deltas, one hypernetwork", "a fine-tuned copy", "pretrained")
    )
    assert deltas > given + 0.1
    assert copies > given > 0.1


# -- kernel inpainting -----------------------------------------------------------------------------


def test_the_kernel_completes_better_than_its_rivals(run):
    """Seen for five seeds, by a sixth or more of the hidden half's error."""
    text, _ = run("kernel_inpainting")
    kernel, neighbour, mean = (
        numbers(text, row)[0] for row in ("kernel ", "nearest neighbour", "mean image")
    )
    assert kernel < min(neighbour, mean)


def test_conformal_intervals_hold_what_they_say():
    """On errors drawn alike. 400 images, 10 pixels: shares have a standard error below 0.008."""
    example = load("kernel_inpainting")
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.1, 3, 10)
    draws = torch.empty(2, 400, 10).exponential_(generator=generator) * scales
    deviation = torch.ones(400, 10)
    factor, widths = example.calibrate(draws[0], deviation)
    inside, _ = example.coverage(draws[1], factor * deviation, widths)
    # Both the quantile and the share are estimated: sqrt(2) times, and three of them.
    np.testing.assert_allclose(inside, example.LEVELS, atol=3 * 2**0.5 * 0.008)
    plain, _ = example.coverage(draws[1], factor * deviation, example.GAUSSIAN)
    assert plain[0] < 0.45 or plain[0] > 0.55  # not normal, so the normal widths are wrong


def test_halves_have_one_length_and_hide_the_rest():
    example = load("kernel_inpainting")
    images = torch.rand(4, 64)
    seen = example.upper_half(images, 8)
    assert torch.allclose(seen.norm(dim=1), torch.tensor(32.0).sqrt())
    images[:, 32:] = 0
    assert torch.equal(seen, example.upper_half(images, 8))
