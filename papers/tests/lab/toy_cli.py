"""The command line with toys: ``python -m papers.tests.lab.toy_cli LOG DELAY reproduce ...``

A process of its own, so that it can be killed.
"""

import sys
from pathlib import Path

import weightloom_papers.experiments
from papers.tests.lab.toy import Quick, Toy
from weightloom.cli import main

if __name__ == "__main__":
    log, delay = Path(sys.argv[1]), float(sys.argv[2])
    toys = {"toy": Toy(log=log, delay=delay, limit=2), "quick": Quick(log=log, delay=delay)}
    weightloom_papers.experiments.all_experiments = lambda: toys
    sys.exit(main(sys.argv[3:]))
