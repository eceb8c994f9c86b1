"""Regression with a hypernetwork of infinite width, as a scikit-learn estimator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.parameters import Parameters
from weightloom.kernels.regression.choice import choose
from weightloom.kernels.regression.problem import Problem
from weightloom.kernels.regression.reading import (
    check_duplicates,
    check_kernel,
    check_options,
    check_ridge,
    is_numpy,
    read_problem,
    read_query,
)
from weightloom.kernels.regression.system import LeaveOneOut, Options, System

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import HyperKernel
    from weightloom.kernels.regression.tuning import TuneReport
    from weightloom.linalg import StochasticEstimate

__all__ = ["HyperKernelRegressor", "NotFittedError", "frozen", "r2_score"]


class NotFittedError(KernelError, AttributeError):
    """The model is used before `fit`; also an AttributeError, as in scikit-learn."""


class HyperKernelRegressor(Parameters):
    """Kernel ridge regression (kind "ntk") or Gaussian-process regression (kind "nngp").

    The mean is k(., data) (K + ridge I)^-1 y. With the hyperkernel it is what gradient descent on
    an infinitely wide hypernetwork converges to (ridge 0, the initial function being 0); with the
    NNGP it is the posterior mean with that network as the prior, ``ridge`` being the variance of
    the noise. Several channels are several right-hand sides of one system.

    Fitted on *points*, ``fit((x, z), y)``, or on a *grid*, ``fit((images, coordinates), values)``,
    where every image is seen at the same coordinates and far larger problems can be solved. Numpy
    arrays give numpy arrays, torch tensors give torch tensors; gradients do not flow through `fit`.

    Arguments, all stored as they are given:
        ridge: the number that is added to the diagonal.
        solver: "auto", "cholesky", "lu", "cg", and for grids "torus", "kronecker".
        tolerance: relative residual at which iterative solvers stop (in float32 at 1e-5 or more).
        memory: bytes, or a text like "2 GB"; None is what the machine has free.
        dtype: torch.float32 or torch.float64; None is that of the data.
        n_condition_features: how many first columns are the condition, when X is one array
            (pipelines, cross-validation).
        progress: show bars on standard error.

    After `fit`: ``system_`` (the solved equations), ``report_`` (which solver, why, and what
    residual was reached), ``n_features_in_``.

    >>> from weightloom.kernels import HyperKernel, Tower
    >>> x, z = torch.eye(3), torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> model = HyperKernelRegressor(HyperKernel(Tower(3), Tower(2)), ridge=1e-6)
    >>> model.fit((x, z), torch.tensor([1.0, 2.0, 3.0])).predict((x, z)).round(decimals=3)
    tensor([1., 2., 3.])
    """

    _estimator_type = "regressor"  # what scikit-learn before 1.6 asks for

    def __init__(
        self,
        kernel: HyperKernel,
        ridge: float = 1e-3,
        solver: str = "auto",
        *,
        tolerance: float = 1e-6,
        memory: int | str | None = None,
        dtype: torch.dtype | None = None,
        n_condition_features: int | None = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.ridge = ridge
        self.solver = solver
        self.tolerance = tolerance
        self.memory = memory
        self.dtype = dtype
        self.n_condition_features = n_condition_features
        self.progress = progress

    # -- fit and predict ---------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, *, mask: Any = None, grid: bool | None = None
    ) -> HyperKernelRegressor:
        """Solve for the data; returns self.

        Points: X = (x [N, dx], z [N, dz]), y [N] or [N, c]; or X one array [N, dx + dz] with
        ``n_condition_features``. Grid: X = (images [n, ...], coordinates [P, dz]), y [n, P] or
        [n, P, c]; ``mask`` [n, P] is True where y was observed (elsewhere y may be anything, NaN
        too). ``grid`` is needed only where the shapes can mean both.

        A fit that fails leaves the model as it was.
        """
        check_kernel(self.kernel)
        problem = self._problem(X, y, mask, grid)
        options = check_options(self.solver, self.tolerance, self.memory, self.progress)
        ridge = check_ridge(self.ridge)
        if ridge == 0:
            check_duplicates(problem)
        self._keep(*self._solve(problem, ridge, options))
        return self

    def predict(
        self, X: Any, *, return_std: bool = False, grid: bool | None = None
    ) -> Any:  # array, or (array, array)
        """The mean at X: [N] or [n, P], with a last dimension of channels if y had one.

        ``grid=None`` reads X as in `fit`: a model fitted on a grid takes (images, coordinates) and
        answers for every image at every coordinate, one fitted on points takes pairs. ``grid=True``
        or ``False`` asks for the other. One array is always pairs.

        ``return_std=True`` gives (mean, standard deviation), the latter of the function without
        noise and without channels (they share it): ``sqrt(k** - k*^T (K + ridge I)^-1 k*)``, for
        the kernel of kind "nngp" only.
        """
        system = self._fitted()
        if return_std and system.kernel.kind != "nngp":
            raise KernelError(
                f"return_std needs a prior, and the kernel is of kind {system.kernel.kind!r}: the "
                "tangent kernel describes training, it is not the covariance of the network's "
                "outputs; fit with HyperKernel(f, g, kind='nngp')"
            )
        query = read_query(
            X, system.problem, grid=grid, n_condition_features=self.n_condition_features
        )
        numpy = is_numpy(X)
        mean = system.mean(query)
        mean = mean[..., 0] if system.problem.squeeze else mean
        if not return_std:
            return _out(mean, numpy)
        # Rounding can leave a small negative number where the function is known exactly.
        return _out(mean, numpy), _out(system.variance(query).clamp(min=0).sqrt(), numpy)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, grid: bool | None = None
    ) -> float:
        """R^2, the share of y's variance that predictions explain; the mean over channels.

        ``sample_weight`` has the shape of y without channels; 0 and 1 make it a mask.
        """
        return r2_score(
            y, self.predict(X, grid=grid), sample_weight, self._fitted().problem.squeeze
        )

    # -- judging the fit, tuning -------------------------------------------------------------------

    def leave_one_out(self) -> LeaveOneOut:
        """Every training value predicted by the model without it; exact, from one solve.

        Tensors: prediction and target [N, c] or [n, P, c], variance [N] or [n, P].
        """
        return self._fitted().leave_one_out()

    def log_marginal_likelihood(self) -> StochasticEstimate:
        """log N(y; 0, K + ridge I), summed over channels; with a standard error if estimated."""
        return self._fitted().log_marginal_likelihood()

    def tune(
        self,
        X: Any,
        y: Any,
        *,
        objective: str = "leave_one_out",
        search: dict[str, Any] | None = None,
        refine: bool = True,
        mask: Any = None,
        grid: bool | None = None,
    ) -> TuneReport:
        """Try all combinations of ``search``'s candidates; set the model to the best and fit it.

        See `weightloom.kernels.regression.tuning.tune`.
        """
        from weightloom.kernels.regression.tuning import tune

        problem = self._problem(X, y, mask, grid)
        return tune(self, problem, objective, search or {}, refine=refine)

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one safetensors file; nothing is pickled."""
        from weightloom.kernels.regression.storage import save

        self._fitted()
        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> HyperKernelRegressor:
        """The model that `save` wrote; it predicts at once, without solving again."""
        from weightloom.kernels.regression.storage import load

        return load(cls, Path(path))

    # -- scikit-learn ------------------------------------------------------------------------------

    # Models are compared by identity: equal arguments do not make equal fits.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "system_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(),
        )

    # -- inside ------------------------------------------------------------------------------------

    def _problem(self, X: Any, y: Any, mask: Any, grid: bool | None) -> Problem:
        return read_problem(
            X,
            y,
            mask=mask,
            grid=grid,
            dtype=self.dtype,
            n_condition_features=self.n_condition_features,
        )

    def _solve(self, problem: Problem, ridge: float, options: Options) -> tuple[System[Any], str]:
        """The solved problem, and the reason for the choice of system.

        Uses a copy of the kernel: setting its parameters must not change a fitted model.
        """
        kernel = frozen(self.kernel)
        system, reason = choose(kernel, problem, options)
        return system.fit(kernel, problem, ridge, options), reason

    def _keep(self, system: System[Any], reason: str) -> None:
        problem = system.problem
        first, second = vars(problem.query).values()
        self.system_ = system
        self.reason_ = reason
        self.n_features_in_ = first.shape[1] + second.shape[1]

    @property
    def report_(self) -> str:
        """Which solver, why, and what residual it reached: a few lines to read."""
        return self._fitted().describe(self.reason_)

    def _fitted(self) -> System[Any]:
        if not hasattr(self, "system_"):
            raise NotFittedError(
                "this HyperKernelRegressor is not fitted; call fit((x, z), y) first"
            )
        return self.system_


