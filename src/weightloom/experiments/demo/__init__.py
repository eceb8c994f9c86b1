"""The demo: a hypernetwork and its rival learn to draw handwritten digits."""

from weightloom.experiments.demo.networks import coordinate_network
from weightloom.experiments.demo.report import write
from weightloom.experiments.demo.run import Result, Settings, run_demo

__all__ = [
    "Result",
    "Settings",
    "coordinate_network",
    "run_demo",
    "write",
]
