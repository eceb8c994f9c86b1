"""What depth buys ("Deep learning theory", chapters 4 and 5): built, trained and counted.

Modules are imported one by one, when an experiment is asked for by name.
"""
