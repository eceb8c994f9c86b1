"""The estimator: forms of data, kinds of arrays, what it refuses, and its life after a fit."""

import copy

import numpy as np
import pytest
import torch

from tests.kernels.regression.oracle import Oracle
from tests.kernels.regression.test_points import grid, points
from weightloom.errors import ConfigError, KernelError, MemoryLimitError, ShapeError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import GridQuery, HyperKernelRegressor, PointQuery


def kernel(kind="nngp", **options):
    return HyperKernel(Tower(3), Tower(2), kind, FourierFeatures(3.0, **options))


def data(n=12, seed=0, channels=None):
    problem = points(n, channels or 1, seed)
    return (problem.x, problem.z), problem.y if channels else problem.y[:, 0]


@pytest.fixture
def model():
    return HyperKernelRegressor(kernel(), ridge=0.1)


# -- forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_points_in_points_out(model, channels):
    X, y = data(channels=channels)
    mean, std = model.fit(X, y).predict(X, return_std=True)
    oracle = Oracle(model.kernel, model.system_.problem, 0.1)
    query = PointQuery(*X)
    wanted = oracle.mean(query)
    np.testing.assert_allclose(mean, wanted if channels else wanted[:, 0], rtol=1e-9)
    np.testing.assert_allclose(std, oracle.variance(query) ** 0.5, rtol=1e-9)
    assert mean.shape == y.shape
    assert std.shape == (12,)


@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_grid_in_grid_out(model, channels, masked):
    problem = grid(masked)
    y = problem.values if channels else problem.values[..., 0]
    X = problem.images.reshape(-1, 2, 2), problem.coordinates
    model.fit(X, y, mask=problem.mask)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == y.shape
    assert std.shape == problem.shape
    wanted = Oracle(model.kernel, problem, 0.1).mean(problem.query)
    np.testing.assert_allclose(mean, wanted if channels else wanted[..., 0], rtol=1e-9)
    # The diagonal of the grid, asked for as pairs.
    pairs = model.predict((X[0], X[1][:5]), grid=False)
    np.testing.assert_allclose(pairs, mean[torch.arange(5), torch.arange(5)], rtol=1e-9)


@pytest.mark.parametrize(
    ("solver", "masked"), [("torus", False), ("kronecker", False), ("kronecker", True)]
)
def test_structures_of_grids_agree_with_points(solver, masked, tmp_path):
    random = torch.Generator().manual_seed(1)
    images = torch.randn(6, 4, generator=random, dtype=torch.float64)
    line = torch.arange(4, dtype=torch.float64) / 4
    X = images, torch.cartesian_prod(line, line)
    y = torch.randn(6, 16, 2, generator=random, dtype=torch.float64)
    mask = torch.rand(6, 16, generator=random) < 0.7 if masked else None
    periodic = kernel(period=1.0)
    wanted = HyperKernelRegressor(periodic, 0.1, "cholesky").fit(X, y, mask=mask)
    model = HyperKernelRegressor(periodic, 0.1, solver, tolerance=1e-10).fit(X, y, mask=mask)
    assert model.report_.splitlines()[1] == f"{solver}: {solver} was asked for"
    np.testing.assert_allclose(model.predict(X), wanted.predict(X), atol=1e-7)
    near = model.score(X, y, mask), wanted.score(X, y, mask)
    assert near[0] == pytest.approx(near[1])
    model.save(tmp_path / "model")
    again = HyperKernelRegressor.load(tmp_path / "model")
    assert torch.equal(again.predict(X), model.predict(X))
    report = model.tune(X, y, mask=mask, search={"ridge": [1e-6, 0.1]}, refine=True)
    assert report.best.parameters == {"ridge": 0.1}
    assert "not refined" in report.note


def test_a_model_of_points_answers_on_a_grid_when_asked(model):
    X, y = data()
    model.fit(X, y)
    mean = model.predict((X[0][:4], X[1][:5]), grid=True)
    wanted = Oracle(model.kernel, model.system_.problem, 0.1).mean(GridQuery(X[0][:4], X[1][:5]))
    np.testing.assert_allclose(mean, wanted[..., 0], rtol=1e-9)
    with pytest.raises(ShapeError, match=r"grid=True"):
        model.predict((X[0][:4], X[1][:5]))


