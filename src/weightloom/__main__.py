"""``python -m weightloom`` is the ``weightloom`` command."""

import sys

from weightloom.cli import main

if __name__ == "__main__":
    sys.exit(main())
