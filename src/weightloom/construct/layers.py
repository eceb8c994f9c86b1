"""Affine layers given entry by entry, networks made of them, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, UnsupportedModuleError

__all__ = [
    "Entries",
    "Size",
    "SparseLinear",
    "linear_layers",
    "measure",
    "read_shallow",
    "shallow_network",
    "to_dense",
]


# Above this many entries a matrix is sparse by default: 2 MB in double precision.
DENSE_LIMIT = 2**18


class SparseLinear(nn.Module):
    """y = W x + b like `nn.Linear`, storing only the nonzero entries of W."""

    index: Tensor  # [2, entries], sorted by row, then column

    def __init__(self, index: Tensor, values: Tensor, bias: Tensor, in_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, len(bias)
        self.register_buffer("index", index)
        self.values = nn.Parameter(values)
        self.bias = nn.Parameter(bias)

    def matrix(self) -> Tensor:
        """W as a sparse tensor."""
        size = (self.out_features, self.in_features)
        return torch.sparse_coo_tensor(
            self.index, self.values, size, check_invariants=False, is_coalesced=True
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        out = torch.sparse.mm(self.matrix(), flat.T.contiguous()).T + self.bias
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"entries={len(self.values)}"
        )


class Entries:
    """Collects entries (row, column, value) of a matrix, and a bias; `layer` builds the layer."""

    def __init__(self, out_features: int, in_features: int) -> None:
        self.in_features, self.out_features = in_features, out_features
        self._rows: list[Tensor] = []
        self._columns: list[Tensor] = []
        self._values: list[Tensor] = []
        self.bias = torch.zeros(out_features, dtype=torch.float64)

    def add(self, rows: Tensor, columns: Tensor, values: Tensor | float) -> Entries:
        """W[rows[i], columns[i]] += values[i]; indices [n], values [n] or one number."""
        spread = torch.as_tensor(values, dtype=torch.float64).expand(len(rows))
        self._rows.append(rows)
        self._columns.append(columns)
        self._values.append(spread)
        return self

    def layer(self, dtype: torch.dtype, sparse: bool | None) -> nn.Module:
        """An `nn.Linear`, or a `SparseLinear` if ``sparse`` (None: if the matrix is large)."""
        index = torch.stack([torch.cat(self._rows), torch.cat(self._columns)])
        size = (self.out_features, self.in_features)
        merged = torch.sparse_coo_tensor(
            index, torch.cat(self._values), size, check_invariants=False
        ).coalesce()
        values = merged.values().to(dtype)
        index, values = merged.indices()[:, values != 0], values[values != 0]
        if sparse is None:
            sparse = self.in_features * self.out_features > DENSE_LIMIT
        if sparse:
            return SparseLinear(index, values, self.bias.to(dtype), self.in_features)
        dense = torch.zeros(size, dtype=dtype)
        dense[index[0], index[1]] = values
        return dense_layer(dense, self.bias.to(dtype))


def dense_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An `nn.Linear` with this weight [out, in] and bias [out] (None: no bias)."""
    layer = nn.utils.skip_init(
        nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def to_dense(network: nn.Sequential) -> nn.Sequential:
    """The same network with every `SparseLinear` as an `nn.Linear`."""
    layers: list[nn.Module] = []
    for layer in network:
        if isinstance(layer, SparseLinear):
            layer = dense_layer(layer.matrix().detach().to_dense(), layer.bias.detach())
        layers.append(layer)
    return nn.Sequential(*layers)


def shallow_network(
    weight: Tensor,
    bias: Tensor,
    outer: Tensor,
    offset: float,
    activation: nn.Module,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """x -> sum_j outer_j activation(weight_j.x + bias_j) + offset, as an `nn.Sequential`.

    weight [m, d], bias [m], outer [m].

    >>> w = torch.ones(1)
    >>> shallow_network(w[:, None], -w, 2 * w, 0.5, nn.ReLU(), torch.float32)(3 * w)
    tensor([4.5000], grad_fn=<ViewBackward0>)
    """
    first = dense_layer(weight.to(dtype), bias.to(dtype))
    last = dense_layer(outer[None].to(dtype), torch.tensor([offset], dtype=dtype))
    return nn.Sequential(first, activation, last)


def read_shallow(network: nn.Module) -> tuple[Tensor, Tensor, Tensor, float, nn.Module]:
    """weight [m, d], bias [m], outer [m], offset and activation of a shallow network, float64."""
    parts = list(network) if isinstance(network, nn.Sequential) else [network]
    if len(parts) == 3:
        first, activation, last = parts
        if isinstance(first, nn.Linear) and isinstance(last, nn.Linear):
            if last.out_features != 1:
                raise ConfigError(
                    f"the network has {last.out_features} outputs; one is wanted: take them apart"
                )
            weight, outer = (layer.weight.detach().double() for layer in (first, last))
            biases = [
                torch.zeros(layer.out_features, dtype=torch.float64)
                if layer.bias is None
                else layer.bias.detach().double()
                for layer in (first, last)
            ]
            return weight, biases[0], outer[0], float(biases[1]), activation
    raise UnsupportedModuleError(
        f"{[type(part).__name__ for part in parts]} is not a shallow network; wanted nn.Sequential "
        f"of nn.Linear, an activation and nn.Linear"
    )


@dataclass(frozen=True)
class Size:
    """What a feed-forward network costs."""

    nodes: int
    """hidden units"""
    layers: int
    """weight matrices"""
    nonzeros: int
    """entries of weights and biases that are not zero"""


def linear_layers(network: nn.Module) -> list[nn.Linear | SparseLinear]:
    """The affine layers of an `nn.Sequential`, in order; other modules raise an error."""
    layers: list[nn.Linear | SparseLinear] = []
    children = network if isinstance(network, nn.Sequential) else [network]
    for child in children:
        if isinstance(child, nn.Linear | SparseLinear):
            layers.append(child)
        elif isinstance(child, nn.Sequential):
            layers.extend(linear_layers(child))
        elif any(True for _ in child.parameters()):
            raise UnsupportedModuleError(
                f"{type(child).__name__} has parameters but is neither nn.Linear nor SparseLinear; "
                f"sizes are known for an nn.Sequential of those and activations"
            )
    return layers


def measure(network: nn.Module) -> Size:
    """Nodes, layers and nonzeros of an `nn.Sequential` of affine layers and activations.

    >>> measure(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    Size(nodes=3, layers=2, nonzeros=13)
    """
    layers = linear_layers(network)
    nonzeros = sum(int((p != 0).sum()) for layer in layers for p in layer.parameters())
    return Size(sum(layer.out_features for layer in layers[:-1]), len(layers), nonzeros)
