"""The architecture, held by reading the sources: levels, edges, names of files and classes."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests import architecture as table

ROOT = Path(__file__).parent.parent
SOURCES = {
    "weightloom": ROOT / "src" / "weightloom",
    "weightloom_papers": ROOT / "papers" / "src" / "weightloom_papers",
}
TESTS = {"weightloom": ROOT / "tests", "weightloom_papers": ROOT / "papers" / "tests"}
LEVELS = {"weightloom": table.LEVELS, "weightloom_papers": table.PAPERS_LEVELS}
EDGES = {"weightloom": table.EDGES, "weightloom_papers": table.PAPERS_EDGES}
PACKAGES = pytest.mark.parametrize("package", SOURCES)

#: Layers and parameters of the papers' own objects that share a name on purpose: none so far.
SHARED_CLASS_NAMES: set[str] = set()


def imports(path):
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the level"
            if node.module in SOURCES:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def sources(package):
    """(file, folder or module at the top of the package)"""
    for path in sorted(SOURCES[package].rglob("*.py")):
        folder = path.relative_to(SOURCES[package]).parts[0].removesuffix(".py")
        if folder not in ("__init__", "__main__"):
            yield path, folder


def violations(package, files):
    levels, edges = LEVELS[package], EDGES[package]
    bad = []
    for path, folder in files:
        for name in imports(path):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top != package or target not in levels or target == folder:
                continue
            level, own = levels[target], levels[folder]
            if level > own or (level == own and target not in edges.get(folder, ())):
                bad.append(f"{folder}/{path.name} imports {name}")
    return bad


@PACKAGES
def test_every_folder_has_a_level(package):
    assert {folder for _, folder in sources(package)} == set(LEVELS[package])


@PACKAGES
def test_imports_go_down_or_along_declared_edges(package):
    assert violations(package, sources(package)) == []


@PACKAGES
def test_declared_edges_are_used(package):
    used = {
        (folder, name.split(".")[1])
        for path, folder in sources(package)
        for name in imports(path)
        if name.startswith(f"{package}.")
    }
    declared = {
        (folder, target) for folder, targets in EDGES[package].items() for target in targets
    }
    assert declared <= used


@PACKAGES
def test_edges_join_siblings_without_cycles(package):
    levels, left = LEVELS[package], {name: set(to) for name, to in EDGES[package].items()}
    assert all(levels[a] == levels[b] for a, targets in left.items() for b in targets)
    while left:
        free = [name for name in left if not left[name] & set(left)]
        assert free, f"these import each other: {sorted(left)}"
        for name in free:
            del left[name]


def test_the_library_does_not_know_the_papers():
    for path, _ in sources("weightloom"):
        assert not [name for name in imports(path) if name.startswith("weightloom_papers")], path


def test_the_check_of_imports_can_fail(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    from weightloom import hyper\n")
    assert violations("weightloom", [(path, "networks")]) == [
        "networks/bad.py imports weightloom.hyper"
    ]
    path.write_text("import weightloom.kernels.tower\n")
    assert violations("weightloom", [(path, "bounds")]) == [
        "bounds/bad.py imports weightloom.kernels.tower"
    ]


def families(folder):
    """Prefixes that three or more files of one folder share: draw.js, draw_pad.js, draw_line.js."""
    stems = defaultdict(set)
    for path in folder.rglob("*.*"):
        if path.suffix in (".py", ".js", ".css") and not path.stem.startswith("__"):
            stem = path.stem.removeprefix("test_")
            stems[path.parent, stem.split("_")[0]].add(stem)
    return [
        f"{parent.relative_to(folder)}/{prefix}_*"
        for (parent, prefix), shared in stems.items()
        if len(shared) >= 3
    ]


@pytest.mark.parametrize("folder", [*SOURCES.values(), *TESTS.values()], ids=lambda f: f.name)
def test_a_family_of_files_is_a_folder(folder):
    assert families(folder) == []


def test_the_check_of_families_can_fail(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("match.py", "match_rows.py", "a/match_keys.py", "match.css"):
        (tmp_path / name).touch()
    assert families(tmp_path) == []
    (tmp_path / "test_match_units.py").touch()
    assert families(tmp_path) == ["./match_*"]


def public_names(init):
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    return set()


def own_objects(init):
    """Names of ``__all__`` that are not modules of the package itself."""
    modules = set()
    package = ".".join(init.parent.parts[init.parent.parts.index("src") + 1 :])
    for node in ast.walk(ast.parse(init.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            modules |= {alias.name for alias in node.names}
    return public_names(init) - modules


@PACKAGES
def test_no_module_has_the_name_of_something_its_package_exports(package):
    clashes = []
    for init in SOURCES[package].rglob("__init__.py"):
        stems = {path.stem for path in init.parent.iterdir() if path.suffix in ("", ".py")}
        if init.parent == SOURCES[package]:
            stems -= {path.name for path in init.parent.iterdir() if path.is_dir()}
        clashes += [f"{init.parent.relative_to(ROOT)}: {n}" for n in stems & own_objects(init)]
    assert clashes == []


def test_class_names_are_used_once():
    homes = defaultdict(list)
    for root in SOURCES.values():
        for path in root.rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert {name: twice[name] for name in sorted(twice) if name not in SHARED_CLASS_NAMES} == {}


@PACKAGES
def test_files_have_one_idea(package):
    """Guides of size: 400 lines, with a little room for tables."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in SOURCES[package].rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 430
    }
    assert long == {}
