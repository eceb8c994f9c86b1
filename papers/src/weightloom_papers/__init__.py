"""Experiments and claims of five texts, reproduced and checked with weightloom.

``papers`` lists the texts, ``experiments`` and ``catalogue`` what is reproduced and checked of
them. ``lab`` runs and stores experiments; ``claims`` and ``records`` check claims and write the
results. Each paper has a folder. Commands and the Results tab reach ``weightloom`` through entry
points.
"""
