"""`weightloom demo`: a hypernetwork and its rivals learn to draw handwritten digits.

`run_demo` trains and measures them, `write_report` writes the page. `completion` and `curves`
compute what the Draw and Kernels tabs of the local page show.
"""

from weightloom.demo.networks import coordinate_network
from weightloom.demo.report import write_report
from weightloom.demo.training import DemoResult, DemoSettings, run_demo

__all__ = [
    # train, measure, report
    "run_demo",
    "DemoSettings",
    "DemoResult",
    "write_report",
    # the network of one digit
    "coordinate_network",
]
