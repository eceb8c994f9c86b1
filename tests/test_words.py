"""The field's words: names say what they hold, and a permutation is called a permutation."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "papers", "tests", "benchmarks", "examples", "docs")
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]
PAGES = sorted({*ROOT.glob("*.md"), *(path for f in FOLDERS for path in (ROOT / f).rglob("*.md"))})
BLOCK = re.compile(r"(?ms)^```py(?:thon)?\n(.*?)^```$")

#: They say how a value came about, not what it is.
EMPTY_NAMES = {"one", "found", "made", "said", "told"}

#: Word -> the field's word for it.
DIALECT = {r"exchang\w*": "permutation", r"roads?": "method"}
#: Words as data: the first name of an entry in stored results.
DATA = {
    "CHANGELOG.md": {"road"},
    "papers/src/weightloom_papers/lab/runs.py": {"road"},
    "papers/tests/lab/test_renames.py": {"road"},
}


def name(path):
    return str(path.relative_to(ROOT))


def empty_names(code):
    """Variables, arguments and functions with a name that says nothing; fields are left out."""
    tree = ast.parse(code)
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if stored and id(node) not in fields and node.id in EMPTY_NAMES:
            yield f"line {node.lineno}: {node.id}"
        elif isinstance(node, ast.arg) and node.arg in EMPTY_NAMES:
            yield f"line {node.lineno}: {node.arg}"
        elif isinstance(node, ast.FunctionDef) and node.name.strip("_") in EMPTY_NAMES:
            yield f"line {node.lineno}: {node.name}"


def dialect(text):
    """Words of the list that stand alone."""
    for word in DIALECT:
        yield from re.findall(rf"\b{word}\b", text.lower())


def test_names_say_what_they_hold():
    empty = {name(path): list(empty_names(path.read_text())) for path in SOURCES}
    assert {file: names for file, names in empty.items() if names} == {}


def test_names_on_pages_say_what_they_hold():
    codes = [(name(page), code) for page in PAGES for code in BLOCK.findall(page.read_text())]
    assert len(codes) > 50
    empty = [(page, *names) for page, code in codes if (names := list(empty_names(code)))]
    assert empty == []


def test_words_are_those_of_the_field():
    words = {name(path): set(dialect(path.read_text())) for path in [*SOURCES, *PAGES]}
    beyond = {file: here - DATA.get(file, set()) for file, here in words.items()}
    assert {file: here for file, here in beyond.items() if here} == {}
    assert {file for file in DATA if not words[file]} == set(), "nothing left to allow there"


def test_the_checks_can_fail():
    code = "def told(one):\n    found = [made for made in one]\n    return found\n"
    assert len(list(empty_names(code))) == 4
    assert list(empty_names("class Record:\n    made: str\n")) == []
    assert list(dialect("Two roads; neurons are exchanged.")) == ["exchanged", "roads"]
    assert list(dialect("broad, roadmap")) == []
