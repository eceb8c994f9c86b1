"""Choose the cheapest method for a tangent kernel, and its block sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightloom.errors import ConfigError, MemoryLimitError
from weightloom.kernels.empirical.rows import InputRows, Network
from weightloom.kernels.empirical.structured import NotStructuredError, Structured
from weightloom.linalg.memory import readable

__all__ = ["METHODS", "KernelPlan", "Probe", "choose"]

METHODS = ("structured", "jacobian", "products")


@dataclass(frozen=True)
class KernelPlan:
    """How a tangent kernel will be computed, and why."""

    method: str
    reason: str
    """one sentence"""
    bytes: int
    """approximate memory that is needed besides the result"""
    flops: float
    """approximate number of multiplications and additions"""
    rows: int
    """rows in a block"""
    columns: int
    """columns in a block"""
    group: int = field(default=0, repr=False)
    """largest number of parameters whose Jacobian is stored at once; only for "jacobian\""""


@dataclass(frozen=True)
class Probe:
    """Sizes of a network, measured on two of its rows."""

    n: int
    m: int
    symmetric: bool
    outputs: int
    parameters: int
    largest: int  # numbers in the largest parameter tensor
    dtype: torch.dtype  # of the outputs
    flops: float  # of one row's forward pass
    activations: float  # numbers that one row's forward pass keeps for the backward pass
    kept: tuple[int, int] | None  # (numbers per row, flops per pair) of the structured method
    refused: str = ""  # why the structured method cannot be used

    @classmethod
    def of(cls, network: Network, u: InputRows, u2: InputRows | None) -> Probe:
        outputs, dtype = network.check_rows(u)
        other = u if u2 is None else u2
        kept, refused, cost = None, "", None
        try:
            example = Structured(network).rows(_ends(u))
            kept = (example.numbers, example.flops)
            if not example.rest:
                # Costs of linear layers are known; counting them takes longer than a small kernel.
                cost = float(sum(layer.forward for layer in example.layers)), float(example.numbers)
        except NotStructuredError as error:
            refused = str(error)
        flops, activations = cost or _forward_cost(network, u[:1])
        sizes = [p.numel() for p in network.parameters.values()]
        return cls(
            len(u), len(other), u2 is None, outputs, sum(sizes), max(sizes), dtype,
            flops, activations, kept, refused,
        )  # fmt: skip

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def pairs(self) -> float:
        return self.n * (self.n + 1) / 2 if self.symmetric else self.n * self.m

    @property
    def gradient_rows(self) -> int:
        """How many rows need a gradient."""
        return self.n if self.symmetric else self.n + self.m

    def structured(self, budget: int) -> KernelPlan | None:
        if self.kept is None:
            return None
        numbers, flops = self.kept
        each = self.itemsize * (3 * numbers + self.activations)
        checked = 3 * self.itemsize * self.parameters  # gradients, two ways, and their difference
        rows = self._block(max(budget - checked, 1), each)
        passes = math.ceil(max(self.n, self.m) / rows)
        cost = self.pairs * flops + self.gradient_rows * passes * self.flops * (self.outputs + 3)
        return self._plan("structured", rows, rows, self._held(rows, each) + checked, cost)

    def jacobian(self, budget: int) -> KernelPlan:
        """All rows at once and some parameters at a time if that fits, else blocks of rows."""
        count, c = max(self.n, self.m), self.outputs
        held = 2 if not self.symmetric else 1
        fits = (budget / (2 * held * count * self.itemsize * c) - self.activations) / 2
        group = int(min(max(fits, self.largest), self.parameters))
        each = self.itemsize * c * (2 * group + self.activations)
        rows = self._block(budget, each)
        passes = math.ceil(self.parameters / group) * math.ceil(count / rows)
        cost = 2 * c * c * self.parameters * self.pairs
        cost += self.gradient_rows * passes * self.flops * (1 + 2 * c)
        return self._plan("jacobian", rows, rows, self._held(rows, each), cost, group)

    def products(self, budget: int) -> KernelPlan:
        c = self.outputs
        column = 2 * self.itemsize * c * self.parameters
        place = 2 * self.itemsize * c * (self.activations + c)  # one row, one column
        rows = self.n
        if column + rows * place > budget:
            rows = max(1, int((budget - column) / place))
        columns = int(budget / (column + rows * place))
        columns = max(1, min(self.m, columns))
        cost = self.flops * (self.m * (1 + 2 * c) + 2 * self.pairs * c)
        return self._plan("products", rows, columns, columns * (column + rows * place), cost)

    def _block(self, budget: int, each: float) -> int:
        """Rows such that two blocks fit in half of the budget, and their kernel in the other."""
        square = math.sqrt(budget / (4 * self.itemsize * self.outputs**2))
        return max(1, min(max(self.n, self.m), int(budget / (4 * each)), int(square)))

    def _held(self, rows: int, each: float) -> float:
        """Bytes of two blocks of rows and of their kernel before it is added to the result."""
        return 2 * each * rows + 2 * self.itemsize * (self.outputs * rows) ** 2

    def _plan(
        self, method: str, rows: int, columns: int, size: float, flops: float, group: int = 0
    ) -> KernelPlan:
        return KernelPlan(method, "", int(size), flops, rows, columns, group)


def choose(probe: Probe, method: str, budget: int) -> KernelPlan:
    """The plan for ``method``, or for the cheapest that fits when it is "auto"."""
    if method not in ("auto", *METHODS):
        raise ConfigError(
            f"method is {method!r}; there are 'auto', {', '.join(map(repr, METHODS))}"
        )
    offers = [probe.structured(budget), probe.jacobian(budget), probe.products(budget)]
    plans = {plan.method: plan for plan in offers if plan is not None}
    if method == "structured" and "structured" not in plans:
        raise NotStructuredError(probe.refused)
    wanted = {method: plans[method]} if method != "auto" else plans
    fitting = [plan for plan in wanted.values() if plan.bytes <= budget]
    if not fitting:
        least = min(wanted.values(), key=lambda plan: plan.bytes)
        raise MemoryLimitError(
            f"the tangent kernel needs about {readable(least.bytes)} at a time ({least.method}, "
            f"one row), but memory is {readable(budget)}; allow more, or train fewer parameters"
        )
    best = min(fitting, key=lambda plan: plan.flops)
    return KernelPlan(
        best.method, _reason(best, method, plans, probe.refused), best.bytes, best.flops, best.rows,
        best.columns, best.group,
    )  # fmt: skip


def _reason(best: KernelPlan, method: str, plans: dict[str, KernelPlan], refused: str) -> str:
    costs = ", ".join(f"{p.method} {p.flops:.2g}" for p in plans.values())
    why = "as asked" if method != "auto" else "the fewest operations of those that fit in memory"
    sentence = f"{best.method}: {why} (operations: {costs}), in blocks of {best.rows} rows"
    return f"{sentence}; not structured, because {refused}" if refused else sentence


def _ends(rows: InputRows) -> InputRows:
    return rows if len(rows) < 3 else rows[:: len(rows) - 1]


def _forward_cost(network: Network, row: InputRows) -> tuple[float, float]:
    """(flops, numbers kept for the backward pass) of one row, counted in a forward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    own = {p.data_ptr() for p in network.parameters.values()}
    kept = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if tensor.data_ptr() in own else tensor.numel()
        return tensor

    counter = FlopCounterMode(display=False)
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with torch.enable_grad(), counter, hooks:
        network(row)
    # A network without matrix products still costs something.
    return float(max(counter.get_total_flops(), kept, 1)), float(kept)
