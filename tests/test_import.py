"""``import weightloom`` loads nothing heavy, and every public name is there when it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import weightloom as wl

#: Packages that take noticeable time to import.
HEAVY = (
    "torch", "numpy", "scipy", "matplotlib", "fastapi", "pydantic", "sklearn", "numba", "onnx",
    "jinja2", "lightning_fabric", "safetensors", "tqdm",
)  # fmt: skip


def python(code: str, *options: str) -> str:
    """What ``code`` prints in a new process, with the list HEAVY to look at."""
    program = f"import sys\nHEAVY = {HEAVY!r}\n{code}"
    done = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["weightloom", "weightloom.errors", "weightloom.files"])
def test_nothing_heavy_is_imported(module: str) -> None:
    code = f"import {module}\nprint([name for name in HEAVY if name in sys.modules])"
    assert python(code) == "[]"


def test_the_check_sees_torch() -> None:
    code = "import weightloom\nweightloom.mlp\nprint('torch' in sys.modules)"
    assert python(code) == "True"


def test_the_version_needs_nothing() -> None:
    assert python("import weightloom as wl\nprint(wl.__version__, 'torch' in sys.modules)") == (
        f"{wl.__version__} False"
    )


@pytest.mark.parametrize("name", wl.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(wl, name) is not None
    assert name in dir(wl)


def test_names_in_folders() -> None:
    assert (
        wl.kernels.HyperKernelRegressor
        is importlib.import_module("weightloom.kernels.regression").HyperKernelRegressor
    )
    assert wl.training.train.__module__.startswith("weightloom.training")
    assert callable(wl.data.load_digits)


def test_names_are_the_folders_own() -> None:
    """The list is written out by hand; this test keeps it complete."""
    assert set(wl.hyper.__all__) <= set(wl.__all__)
    for name in set(wl.__all__) - {"__version__"}:
        value = getattr(wl, name)
        assert getattr(value, "__module__", value.__name__).startswith("weightloom.")


def test_folders_are_all_offered() -> None:
    """Every folder but the command line, which is not imported by users."""
    source = Path(wl.__file__).parent
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    assert folders - {"cli"} <= set(wl.__all__)


def test_star_import() -> None:
    code = "from weightloom import *\nprint(mlp.__name__, kernels.__name__, HyperNetwork.__name__)"
    assert python(code) == "mlp weightloom.kernels HyperNetwork"


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'weightloom' has no attribute 'HyperNet'"):
        wl.HyperNet  # noqa: B018
    assert not hasattr(wl, "Routes")


def test_type_checkers_see_the_names(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    path = tmp_path / "user.py"
    path.write_text(
        "import weightloom as wl\n"
        "reveal_type(wl.mlp)\n"
        "reveal_type(wl.kernels.HyperKernelRegressor)\n"
        "wl.no_such_name\n"
    )
    options = ["--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    out, err, _ = mypy.run([*options, str(path)])
    assert "def (sizes: " in out, out + err
    assert "weightloom.kernels.regression.regressor.HyperKernelRegressor" in out
    assert 'Module has no attribute "no_such_name"' in out
