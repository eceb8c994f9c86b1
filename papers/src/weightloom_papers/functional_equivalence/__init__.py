"""Functional equivalence and the complexity of networks (Shen, slides).

``claims`` has what the slides state and can be computed, ``networks`` the networks that claims are
checked on, ``landscape`` both sides of Theorem 5.
"""