def frozen(kernel: HyperKernel) -> HyperKernel:
    """A copy whose hyperparameters need no gradients."""
    tensors = [t for t in kernel.get_params(deep=True).values() if isinstance(t, Tensor)]
    return copy.deepcopy(kernel, {id(tensor): tensor.detach().clone() for tensor in tensors})


def r2_score(y: Any, prediction: Any, weight: Any, squeeze: bool) -> float:
    """1 - sum (y - p)^2 / sum (y - mean y)^2, weighted, then the mean over channels.

    A channel that is constant scores 1 when it is predicted exactly, else 0 (as scikit-learn).

    >>> r2_score([1.0, 2.0, 3.0], [1.0, 2.0, 2.0], None, squeeze=True)
    0.5
    """
    y, prediction = _array(y), _array(prediction)
    if y.shape != prediction.shape:
        raise ShapeError(
            f"y has shape {y.shape}, the predictions {prediction.shape}; they must be the same"
        )
    channels = 1 if squeeze else y.shape[-1]
    y, prediction = y.reshape(-1, channels), prediction.reshape(-1, channels)
    w = np.ones(len(y)) if weight is None else _array(weight).reshape(-1)
    if len(w) != len(y):
        raise ShapeError(f"sample_weight has {len(w)} entries; wanted one for each of {len(y)}")
    y, prediction, w = y[w != 0], prediction[w != 0], w[w != 0, None]  # a mask may hide NaN
    if not len(y) or not np.isfinite(y).all():
        raise KernelError(
            "y has NaN or infinite entries, or every weight is 0; score needs finite values "
            "(give those that are missing the weight 0)"
        )
    missed = (w * (y - prediction) ** 2).sum(0)
    spread = (w * (y - (w * y).sum(0) / w.sum()) ** 2).sum(0)
    constant = np.where(missed == 0, 1.0, 0.0)
    safe = np.where(spread == 0, 1.0, spread)
    return float(np.where(spread == 0, constant, 1 - missed / safe).mean())


def _array(values: Any) -> np.ndarray:
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return plain.astype(np.float64)


def _out(values: Tensor, numpy: bool) -> Any:
    return values.cpu().numpy() if numpy else values
