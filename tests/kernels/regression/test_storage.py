"""Files: what is saved comes back the same; what is foreign or damaged is refused."""

import json
import os
import stat

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.kernels.regression.test_points import grid
from tests.kernels.regression.test_regressor import data
from weightloom.errors import CheckpointError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import HyperKernelRegressor
from weightloom.kernels.regression.storage import KEY


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def kernel(**options):
    return HyperKernel(Tower(3, "erf"), Tower(2, gain=1.5, sigma_b=0.1), "nngp", **options)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("channels", [None, 2])
def test_points_come_back(path, solver, channels):
    X, y = data(channels=channels)
    prior = kernel(features=FourierFeatures((2.0, 3.0), count=64, seed=4))
    model = HyperKernelRegressor(prior, 0.1, solver, dtype=torch.float64, memory="1 GB").fit(X, y)
    model.save(path)
    again = HyperKernelRegressor.load(path)
    assert again.kernel.config() == model.kernel.config()
    for name, value in model.get_params(deep=False).items():
        assert name == "kernel" or getattr(again, name) == value
    assert torch.equal(again.predict(X), model.predict(X))
    assert again.report_ == model.report_
    assert again.n_features_in_ == model.n_features_in_
    # What needs the factor makes it again.
    for loaded_value, wanted in zip(
        again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        torch.testing.assert_close(loaded_value, wanted)
    torch.testing.assert_close(again.leave_one_out().prediction, model.leave_one_out().prediction)
    torch.testing.assert_close(
        again.log_marginal_likelihood().value, model.log_marginal_likelihood().value
    )


@pytest.mark.parametrize("masked", [False, True])
def test_grids_come_back(path, masked):
    problem = grid(masked)
    X = problem.images, problem.coordinates
    model = HyperKernelRegressor(kernel()).fit(X, problem.values, mask=problem.mask)
    model.predict(X)
    model.save(path)
    again = HyperKernelRegressor.load(path)
    assert torch.equal(again.predict(X), model.predict(X))
    left_out = again.leave_one_out().prediction
    torch.testing.assert_close(left_out, model.leave_one_out().prediction, equal_nan=True)


def test_predicting_solves_nothing(path, monkeypatch):
    X, y = data()
    model = HyperKernelRegressor(kernel()).fit(X, y)
    model.save(path)

    def never(*_, **__):
        raise AssertionError("a system was solved")

    monkeypatch.setattr("weightloom.linalg.solvers", never)
    assert torch.equal(HyperKernelRegressor.load(path).predict(X), model.predict(X))


def test_what_was_set_after_the_fit_is_kept_apart(path):
    X, y = data()
    model = HyperKernelRegressor(kernel(), ridge=0.1).fit(X, y)
    before = model.predict(X)
    model.set_params(ridge=5.0, kernel__f__depth=1)
    model.save(path)
    again = HyperKernelRegressor.load(path)
    assert (again.ridge, again.kernel.f.depth, again.system_.ridge) == (5.0, 1, 0.1)
    assert torch.equal(again.predict(X), before)


def test_no_pickle_and_a_readable_header(path):
    X, y = data()
    HyperKernelRegressor(kernel(), ridge=0.25).fit(X, y).save(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()[KEY])
        names = {"data.x", "data.index", "data.z", "data.y", "state.alpha"}
        assert set(file.keys()) == names
    assert about["arguments"]["ridge"] == 0.25
    assert about["kernel"]["f"]["activation"] == {"name": "erf"}
    assert {"weightloom", "torch", "format"} <= set(about)


def test_repeated_conditions_are_written_once(path):
    """data() has every condition three times."""
    X, y = data(n=30)
    model = HyperKernelRegressor(kernel()).fit(X, y)
    model.save(path)
    with safe_open(path, "pt") as file:
        assert file.get_tensor("data.x").shape == (10, 4)
    again = HyperKernelRegressor.load(path)
    assert torch.equal(again.system_.problem.x, model.system_.problem.x)
    rewritten(path, lambda _, tensors: tensors.update({"data.index": torch.full((30,), 10)}))
    with pytest.raises(CheckpointError, match=r"cannot be made into a regressor \(IndexError"):
        HyperKernelRegressor.load(path)


def test_files_have_the_usual_rights(path):
    X, y = data()
    HyperKernelRegressor(kernel()).fit(X, y).save(path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_callable_cannot_be_saved(path):
    X, y = data(n=3)
    prior = HyperKernel(Tower(2, torch.nn.functional.softplus), Tower(2))
    model = HyperKernelRegressor(prior).fit(X, y)
    with pytest.raises(CheckpointError, match=r"cannot be written to a file.*that have a name"):
        model.save(path)
    assert not path.exists()


# -- trouble ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(path):
    X, y = data()
    HyperKernelRegressor(kernel()).fit(X, y).save(path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"or it is damaged"):
        HyperKernelRegressor.load(saved)


def test_foreign(path):
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"is no file of HyperKernelRegressor.save"):
        HyperKernelRegressor.load(path)
    path.write_text("hello")
    with pytest.raises(CheckpointError, match=r"is no file of HyperKernelRegressor.save"):
        HyperKernelRegressor.load(path)
    with pytest.raises(CheckpointError, match=r"there is no file"):
        HyperKernelRegressor.load(path.with_name("nothing"))


def rewritten(path, change):
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(about, tensors)
    save_file(tensors, path, metadata={KEY: json.dumps(about)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about, _: about.update(format=99), r"written in format 99.*reads 1"),
        (lambda about, _: about["fitted"].pop("plan"), r"KeyError: 'plan'.*fit again"),
        (lambda about, _: about["fitted"].update(system="moon"), r"there is no system 'moon'"),
        (lambda about, _: about["kernel"]["f"].update(depth=0), r"depth is 0"),
        (lambda about, _: about["arguments"].update(new=1), r"TypeError"),
        (lambda _, tensors: tensors.pop("data.z"), r"missing 1 required positional argument: 'z'"),
        (lambda _, tensors: tensors.pop("state.alpha"), r"alpha has shape \(0,\)"),
        (
            lambda _, tensors: tensors.update({"state.alpha": torch.ones(3, 1)}),
            r"alpha has shape \(3, 1\)",
        ),
    ],
)
def test_headers_that_do_not_fit(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(CheckpointError, match=message):
        HyperKernelRegressor.load(saved)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    X, y = data(seed=1)
    model = HyperKernelRegressor(kernel()).fit(X, y)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(CheckpointError, match=r"No space left.*is still whole"):
        model.save(saved)
    assert saved.read_bytes() == before
    assert [item.name for item in saved.parent.iterdir()] == [saved.name]


def test_a_folder_that_is_not_there(tmp_path):
    X, y = data()
    model = HyperKernelRegressor(kernel()).fit(X, y)
    with pytest.raises(CheckpointError, match=r"the folder .* does not exist; create it"):
        model.save(tmp_path / "no" / "model.safetensors")
