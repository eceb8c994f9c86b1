"""The registry of the five papers: slug, title, authors and year.

Claims and experiments are called ``<slug>/<name>``; commands, documentation and stored results use
the same slugs.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from weightloom.errors import ConfigError

__all__ = ["PAPERS", "Paper", "cited", "paper_of", "require_paper"]


@dataclass(frozen=True)
class Paper:
    """One text.

    >>> PAPERS["modularity"].citation
    'Galanti and Wolf 2020'
    """

    slug: str
    title: str
    authors: tuple[str, ...]
    year: int

    @property
    def citation(self) -> str:
        """Last names and year."""
        names = [author.split()[-1] for author in self.authors]
        joined = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return f"{joined} {self.year}"


#: By slug, in the order in which commands and pages list them.
PAPERS: dict[str, Paper] = {
    paper.slug: paper
    for paper in (
        Paper(
            "modularity",
            "On the Modularity of Hypernetworks",
            ("Tomer Galanti", "Lior Wolf"),
            2020,
        ),
        Paper(
            "infinite-width",
            "On Infinite-Width Hypernetworks",
            ("Etai Littwin", "Tomer Galanti", "Lior Wolf", "Greg Yang"),
            2020,
        ),
        Paper(
            "functional-equivalence",
            "Complexity of Deep Neural Networks from the Perspective of Functional Equivalence",
            ("Guohao Shen",),
            2024,
        ),
        # Read from Tomáš Kocák's slides on it (2019).
        Paper(
            "depth-separation",
            "Depth Separation for Neural Networks",
            ("Amit Daniely",),
            2017,
        ),
        # A draft of 25 September 2023; chapters 2 to 5 are used.
        Paper(
            "deep-learning-theory",
            "Deep learning theory",
            ("Matus Telgarsky",),
            2023,
        ),
    )
}


def paper_of(name: str) -> str:
    """The slug in the name of a claim or an experiment.

    >>> paper_of("modularity/theorem-2")
    'modularity'
    """
    return name.partition("/")[0]


def cited(places: str) -> list[str]:
    """The slugs in an experiment's ``paper``, which gives places of one or more papers.

    >>> cited("depth-separation, main theorem; deep-learning-theory, Theorem 4.4")
    ['depth-separation', 'deep-learning-theory']
    """
    return [place.partition(",")[0].strip() for place in places.split(";")]


def require_paper(slug: str) -> Paper:
    """The paper with this slug; any other word is an error that lists the slugs."""
    if slug in PAPERS:
        return PAPERS[slug]
    near = difflib.get_close_matches(slug, PAPERS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"there is no paper {slug!r}; {hint}The papers are {', '.join(PAPERS)}")
