"""Affine pieces of ReLU networks along a line: exact breakpoints, slopes and values."""

from weightloom.construct.pieces.affine import affine_pieces
from weightloom.construct.pieces.count import (
    composition_pieces,
    node_pieces,
    node_pieces_bound,
    pieces_bound,
    printed_pieces_bound,
    sum_pieces,
)
from weightloom.construct.pieces.result import AffinePieces

__all__ = [
    # Enumerated
    "affine_pieces",
    "AffinePieces",
    # How many there can be: Lemma 4.9
    "pieces_bound",
    "printed_pieces_bound",
    "node_pieces_bound",
    # How many sums and compositions can have: Lemma 4.11
    "sum_pieces",
    "composition_pieces",
    "node_pieces",
]
