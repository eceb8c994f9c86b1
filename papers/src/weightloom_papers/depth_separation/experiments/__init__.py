"""The experiments of "Depth separation": the theorem in numbers, and depth after training.

Each is imported when it is asked for by name.
"""
