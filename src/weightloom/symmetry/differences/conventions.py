"""Names of one architecture in different libraries, and projections that are stored together.

Each rule is the one with which the libraries' own conversion scripts rename. A rule only proposes:
names are paired if both sides have them, once. Whether the numbers agree is seen afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weightloom.symmetry.differences.names import Pairing, pair_renamed
from weightloom.symmetry.differences.sources import LazyTensor

__all__ = ["pair_by_convention", "split_fused"]


def _rules(*lines: str) -> list[tuple[re.Pattern[str], str]]:
    """Lines "expression -> replacement"; an expression matches a whole name, or its start."""
    pairs = (line.split(" -> ") for line in lines)
    return [(re.compile(left), right.strip()) for left, right in pairs]


#: Vision transformers: transformers (both spellings) -> timm.
_VIT = _rules(
    r"^(?:vit\.|deit\.)?embeddings\.(cls_token)$ -> \1",
    r"^(?:vit\.|deit\.)?embeddings\.position_embeddings$ -> pos_embed",
    r"^(?:vit\.|deit\.)?embeddings\.patch_embeddings\.projection\. -> patch_embed.proj.",
    r"^(?:vit\.|deit\.)?(?:encoder\.layer|layers)\.(\d+)\. -> blocks.\1.",
    r"^(blocks\.\d+)\.attention\.attention\.(query|key|value)\. -> \1.attn.\2.",
    r"^(blocks\.\d+)\.attention\.q_proj\. -> \1.attn.query.",
    r"^(blocks\.\d+)\.attention\.k_proj\. -> \1.attn.key.",
    r"^(blocks\.\d+)\.attention\.v_proj\. -> \1.attn.value.",
    r"^(blocks\.\d+)\.attention\.(?:output\.dense|o_proj)\. -> \1.attn.proj.",
    r"^(blocks\.\d+)\.intermediate\.dense\. -> \1.mlp.fc1.",
    r"^(blocks\.\d+)\.output\.dense\. -> \1.mlp.fc2.",
    r"^(blocks\.\d+)\.layernorm_before\. -> \1.norm1.",
    r"^(blocks\.\d+)\.layernorm_after\. -> \1.norm2.",
    r"^(?:vit\.|deit\.)?layernorm\. -> norm.",
    r"^classifier\.(weight|bias)$ -> head.\1",
)
#: Residual networks: transformers -> torchvision and timm.
_RESNET = _rules(
    r"^(?:resnet\.)?embedder\.embedder\.convolution\. -> conv1.",
    r"^(?:resnet\.)?embedder\.embedder\.normalization\. -> bn1.",
    r"^(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)\. -> layer\1+.\2.",
    r"^(layer\d+\+\.\d+)\.layer\.(\d+)\.convolution\. -> \1.conv\2+.",
    r"^(layer\d+\+\.\d+)\.layer\.(\d+)\.normalization\. -> \1.bn\2+.",
    r"\.shortcut\.convolution\. -> .downsample.0.",
    r"\.shortcut\.normalization\. -> .downsample.1.",
    r"^classifier\.1\. -> fc.",
)
#: Normalisation layers of TensorFlow's BERT.
_TENSORFLOW = _rules(r"(LayerNorm)\.gamma$ -> \1.weight", r"(LayerNorm)\.beta$ -> \1.bias")

_CONVENTIONS = {
    "in timm's names of vision transformers": _VIT,
    "in torchvision's names of residual networks": _RESNET,
    "with gamma and beta of a LayerNorm called weight and bias": _TENSORFLOW,
}

#: End of a fused tensor's name -> ends of the names of its rows, in order.
_FUSED = {
    "qkv": ("query", "key", "value"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj": ("q_proj", "k_proj", "v_proj"),
}
_FUSED_NAME = re.compile(rf"(.*\.)?({'|'.join(_FUSED)})([._])(weight|bias)")


def pair_by_convention(pairing: Pairing) -> None:
    """Pair the names that are left by the libraries' conventions."""
    for rule, lines in _CONVENTIONS.items():

        def rename(name: str, lines: list[tuple[re.Pattern[str], str]] = lines) -> str:
            return _renamed(name, lines)

        if any(rename(name) != name for name in (*pairing.left_a, *pairing.left_b)):
            split_fused(pairing, rename)
            pair_renamed(pairing, rename, rule)


def _renamed(name: str, lines: list[tuple[re.Pattern[str], str]]) -> str:
    for expression, replacement in lines:
        name = expression.sub(replacement, name)
    # "3+" counts from 1 what transformers counts from 0.
    return re.sub(r"(\d+)\+", lambda match: str(int(match[1]) + 1), name)


def split_fused(pairing: Pairing, rename: object = None) -> None:
    """Where one side has q, k and v in one tensor and the other side apart, compare by rows."""
    to_name = rename if callable(rename) else str
    for left, other, replace in (
        (pairing.left_a, pairing.left_b, pairing.replace_a),
        (pairing.left_b, pairing.left_a, pairing.replace_b),
    ):
        apart = {to_name(name): tensor for name, tensor in other.items()}
        for name in list(left):
            parts = _parts(left[name], apart)
            if parts:
                replace(name, parts)
                for part, partner in zip(parts, _partners(name, apart), strict=True):
                    _join(pairing, part, partner)
                pairing.rules.append(f"{name!r} holds {len(parts)} tensors of the other side")


def _join(pairing: Pairing, part: LazyTensor, partner: LazyTensor) -> None:
    if part.name in pairing.left_a:
        pairing.join(part.name, partner.name, "rows")
    else:
        pairing.join(partner.name, part.name, "rows")


def _partners(name: str, apart: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    match = _FUSED_NAME.fullmatch(name)
    if match is None:
        return []
    stem, fused, _, leaf = match.groups()
    names = [f"{stem or ''}{part}.{leaf}" for part in _FUSED[fused]]
    return [apart[part] for part in names] if all(part in apart for part in names) else []


def _parts(fused: LazyTensor, apart: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """The rows of a fused tensor, if the shapes of the separate ones fill it exactly."""
    partners = _partners(fused.name, apart)
    if not partners or not fused.shape or fused.dtype is None:
        return []
    heights = [partner.shape[0] if partner.shape else 0 for partner in partners]
    if sum(heights) != fused.shape[0] or any(p.shape[1:] != fused.shape[1:] for p in partners):
        return []
    starts = [sum(heights[:i]) for i in range(len(heights))]
    return [fused.rows(s, s + h) for s, h in zip(starts, heights, strict=True)]
