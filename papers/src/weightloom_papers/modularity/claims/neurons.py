"""Clones, zero neurons, minimality and normality: Definitions 3 to 5, Lemma 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from weightloom.symmetry import is_normal, reduce
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.modularity.claims.norms import EPS, random_network

__all__ = ["CLAIMS"]

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU)


def _points(size: Size, dims: int) -> torch.Tensor:
    return 2 * torch.randn(200 if size == "quick" else 5000, dims, dtype=torch.float64)


def _linear(net: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in net if isinstance(layer, nn.Linear)]


# -- Definition 3 ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CloneChange:
    """Change of the outputs when the outgoing weights of two clones are redistributed.

    Their sum is kept, or their product.
    """

    by_sum: float
    by_product: float
    size: float


@torch.no_grad()
def _measure_clones(size: Size) -> CloneChange:
    rows = []
    for activation in ACTIVATIONS:
        net = random_network([3, 5, 4, 2], activation, last_bias=False)
        first, second = _linear(net)[:2]
        first.weight[3], first.bias[3] = first.weight[1], first.bias[1]
        second.weight[:, 1], second.weight[:, 3] = 1.0, 2.0
        x = _points(size, 3)
        before = net(x)
        second.weight[:, 1], second.weight[:, 3] = 2.5, 0.5
        by_sum = float((net(x) - before).abs().max())
        second.weight[:, 1], second.weight[:, 3] = 4.0, 0.5
        by_product = float((net(x) - before).abs().max())
        rows.append((by_sum, by_product, float(before.abs().max())))
    return CloneChange(*(max(column) for column in zip(*rows, strict=True)))


def _redistributed(measured: CloneChange, moved: float, kept: str) -> Evidence:
    at = f"five activations, 3-5-4-2 with two clones, {kept} of their outgoing weights kept: "
    return Evidence(moved, 100 * EPS * measured.size, at + f"outputs move by {moved:.1e}")


CLONES = PaperClaim(
    name="modularity/clones",
    place="before Definition 3",
    items=(7,),
    measure=_measure_clones,
    printed=Statement(
        "neurons with equal incoming weights and biases can share their outgoing weights anew, if "
        "the sums stay: the same function, whatever the activation",
        lambda measured: _redistributed(measured, measured.by_sum, "sums"),
    ),
    wrong=Statement(
        "the same if the products stay",
        lambda measured: _redistributed(measured, measured.by_product, "products"),
    ),
)


# -- zero neurons ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZeroNeuronChange:
    """Change of the outputs when weights around a zero neuron are replaced by random ones."""

    silent: float
    """no incoming weights and s(b) = 0: outgoing weights replaced"""
    unheard: float
    """no outgoing weights: incoming weights replaced"""
    constant: float
    """no incoming weights and s(b) not 0: outgoing weights replaced"""
    size: float


@torch.no_grad()
def _measure_zero_neurons(size: Size) -> ZeroNeuronChange:
    rows = []
    for activation in (nn.ReLU, nn.Tanh, nn.GELU, nn.ELU):  # s(0) = 0
        x = _points(size, 3)
        net = random_network([3, 5, 4, 2], activation, last_bias=False)
        first, second = _linear(net)[:2]
        first.weight[2], first.bias[2] = 0.0, 0.0
        before = net(x)
        second.weight[:, 2] = torch.randn(4, dtype=torch.float64)
        silent = float((net(x) - before).abs().max())
        first.bias[2] = 0.7
        before = net(x)
        second.weight[:, 2] = torch.randn(4, dtype=torch.float64)
        constant = float((net(x) - before).abs().max())
        second.weight[:, 2] = 0.0
        before = net(x)
        first.weight[2], first.bias[2] = torch.randn(3, dtype=torch.float64), 1.0
        unheard = float((net(x) - before).abs().max())
        rows.append((silent, unheard, constant, float(before.abs().max())))
    return ZeroNeuronChange(*(max(column) for column in zip(*rows, strict=True)))


ZERO = PaperClaim(
    name="modularity/zero-neurons",
    place="before Definition 4",
    items=(8,),
    measure=_measure_zero_neurons,
    printed=Statement(
        "with no incoming weights and s(b) = 0 the outgoing weights are free; with no outgoing "
        "weights the incoming ones are",
        lambda measured: Evidence(
            max(measured.silent, measured.unheard),
            100 * EPS * measured.size,
            "four activations, 3-5-4-2: outputs move by "
            f"{max(measured.silent, measured.unheard):.1e}",
        ),
    ),
    wrong=Statement(
        "with no incoming weights the outgoing ones are free, whatever s(b)",
        lambda measured: Evidence(
            measured.constant,
            100 * EPS * measured.size,
            f"four activations, 3-5-4-2, b = 0.7: outputs move by {measured.constant:.1e}",
        ),
    ),
)


@dataclass(frozen=True)
class NeuronRemoval:
    """Change of the outputs when a neuron with a bias but no incoming weights is removed."""

    plainly: float
    into_next_bias: float
    subtracted: float
    last_layer: float
    """least change in the last hidden layer of form (4), over the others' outgoing weights"""
    size: float


