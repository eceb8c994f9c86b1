"""The registry of papers, and that everything which names a paper takes its slug from there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from weightloom.errors import ConfigError
from weightloom_papers.catalogue import CATALOGUE, CLAIMS
from weightloom_papers.experiments import all_experiments
from weightloom_papers.papers import PAPERS, cited, paper_of, require_paper

ROOT = Path(__file__).parents[2]


def test_slugs():
    assert list(PAPERS) == [paper.slug for paper in PAPERS.values()]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in PAPERS)


@pytest.mark.parametrize(
    ("slug", "citation"),
    [
        ("modularity", "Galanti and Wolf 2020"),
        ("infinite-width", "Littwin, Galanti, Wolf and Yang 2020"),
        ("deep-learning-theory", "Telgarsky 2023"),
    ],
)
def test_citations(slug, citation):
    assert PAPERS[slug].citation == citation


@pytest.mark.parametrize("word", ["001", "1", "Modularity", "modular", ""])
def test_another_word_is_an_error_that_lists_the_slugs(word):
    with pytest.raises(ConfigError, match=r"The papers are modularity, infinite-width, function"):
        require_paper(word)


def test_claims_and_catalogue_are_of_these_papers():
    assert {claim.paper for claim in CLAIMS} == set(CATALOGUE) == set(PAPERS)


@pytest.mark.parametrize("name", list(all_experiments()))
def test_an_experiment_says_which_paper_it_is_about(name):
    slugs = cited(all_experiments()[name].paper)
    assert slugs[0] == paper_of(name)
    assert set(slugs) <= set(PAPERS)


@pytest.mark.parametrize("name", ["index.md", "theory.md"])
def test_the_pages_list_the_same_papers(name):
    page = (ROOT / "docs" / "papers" / name).read_text(encoding="utf-8")
    rows = re.findall(r'^\| ([a-z-]+) \| "([^"]+)" \(([^);]+)', page, re.MULTILINE)
    assert rows == [(paper.slug, paper.title, paper.citation) for paper in PAPERS.values()]


def test_the_registry_is_light():
    code = "import sys, weightloom_papers.papers; assert 'torch' not in sys.modules, 'torch'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_paper_is_called_by_a_number():
    """000 to 004 as a word of their own, with or without quotes: the old names of the papers."""
    number = re.compile(r"(?<![\w.,+-])00[0-4](?![\w.,]\w|\w)")
    hits = []
    for pattern in ("src/**/*.py", "tests/**/*.py", "docs/**/*.md", "README.md", "papers/**/*.py"):
        for path in ROOT.glob(pattern):
            if path.name in ("test_papers.py", "test_reproduce.py", "test_verify.py"):
                continue  # they show that numbers are refused
            for line in path.read_text(encoding="utf-8").splitlines():
                hits += [f"{path}: {line.strip()}"] if number.search(line) else []
    assert hits == []
