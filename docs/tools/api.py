"""API pages, written from each folder's ``__all__``: its order, and its comments as headings."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from markup import fence

ROOT = Path(__file__).parent.parent.parent
#: The library, and the papers beside it.
SOURCES = [ROOT / "src", ROOT / "papers" / "src"]

#: Page -> its title and the packages on it. Everything here is public.
PAGES = {
    "api/hyper.md": ("hyper: hypernetworks and their rivals", ["weightloom.hyper"]),
    "api/hyper-rows.md": ("hyper.rows: one set of weights per row", ["weightloom.hyper.rows"]),
    "api/networks.md": (
        "networks: what a network is",
        ["weightloom.networks", "weightloom.networks.activations"],
    ),
    "api/training.md": ("training: one loop for one model or many", ["weightloom.training"]),
    "api/kernels.md": (
        "kernels: infinite width",
        ["weightloom.kernels", "weightloom.kernels.empirical"],
    ),
    "api/symmetry.md": ("symmetry: the same function", ["weightloom.symmetry"]),
    "api/bounds.md": ("bounds: how large", ["weightloom.bounds"]),
    "api/construct.md": ("construct: networks by hand", ["weightloom.construct"]),
    "api/construct-shallow.md": ("construct.shallow", ["weightloom.construct.shallow"]),
    "api/construct-deep.md": ("construct.deep", ["weightloom.construct.deep"]),
    "api/construct-pieces.md": ("construct.pieces", ["weightloom.construct.pieces"]),
    "api/data.md": ("data: image sets and target functions", ["weightloom.data"]),
    "api/linalg.md": ("linalg: solving by structure", ["weightloom.linalg"]),
    "api/demo.md": ("demo: the main job", ["weightloom.demo"]),
    "api/errors.md": ("errors: what can go wrong", ["weightloom.errors"]),
    "papers/api/lab.md": (
        "lab: running experiments and storing results",
        ["weightloom_papers.lab", "weightloom_papers.experiments"],
    ),
    "papers/api/claims.md": (
        "claims: what the papers state, and how it is checked",
        [
            "weightloom_papers.claims",
            "weightloom_papers.records",
            "weightloom_papers.catalogue",
            "weightloom_papers.papers",
        ],
    ),
    "papers/api/deep-learning-theory.md": (
        "deep_learning_theory: near initialisation, and bounds as printed",
        [
            "weightloom_papers.deep_learning_theory.near_init",
            "weightloom_papers.deep_learning_theory.printed",
        ],
    ),
    "papers/api/depth-separation.md": ("depth_separation", ["weightloom_papers.depth_separation"]),
}
#: Where the names of ``weightloom.__all__`` are documented.
TOP = ("weightloom.hyper", "weightloom.networks")


@dataclass(frozen=True)
class Group:
    """Public names under one heading of a package."""

    heading: str
    names: list[str] = field(default_factory=list)


def package_file(package: str) -> Path:
    """The file that defines a package's or module's ``__all__``."""
    for source in SOURCES:
        path = source / package.replace(".", "/")
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return file
    raise FileNotFoundError(f"{package} is in none of {', '.join(map(str, SOURCES))}")


def _public_list(tree: ast.Module) -> ast.List | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names == ["__all__"]:
                return node.value
    return None


def groups(package: str) -> list[Group]:
    """The names of ``__all__`` in order, split at its comments."""
    text = package_file(package).read_text()
    public = _public_list(ast.parse(text))
    if public is None:
        return []
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and public.lineno < token.start[0] < public.end_lineno
    }
    result: list[Group] = []
    pending = dict(sorted(comments.items()))
    for element in public.elts:
        if not isinstance(element, ast.Constant):  # *names of another folder
            continue
        above = [line for line in pending if line < element.lineno]
        if above:
            result.append(Group(" ".join(pending.pop(line) for line in above)))
        elif not result:
            result.append(Group(""))
        result[-1].names.append(element.value)
    return result


def summary(package: str) -> str:
    """The package's own docstring, as text of its page."""
    return fence(ast.get_docstring(ast.parse(package_file(package).read_text())) or "")


def home(package: str, name: str) -> str:
    """Where a name is documented: here, or in a sub-folder that has a page of its own."""
    for _, packages in PAGES.values():
        for other in packages:
            deeper = other.startswith(package + ".")
            if deeper and name in _names(other):
                return f"{other}.{name}"
    return f"{package}.{name}"


def identifier(package: str, name: str) -> str:
    """The dotted path of a public name; a function may share its name with its module."""
    for node in ast.parse(package_file(package).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == f"{package}.{name}":
            return f"{node.module}.{name}"
    return f"{package}.{name}"


def addresses() -> dict[str, str]:
    """Every public dotted name -> where it is documented (``page.md#anchor``)."""
    places = {}
    for page, (_, packages) in PAGES.items():
        for package in packages:
            places[package] = page
            for name in _names(package):
                if home(package, name) == f"{package}.{name}":
                    places[f"{package}.{name}"] = f"{page}#{identifier(package, name)}"
    for package in (package for _, packages in PAGES.values() for package in packages):
        for name in _names(package):
            places.setdefault(f"{package}.{name}", places.get(home(package, name), ""))
    for name, package in ((name, package) for package in TOP for name in _names("weightloom")):
        if address := places.get(f"{package}.{name}"):
            places.setdefault(f"weightloom.{name}", address)
    return {name: address for name, address in places.items() if address}


def _names(package: str) -> list[str]:
    return [name for group in groups(package) for name in group.names]


def markdown(page: str) -> str:
    """The page's text: headings, and a directive for every public name."""
    title, packages = PAGES[page]
    lines = [f"# {title}", ""]
    for package in packages:
        if len(packages) > 1:
            lines += [f"## {package}", ""]
        lines += [summary(package), ""]
        for group in groups(package):
            if group.heading:
                lines += [f"## {group.heading[0].upper()}{group.heading[1:]}", ""]
            for name in group.names:
                lines += _entry(package, name)
    return "\n".join(lines)


def _entry(package: str, name: str) -> list[str]:
    place = home(package, name)
    page = next((page for page, (_, packages) in PAGES.items() if place in packages), None)
    if page is not None:
        return [f"- [`{name}`]({Path(page).name}): {summary(place).splitlines()[0]}"]
    if place != f"{package}.{name}":
        deeper = place.rsplit(".", 1)[0]
        return [f"- [`{place.removeprefix('weightloom.')}`][{identifier(deeper, name)}]"]
    if name.isupper():  # a constant: its name says it
        return [f"- `{name}`", ""]
    return ["", f"::: {identifier(package, name)}", ""]
