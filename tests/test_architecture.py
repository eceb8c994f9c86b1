"""The levels of the architecture, held by reading the imports; and a light `import weightloom`."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "weightloom"

LEVELS = {
    "errors": 0, "files": 0,
    "weights": 1, "linalg": 1,
    "models": 2, "kernels": 2, "symmetry": 2, "bounds": 2, "construct": 2, "data": 2,
    "training": 3, "lab": 4, "experiments": 5, "verify": 5, "web": 6, "cli": 7,
}  # fmt: skip


def imports(path):
    """Every weightloom module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the level"
            yield node.module
            if node.module == "weightloom":
                yield from (f"weightloom.{alias.name}" for alias in node.names)


def violations(files):
    found = []
    for path, folder in files:
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "weightloom" or len(parts) == 1 or parts[1] not in LEVELS:
                continue
            if parts[1] != folder and LEVELS[parts[1]] >= LEVELS[folder]:
                found.append(f"{folder}/{path.name} imports {name}")
    return found


def sources():
    for path in sorted(SOURCE.rglob("*.py")):
        folder = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if folder not in ("__init__", "__main__"):
            yield path, folder


def test_every_folder_has_a_level():
    assert {folder for _, folder in sources()} <= set(LEVELS)


def test_imports_go_down():
    assert violations(sources()) == []


def test_the_check_can_fail(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    from weightloom import models\n")
    assert violations([(path, "weights")]) == ["weights/bad.py imports weightloom.models"]
    path.write_text("import weightloom.kernels.tower\n")
    assert violations([(path, "models")]) == ["models/bad.py imports weightloom.kernels.tower"]


def test_import_is_light_and_has_no_side_effects():
    code = """
import sys, os, torch, numpy, random
before, env = set(sys.modules), dict(os.environ)
seed, threads = torch.initial_seed(), torch.get_num_threads()
import weightloom
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
allowed = {"weightloom", "torch", "numpy"} | set(sys.stdlib_module_names)
assert tops <= allowed, tops - allowed
assert dict(os.environ) == env
assert torch.initial_seed() == seed and torch.get_num_threads() == threads
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_exist():
    import weightloom as wl

    for name in wl.__all__:
        assert getattr(wl, name) is not None