@torch.no_grad()
def _measure_removal(size: Size) -> NeuronRemoval:
    rows = []
    for activation in (nn.Tanh, nn.Sigmoid, nn.GELU):
        x = _points(size, 3)
        net = random_network([3, 5, 4, 2], activation, last_bias=False)
        first, second, last = _linear(net)
        first.weight[2], first.bias[2] = 0.0, 0.7
        before, kept, bias = net(x), second.weight[:, 2].clone(), second.bias.clone()
        second.weight[:, 2] = 0.0
        plainly = float((net(x) - before).abs().max())
        constant = kept * activation()(first.bias[2])
        changes = []
        for sign in (1, -1):
            second.bias.copy_(bias + sign * constant)
            changes.append(float((net(x) - before).abs().max()))
        # The last hidden layer: three neurons and no bias have to replace a constant.
        second.weight[1], second.bias[1] = 0.0, 0.7
        hidden = net[:-1](x)
        target = hidden @ last.weight.T
        others = hidden[:, [0, 2, 3]]
        best = others @ torch.linalg.lstsq(others, target).solution
        at_best = float((best - target).abs().max())
        rows.append((plainly, *changes, at_best, float(before.abs().max())))
    worst = [max(column) for column in zip(*rows, strict=True)]
    # for the last layer the smallest change: no activation lets the neuron be removed there
    return NeuronRemoval(worst[0], worst[1], worst[2], min(row[3] for row in rows), worst[4])


REMOVAL = PaperClaim(
    name="modularity/removing-a-zero-neuron",
    place="Lemma 1, proof",
    items=(8, 14),
    measure=_measure_removal,
    printed=Statement(
        "a neuron without incoming weights can be removed: a smaller network with the same error",
        lambda measured: Evidence(
            measured.plainly,
            200 * EPS * measured.size,
            "3-5-4-2, three activations, b = 0.7: outputs move by "
            f"{measured.plainly:.2g}; in the last "
            f"hidden layer, where (4) has no bias behind, by {measured.last_layer:.2g} at best",
        ),
    ),
    corrected=Statement(
        "it can if its constant is added to the next bias, so not in the last hidden layer of "
        "networks (4), which have no output bias",
        lambda measured: Evidence(
            measured.into_next_bias + (measured.last_layer < 1e-3),
            200 * EPS * measured.size,
            "3-5-4-2, three activations, b = 0.7: outputs move by "
            f"{measured.into_next_bias:.1e}; in "
            f"the last hidden layer the best that remains is {measured.last_layer:.2g} off",
        ),
    ),
    wrong=Statement(
        "it can if its constant is subtracted from the next bias",
        lambda measured: Evidence(
            measured.subtracted,
            200 * EPS * measured.size,
            f"outputs move by {measured.subtracted:.2g}",
        ),
    ),
)


# -- Definitions 4 and 5: minimal and normal networks ----------------------------------------------


@dataclass(frozen=True)
class Minimality:
    """A network that ignores an input and an output: can a hidden neuron be removed?"""

    zero_columns: int
    """zero rows and columns in all of its matrices, as Definition 4 counts them"""
    zero_hidden: int
    """those that belong to hidden neurons"""
    dependence: float
    """least singular value of its hidden activations: 0 if one were a combination of the others"""
    removable: int
    unheard: int
    """neurons removed when one hidden neuron has no outgoing weights"""


@torch.no_grad()
def _measure_minimality(size: Size) -> Minimality:
    net = random_network([3, 5, 2], "tanh", last_bias=False)
    first, last = _linear(net)
    first.weight[:, 1] = 0.0  # the second input
    last.weight[0] = 0.0  # the first output
    hidden = net[:-1](_points(size, 3))
    zero_columns = zero_hidden = 0
    for i, layer in enumerate((first, last)):
        rows = int((layer.weight == 0).all(1).sum())
        columns = int((layer.weight == 0).all(0).sum())
        zero_columns += rows + columns
        zero_hidden += rows if i == 0 else columns
    least = float(torch.linalg.svdvals(hidden)[-1]) / len(hidden) ** 0.5
    removable = reduce(net).removed
    last.weight[:, 2] = 0.0
    return Minimality(zero_columns, zero_hidden, least, removable, reduce(net).removed)


