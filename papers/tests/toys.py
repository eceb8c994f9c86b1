"""Claims about nothing, one for each thing that can happen to a claim."""

from weightloom_papers.claims import FAILS, Evidence, PaperClaim, Statement


def at_most(limit, text=""):
    """A statement that allows what was measured to be at most ``limit``."""
    return Statement(
        text or f"the number is at most {limit}",
        lambda seen: Evidence(seen, limit, f"the number, which was {seen}"),
    )


def toy(name, limit, corrected=None, known="", number=2.0, place="Theorem 1"):
    """The number is 2: so a limit of 1 fails, one of 3 holds."""
    return PaperClaim(
        name=name,
        place=place,
        items=(1,),
        measure=lambda size: number,
        printed=at_most(limit),
        corrected=None if corrected is None else at_most(corrected),
        wrong=at_most(1.9),
        known=known,
    )


def broken(size):
    raise RuntimeError("no such network")


HOLDING = toy("modularity/holding", 3)
CORRECTED = toy("modularity/corrected", 1, corrected=2)
FAILING = toy("infinite-width/failing", 1, corrected=1.5, known=FAILS)
BROKEN = PaperClaim("infinite-width/broken", "Eq. 3", (2,), broken, at_most(1), at_most(0))
SURPRISING = toy("infinite-width/surprising", 1)
