"""The first-order Taylor model of any module around its current weights, as a trainable module.

    F_0(x; w) = F(x; w0) + <dF(x; w0)/dw, w - w0>                         (Definition 3.1)

It is affine in w and as nonlinear in x as F is. Both terms come from one pass of forward-mode
differentiation (`torch.func.jvp`); no Jacobian is stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp
from torch.utils._pytree import tree_map

from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.hyper.rows import call
from weightloom.networks import WeightSpec
from weightloom.networks.kernels import plain_attention

__all__ = ["TaylorModel", "linearize"]


class TaylorModel(nn.Module):
    """F_0(x; w) around the current weights w0 of ``module``; its parameters are w - w0.

    ``train`` selects the parameters that may change (glob patterns over dotted names, all by
    default); those that do not require a gradient never do. The module is copied, so training the
    original later does not change F_0. Buffers are read but never written, so batch normalisation
    in training mode normalises by the batch and keeps its running statistics.

    ``displacement`` holds w - w0, zero at first, by name with "/" for ".". The frozen w0 and the
    buffers are in the state dict too, under ``module.``.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> model, x = linearize(net), torch.randn(5, 3)
    >>> torch.equal(model(x), net(x)), sorted(model.displacement)
    (True, ['0/bias', '0/weight', '2/bias', '2/weight'])
    """

    def __init__(self, module: nn.Module, train: str | Iterable[str] = "*") -> None:
        super().__init__()
        chosen = WeightSpec.from_module(module, train)
        parameters = dict(module.named_parameters())
        self.spec = chosen.subset(name for name in chosen if parameters[name].requires_grad)
        if not len(self.spec):
            raise UnsupportedModuleError(
                f"no parameter of {type(module).__name__} that train={train!r} selects requires a "
                f"gradient; a Taylor model needs at least one that may move"
            )
        self.module = copy.deepcopy(module).requires_grad_(False)
        start = dict(self.module.named_parameters())
        self.displacement = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.zeros_like(start[name])) for name in self.spec}
        )

    # -- evaluation -------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """F_0(args; w0 + displacement), in the structure that the module returns."""
        moves = {name: self.displacement[_key(name)] for name in self.spec}

        def at(weights: dict[str, Tensor]) -> Any:
            return self._call(weights, args, kwargs)

        value, change = _forward_mode(lambda: jvp(at, (self.start(),), (moves,)))
        return tree_map(lambda a, b: a + b if isinstance(a, Tensor) else a, value, change)

    def start(self) -> dict[str, Tensor]:
        """w0 by name."""
        parameters = dict(self.module.named_parameters())
        return {name: parameters[name] for name in self.spec}

    def weights(self) -> dict[str, Tensor]:
        """w = w0 + displacement by name."""
        return {name: w + self.displacement[_key(name)] for name, w in self.start().items()}

    @torch.no_grad()
    def move_to(self, weights: Mapping[str, Tensor]) -> TaylorModel:
        """Set w (names and shapes as in `weights`), for instance to trained weights."""
        self.spec.check(weights)
        for name, w in self.start().items():
            if weights[name].shape != w.shape:
                raise ShapeError(
                    f"weight {name!r} has shape {tuple(weights[name].shape)}, but {tuple(w.shape)} "
                    f"is wanted: one set of weights, without a leading dimension"
                )
            self.displacement[_key(name)].copy_(weights[name] - w)
        return self

    @torch.no_grad()
    def network(self) -> nn.Module:
        """An ordinary copy of the module with weights w, to compare F with F_0."""
        network = copy.deepcopy(self.module).requires_grad_(True)
        parameters = dict(network.named_parameters())
        for name, w in self.weights().items():
            parameters[name].copy_(w)
        return network

    def distance(self) -> Tensor:
        """Euclidean norm of w - w0 over all parameters that may change."""
        return torch.linalg.vector_norm(self.flat())

    def flat(self) -> Tensor:
        """w - w0 as one vector [p], in the order of ``spec``."""
        return torch.cat([self.displacement[_key(name)].reshape(-1) for name in self.spec])

    def jacobian(self, x: Tensor) -> Tensor:
        """dF(x; w0)/dw as a matrix [outputs, p], columns as in `flat`.

        By reverse mode, with outputs * p numbers in memory: for small problems and for checks.
        """
        start = {name: w.detach() for name, w in self.start().items()}

        def outputs(weights: dict[str, Tensor]) -> Tensor:
            return self._call(weights, (x,), {}).reshape(-1)

        rows = _forward_mode(lambda: jacrev(outputs)(start))
        return torch.cat([rows[name].flatten(1) for name in self.spec], 1).detach()

    def _call(self, weights: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
        # Buffers are passed as copies: what a layer writes into them is dropped.
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        return call(self.module, self.spec, weights, args, kwargs, buffers)


def linearize(module: nn.Module, train: str | Iterable[str] = "*") -> TaylorModel:
    """The Taylor model F_0 of ``module`` around its current weights; see `TaylorModel`."""
    return TaylorModel(module, train)


def _key(name: str) -> str:
    return name.replace(".", "/")  # names in a ParameterDict cannot contain a dot


def _forward_mode(run: Callable[[], Any]) -> Any:
    """``run()`` with the kernels that support forward-mode differentiation.

    Fused attention has no forward derivative in PyTorch, nor has oneDNN's LSTM. Disabling oneDNN
    slows convolutions down, so that is only the second attempt.
    """
    with plain_attention():
        try:
            return run()
        except NotImplementedError:
            with torch.backends.mkldnn.flags(enabled=False):
                return run()
