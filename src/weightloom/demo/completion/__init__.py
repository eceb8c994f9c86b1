"""Digits completed from a part: the Draw tab of the local page.

`kernel` completes by regression with an infinitely wide hypernetwork, `network` by a trained one of
finite width. `measure` compares the two on held-out digits.
"""
