"""Examples as modules, and numbers out of what they print."""

import importlib.util
import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
NOWHERE = Path("no-data-here")
USES_IMAGES = {"implicit_images", "continual_learning", "low_rank_deltas", "kernel_inpainting"}


def load(name):
    """An example as a module, without running it."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(text, row):
    """The numbers in the first line of the output that begins with ``row``; percents as shares."""
    line = next(line for line in text.splitlines() if line.strip().startswith(row))
    outputs = re.findall(r"-?\d[\d,]*\.?\d*%?", line.strip().removeprefix(row))
    values = [v.replace(",", "") for v in outputs]
    return [float(v[:-1]) / 100 if v.endswith("%") else float(v) for v in values]
