"""The symmetries of a network, read from its graph."""
