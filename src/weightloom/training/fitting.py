"""`fit`: train one model that is called ``model(x, condition)``, in one line.

`train` is for many members at once, exact checkpoints and several processes. `fit` takes what that
engine cannot: any loss, any optimiser, data that do not fit into memory; and it needs no Fabric.
"""

from __future__ import annotations

import inspect
import os
import time
import warnings
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weightloom.errors import ShapeError, TrainingError
from weightloom.hyper.rows.functional import modes_restored
from weightloom.training.batches import mixed
from weightloom.training.choices import Loss, MakeOptimiser, checked_loss, optimiser_of
from weightloom.training.divergence import locate, unguarded
from weightloom.training.feeding import Feed, Pair, feed, held_back
from weightloom.training.history import (
    Best,
    DivergedError,
    FitHistory,
    PartOfEpoch,
    fill,
    kept,
)
from weightloom.training.place import own_random_state
from weightloom.training.resuming import FitCheckpoint, described
from weightloom.training.settings import spelled
from weightloom.training.terminal import Interrupts, ProgressBar

__all__ = ["fit"]

EPOCHS = 100


def fit(
    model: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    loss: str | Loss = "mse",
    optimiser: str | torch.optim.Optimizer | MakeOptimiser | None = None,
    optimizer: str | torch.optim.Optimizer | MakeOptimiser | None = None,
    lr: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    patience: int | None = None,
    clip_norm: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: bool | str = True,
    resume: FitHistory | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> FitHistory:
    """Train ``model`` in place; returns the curves of the loss.

    ``data`` is (x, condition, target), or (inputs, target) with a tuple of all that the model is
    called with; or a Dataset, a DataLoader or another loader that yields these. Tensors and NumPy
    arrays have one row for each sample. ``validation`` is data too, or the fraction of the samples
    to hold back. ``loss`` is "mse", "cross_entropy" or a function (output, target) -> scalar.
    ``optimiser`` (or ``optimizer``) is a name with ``lr``, a torch optimiser, or a function of the
    parameters that makes one; Adam with lr=1e-3 if left out. Training takes ``epochs`` (100), or
    so many ``steps``. ``batch_size`` is 32 if left out.

    With ``patience`` training stops when the validation loss has not fallen for so many epochs, and
    the model gets the weights of its best epoch. Ctrl-C stops after the current step: the model
    keeps what it has learned, and the history says "interrupted". ``resume=history`` goes on from
    there, until ``epochs`` or ``steps`` in total. ``checkpoint`` is a file to which training is
    saved as it goes: the same call again goes on from it, also after a crash. With tensors and
    ``epochs`` both are as if there had been no pause; a loader must give an epoch the same batches
    again. A loss that is not finite raises `DivergedError`, with the weights of the best epoch
    restored.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> x, condition, y = torch.randn(64, 2), torch.randn(64, 5), torch.randn(64, 1)
    >>> history = fit(hyper, (x, condition, y), validation=0.25, epochs=3, progress=False)
    >>> len(history.losses), len(history.validation), history.status
    (3, 3, 'done')
    """
    _check_model(model)
    _check_numbers(epochs=epochs, steps=steps, batch_size=batch_size, patience=patience)
    if epochs is not None and steps is not None:
        raise TrainingError(f"epochs={epochs} and steps={steps} were both given; give one of them")
    if clip_norm is not None and not clip_norm > 0:
        raise TrainingError(f"clip_norm={clip_norm!r} was given; the largest norm is above 0")
    if isinstance(validation, float | int) and not isinstance(validation, bool):
        data, validation = held_back(data, validation, seed)
    if patience is not None and validation is None:
        raise TrainingError(
            f"patience={patience} looks at the validation loss, but there is no validation; pass "
            f"validation=0.1 to hold back a tenth of the samples, or data"
        )
    if resume is not None and checkpoint is not None:
        raise TrainingError("resume= and checkpoint= were both given; a checkpoint has a history")
    if device is not None:
        model.to(device)
    history = resume or FitHistory()
    given = spelled("optimiser", optimiser, optimizer)
    history.optimiser = _continued(history.optimiser, model, given, lr)
    fitting = _Fitting(
        model,
        feed(data, batch_size, seed),
        None if validation is None else feed(validation, batch_size, seed, "validation"),
        checked_loss(loss),
        history,
        epochs=(epochs or EPOCHS) if steps is None else None,
        steps=steps,
        patience=patience,
        clip_norm=clip_norm,
        seed=seed,
    )
    if history.last is not None:
        fill(model, history.last)
        history.last = None
    if checkpoint is not None:
        belongs = fitting.description(loss, batch_size)
        fitting.checkpoint = FitCheckpoint(Path(checkpoint), model, history, belongs)
    where = next(model.parameters()).device
    with own_random_state(where), modes_restored(model), unguarded([model]), Interrupts() as ctrl_c:
        fitting.run(ctrl_c, progress)
    return history


def _continued(
    before: torch.optim.Optimizer | None, model: nn.Module, given: Any, lr: float | None
) -> torch.optim.Optimizer:
    """The optimiser, with the state of the one before where it is of the same kind."""
    if before is not None and given is None and lr is None:
        return before
    optimiser = optimiser_of(model, given, lr)
    if type(before) is type(optimiser) and not optimiser.state:
        groups = optimiser.state_dict()["param_groups"]
        state = before.state_dict()["state"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
    return optimiser


@dataclass
class _Fitting:
    """One call of `fit`."""

    model: nn.Module
    data: Feed
    held_out: Feed | None
    loss: Loss
    history: FitHistory
    epochs: int | None
    steps: int | None
    patience: int | None
    clip_norm: float | None
    seed: int
    value: float = field(default=float("nan"), init=False)
    """of the last step"""
    within_step: bool = field(default=False, init=False)
    checkpoint: FitCheckpoint | None = field(default=None, init=False)

    def description(self, loss: Any, batch_size: int | None) -> dict[str, Any]:
        """What a checkpoint belongs to. More epochs than before are no other run."""
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        settings = {
            "loss": name,
            "batch_size": batch_size,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
            "seed": self.seed,
        }
        optimiser: Any = self.history.optimiser
        data = {"data": self.data, "validation": self.held_out}
        return described(self.model, optimiser, data, settings)

    def run(self, ctrl_c: Interrupts, progress: bool | str) -> None:
        history, started = self.history, time.monotonic()
        history.status, history.message, history.restored = "done", "", None
        if history.best is None:
            history.best = Best(float("inf"), 0, _weights(self.model))
        length = len(self.data)
        total = self.steps or (length * (self.epochs or 0)) or None
        bar = ProgressBar(progress, total, history.steps)
        try:
            while not self._is_over() and not self._has_stalled():
                self._epoch(bar, ctrl_c)
                if ctrl_c.pressed:
                    raise KeyboardInterrupt
            self._save()
            if self._has_stalled():
                bar.skip((total or 0) - history.steps)
                self._stop_early()
            elif self.patience is not None:
                self._restore()
        except KeyboardInterrupt:
            if ctrl_c.count > 1:
                raise
            if not self.within_step:
                self._save()
            self._interrupted()
        finally:
            bar.close()
            history.seconds += time.monotonic() - started

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save()

    def _is_over(self) -> bool:
        if self.steps is not None:
            return self.history.steps >= self.steps
        return len(self.history.losses) >= (self.epochs or 0)

    # -- one epoch -------------------------------------------------------------------------------

    def _epoch(self, bar: ProgressBar, ctrl_c: Interrupts) -> None:
        """Train on all batches once, then evaluate. A part of an epoch counts if it is the last."""
        if self.history.part is None:
            before = {} if self.held_out is not None else _weights(self.model)
            self.history.part = PartOfEpoch(0, 0.0, 0, before)
        part = self.history.part
        self.model.train()
        batches = self.data.batches(len(self.history.losses))
        for inputs, target in islice(batches, part.batches, None):
            part.loss += self._step(inputs, target) * len(target)
            part.rows += len(target)
            part.batches += 1
            bar.step(lambda: f"loss {self.value:.4g}")
            if self.steps is not None and self.history.steps >= self.steps:
                break
            if ctrl_c.pressed:
                return
            if self.checkpoint is not None:
                self.checkpoint.save_if_due()
        if not part.rows:
            raise TrainingError(
                "data yields no batches; a DataLoader with drop_last=True does so when it has "
                "fewer samples than its batch_size, and an iterator when it is used up"
            )
        self._note(part.loss / part.rows, part.before)
        self.history.part = None

    def _note(self, train: float, before: dict[str, Tensor]) -> None:
        """Add one epoch to the history, and keep its weights if they are the best."""
        bad = _not_finite(self.model)
        if bad is not None:
            raise self._diverged(f"the parameter {bad!r} is not finite after step", None)
        history, epoch = self.history, len(self.history.losses) + 1
        if self.held_out is not None:
            value, kept = self._evaluate(self.held_out), epoch
            if not abs(value) < float("inf"):
                raise self._diverged("the validation loss is not finite after step", None)
            history.validation.append(value)
        else:
            # The training loss of an epoch is nearer to the weights that it began with.
            value, kept = train, epoch - 1
        history.losses.append(train)
        if history.best is None or value < history.best.value:
            history.best = Best(value, kept, before or _weights(self.model))

    def _step(self, inputs: tuple[Any, ...], target: Tensor) -> float:
        """One step of the optimiser; returns the loss before it."""
        inputs, target = _placed(self.model, inputs, target)
        optimiser: Any = self.history.optimiser
        torch.manual_seed(mixed("noise", self.seed, self.history.steps, 0))
        first: list[float] = []

        def closure() -> Tensor:  # LBFGS calls it several times
            optimiser.zero_grad()
            value = self.loss(_called(self.model, inputs), target)
            first.append(value.item())
            if not abs(first[-1]) < float("inf"):
                where = locate(self.model, inputs, target)
                raise self._diverged(f"{where} at step", self.history.steps + 1)
            value.backward()
            if self.clip_norm is not None:
                self._clip(self.clip_norm)
            return value

        self.within_step = True
        optimiser.step(closure)
        self.within_step = False
        self.history.steps += 1
        self.value = first[0]
        return first[0]

    def _clip(self, most: float) -> None:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), most)
        if not bool(torch.isfinite(norm)):
            raise self._diverged("the gradient is not finite at step", self.history.steps + 1)

    @torch.no_grad()
    def _evaluate(self, held_out: Feed) -> float:
        self.model.eval()
        total, rows = 0.0, 0
        for given in held_out.in_order():
            inputs, target = _placed(self.model, *given)
            total += self.loss(_called(self.model, inputs), target).item() * len(target)
            rows += len(target)
        if not rows:
            raise TrainingError("validation yields no batches; give it at least one")
        return total / rows

    # -- ends ------------------------------------------------------------------------------------

    def _has_stalled(self) -> bool:
        since = len(self.history.losses) - self.history.best_epoch
        return self.patience is not None and since >= self.patience and not self._is_over()

    def _stop_early(self) -> None:
        self._restore()
        self.history.status = "stopped early"
        self.history.message = (
            f"the validation loss has not fallen in {self.patience} epochs; the weights are those "
            f"of epoch {self.history.best_epoch}"
        )

    def _interrupted(self) -> None:
        history = self.history
        history.status = "interrupted"
        history.message = (
            f"fit was interrupted after step {history.steps} (epoch {len(history.losses) + 1}); "
            f"the model keeps what it has learned. resume=history goes on"
        )
        if self.patience is not None and history.best is not None and history.best.epoch > 0:
            self._restore()
            history.message += f". The weights are those of epoch {history.best.epoch}, the best"
        warnings.warn(history.message, stacklevel=4)

    def _restore(self) -> None:
        best = self.history.best
        if best is None:
            return
        self.history.last = _weights(self.model)
        fill(self.model, best.weights)
        self.history.restored = best.epoch

    def _diverged(self, what: str, step: int | None) -> DivergedError:
        self._restore()
        self.history.last = self.history.part = None
        optimiser: Any = self.history.optimiser
        rate = float(optimiser.param_groups[0]["lr"])
        epoch = self.history.restored
        weights = f"of epoch {epoch}, the best" if epoch else "that it started with"
        self.history.status = "diverged"
        self.history.message = (
            f"training diverged: {what} {step or self.history.steps}. The model has the weights "
            f"{weights}. Try a lower learning rate (lr={rate / 10:.2g} instead of {rate:.2g}) or "
            f"clip_norm=1.0; wl.diagnose(model, x, condition) shows scales and gradients"
        )
        return DivergedError(self.history.message, self.history)


