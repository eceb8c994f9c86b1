"""Lossless reduction (`reducer`), from clones, intervals and the units that are removable."""
