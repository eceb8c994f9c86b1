"""Completing digits: the kernel against the plain formula, the network and its files."""

import pytest
import torch

from weightloom.data import pixel_centres
from weightloom.demo import coordinate_network
from weightloom.demo.completion import kernel, network
from weightloom.demo.completion.kernel import (
    LENGTH,
    NEIGHBOURS,
    PARTS,
    RIDGE,
    complete,
    digits,
    read_image,
    seen_pixels,
)
from weightloom.demo.completion.measure import measure, table
from weightloom.errors import CheckpointError, ConfigError
from weightloom.hyper import export, load
from weightloom.kernels import FourierFeatures, HyperKernel, Tower


def drawing(number=0):
    return digits().held_out[number].tolist()


# -- what is seen ----------------------------------------------------------------------------------


def test_halves_are_halves_and_make_a_whole():
    masks = {part: seen_pixels(part) for part in PARTS}
    assert masks["all"].sum() == 64
    for half, other in (("top", "bottom"), ("left", "right")):
        assert masks[half].sum() == 32
        assert torch.equal(masks[half] + masks[other], masks["all"])
    assert masks["top"].reshape(8, 8)[:4].all()
    assert masks["left"].reshape(8, 8)[:, :4].all()


def test_what_is_hidden_is_not_seen():
    seen, mask = read_image(drawing(), "left")
    other = [value if on else 0.7 for value, on in zip(drawing(), mask.tolist(), strict=True)]
    assert torch.equal(seen, read_image(other, "left")[0])


@pytest.mark.parametrize(
    ("values", "part", "text"),
    [
        ([0.0] * 64, "top", "nothing is drawn"),
        ([0.0] * 32 + [1.0] * 32, "top", "nothing is drawn"),
        ([1.0] * 63, "all", "63 pixels"),
        ([2.0] * 64, "all", "from 0 to 1"),
        ([float("nan")] * 64, "all", "from 0 to 1"),
        ([1.0] * 64, "middle", "choose one of all, top"),
    ],
)
def test_drawings_that_cannot_be_used(values, part, text):
    with pytest.raises(ConfigError, match=text):
        read_image(values, part)


# -- the kernel ------------------------------------------------------------------------------------


def plain(seen, part):
    """Posterior mean and deviation at the pixels, by the formula, without the regressor."""
    mask = seen_pixels(part).double()
    images = digits().train.double()

    def scaled(rows):
        return 8 * rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)

    x, own = scaled(images * mask), scaled(seen.double()[None])
    near = (x @ own[0]).argsort(descending=True)[:NEIGHBOURS]
    pixels = torch.tensor([[j - 3.5, i - 3.5] for i in range(8) for j in range(8)]).double()
    on = mask.bool()
    rows = [(x[n], z, y) for n in near for z, y in zip(pixels, images[n], strict=True)]
    rows += [(own[0], z, y) for z, y in zip(pixels[on], seen.double()[on], strict=True)]
    x, z, y = (torch.stack(column) for column in zip(*rows, strict=True))
    features = FourierFeatures(scale=1 / LENGTH)
    prior = HyperKernel(Tower(3), Tower(2), kind="nngp", features=features)
    gram = prior(x, z) + RIDGE * torch.eye(len(y), dtype=torch.float64)
    at = own.expand(64, -1), pixels
    cross = prior(*at, x, z)
    mean = cross @ torch.linalg.solve(gram, y)
    left = prior(*at).diagonal() - (cross * torch.linalg.solve(gram, cross.mT).mT).sum(1)
    return mean, left.sqrt()


