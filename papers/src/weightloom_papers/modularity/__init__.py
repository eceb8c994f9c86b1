"""Experiments and checked claims of "On the Modularity of Hypernetworks" (Galanti, Wolf, 2020)."""
