"""Affine pieces of ReLU networks along a line: exact breakpoints, slopes and values."""

from weightloom.construct.pieces.enumeration import AffinePieces, affine_pieces, pieces_bound

__all__ = [
    # Enumerated
    "affine_pieces",
    "AffinePieces",
    # How many there can be
    "pieces_bound",
]
