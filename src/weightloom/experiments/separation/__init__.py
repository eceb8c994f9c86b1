"""What depth buys (003; 004, chapter 4): the theorem's numbers, and what training makes of it.

Modules are imported one by one, when an experiment is asked for by name.
"""