def test_numpy_torch_and_one_array_agree(model):
    (x, z), y = data()
    with_torch = model.fit((x, z), y).predict((x, z))
    assert isinstance(with_torch, torch.Tensor)
    with_numpy = model.fit((x.numpy(), z.numpy()), y.numpy()).predict((x.numpy(), z.numpy()))
    assert isinstance(with_numpy, np.ndarray)
    joined = np.concatenate([x, z], axis=1)
    model.set_params(n_condition_features=4)
    as_one = model.fit(joined, y.numpy()).predict(joined)
    np.testing.assert_array_equal(with_torch, with_numpy)
    np.testing.assert_array_equal(with_torch, as_one)


def test_types():
    X, y = data()
    half = tuple(part.float() for part in X)
    assert HyperKernelRegressor(kernel()).fit(half, y).predict(half).dtype == torch.float32
    model = HyperKernelRegressor(kernel(), dtype=torch.float64).fit(half, y)
    assert model.predict(half).dtype == torch.float64


def test_almost_no_ridge_interpolates():
    X, y = data()
    model = HyperKernelRegressor(kernel(), ridge=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-8)
    assert model.predict(X, return_std=True)[1].max() < 1e-5


def test_score_is_r2(model):
    from sklearn.metrics import r2_score

    X, y = data(channels=2)
    model.fit(X, y)
    other, wanted = data(seed=1, channels=2)
    assert model.score(other, wanted) == pytest.approx(r2_score(wanted, model.predict(other)))
    problem = grid(masked=True)
    model.fit((problem.images, problem.coordinates), problem.values, mask=problem.mask)
    r2 = model.score((problem.images, problem.coordinates), problem.values, problem.mask)
    mean = model.predict((problem.images, problem.coordinates))
    seen = problem.mask
    assert r2 == pytest.approx(r2_score(problem.values[seen], mean[seen]))


# -- what it says ----------------------------------------------------------------------------------


def test_report(model):
    X, y = data()
    report = model.fit(X, y).report_
    for part in ("12 equations, 1 channel", "points have no structure", "Cholesky, because"):
        assert part in report
    assert "relative residual" in report


def test_the_report_tells_of_jitter():
    """x and 2 x are proportional for a homogeneous network: singular, though nothing repeats."""
    (x, z), y = data()
    X, y = (torch.cat([x, 2 * x]), torch.cat([z, z])), torch.cat([y, 2 * y])
    model = HyperKernelRegressor(kernel(), ridge=0).fit(X, y)
    assert model.system_.solution.jitter > 0
    assert "added to the diagonal" in model.report_
    assert "added to the diagonal" not in model.set_params(ridge=0.1).fit(X, y).report_


def test_likelihood_and_leave_one_out(model):
    X, y = data(channels=2)
    model.fit(X, y)
    oracle = Oracle(model.kernel, model.system_.problem, 0.1)
    assert float(model.log_marginal_likelihood()) == pytest.approx(oracle.log_marginal_likelihood())
    errors = [oracle.y[k] - oracle.leave_one_out(k)[0] for k in range(12)]
    left_out = model.leave_one_out()
    assert left_out.mean_squared_error == pytest.approx(np.square(errors).mean())
    variances = torch.tensor([oracle.leave_one_out(k)[1] for k in range(12)])
    normal = torch.distributions.Normal(0.0, variances[:, None].sqrt())
    wanted = normal.log_prob(torch.tensor(np.array(errors))).sum().item()
    assert left_out.log_density == pytest.approx(wanted)


