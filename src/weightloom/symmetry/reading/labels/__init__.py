"""Symmetries read from a graph of operations: which index of which value moves with which."""