# -- the model -----------------------------------------------------------------------------------


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TrainingError(
            f"model is a {type(model).__name__}, not an nn.Module; call fit(model, data)"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TrainingError("the model has no parameter that requires a gradient; nothing to train")


def _check_numbers(**numbers: Any) -> None:
    for name, value in numbers.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise TrainingError(f"{name}={value!r} must be a whole number, at least 1")


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in kept(model).items()}


def _not_finite(model: nn.Module) -> str | None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
            return name
    return None


def _placed(model: nn.Module, inputs: tuple[Any, ...], target: Tensor) -> Pair:
    """On the model's device; floating numbers in its type (NumPy's are mostly double)."""
    own = next(p for p in model.parameters() if p.is_floating_point())
    half = own.dtype in (torch.float16, torch.bfloat16)

    def place(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(own.device, dtype if tensor.is_floating_point() else None)

    kind = torch.float32 if half else own.dtype
    return tree_map(lambda tensor: place(tensor, own.dtype), inputs), place(target, kind)


def _called(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    try:
        output = model(*inputs)
    except TypeError:
        _check_call(model, inputs)
        raise
    if not isinstance(output, Tensor):
        raise ShapeError(
            f"the model returned {type(output).__name__}; training needs one tensor, so wrap the "
            f"model in a module that returns it"
        )
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def _check_call(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise if it is the number of inputs that does not fit."""
    try:
        inspect.signature(model.forward).bind(*inputs)
    except TypeError as error:
        raise TrainingError(
            f"the model ({type(model).__name__}) cannot be called with {len(inputs)} "
            f"input{'s' * (len(inputs) != 1)} ({error}); data is (x, condition, target), or "
            f"(inputs, target) with all inputs of the model in a tuple"
        ) from None