# -- what it refuses, before any work --------------------------------------------------------------


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be computed in these tests."""

    def never(*_, **__):
        raise AssertionError("the kernel was computed")

    for name in ("__call__", "condition_part", "point_part", "join"):
        monkeypatch.setattr(HyperKernel, name, never)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ridge": -1}, ConfigError, r"ridge is -1"),
        ({"solver": "magic"}, ConfigError, r"solver is 'magic'; wanted one of auto, cholesky"),
        ({"solver": "torus"}, KernelError, r"solver='torus' is for grids, and these are points"),
        ({"solver": "kronecker"}, KernelError, r"solver='kronecker' is for grids"),
        ({"tolerance": 0}, ConfigError, r"tolerance is 0; wanted a number between 0 and 1"),
        ({"tolerance": "1e-6"}, ConfigError, r"tolerance is '1e-6'"),
        ({"memory": "much"}, ConfigError, r"memory 'much' cannot be read"),
        ({"memory": "100 B"}, MemoryLimitError, r"needs .* but 100 bytes are allowed"),
        ({"kernel": "relu"}, KernelError, r"kernel is 'relu'; wanted a HyperKernel"),
    ],
)
def test_bad_options(options, error, message):
    X, y = data()
    with pytest.raises(error, match=message):
        HyperKernelRegressor(**{"kernel": kernel(), **options}).fit(X, y)


@pytest.mark.usefixtures("idle")
def test_bad_data(model):
    X, y = data()
    with pytest.raises(KernelError, match=r"y has NaN or infinite entries in 1 of 12 rows"):
        model.fit(X, torch.where(torch.arange(12) == 3, torch.nan, y))
    twice = torch.cat([X[0], X[0]]), torch.cat([X[1], X[1]])
    with pytest.raises(KernelError, match=r"row 0 and row 12 are the same point"):
        model.set_params(ridge=0).fit(twice, torch.cat([y, y]))


def test_repeated_points_are_fine_with_a_ridge(model):
    (x, z), y = data()
    twice = torch.cat([x, x]), torch.cat([z, z])
    once = HyperKernelRegressor(kernel(), ridge=0.05).fit((x, z), y).predict((x, z))
    # Two noisy looks at one value are one look with half of the noise.
    np.testing.assert_allclose(model.fit(twice, torch.cat([y, y])).predict((x, z)), once, rtol=1e-8)


def test_not_fitted(model):
    X, _ = data()
    for use in (
        lambda: model.predict(X),
        model.leave_one_out,
        model.log_marginal_likelihood,
        lambda: model.save("never"),
    ):
        with pytest.raises(KernelError, match=r"is not fitted; call fit\(\(x, z\), y\) first"):
            use()
    assert not hasattr(model, "report_")


def test_the_tangent_kernel_has_no_standard_deviation():
    X, y = data()
    model = HyperKernelRegressor(kernel("ntk")).fit(X, y)
    with pytest.raises(KernelError, match=r"return_std needs a prior.*kind='nngp'"):
        model.predict(X, return_std=True)


def test_the_torus_says_why_not():
    problem = grid(masked=False)
    model = HyperKernelRegressor(kernel(), solver="torus")
    with pytest.raises(KernelError, match=r"solver='torus' cannot be used: the kernel's features"):
        model.fit((problem.images, problem.coordinates), problem.values)


# -- life after a fit ------------------------------------------------------------------------------


def test_a_failed_fit_leaves_the_model_as_it_was(model):
    X, y = data()
    before = model.fit(X, y).predict(X)
    with pytest.raises(KernelError):
        model.fit(X, y * torch.nan)
    with pytest.raises(ConfigError):
        model.set_params(ridge=-1).fit(X, y)
    assert torch.equal(model.predict(X), before)


def test_setting_parameters_does_not_change_a_fit(model):
    X, y = data()
    before = model.fit(X, y).predict(X)
    model.set_params(kernel__f__depth=1, kernel__features__scale=0.1, ridge=9.0)
    assert torch.equal(model.predict(X), before)
    assert not torch.equal(model.fit(X, y).predict(X), before)


def test_hyperparameters_that_are_tensors():
    X, y = data()
    leaf = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    learned = HyperKernel(Tower(3, sigma_w=leaf * 2), Tower(2), features=FourierFeatures(leaf))
    mean = HyperKernelRegressor(learned).fit(X, y).predict(X)
    assert not mean.requires_grad
    plain = HyperKernel(Tower(3, sigma_w=3.0), Tower(2), features=FourierFeatures(1.5))
    np.testing.assert_allclose(mean, HyperKernelRegressor(plain).fit(X, y).predict(X), rtol=1e-12)


def test_progress_goes_to_standard_error(capsys):
    X, y = data()
    HyperKernelRegressor(kernel(), solver="cg", progress=True).fit(X, y)
    out, err = capsys.readouterr()
    assert "conjugate gradients" in err
    assert "residual" in err
    assert not out
    HyperKernelRegressor(kernel(), solver="cg").fit(X, y)
    assert capsys.readouterr() == ("", "")


def test_copies(model):
    X, y = data()
    model.fit(X, y)
    twin = copy.deepcopy(model)
    assert torch.equal(twin.predict(X), model.predict(X))
    assert twin != model
    assert len({twin, model}) == 2
