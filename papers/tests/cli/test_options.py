"""What a word on the command line selects."""

from __future__ import annotations

import pytest

from weightloom.errors import ConfigError
from weightloom_papers.cli.options import matching, select
from weightloom_papers.experiments import all_experiments

KNOWN = list(all_experiments())
PANELS = [f"modularity/fig3{letter}" for letter in "abcdef"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("modularity/fig3a", ["modularity/fig3a"]),
        ("fig3a", ["modularity/fig3a"]),
        ("fig2", ["infinite-width/fig2"]),
        ("infinite-width/fig3", ["infinite-width/fig3"]),
        ("fig3[a-f]", PANELS),
        ("modularity/fig3?", PANELS),
        ("depth-separation/*", ["depth-separation/legendre-tails", "depth-separation/training"]),
        ("*", KNOWN),
        ("fig", []),
        ("depth-separation", []),
    ],
)
def test_words(word, names):
    assert matching(word, KNOWN, "experiment") == names


def test_a_figure_of_two_papers_is_ambiguous():
    """`fig3` is a figure of one paper and the panels of a figure of another."""
    candidates = r"could be modularity/fig3a, .*modularity/fig3f, infinite-width/fig3\. Give"
    with pytest.raises(ConfigError, match=f"experiment 'fig3' is ambiguous: it {candidates}"):
        matching("fig3", KNOWN, "experiment")


def test_one_name_in_two_papers_is_ambiguous():
    known = ["modularity/theorem-1", "infinite-width/theorem-1", "infinite-width/eq-17"]
    both = "modularity/theorem-1, infinite-width/theorem-1"
    with pytest.raises(ConfigError, match=f"claim 'theorem-1' is ambiguous: it could be {both}"):
        matching("theorem-1", known, "claim")
    assert matching("theorem-*", known, "claim") == known[:2]


def test_names_come_in_the_papers_order_and_once():
    words = ["infinite-width/fig2", "rates", "modularity/r*"]
    assert select(words, KNOWN, "experiment", "") == ["modularity/rates", "infinite-width/fig2"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("square-eror", "'square-eror'; did you mean deep-learning-theory/square-error\\? Ask"),
        ("depth-separation", "depth-separation is a paper: 'depth-separation/\\*' or --paper dep"),
        ("zzz", "there is no experiment 'zzz'; Ask somebody"),
    ],
)
def test_words_that_select_nothing(word, message):
    with pytest.raises(ConfigError, match=message):
        select([word], KNOWN, "experiment", "Ask somebody")
