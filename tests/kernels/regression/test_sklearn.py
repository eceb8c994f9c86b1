"""Inside scikit-learn: clone, pipelines, cross-validation, grid search, and against its own GP."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn")
from sklearn import metrics
from sklearn.base import clone, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import HyperKernelRegressor
from weightloom.kernels.regression.regressor import r2_score


@pytest.fixture(name="X")
def inputs():
    return np.random.default_rng(0).normal(size=(24, 5))


@pytest.fixture
def y(X):
    return X[:, 0] * np.sin(X[:, 3]) + X[:, 1]


@pytest.fixture
def model():
    kernel = HyperKernel(Tower(2), Tower(2), "nngp", FourierFeatures(0.5))
    return HyperKernelRegressor(kernel, ridge=1e-2, n_condition_features=3)


def test_constructor_keeps_what_it_is_given(model):
    params = model.get_params(deep=False)
    again = HyperKernelRegressor(**params)
    assert all(again.get_params(deep=False)[name] is value for name, value in params.items())
    deep = model.get_params()
    assert deep["kernel__f__depth"] == 2
    assert deep["kernel__features__scale"] == 0.5


def test_clone_is_apart(model, X, y):
    model.fit(X, y)
    twin = clone(model)
    assert not twin.__sklearn_is_fitted__()
    assert twin.kernel == model.kernel
    assert twin.kernel is not model.kernel
    twin.set_params(kernel__f__depth=4)
    assert model.kernel.f.depth == 2
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), model.predict(X))


def test_unknown_parameters(model):
    with pytest.raises(KernelError, match=r"HyperKernelRegressor has no parameter 'rigde'"):
        model.set_params(rigde=1.0)
    with pytest.raises(KernelError, match=r"has no parameter 'dpeth'"):
        model.set_params(kernel__f__dpeth=1)


def test_tags_and_fittedness(model, X, y):
    assert is_regressor(model)
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(model)
    model.fit(X, y)
    check_is_fitted(model)
    assert model.n_features_in_ == 5


def test_pipeline(model, X, y):
    pipe = make_pipeline(StandardScaler(), model).fit(X * 100 + 7, y)
    by_hand = clone(model).fit(StandardScaler().fit_transform(X), y)
    wanted = by_hand.predict(StandardScaler().fit(X).transform(X[:5]))
    np.testing.assert_allclose(pipe.predict(X[:5] * 100 + 7), wanted, rtol=1e-8)
    mean, std = pipe.predict(X[:5] * 100 + 7, return_std=True)
    assert mean.shape == std.shape == (5,)
    pipe.set_params(hyperkernelregressor__kernel__g__depth=3)
    assert model.kernel.g.depth == 3


def test_cross_validation(model, X, y):
    folds = KFold(4)
    scores = cross_val_score(model, X, y, cv=folds)
    wanted = [
        clone(model).fit(X[train], y[train]).score(X[test], y[test])
        for train, test in folds.split(X)
    ]
    np.testing.assert_allclose(scores, wanted)


def test_leave_one_out_is_that_of_scikit_learn(model, X, y):
    wanted = cross_val_predict(model, X, y, cv=len(X))
    predicted = model.fit(X, y).leave_one_out().prediction[:, 0]
    np.testing.assert_allclose(predicted, wanted, atol=1e-9)


def test_grid_search(model, X, y):
    grid = {"ridge": [1e-2, 1e3], "kernel__f__depth": [1, 2], "kernel__features__scale": [0.5]}
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    assert search.best_params_["ridge"] == 1e-2
    assert search.best_estimator_.kernel.f.depth == search.best_params_["kernel__f__depth"]
    assert model.ridge == 1e-2
    assert model.kernel.f.depth == 2


def test_transformed_targets_and_several_outputs(model, X, y):
    both = np.stack([y, y**2], axis=1)
    predicted = TransformedTargetRegressor(model, transformer=StandardScaler()).fit(X, both)
    assert predicted.predict(X[:4]).shape == (4, 2)


def test_against_scikit_learns_own_process(X, y):
    """One matrix each, f linear in one constant condition: the kernel is exp(-|z - z'|^2 / 2)."""
    prior = HyperKernel(Tower(1), Tower(1), "nngp", FourierFeatures(1.0))
    model = HyperKernelRegressor(prior, ridge=0.1, n_condition_features=1)
    ones = np.concatenate([np.ones((len(X), 1)), X[:, :2]], axis=1)
    model.fit(ones, y)
    theirs = GaussianProcessRegressor(
        ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed"), alpha=0.1, optimizer=None
    ).fit(X[:, :2], y)
    new = np.random.default_rng(1).normal(size=(6, 2))
    mean, std = model.predict(np.concatenate([np.ones((6, 1)), new], axis=1), return_std=True)
    wanted, wanted_std = theirs.predict(new, return_std=True)
    np.testing.assert_allclose(mean, wanted, rtol=1e-9)
    np.testing.assert_allclose(std, wanted_std, rtol=1e-9)
    likelihood = theirs.log_marginal_likelihood_value_
    assert float(model.log_marginal_likelihood()) == pytest.approx(likelihood)


def test_scikit_learn_is_not_needed():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import torch\n"
        "from weightloom.kernels import HyperKernel, Tower\n"
        "from weightloom.kernels.regression import HyperKernelRegressor\n"
        "X, y = (torch.eye(3), torch.eye(3)), [1, 2, 3]\n"
        "model = HyperKernelRegressor(HyperKernel(Tower(2), Tower(2))).fit(X, y)\n"
        "model.set_params(kernel__f__depth=3).score(X, y)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torch_in_pipelines_is_not_promised_but_arrays_are(model, X, y):
    assert isinstance(model.fit(X, y).predict(torch.from_numpy(X)), torch.Tensor)
    assert isinstance(model.predict(X.tolist()), np.ndarray)


# -- R^2 -------------------------------------------------------------------------------------------


@given(n=st.integers(2, 6), channels=st.integers(1, 3), seed=st.integers(0, 99))
def test_r2_is_that_of_scikit_learn(n, channels, seed):
    random = np.random.default_rng(seed)
    y, p, w = random.normal(size=(n, channels)), random.normal(size=(n, channels)), random.random(n)
    assert r2_score(y, p, None, False) == pytest.approx(metrics.r2_score(y, p))
    wanted = metrics.r2_score(y, p, sample_weight=w)
    assert r2_score(y, torch.tensor(p), w, False) == pytest.approx(wanted)
    assert r2_score(y[:, 0], p[:, 0], None, True) == pytest.approx(
        metrics.r2_score(y[:, 0], p[:, 0])
    )


def test_r2_of_constant_targets():
    y = np.ones((3, 2))
    for p in (y, y + np.array([0, 1])):
        assert r2_score(y, p, None, False) == metrics.r2_score(y, p)


def test_zero_weights_hide_nan_from_r2():
    y = np.array([[1.0, 2.0, np.nan], [4.0, np.nan, 5.0]])
    p = np.array([[1.0, 2.5, 9.0], [4.5, 9.0, 5.0]])
    seen = ~np.isnan(y)
    assert r2_score(y, p, seen, True) == pytest.approx(metrics.r2_score(y[seen], p[seen]))


def test_r2_names_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"y has shape \(2,\), the predictions \(3,\)"):
        r2_score(np.ones(2), np.ones(3), None, True)
    with pytest.raises(ShapeError, match=r"sample_weight has 3 entries; wanted one for each of 2"):
        r2_score(np.ones(2), np.ones(2), np.ones(3), True)
    with pytest.raises(KernelError, match=r"weight 0"):
        r2_score(np.array([np.nan, 1]), np.ones(2), None, True)