def test_the_kernel_is_the_posterior_of_the_formula():
    seen, _ = read_image(drawing(), "top")
    mean, deviation = complete(seen, "top", 8)
    wanted, spread = plain(seen, "top")
    # 1,312 equations with a condition number below 1e5 in float64: 1e-9 is far above rounding.
    torch.testing.assert_close(mean, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(deviation, spread, rtol=0, atol=1e-7)


def test_the_deviation_is_larger_where_nothing_was_seen():
    for part in ("top", "right"):
        seen, mask = read_image(drawing(3), part)
        _, deviation = complete(seen, part, 8)
        assert deviation[mask == 0].mean() > 1.2 * deviation[mask == 1].mean()


def test_completions_are_better_than_the_mean_digit():
    data, mask = digits(), seen_pixels("top").bool()
    blank = data.train.mean(0)
    ours, theirs = 0.0, 0.0
    for number in range(6):
        truth = data.held_out[number]
        seen, _ = read_image(truth.tolist(), "top")
        mean = kernel.mean(seen, "top", 8)
        ours += float((mean - truth)[~mask].square().sum())
        theirs += float((blank - truth)[~mask].square().sum())
    assert ours < 0.6 * theirs


def test_a_finer_picture_is_the_same_function():
    seen, _ = read_image(drawing(), "all")
    coarse = kernel.mean(seen, "all", 8)
    fine = kernel.mean(seen, "all", 24)
    centre = fine.reshape(8, 3, 8, 3)[:, 1, :, 1].flatten()  # the middle of 3 x 3 is the pixel
    torch.testing.assert_close(centre, coarse, rtol=0, atol=1e-6)


# -- the network -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "deep" / "draw.safetensors"
    reports = []
    error = network.prepare(path, 2, reports.append)
    return path, error, reports


def test_training_reports_and_learns(trained):
    path, error, reports = trained
    assert [share for share, _ in reports] == [0.5, 1.0]
    assert reports[-1][1] == error < 0.9  # 1 is a single grey
    assert network.ready(path)


def test_a_trained_network_is_not_trained_again(trained):
    path, error, _ = trained
    before = path.read_bytes()
    again = network.prepare(path, 2, lambda report: pytest.fail("it trained"))
    assert again == pytest.approx(error, rel=1e-4)  # the same images in another order of sums
    assert path.read_bytes() == before


def test_damaged_caches_are_not_used(trained, tmp_path):
    path, _, _ = trained
    good = path.read_bytes()
    bad = tmp_path / "bad.safetensors"
    assert not network.ready(bad)
    for content in (b"", b"garbage", good[:-100], good[:200] + b"\xff" * 50 + good[250:]):
        bad.write_bytes(content)
        assert not network.ready(bad)
    model = network.completion_network()
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    export(model, bad)
    assert not network.ready(bad)
    with pytest.raises(CheckpointError, match="NaN"):
        network.draw(bad, *read_image(drawing(), "top"), 8)
    export(coordinate_network(), bad)  # some other network
    assert not network.ready(bad)


def test_nothing_is_drawn_before_training(tmp_path):
    with pytest.raises(ConfigError, match="still being trained"):
        network.draw(tmp_path / "none", *read_image(drawing(), "top"), 8)


def test_downloads_are_the_network_that_draws(trained, tmp_path):
    path, _, _ = trained
    seen, mask = read_image(drawing(), "bottom")
    wanted = network.draw(path, seen, mask, 16)
    points = pixel_centres(16)
    file = tmp_path / "digit.safetensors"
    file.write_bytes(network.generated(path, seen, mask, ".safetensors"))
    written = load(coordinate_network(), file)
    with torch.no_grad():
        torch.testing.assert_close(written(points).squeeze(-1), wanted)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(network.generated(path, seen, mask, ".onnx"))
    (drawn,) = session.run(None, {session.get_inputs()[0].name: points.numpy()})
    torch.testing.assert_close(torch.from_numpy(drawn).squeeze(-1), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"choose one of \.safetensors"):
        network.generated(path, seen, mask, ".pkl")


# -- how well --------------------------------------------------------------------------------------


def test_the_table_is_the_plain_formula(trained):
    path, _, _ = trained
    completed = measure(path, 3, "top")
    images, hidden = digits().held_out[:3], seen_pixels("top") == 0
    variance = images[:, hidden].var(correction=0)
    off, inside = [], []
    for image, by_kernel, by_network in zip(
        images, completed.kernel, completed.network, strict=True
    ):
        mean, spread = plain((image * ~hidden).double(), "top")
        off.append((mean - image)[hidden])
        inside.append(off[-1].abs() / (spread[hidden] ** 2 + RIDGE).sqrt())
        assert by_kernel == pytest.approx(float(off[-1].square().mean() / variance), rel=1e-5)
        drawn = network.draw(path, image * ~hidden, (~hidden).float(), 8)
        wanted = float((drawn - image)[hidden].square().mean() / variance)
        assert by_network == pytest.approx(wanted, rel=1e-5)
    scores = torch.cat(inside)
    assert completed.within == tuple(float((scores <= n).double().mean()) for n in (1, 2))
    row = table([completed]).splitlines()[-1]
    assert row.startswith("| top half | ")
    assert row.count("±") == 3


def test_more_digits_than_there_are(tmp_path):
    with pytest.raises(ConfigError, match="361 digits were asked for; choose 2 to 360"):
        measure(tmp_path, 361, "top")
