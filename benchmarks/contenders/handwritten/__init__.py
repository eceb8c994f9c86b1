"""What a person who knows PyTorch well writes by hand, for each workload: the reference for speed.

Variants that lost are kept where they are what most people would write (bmm on written weights,
a loop); variants that lost and that nobody would write are only named in the README.
"""

from __future__ import annotations

from contenders.base import Contender
from contenders.handwritten import images, pairs, points

__all__ = ["contenders"]


def contenders(key: str) -> list[Contender]:
    return {"a": pairs, "b": points, "c": images}[key].contenders()
