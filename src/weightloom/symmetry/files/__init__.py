"""Saved networks: architecture from names and shapes, loading, comparison, examination."""
