"""HyperNetwork: a network g whose weights are written by another network f."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weightloom.errors import CheckpointError, HeadError, NonFiniteWeightsError, ShapeError
from weightloom.hyper.encoders import (
    FeatureStatistics,
    condition_dims,
    encode,
    feature_statistics,
    feature_width,
)
from weightloom.hyper.heads import DeltaHead, FullHead, Head, make_head
from weightloom.hyper.rows import (
    CallPlan,
    Decision,
    Generated,
    RowwiseCall,
    Written,
    call,
    fill,
    strip,
    with_aliases,
)
from weightloom.hyper.rows.functional import modes_restored, unshare
from weightloom.hyper.start import apply_ntk, check_init, init_targets, varying_share
from weightloom.networks import WeightSpec

__all__ = ["HyperNetwork"]


class HyperNetwork(nn.Module):
    """h(x, I) = g(x; f(I)): any ``primary`` g, its weights written from a condition I.

    ``encoder`` maps conditions [b, *c] to features [b, k] (None: the condition is the features);
    ``head`` maps features to weights; ``generate`` says, by glob patterns, which parameters of the
    primary are generated. The others are learned directly, or stay as they are with
    ``freeze_rest=True``. The primary is copied, never changed.

    ``init`` (default "hyperfan_in") sets the scale at which training starts. It needs the second
    moment of the encoder's features: pass ``feature_moment`` if you know it, or ``calibration`` (a
    batch of conditions) to measure it. Without either it is measured on standard normal conditions
    if the encoder begins with a Linear layer. `initialisation` says what was used. A `DeltaHead`
    starts at the given primary, so it takes no ``init``.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> hyper(torch.randn(3, 100, 2), torch.randn(3, 5)).shape
    torch.Size([3, 100, 1])
    """

    initial_features: FeatureStatistics
    """what the head was initialised for"""

    def __init__(
        self,
        primary: nn.Module,
        encoder: nn.Module | None = None,
        head: str | Head = "full",
        init: str | None = None,
        generate: str | Iterable[str] = "*",
        *,
        features: int | None = None,
        freeze_rest: bool = False,
        feature_moment: float | None = None,
        calibration: Tensor | None = None,
        condition_dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.spec = WeightSpec.from_module(primary, generate)
        self.primary = strip(primary, self.spec)
        if freeze_rest:
            self.primary.requires_grad_(False)
        self.encoder = nn.Identity() if encoder is None else encoder
        self.order = "auto"
        self.check_finite = True
        self._dims = _dims_of(self.encoder, condition_dims)
        self._rowwise = RowwiseCall()
        parameters = dict(primary.named_parameters())
        values = {name: parameters[name].detach() for name in self.spec}
        width = features or _width_of(self.encoder, self._dims, calibration)
        self.head = _make_head(head, init)
        self.head.build(self.spec, width, values)
        self.initialisation = self._initialise(primary, values, init, feature_moment, calibration)
        self.to(device=device, dtype=dtype)

    def _initialise(
        self,
        primary: nn.Module,
        values: Mapping[str, Tensor],
        init: str | None,
        moment: float | None,
        calibration: Tensor | None,
    ) -> str:
        """Initialise the head's parameters; return a description of how."""
        if moment is not None and not moment > 0:
            raise HeadError(f"feature_moment={moment} was given; a second moment is positive")
        chosen = check_init(init or "hyperfan_in")
        known = feature_statistics(self.encoder, self._dims, calibration, moment)
        self.initial_features = known
        if isinstance(self.head, DeltaHead):
            self.head.zero(known.moment)
            return "delta: generates the given primary exactly"
        if chosen == "default":
            self.head.default()
            return "default: every layer as nn.Linear does it, whatever the primary needs"
        if chosen == "ntk":
            apply_ntk(primary, self.encoder, self.head)
            return "ntk: standard normal parameters, scales in the forward pass"
        share = varying_share(primary, self.spec, chosen, known.spread * self.head.degree)
        goal = init_targets(primary, self.spec, values, chosen, share)
        self.head.initialise(goal, known.moment)
        done = f"{chosen}: second moment of features {known.moment:.4g} ({known.source})"
        if chosen == "primary":
            return done
        return f"{done}, {share:.0%} of the weights' variance depends on the condition"

    # -- running ---------------------------------------------------------------------------------

    def forward(self, x: Any, condition: Tensor, *args: Any, **kwargs: Any) -> Any:
        """output[i] = primary(x[i]) with the weights of condition[i]; or one condition for all.

        Further tensor arguments have one row for each condition too, unless wrapped in
        `weightloom.shared`; other arguments are passed to the primary unchanged.
        """
        features, single = self._encode(condition)
        generated = self.head.generate(features)
        if single:
            weights = {name: value.dense()[0] for name, value in generated.items()}
            args, kwargs = tree_map(unshare, (args, kwargs))
            output = call(self.primary, self.spec, weights, (x, *args), kwargs)
        else:
            output = self._apply_rowwise(generated, features.shape[0], (x, *args), kwargs)
        self._check_output(output, generated)
        return output

    def _encode(self, condition: Tensor) -> tuple[Tensor, bool]:
        features, single = encode(self.encoder, condition, self._dims)
        if features.shape[1] != self.head.features:
            raise ShapeError(
                f"the encoder returned {features.shape[1]} features, but the head was built for "
                f"{self.head.features}; pass features={features.shape[1]} to HyperNetwork"
            )
        return features, single

    def _apply_rowwise(
        self,
        generated: Mapping[str, Generated],
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        decisions: list[Decision] | None = None,
    ) -> Any:
        x = args[0]
        if isinstance(x, Tensor) and (x.dim() == 0 or x.shape[0] != rows):
            seen = "no rows" if x.dim() == 0 else f"{x.shape[0]}"
            raise ShapeError(
                f"condition has {rows} rows but x has {seen}; each row of x needs one condition "
                f"(or pass a single condition without a leading dimension)"
            )
        every = with_aliases(self.spec, generated) if self.spec.aliases else generated
        # Not self.primary: looking a submodule up through __getattr__ takes a microsecond.
        primary: nn.Module = self._modules["primary"]  # type: ignore[assignment]
        return self._rowwise.run(primary, every, rows, args, kwargs, self.order, decisions)

    def weights(self, condition: Tensor) -> dict[str, Tensor]:
        """The generated weights ``{name: [b, *shape]}``; of one condition ``{name: [*shape]}``."""
        features, single = self._encode(condition)
        generated = self.head.generate(features)
        weights = {name: generated[name].dense() for name in self.spec}
        _require_finite(weights)
        return {name: value[0] for name, value in weights.items()} if single else weights

    def run(self, x: Any, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Call the primary with weights from an earlier `weights()`: generate once, use often.

        ``weights`` belongs to one condition, or to one condition per row of x.
        """
        self.spec.check(weights)
        first = next(iter(self.spec))
        if weights[first].dim() == len(self.spec.shapes[first]):
            args, kwargs = tree_map(unshare, (args, kwargs))
            return call(self.primary, self.spec, weights, (x, *args), kwargs)
        written = {name: Written(weights[name]) for name in self.spec}
        return self._apply_rowwise(written, weights[first].shape[0], (x, *args), kwargs)

    # -- one condition's network, and the plan ----------------------------------------------------

    def materialize(self, condition: Tensor) -> nn.Module:
        """The network of one condition: a copy of the primary with ordinary parameters."""
        with torch.no_grad():
            weights = self.weights(condition)
        for name, shape in self.spec.shapes.items():
            if weights[name].dim() == len(shape):
                continue
            if weights[name].shape[0] != 1:
                raise ShapeError(
                    f"condition has {weights[name].shape[0]} rows, but one network has one "
                    f"condition; materialize(condition[i]) for each i"
                )
            weights[name] = weights[name][0]
        return fill(self.primary, self.spec, weights)

    def plan(self, x: Any, condition: Tensor, *args: Any, **kwargs: Any) -> CallPlan:
        """How ``hyper(x, condition)`` is computed, layer by layer, and what each order would cost.

        Runs the primary once, in evaluation mode, so that nothing is updated. The choice depends on
        whether gradients are needed: for the plan of inference, call it inside `torch.no_grad()`.
        """
        decisions: list[Decision] = []
        with modes_restored(self):
            self.eval()
            features, single = self._encode(condition)
            if not single:
                generated = self.head.generate(features)
                self._apply_rowwise(generated, features.shape[0], (x, *args), kwargs, decisions)
        return CallPlan(tuple(decisions), features.shape[0])

    # -- checks ----------------------------------------------------------------------------------

    def _check_output(self, output: Any, generated: Mapping[str, Generated]) -> None:
        """If the output is not finite, check the weights and name the tensor that is not.

        Costs one pass over the output. On an accelerator it would also wait for the device, so
        there only `weights()` and `materialize()` check.
        """
        if not self.check_finite or torch.compiler.is_compiling():
            return
        tensor = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(tensor, Tensor) or not tensor.is_cpu or not tensor.is_floating_point():
            return
        try:
            if math.isfinite(tensor.sum().item()):
                return
        except RuntimeError:  # inside vmap or another transform: there is no value to look at
            return
        _require_finite({name: value.dense() for name, value in generated.items()})

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            raise CheckpointError(
                f"this checkpoint belongs to another architecture: {error}\nBuild the HyperNetwork "
                f"with the same primary, encoder, head and generate= as the one that was saved"
            ) from error

    def extra_repr(self) -> str:
        return f"generated={self.spec.size}, features={self.head.features}, {self.initialisation}"


def _make_head(head: str | Head, init: str | None) -> Head:
    if init is not None:
        check_init(init)
    if init == "ntk" and isinstance(head, str) and head == "full":
        return FullHead(offset=False)
    chosen = make_head(head)
    if isinstance(chosen, DeltaHead) and init is not None:
        raise HeadError(
            f"init={init!r} was given with a delta head, which starts at the given primary; leave "
            f"init out"
        )
    return chosen


def _dims_of(encoder: nn.Module, given: int | None) -> int | None:
    if given is not None:
        return given
    return 1 if isinstance(encoder, nn.Identity) else condition_dims(encoder)


def _width_of(encoder: nn.Module, dims: int | None, calibration: Tensor | None) -> int:
    if calibration is not None:
        with torch.no_grad():
            return encode(encoder, calibration, dims)[0].shape[1]
    width = feature_width(encoder)
    if width is None:
        raise ShapeError(
            f"how many features the encoder ({type(encoder).__name__}) returns cannot be read from "
            f"its layers; pass features=k, or calibration= a batch of conditions"
        )
    return width


def _require_finite(weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise NonFiniteWeightsError(
                f"the generated weight {name!r} holds {bad} values that are NaN or infinite (of "
                f"{value.numel()}); training has diverged or the condition is not finite. Lower "
                f"the learning rate, clip gradients, or start with init='hyperfan_in'; "
                f"weightloom.diagnose(hyper, x, condition) shows where it begins"
            )
