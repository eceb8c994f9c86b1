"""Which tensor of b is which tensor of a, by their names.

Wrappers leave parts in names that say nothing about the network: ``module.`` (DataParallel),
``_orig_mod.`` (torch.compile), ``base_model.model.`` (PEFT), ``model.`` or ``transformer.`` (a body
with and without its head). Parts of wrappers are dropped wherever they stand. Other prefixes are
not listed anywhere: they are found by comparing the names of both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from weightloom.symmetry.differences.sources import LazyTensor

__all__ = ["BUFFERS", "Pairing", "is_buffer", "pair_by_name", "pair_renamed"]

#: Parts of names that only wrappers write.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
#: Last parts of names of tensors that the code of a network computes again.
BUFFERS = (
    "position_ids", "token_type_ids", "inv_freq", "original_inv_freq", "masked_bias",
    "num_batches_tracked", "relative_position_index", "attn_mask", "rotary_emb.cos_cached",
    "rotary_emb.sin_cached", "attn.bias",
)  # fmt: skip
_DEEPEST = 6  # parts of a prefix


@dataclass
class Pairing:
    """Pairs of names so far, and the names that are left on both sides."""

    a: Mapping[str, LazyTensor]
    b: Mapping[str, LazyTensor]
    pairs: list[tuple[LazyTensor, LazyTensor, str]] = field(default_factory=list)
    """(tensor of a, tensor of b, how they were matched)"""
    rules: list[str] = field(default_factory=list)
    """sentences on names that differ"""

    def __post_init__(self) -> None:
        self.left_a, self.left_b = dict(self.a), dict(self.b)

    def join(self, first: str, second: str, how: str) -> None:
        self.pairs.append((self.left_a.pop(first), self.left_b.pop(second), how))

    def replace_b(self, whole: str, parts: Iterable[LazyTensor]) -> None:
        """Show one tensor of b as several."""
        del self.left_b[whole]
        self.left_b |= {part.name: part for part in parts}

    def replace_a(self, whole: str, parts: Iterable[LazyTensor]) -> None:
        del self.left_a[whole]
        self.left_a |= {part.name: part for part in parts}


def is_buffer(tensor: LazyTensor) -> bool:
    """Whether a network's code writes this tensor itself, so that files may leave it out."""
    if tensor.name.endswith("attn.bias") and len(tensor.shape) < 4:
        return False  # only GPT-2's causal mask has this name and four axes
    return any(tensor.name == end or tensor.name.endswith(f".{end}") for end in BUFFERS)


def pair_by_name(pairing: Pairing) -> None:
    """Equal names, then names without wrappers, then names that differ by a prefix."""
    for name in [name for name in pairing.left_a if name in pairing.left_b]:
        pairing.join(name, name, "name")
    parts = {part for name in (*pairing.left_a, *pairing.left_b) for part in _wrapping(name)}
    added = ", ".join(f"'{part}.'" for part in sorted(parts))
    pair_renamed(pairing, _unwrapped, f"without {added}, which wrappers add")
    while _pair_by_prefix(pairing):
        pass


def _unwrapped(name: str) -> str:
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def _wrapping(name: str) -> set[str]:
    """The parts that `_unwrapped` drops."""
    return set(name.split(".")) - set(_unwrapped(name).split("."))


def pair_renamed(pairing: Pairing, rename: Callable[[str], str], rule: str) -> int:
    """Pair names that are equal after ``rename`` on either side; ambiguous ones stay."""
    by_name: tuple[dict[str, list[str]], ...] = (defaultdict(list), defaultdict(list))
    for names, left in zip(by_name, (pairing.left_a, pairing.left_b), strict=True):
        for name in left:
            names[rename(name)].append(name)
    count = 0
    for renamed, first in by_name[0].items():
        second = by_name[1].get(renamed, [])
        if len(first) == len(second) == 1:
            pairing.join(first[0], second[0], "rule")
            count += 1
    if count:
        pairing.rules.append(f"{count} names are equal {rule}")
    return count


def _pair_by_prefix(pairing: Pairing) -> bool:
    """Pair the names that one prefix explains, the one that explains most; whether there was one.

    A prefix is on one side only. Two prefixes that explain the same names leave it open which
    tensor is meant; the one whose shapes all fit is taken, and if both do, neither.
    """
    candidates = [
        *(("b", prefix, names) for prefix, names in _prefixes(pairing.left_a, pairing.left_b)),
        *(("a", prefix, names) for prefix, names in _prefixes(pairing.left_b, pairing.left_a)),
    ]
    scored = [(_score(pairing, side, prefix, names), side, prefix, names)
              for side, prefix, names in candidates]  # fmt: skip
    scored = [entry for entry in scored if entry[0] > 0]
    if not scored:
        return False
    best = max(entry[0] for entry in scored)
    winners = [entry for entry in scored if entry[0] == best]
    if len(winners) > 1:
        overlap = any(set(w[3]) & set(winners[0][3]) for w in winners[1:] if w[1] == winners[0][1])
        if overlap:
            return False
    _, side, prefix, names = winners[0]
    for name in names:
        first, second = (name, prefix + name) if side == "b" else (prefix + name, name)
        pairing.join(first, second, "prefix")
    pairing.rules.append(f"{len(names)} names of {side} have the prefix {prefix!r}")
    return True


def _prefixes(
    short: Mapping[str, LazyTensor], long: Mapping[str, LazyTensor]
) -> list[tuple[str, list[str]]]:
    """Prefix -> the names in ``short`` that are in ``long`` with it."""
    explained: dict[str, list[str]] = defaultdict(list)
    for name in long:
        parts = name.split(".")
        for i in range(1, min(len(parts), _DEEPEST + 1)):
            rest = ".".join(parts[i:])
            if rest in short:
                explained[name[: len(name) - len(rest)]].append(rest)
    return list(explained.items())


def _score(pairing: Pairing, side: str, prefix: str, names: list[str]) -> int:
    """How many pairs of one shape (or its transpose) there are; 0 if most shapes do not fit."""
    fitting = 0
    for name in names:
        first, second = (name, prefix + name) if side == "b" else (prefix + name, name)
        shapes = pairing.left_a[first].shape, pairing.left_b[second].shape
        fitting += shapes[0] == shapes[1] or (len(shapes[0]) == 2 and shapes[0] == shapes[1][::-1])
    return fitting if 2 * fitting > len(names) else 0
