"""The documentation site: it builds without a warning, asks no other host, and has every name."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import weightloom

ROOT = Path(__file__).parent.parent
#: Elements that a browser loads by itself, and the attribute that says from where.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
#: Folders that are used through the command line and the page, not imported.
NOT_AN_API = {"cli", "web"}


def tools(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


api = tools("api")


@pytest.mark.slow
def test_site(tmp_path):
    """One test, because building takes longest: two would build twice in two processes."""
    site = build(tmp_path / "site")
    nothing_is_loaded_from_another_host(site)
    every_public_name_has_its_entry(site)
    names_in_guides_are_links(site)


def build(folder):
    done = subprocess.run(  # not --quiet: it hides warnings from --strict
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if address := dict(attrs).get(LOADED.get(tag)):
            self.addresses.append(address)


def foreign(addresses):
    return [address for address in addresses if re.match(r"(?:\w+:)?//", address)]


def nothing_is_loaded_from_another_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads(page.read_text()).addresses
        assert loads, page  # at least its style
        assert not foreign(loads), page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        assert not foreign(re.findall(r"url\([\"']?([^\"')]+)", text)), sheet
        assert not re.search(r"@import[^;]*//", text), sheet


def test_other_hosts_are_noticed():
    page = (
        '<link rel="stylesheet" href="//cdn.example/a.css"><script src="https://x.y/z.js"></script>'
    )
    assert foreign(Loads(page + '<img src="images/a.png">').addresses) == [
        "//cdn.example/a.css",
        "https://x.y/z.js",
    ]


def every_public_name_has_its_entry(site):
    for page, (_, packages) in api.PAGES.items():
        text = (site / page).with_suffix(".html").read_text()
        for package in packages:
            names = [name for group in api.groups(package) for name in group.names]
            assert names, package
            for name in names:
                if api.home(package, name) == f"{package}.{name}" and not name.isupper():
                    place = api.identifier(package, name)
                    assert f'id="{place}"' in text or f">{name}<" in text, f"{place} on {page}"


def names_in_guides_are_links(site):
    text = (site / "papers" / "theory.html").read_text()
    assert 'href="../api/bounds.html#weightloom.bounds.parameter_rates"' in text


def test_every_folder_has_a_page():
    documented = {package for _, packages in api.PAGES.values() for package in packages}
    folders = {path.parent.name for path in Path(weightloom.__path__[0]).glob("*/__init__.py")}
    missing = {f"weightloom.{name}" for name in folders - NOT_AN_API} - documented
    assert not missing


def test_docstrings_become_markdown():
    markup = tools("markup")
    example = markup.fence("Says two.\n\n>>> 1 + 1\n2\n\nMore.")
    assert example == "Says two.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    arguments = markup.itemise("Takes:\n    a: one,\n        or two\n    b: three\n\nMore.")
    assert arguments == "Takes:\n\n- `a`: one,\n        or two\n- `b`: three\n\nMore."
    formula = "Is:\n\n    a = b: c"
    assert markup.itemise(formula) == formula


def test_groups_are_the_list_and_its_comments(tmp_path, monkeypatch):
    package = tmp_path / "things"
    package.mkdir()
    (package / "__init__.py").write_text(
        '"""Things."""\n# not this one\n__all__ = [\n    # first ones\n    "a",\n    "b",\n'
        '    # more,\n    # on two lines\n    "c",\n]\n'
    )
    monkeypatch.setattr(api, "SOURCES", [tmp_path])
    pairs = [(group.heading, group.names) for group in api.groups("things")]
    assert pairs == [("first ones", ["a", "b"]), ("more, on two lines", ["c"])]
