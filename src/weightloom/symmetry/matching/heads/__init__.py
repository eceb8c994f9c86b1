"""Heads of attention: which permutation and which maps take those of one network to the other's."""
