"""The parts of benchmarks/merging.py: networks, how they are aligned, what is measured."""
