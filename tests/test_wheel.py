"""What people install: a small wheel with nothing of the papers in it, which works alone."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(
        [*command, "--directory", str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    return next(folder.glob("weightloom-*.whl"))


def test_the_wheel_is_small_and_has_nothing_of_the_papers(wheel):
    assert wheel.stat().st_size < 1_500_000  # 160 kB are d3 and Plot, for the page
    names = zipfile.ZipFile(wheel).namelist()
    assert "weightloom/hyper/hypernetwork.py" in names
    assert "weightloom/web/static/index.html" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"weightloom"}
    assert [name for name in names if "papers" in name] == []


def test_the_wheel_works_alone(wheel, tmp_path):
    """Every module can be imported where weightloom_papers cannot, and a hypernetwork runs."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {sysconfig.get_path("purelib")!r}]
import importlib, pkgutil, torch, weightloom as wl
assert wl.__file__.startswith({str(tmp_path)!r})
for module in pkgutil.walk_packages(wl.__path__, "weightloom."):
    if module.name != "weightloom.__main__":
        importlib.import_module(module.name)
assert "weightloom_papers" not in sys.modules
hyper = wl.HyperNetwork(wl.mlp([2, 8, 1]), wl.mlp([3, 4], last_activation=True))
assert hyper(torch.randn(5, 7, 2), torch.randn(5, 3)).shape == (5, 7, 1)
"""
    # -S: without the .pth files of editable installs, so that only the wheel's weightloom is there.
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
