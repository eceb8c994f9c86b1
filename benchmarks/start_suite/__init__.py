"""The parts of start.py: tasks, contenders, runs, the store of results, tables and pictures."""
