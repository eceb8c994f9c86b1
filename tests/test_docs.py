"""Documentation cannot rot: what its pages and docstrings show is executed and compared."""

import contextlib
import doctest
import importlib
import io
import re
import subprocess
from pathlib import Path

import pytest

import weightloom
import weightloom_papers

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "papers/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# From the files: pkgutil.walk_packages passes over folders without an __init__.py, such as those of
# the papers' experiments.
MODULES = [
    ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    for root in (Path(package.__file__).parent for package in (weightloom, weightloom_papers))
    for path in sorted(root.rglob("*.py"))
    if path.name != "__main__.py"
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: A python block, and what it prints if the page says so in an output block right after it.
BLOCK = re.compile(
    r"^```python\n(.*?)^```$(?:\n+^```(output|text)\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_in_pages_runs(page, tmp_path, monkeypatch):
    """Blocks of one page run in order and share their names, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block, kind, wanted in BLOCK.findall(page.read_text()):
        printed = run(block, page.name, names)
        if kind:
            same = is_exactly if kind == "output" else is_about
            assert same(printed, wanted), (
                f"{page.name} says that this is printed:\n{wanted}\nbut it was:\n{printed}"
            )


def run(block, name, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, name, "exec"), names)
    return printed.getvalue()


def is_exactly(printed, wanted):
    """As in doctests: ``...`` stands for anything, and spaces may differ."""
    return doctest.OutputChecker().check_output(wanted, printed, FLAGS)


def is_about(printed, wanted):
    """The same words, and numbers of the same size: what was trained differs between machines."""
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", wanted).split():
        return False
    pairs = zip(numbers(printed), numbers(wanted), strict=True)
    return all(a == b or (a * b > 0 and 1 / 3 < abs(a / b) < 3) for a, b in pairs)


def numbers(text):
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def test_an_output_that_differs_is_noticed():
    page = "```python\nprint(1 + 1)\n```\n\n```output\n3\n```\n"
    ((block, kind, wanted),) = BLOCK.findall(page)
    assert kind == "output"
    assert not is_exactly(run(block, "page", {}), wanted)
    assert is_exactly(run(block, "page", {}), "2")
    assert is_about("error 0.021, 1,000 steps", "error  0.02, 1,000 steps")
    assert not is_about("error 0.2, 1,000 steps", "error 0.02, 1,000 steps")
    assert not is_about("loss 0.02, 1,000 steps", "error 0.02, 1,000 steps")
    assert not is_about("error -0.02", "error 0.02")
    assert not is_about("error 0.02 0.02", "error 0.02")


def test_every_output_block_is_compared():
    """One that does not follow its python block would be shown and never looked at."""
    for page in PAGES:
        text = page.read_text()
        compared = sum(bool(kind) for _, kind, _ in BLOCK.findall(text))
        assert len(re.findall("(?m)^```(?:output|text)$", text)) == compared, page.name
        # An indented block right after code would look like its output on the site.
        assert not re.search(r"(?m)^```\n\n    \S", text), page.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_are_named_exist(page):
    """A page that says which test decided something names one that is there."""
    for name, target in re.findall(r"\[`(\w+)`\]\(([^)]*/test_\w+\.py)\)", page.read_text()):
        assert f"def test_{name}(" in (page.parent / target).read_text(), f"{name} in {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_pages_exist(page):
    """`wl.something` in the text is a name of weightloom."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for path in re.findall(r"`wl\.([\w.]+?)\.?(?:\([^`]*\))?`", text):
        value = weightloom
        for part in path.split("."):
            value = getattr(value, part, None)
            assert value is not None, f"wl.{path}"


#: Snippets of other libraries, and the environments that have them (see benchmarks/README.md).
PEERS = {
    ".venv-benchmarks": ("hypnettorch", "hyperlight", "hypernn"),
    ".venv-neural-tangents": ("neural_tangents",),
}


@pytest.mark.slow
@pytest.mark.parametrize("environment", PEERS)
def test_snippets_of_other_libraries_run(environment):
    """They are shown as ```py, because most environments do not have these libraries."""
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {environment}; `make bench` or benchmarks/README.md makes it")
    page = (ROOT / "docs" / "coming-from.md").read_text()
    blocks = re.findall(r"(?ms)^```py\n(.*?)^```$", page)
    mine = [
        b for b in blocks if any(f"from {n}" in b or f"import {n}" in b for n in PEERS[environment])
    ]
    assert len(mine) == len(PEERS[environment])
    done = subprocess.run(
        [python, "-c", "\n".join(mine)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    if "neural_tangents" in PEERS[environment]:  # it prints what weightloom prints on that page
        assert done.stdout.strip() in page, done.stdout


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=FLAGS)
    assert failed == 0
