"""What ``mkdocs build`` does beyond its plugins; named in mkdocs.yml.

- API pages come from the sources (`api.py`), so that they cannot drift.
- Files of the repository outside docs/ that a page links to become pages of the site.
- A public name in backquotes becomes a link to its API entry.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import api

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = {
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+|(?:docs/|CHANGELOG|CONTRIBUTING)[^)#\s]*)")
FENCE = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2[ \t]*$")
SPAN = re.compile(r"(?<![`\[\w])`((?:wl\.|weightloom\.)?[A-Za-z_][\w.]*)(?:\([^`]*\))?`(?!`|\])")
ADDRESSES = api.addresses()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written here: API, files outside docs/, linked sources."""
    generated = {page: api.markdown(page) for page in api.PAGES}
    for path, page in OUTSIDE.items():
        generated[page] = (ROOT / path).read_text()
    for file in list(files.documentation_pages()):
        for path in _sources(Path(file.abs_src_path).read_text(), file.src_uri):
            generated[_source_page(path)] = _source_text(path)
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside docs/ lead to their pages, names to the API."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    origin = next((path for path, name in OUTSIDE.items() if name == here), f"docs/{here}")
    parts, last = [], 0
    for fenced in FENCE.finditer(markdown):
        parts += [_linked(markdown[last : fenced.start()], origin, here), fenced.group()]
        last = fenced.end()
    return "".join([*parts, _linked(markdown[last:], origin, here)])


def _linked(text: str, origin: str, here: str) -> str:
    text = LINK.sub(lambda link: link[1] + _target(link[2], origin, here), text)
    if "api/" in here:
        return text
    lines = text.split("\n")
    return "\n".join(
        line if line.startswith(("#", "    ")) else SPAN.sub(lambda s: _span(s, here), line)
        for line in lines
    )


def _target(link: str, origin: str, here: str) -> str:
    """Where a link of a file in the repository leads on the site."""
    path = os.path.normpath(os.path.join(os.path.dirname(origin), link))
    if path in OUTSIDE:
        page = OUTSIDE[path]
    elif path.startswith("docs/"):
        page = path.removeprefix("docs/")
    else:
        page = _source_page(path)
    return os.path.relpath(page, os.path.dirname(here) or ".")


def _sources(text: str, here: str) -> list[str]:
    """Files outside docs/ that a page links to, as paths from the root."""
    folder = os.path.dirname(f"docs/{here}")
    paths = [os.path.normpath(os.path.join(folder, link[2])) for link in LINK.finditer(text)]
    return [
        path
        for path in paths
        if (ROOT / path).is_file() and not path.startswith("docs/") and path not in OUTSIDE
    ]


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _source_text(path: str) -> str:
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    return f"{head}~~~~python\n{(ROOT / path).read_text()}\n~~~~\n"


def _span(span: re.Match[str], here: str) -> str:
    """A link to the API for a public name; other code stays as it is."""
    name = span[1].removeprefix("wl.").removeprefix("weightloom.")
    address = ADDRESSES.get(f"weightloom.{name}") or ADDRESSES.get(name) or _by_ending(name)
    word = "#" not in (address or "") and "." not in span[1]  # a bare word, such as `training`
    if not address or word:
        return span.group()
    return f"[{span.group()}]({os.path.relpath(address, os.path.dirname(here) or '.')})"


def _by_ending(name: str) -> str | None:
    """The one public name that ends so; bare words must look like a name to be taken for one."""
    telling = "." in name or "_" in name or re.match(r"[A-Z]\w*[a-z]\w*[A-Z]", name)
    if not telling:
        return None
    candidates = {address for full, address in ADDRESSES.items() if full.endswith("." + name)}
    return candidates.pop() if len(candidates) == 1 else None
