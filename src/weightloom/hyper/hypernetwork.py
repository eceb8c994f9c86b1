"""HyperNetwork: a network g whose weights are written by another network f."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.errors import (
    CheckpointError,
    HeadError,
    ShapeError,
    UnsupportedModuleError,
    WeightloomError,
)
from weightloom.hyper.adapters import Adapter, adapter_of, check_writes_changes
from weightloom.hyper.bound import Binding, Layout, Owners
from weightloom.hyper.bound.sharded import refuse_parts
from weightloom.hyper.building import (
    choose_dims,
    choose_head,
    choose_multipliers,
    choose_scaling,
    choose_width,
    initialise_head,
    plain_features_hint,
)
from weightloom.hyper.calling import added, condition_of, in_type_of, meant_bind, require_rows
from weightloom.hyper.encoders import (
    Condition,
    Dims,
    Features,
    FeatureStatistics,
    encode,
    feature_statistics,
    is_frozen,
)
from weightloom.hyper.finite import check_bound, check_output, require_finite
from weightloom.hyper.heads import Head
from weightloom.hyper.rows import (
    CallPlan,
    Decision,
    Generated,
    RowwiseCall,
    Written,
    call,
    fill,
    strip,
)
from weightloom.hyper.rows.any_module import VMAP_REFUSALS
from weightloom.hyper.rows.functional import given_values, modes_restored, unshared, with_aliases
from weightloom.hyper.rows.shells import structure_of
from weightloom.networks import WeightSpec

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HyperNetwork"]


class HyperNetwork(nn.Module):
    """h(x, I) = g(x; f(I)): any ``primary`` g, its weights written from a condition I.

    ``encoder`` maps conditions [b, *c] to features [b, k] (None: the condition is the features);
    ``head`` maps features to weights; ``generate`` says, by glob patterns, which parameters of the
    primary are generated. The others are learned directly, or stay as they are with
    ``freeze_rest=True``. The primary is copied, never changed.

    ``init`` (default "mup") says where training starts and how far its steps go. With "mup" weights
    are a learned constant, which starts as the given primary's own weights, plus a part for each
    condition, and one learning rate serves any number of features: they are normalised for each
    condition. Features whose length matters (no encoder, fewer than 8 features, an encoder without
    biases) are divided by one number instead. That number, and the other starts ("hyperfan_in" and
    more), need the second moment of the features: pass ``feature_moment`` if you know it, or
    ``calibration`` (a batch of conditions) to measure it. Without either it is measured on standard
    normal conditions if the encoder begins with a Linear layer. `initialisation` says what was
    used. A `DeltaHead` starts at the given primary, so it takes no other ``init`` than these two;
    with "hyperfan_in" it uses features as they are.

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
        calibration: Condition | None = None,
        condition_dims: Dims = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        built = choose_head(head, init)
        self.spec = WeightSpec.from_module(primary, generate, opaque=built.relative)
        self.primary: nn.Module = nn.Identity()  # for now: the head says what stays in it
        self.encoder = nn.Identity() if encoder is None else encoder
        self.order = "auto"
        self.check_finite = True
        self._dims = choose_dims(self.encoder, condition_dims)
        self._rowwise = RowwiseCall()
        self._layouts: dict[object, Layout] = {}
        values = given_values(primary, self.spec)
        width = features or choose_width(self.encoder, self._dims, calibration)
        self.head = built
        self.head.build(self.spec, width, values)
        bases = self.head.bases()
        self._bases = tuple(name for name in self.spec if name in bases)
        self.primary = strip(primary, self.spec, bases, freeze_rest)
        if feature_moment is not None and not feature_moment > 0:
            raise HeadError(
                f"feature_moment={feature_moment} was given; a second moment is positive"
            )
        self.initial_features = feature_statistics(
            self.encoder, self._dims, calibration, feature_moment
        )
        self.scaling = choose_scaling(
            self.head, self.encoder, self._dims, init, calibration, self.initial_features
        )
        self.multipliers = choose_multipliers(self.head, primary, init)
        self.initialisation = initialise_head(
            self.head,
            primary,
            self.encoder,
            values,
            init,
            self.initial_features,
            self.scaling,
            self.multipliers,
        )
        self.to(device=device, dtype=dtype)

    # -- running ---------------------------------------------------------------------------------

    def forward(self, *args: Any, condition: Condition | None = None, **kwargs: Any) -> Any:
        """output[i] = primary(x[i]) with the weights of condition[i]; or one condition for all.

        ``hyper(x, condition, ...)``, or the primary's own keywords: ``hyper(input_ids=ids,
        condition=condition)``. Further tensor arguments have one row for each condition too, unless
        wrapped in `weightloom.shared`; numbers, strings and None are passed on. `bind` is for
        primaries that keep state from call to call, such as caches.
        """
        args, condition = condition_of(args, kwargs, condition)
        features, single = self._encode(condition)
        if single or (self.spec.opaque and features.shape[0] == 1):
            generated = self._changes(features)
            args, kwargs = unshared(args, kwargs)
            output = self._apply_single(generated, args, kwargs)
        elif self.spec.opaque:
            raise UnsupportedModuleError(
                f"hyper(x, condition) cannot see inside {sorted(self.spec.opaque)[0]!r}, a weight "
                f"in a form of its own; hyper.bind(condition)(x) can: row i of x has condition i"
            )
        else:
            changes = self._changes(features)
            generated = self._absolute(changes)
            try:
                output = self._apply_rowwise(generated, features.shape[0], args, kwargs)
            except WeightloomError:
                raise
            except (*VMAP_REFUSALS, IndexError) as error:  # not those that control flow uses
                binding = self._binding(changes, Owners(features.shape[0]))
                raise meant_bind(error, binding, args, kwargs) or error from None
        if self.check_finite:
            check_output(output, generated)
        return output

    def bind(self, conditions: Condition, index: Tensor | None = None) -> Any:
        """The primary with the weights of these conditions: a module called as the primary is.

        Row i of every batch that it is given has condition i. Of k b rows each k neighbours share a
        condition, as beam search lays them out. With ``index`` [n], row j has condition index[j]:
        any number of rows for each condition, in any order. A single condition is for all rows.

        Attributes and methods of the primary work (``generate``, ``config``); so do caches, masks
        and activation checkpointing. The primary is not touched: bound networks can be used side by
        side, and in several threads. Gradients flow into the hypernetwork.

        >>> import weightloom as wl
        >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
        >>> net = hyper.bind(torch.randn(3, 5))
        >>> net(torch.randn(3, 2)).shape, net(torch.randn(12, 2)).shape
        (torch.Size([3, 1]), torch.Size([12, 1]))
        """
        features, _ = self._encode(conditions)
        generated = self._changes(features)
        if self.check_finite:
            check_bound(generated)
        if index is None:
            owners = Owners(features.shape[0])
        else:
            owners = Owners.of_index(index, features.shape[0])
            generated = {
                name: value.rebuild(tuple(map(owners.pick, value.batched())))
                for name, value in generated.items()
            }
        return self._binding(generated, owners).network()

    def _binding(self, generated: Mapping[str, Generated], owners: Owners) -> Binding:
        primary: nn.Module = self._modules["primary"]  # type: ignore[assignment]
        key = structure_of(primary)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= 16:
                self._layouts.clear()
            layout = self._layouts[key] = Layout()
        return Binding(primary, self.spec, generated, self._own_values(), owners, layout)

    def _own_values(self) -> dict[str, Tensor | None]:
        """The primary's own tensors that the head writes changes of."""
        primary: nn.Module = self._modules["primary"]  # type: ignore[assignment]
        return {
            name: None if name in self.spec.opaque else primary.get_parameter(name)
            for name in self._bases
        }

    def _changes(self, features: Tensor) -> dict[str, Generated]:
        """What the head writes: weights, or changes of the primary's own weights."""
        if self._bases:
            features = in_type_of(features, self.head)
        generated = self.head.generate(self.scaled(features))
        for name, factor in self.multipliers.items():
            generated[name] = generated[name].times(factor)
        return generated

    def scaled(self, features: Tensor) -> Tensor:
        """The encoder's features as the head is given them: of the size that ``init`` asks for."""
        return features if self.scaling is None else self.scaling(features)

    def generated(self, features: Tensor) -> dict[str, Generated]:
        """The weights for features [b, k], in the form that the head has them in."""
        return self._absolute(self._changes(features))

    def _absolute(self, generated: dict[str, Generated]) -> dict[str, Generated]:
        """The weights themselves: changes are added to the primary's own."""
        if not self._bases:
            return generated
        own = self._own_values()
        refuse_parts(own)
        return {name: added(value, own.get(name)) for name, value in generated.items()}

    def _apply_single(
        self, generated: dict[str, Generated], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if self._bases and not torch.compiler.is_compiling():
            return self._binding(generated, Owners(1)).network()(*args, **kwargs)
        weights = {name: value.dense()[0] for name, value in self._absolute(generated).items()}
        return call(self.primary, self.spec, weights, args, kwargs)

    def encode(self, condition: Condition) -> Features:
        """The features of a condition, to be used in its place: run the encoder once, use often.

        >>> import weightloom as wl
        >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
        >>> features = hyper.encode(torch.randn(3, 5))
        >>> hyper(torch.randn(100, 2), features[1]).shape
        torch.Size([100, 1])
        """
        return Features(*self._encode(condition))

    def _encode(self, condition: Condition) -> tuple[Tensor, bool]:
        features, single = encode(self.encoder, condition, self._dims)
        if features.shape[1] != self.head.features:
            if isinstance(condition, Features):
                raise ShapeError(
                    f"the Features have {features.shape[1]} columns, but the head was built for "
                    f"{self.head.features}; make them with this model's encode()"
                )
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
        require_rows(args[0] if args else None, rows)
        every = with_aliases(self.spec, generated) if self.spec.aliases else generated
        # Not self.primary: looking a submodule up through __getattr__ takes a microsecond.
        primary: nn.Module = self._modules["primary"]  # type: ignore[assignment]
        return self._rowwise.run(primary, every, rows, args, kwargs, self.order, decisions)

    def weights(self, condition: Condition) -> dict[str, Tensor]:
        """The generated weights ``{name: [b, *shape]}``; of one condition ``{name: [*shape]}``."""
        features, single = self._encode(condition)
        generated = self.generated(features)
        weights = {name: generated[name].dense() for name in self.spec}
        require_finite(weights)
        return {name: value[0] for name, value in weights.items()} if single else weights

    def run(self, x: Any, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Call the primary with weights from an earlier `weights()`: generate once, use often.

        ``weights`` belongs to one condition, or to one condition per row of x.
        """
        self.spec.check(weights)
        first = next(iter(self.spec))
        if weights[first].dim() == len(self.spec.shapes[first]):
            args, kwargs = unshared(args, kwargs)
            return call(self.primary, self.spec, weights, (x, *args), kwargs)
        written = {name: Written(weights[name]) for name in self.spec}
        return self._apply_rowwise(written, weights[first].shape[0], (x, *args), kwargs)

    # -- one condition's network, and the plan ----------------------------------------------------

    def materialize(self, condition: Condition) -> nn.Module:
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

    @torch.no_grad()
    def adapter(self, condition: Condition) -> Adapter:
        """The change of one condition as a low-rank adapter, which PEFT can read once it is saved.

        Needs a head that writes changes as two factors: `AdapterHead`, or `DeltaHead` with a rank.
        """
        check_writes_changes(self.head, self.spec)
        features, _ = self._encode(condition)
        generated = self._changes(features)
        return adapter_of(self.spec, self.primary, generated, getattr(self.head, "alpha", None))

    def plan(self, x: Any, condition: Condition, *args: Any, **kwargs: Any) -> CallPlan:
        """How ``hyper(x, condition)`` is computed, layer by layer, and what each order would cost.

        Runs the primary once, in evaluation mode, so that nothing is updated. The choice depends on
        whether gradients are needed: for the plan of inference, call it inside `torch.no_grad()`.
        """
        decisions: list[Decision] = []
        with modes_restored(self):
            self.eval()
            features, single = self._encode(condition)
            if not single:
                generated = self.generated(features)
                self._apply_rowwise(generated, features.shape[0], (x, *args), kwargs, decisions)
        return CallPlan(tuple(decisions), features.shape[0])

    # -- modes -----------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> HyperNetwork:
        """Training or evaluation mode; `train()` leaves a frozen encoder in the mode it has.

        So a frozen encoder in evaluation mode never has dropout. The same holds for a frozen module
        directly inside the encoder, such as a language model with a trained layer behind it.
        `eval()` reaches every module.
        """
        parts = [self.encoder, *self.encoder.children()] if mode else []
        with modes_restored(*(part for part in parts if is_frozen(part))):
            super().train(mode)
        return self

    # -- saving ----------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write what was learned to a folder: config.json and model.safetensors.

        That is the head, running statistics, and those parameters of the encoder and the primary
        that require a gradient. A frozen base or encoder is not written.
        """
        from weightloom.hyper.saving.pretrained import save_pretrained

        return save_pretrained(self, folder)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        primary: nn.Module,
        encoder: nn.Module | None = None,
        *,
        head: Head | None = None,
        revision: str | None = None,
    ) -> Self:
        """The hypernetwork that `save_pretrained` wrote, in evaluation mode.

        ``primary`` and ``encoder`` are those of training, as they were before it: the folder has
        only what was learned. Other shapes are refused; other values of what is frozen give a
        warning. Learned parameters of the encoder are loaded into the given one. ``head`` is needed
        for heads that are not weightloom's. ``folder`` may be a name on the Hugging Face hub if
        huggingface_hub is installed; ``revision`` then chooses a version.
        """
        from weightloom.hyper.saving.pretrained import load_pretrained

        return load_pretrained(cls, folder, primary, encoder, head, revision)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            hint = plain_features_hint(self.state_dict(), state_dict)
            raise CheckpointError(
                f"this checkpoint belongs to another architecture: {error}\nBuild the HyperNetwork "
                f"with the primary, encoder, head and generate= of the one that was saved{hint}"
            ) from error

    def extra_repr(self) -> str:
        return f"generated={self.spec.size}, features={self.head.features}, {self.initialisation}"
