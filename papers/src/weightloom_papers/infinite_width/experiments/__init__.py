"""Experiments of "On Infinite-Width Hypernetworks": its figures, its table, and larger data.

Each experiment is a folder. It is imported when the experiment is asked for by name.
"""
