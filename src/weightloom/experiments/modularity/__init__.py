""" "On the Modularity of Hypernetworks" (000): its figure redrawn, and its theorem put to the test.

Modules are imported one by one, when an experiment is asked for by name.
"""
