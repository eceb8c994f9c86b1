"""What lies around the sources: pinned versions, citation, workflow, the project's address."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECTS = [
    path for path in (ROOT / "pyproject.toml", ROOT / "papers/pyproject.toml") if path.exists()
]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name / "README.md" for name in ("benchmarks", "papers")),
]
#: Where a path on a page may start.
ROOMS = [ROOT, ROOT / "src/weightloom", ROOT / "papers/src/weightloom_papers", ROOT / "benchmarks"]
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|toml|yml))?)`")
EXTRAS = re.compile(r"(weightloom(?:-papers)?|\.(?:/papers)?)\[([a-z,]+)\]")
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+")
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/weightloom(?![\w-])")


def project(path):
    return tomllib.loads(path.read_text())["project"]


def pin_lines():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins():
    pairs = (line.split("==") for line in pin_lines())
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements(path):
    """What a project asks for, without itself, its siblings, and peers that are pinned in place."""
    table = project(path)
    extras = table.get("optional-dependencies", {}).values()
    for text in [*table.get("dependencies", []), *(text for extra in extras for text in extra)]:
        requirement = Requirement(text)
        own = canonicalize_name(requirement.name).startswith("weightloom")
        pinned = any(spec.operator == "==" for spec in requirement.specifier)
        if not own and not pinned:
            yield requirement


def unmet(requirements, versions):
    """One sentence for each requirement that has no pin, or one outside its range."""
    for requirement in requirements:
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement.name} has no pin"
        elif version not in requirement.specifier:
            yield f"{requirement.name} is pinned to {version}, but {requirement.specifier} is asked"


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_dependency_has_a_pin_in_its_range(path):
    """If this fails: `make lock`."""
    assert list(unmet(requirements(path), pins())) == []


def test_the_check_of_pins_can_fail():
    asked = [Requirement("numpy>=1.24"), Requirement("torch>=2.6,<2.14")]
    assert list(unmet(asked, {"torch": Version("2.14")})) == [
        "numpy has no pin",
        "torch is pinned to 2.14, but <2.14,>=2.6 is asked",
    ]


def test_pins_are_plain_versions():
    """No files, no hosts, no local builds: they must mean the same on every machine."""
    lines = pin_lines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    assert len(pins()) == len(lines), "a package is pinned twice"


def test_the_citation_has_the_version_and_licence_of_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    table = project(ROOT / "pyproject.toml")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["version"] == table["version"]
    assert citation["license"] == table["license"]
    assert citation["authors"] == table["authors"]
    assert citation["repository-code"] == table["urls"]["Source"]


def test_the_project_has_one_address():
    source = project(ROOT / "pyproject.toml")["urls"]["Source"]
    files = [*PROJECTS, *ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob("*.yml")]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    files += [ROOT / "papers/README.md", *(ROOT / "papers/src").rglob("*.py")]
    addresses = {address for path in files for address in ADDRESS.findall(path.read_text())}
    assert addresses == {source}


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_both_packages_say_where_they_live(path):
    urls = project(path)["urls"]
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    for url in urls.values():  # a file or folder of the repository, on its main branch
        page = re.sub(r".*/(?:tree|blob)/main/", "", url)
        assert page == url or (ROOT / page).exists(), url


def test_the_workflow_runs_what_developers_run_with_the_pinned_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = workflow["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    (python,) = [step["with"]["python-version"] for step in steps if "with" in step]
    assert f"Python {python}" in (ROOT / "constraints.txt").read_text().splitlines()[0]


def test_hooks_fetch_nothing():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["language"] for hook in repos[0]["hooks"]} == {"system"}


def test_hooks_work_where_no_environment_is_active():
    """The programs of `make test` are named by their place; git is everywhere."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    programs = {hook["entry"].split()[0] for hook in repo["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/mypy", "git"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_a_page_exist(page):
    """CONTRIBUTING.md says where changes go, the design page where things are."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    missing = [path for path in PATH.findall(text) if not any((r / path).exists() for r in ROOMS)]
    assert missing == []


def test_classes_that_the_guide_for_contributors_names_exist():
    named = re.findall(r"`([A-Z]\w*[a-z]\w*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 5
    files = [
        path for folder in ("src", "papers", "tests") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    classes = {name for path in files for name in re.findall(r"(?m)^class (\w+)", path.read_text())}
    assert set(named) - classes == set()


def test_the_check_of_paths_finds_them():
    text = "see `tests/`, `kernels/tower.py` and `<paper>/claims/`, not `tower.py` or `a / b`"
    assert PATH.findall(text) == ["tests/", "kernels/tower.py"]


def test_extras_that_are_named_exist():
    """In messages, pages and the Makefile: `pip install 'weightloom[plot]'`."""
    library, papers = (set(project(path)["optional-dependencies"]) for path in PROJECTS)
    files = [*PAGES, ROOT / "Makefile", *PROJECTS, *ROOT.glob("src/**/*.py")]
    files += ROOT.glob("papers/src/**/*.py")
    named = {
        (package, extra)
        for path in files
        for package, extras in EXTRAS.findall(path.read_text())
        for extra in extras.split(",")
    }
    assert len(named) > 10
    unknown = {
        (package, extra)
        for package, extra in named
        if extra not in (papers if package.endswith("papers") else library)
    }
    assert unknown == set()
