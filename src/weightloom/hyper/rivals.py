"""The embedding method q(x, e(I)): the predictor sees the input beside an embedding of I."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.hyper.encoders import SetEncoder, condition_dims, encode

__all__ = ["ConditionalNeuralProcess", "EmbeddingNetwork"]


class EmbeddingNetwork(nn.Module):
    """q(x, e(I)), called as a `HyperNetwork` is.

    x [b, ..., d] and condition [b, *c]: the embedding of condition[i] is appended to every input
    vector of x[i]. A single condition, without the leading dimension, is used for all of x.

    >>> import weightloom as wl
    >>> emb = wl.EmbeddingNetwork(predictor=wl.mlp([2 + 8, 16, 1]), encoder=wl.mlp([5, 8]))
    >>> emb(torch.randn(3, 100, 2), torch.randn(3, 5)).shape
    torch.Size([3, 100, 1])
    """

    def __init__(
        self, predictor: nn.Module, encoder: nn.Module, *, condition_dims: int | None = None
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder = encoder
        self._dims = _dims_of(encoder, condition_dims)

    def forward(self, x: Tensor, condition: Tensor, *args: Any, **kwargs: Any) -> Any:
        embedding, single = encode(self.encoder, condition, self._dims)
        if single:
            embedding = embedding[0].expand(*x.shape[:-1], -1)
        else:
            if x.dim() < 2 or x.shape[0] != embedding.shape[0]:
                seen = x.shape[0] if x.dim() > 1 else "no"
                raise ShapeError(
                    f"condition has {embedding.shape[0]} rows but x has {seen} rows; each row of x "
                    f"needs one condition (or pass a single condition without a leading dimension)"
                )
            rows = embedding.reshape(x.shape[0], *(1,) * (x.dim() - 2), -1)
            embedding = rows.expand(*x.shape[:-1], -1)
        return self.predictor(torch.cat([x, embedding], dim=-1), *args, **kwargs)


class ConditionalNeuralProcess(EmbeddingNetwork):
    """The embedding method for sets: e(I) is the mean of the embeddings of its elements.

    condition [b, d, *c], d elements in any order ("On the Modularity of Hypernetworks", Section 2).
    """

    def __init__(
        self, predictor: nn.Module, encoder: nn.Module, *, condition_dims: int | None = None
    ) -> None:
        super().__init__(predictor, SetEncoder(encoder), condition_dims=condition_dims)


def _dims_of(encoder: nn.Module, given: int | None) -> int | None:
    return condition_dims(encoder) if given is None else given