def _not_minimal(measured: Minimality, zeros: int, what: str) -> Evidence:
    """Seen: whether the network is called not minimal although no neuron can be removed."""
    needed = measured.dependence > 1e-6 and measured.removable == 0
    at = (
        f"tanh 3-5-2 that ignores an input and an output: {zeros} zero rows or columns among "
        f"{what}; its hidden activations are independent (least singular value "
        f"{measured.dependence:.2g}), so no smaller network is equal to it; "
        f"with a hidden neuron's outgoing weights set to 0, {measured.unheard} can go"
    )
    return Evidence(float(zeros > 0 and needed) + (measured.unheard != 1), 0.0, at)


MINIMALITY = PaperClaim(
    name="modularity/minimality",
    place="Definition 4",
    items=(8,),
    measure=_measure_minimality,
    printed=Statement(
        "a network one of whose matrices W^1 .. W^k has a zero row or column is not minimal: a "
        "smaller one is equal to it",
        lambda measured: _not_minimal(measured, measured.zero_columns, "all of W^1 .. W^k"),
    ),
    corrected=Statement(
        "the columns of W^1 and the rows of W^k belong to inputs and outputs and do not count",
        lambda measured: _not_minimal(measured, measured.zero_hidden, "those of hidden neurons"),
    ),
    wrong=Statement(
        "only the rows of W^k do not count",
        lambda measured: _not_minimal(
            measured, measured.zero_columns - 1, "all but the rows of W^k"
        ),
    ),
)


@dataclass(frozen=True)
class NormalCopies:
    """Networks with a scaled or mirrored copy of a neuron, against those with the copy merged."""

    normal_as_defined: bool
    kinds: tuple[str, ...]
    outputs: dict[str, float]
    unscaled: float


@torch.no_grad()
def _measure_normal(size: Size) -> NormalCopies:
    outputs, kinds, defined, unscaled = {}, [], True, 0.0
    for name, activation, factor in (("ReLU", nn.ReLU, 3.0), ("tanh", nn.Tanh, -1.0)):
        net = random_network([3, 4, 2], activation, last_bias=False)
        first, last = _linear(net)
        first.weight[3], first.bias[3] = factor * first.weight[0], factor * first.bias[0]
        rows = torch.cat([first.weight, first.bias[:, None]], 1)
        clones = any(torch.equal(rows[i], rows[j]) for i in range(4) for j in range(i))
        zeros = any(bool((w == 0).all(d).any()) for w in (rows, last.weight) for d in (0, 1))
        defined &= not clones and not zeros
        verdict = is_normal(net)
        kinds += [kind for kind in ("scaled", "mirrored") if getattr(verdict, kind)]
        # By hand: the copy's outgoing weights, times the factor, go to the original.
        x = _points(size, 3)
        before = net(x)
        merged = random_network([3, 3, 2], activation, last_bias=False)
        below, above = _linear(merged)
        below.weight.copy_(first.weight[:3])
        below.bias.copy_(first.bias[:3])
        above.weight.copy_(last.weight[:, :3])
        above.weight[:, 0] += last.weight[:, 3]
        unscaled = max(unscaled, float((merged(x) - before).abs().max()))
        above.weight[:, 0] += (factor - 1) * last.weight[:, 3]
        outputs[name] = float((merged(x) - before).abs().max() / before.abs().max())
    return NormalCopies(defined, tuple(kinds), outputs, unscaled)


NORMAL = PaperClaim(
    name="modularity/normal-networks",
    place="Definition 5, Lemma 1",
    items=(7, 9),
    measure=_measure_normal,
    printed=Statement(
        "a network without clones and zero neurons (normal) is as small as it can be: none with a "
        "neuron less has its function (checked for ReLU and tanh)",
        lambda measured: Evidence(
            float(measured.normal_as_defined),
            sum(moved > 100 * EPS for moved in measured.outputs.values()) / 2,
            f"3-4-2 with a scaled (ReLU) or mirrored (tanh) copy is normal by Definition 5; 3-3-2 "
            f"has the same outputs within {max(measured.outputs.values()):.1e}",
        ),
    ),
    corrected=Statement(
        "positive multiples (ReLU) and mirror images (tanh) are clones too: merged with their "
        "factor they leave the function as it is",
        lambda measured: Evidence(
            max(measured.outputs.values()) + (measured.kinds != ("scaled", "mirrored")),
            100 * EPS,
            f"3-4-2 merged to 3-3-2: outputs move by {max(measured.outputs.values()):.1e} of their "
            f"size; is_normal names the copies: {', '.join(measured.kinds)}",
        ),
    ),
    wrong=Statement(
        "they can be merged without their factor",
        lambda measured: Evidence(
            measured.unscaled, 100 * EPS, f"outputs move by {measured.unscaled:.2g}"
        ),
    ),
)

CLAIMS = (CLONES, ZERO, REMOVAL, MINIMALITY, NORMAL)
