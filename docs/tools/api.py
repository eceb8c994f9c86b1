"""API pages, written from each folder's ``__all__``: its order, and its comments as headings."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src"

#: Page -> its title and the packages on it. Everything here is public.
PAGES = {
    "api/models.md": ("models: hypernetworks and their rival", ["weightloom.models"]),
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
    "api/construct-near-init.md": ("construct.near_init", ["weightloom.construct.near_init"]),
    "api/construct-pieces.md": ("construct.pieces", ["weightloom.construct.pieces"]),
    "api/construct-separation.md": ("construct.separation", ["weightloom.construct.separation"]),
    "api/data.md": ("data: image sets and target functions", ["weightloom.data"]),
    "api/lab.md": ("lab: running and remembering", ["weightloom.lab", "weightloom.experiments"]),
    "api/verify.md": ("verify: claims and their checks", ["weightloom.verify"]),
    "api/weights.md": ("weights: calling a network with given ones", ["weightloom.weights"]),
    "api/linalg.md": ("linalg: solving by structure", ["weightloom.linalg"]),
    "api/errors.md": ("errors: what can go wrong", ["weightloom.errors"]),
}


@dataclass(frozen=True)
class Group:
    """Public names under one heading of a package."""

    heading: str
    names: list[str] = field(default_factory=list)


def package_file(package: str) -> Path:
    """The file that defines a package's or module's ``__all__``."""
    path = SOURCE / package.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


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
    found: list[Group] = []
    pending = dict(sorted(comments.items()))
    for element in public.elts:
        if not isinstance(element, ast.Constant):  # *names of another folder
            continue
        above = [line for line in pending if line < element.lineno]
        if above:
            found.append(Group(" ".join(pending.pop(line) for line in above)))
        elif not found:
            found.append(Group(""))
        found[-1].names.append(element.value)
    return found


def summary(package: str) -> str:
    """The package's own docstring, as text of its page."""
    return ast.get_docstring(ast.parse(package_file(package).read_text())) or ""


def home(package: str, name: str) -> str:
    """Where a name is documented: here, or in a sub-folder that has a page of its own."""
    for _, packages in PAGES.values():
        for other in packages:
            deeper = other.startswith(package + ".")
            if deeper and any(name in group.names for group in groups(other)):
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
    found = {}
    for page, (_, packages) in PAGES.items():
        for package in packages:
            found[package] = page
            for name in (name for group in groups(package) for name in group.names):
                if home(package, name) == f"{package}.{name}":
                    found[f"{package}.{name}"] = f"{page}#{identifier(package, name)}"
    for package in (package for _, packages in PAGES.values() for package in packages):
        for name in (name for group in groups(package) for name in group.names):
            found.setdefault(f"{package}.{name}", found.get(home(package, name), ""))
    short = {f"weightloom.{name.split('.', 2)[2]}": address for name, address in found.items()
             if name.startswith("weightloom.models.")}  # fmt: skip
    return {name: address for name, address in {**short, **found}.items() if address}


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
        return [f"- [`{name}`]({page.removeprefix('api/')}): {summary(place).splitlines()[0]}"]
    if place != f"{package}.{name}":
        deeper = place.rsplit(".", 1)[0]
        return [f"- [`{place.removeprefix('weightloom.')}`][{identifier(deeper, name)}]"]
    if name.isupper():  # a constant: its name says it
        return [f"- `{name}`", ""]
    return ["", f"::: {identifier(package, name)}", ""]
