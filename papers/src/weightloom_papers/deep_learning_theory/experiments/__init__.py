"""The experiments of "Deep learning theory": sampling, initialisation, depth (chapters 2 to 5).

Each is imported when it is asked for by name.
"""
