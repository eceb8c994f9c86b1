"""Experiments and checked claims of "On Infinite-Width Hypernetworks" (Littwin et al., 2020)."""
