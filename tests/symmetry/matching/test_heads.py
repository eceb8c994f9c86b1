"""match_heads: disguised blocks are recognised, changed ones are not. Disguises: blocks.py."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.symmetry.matching.blocks import (
    attention,
    block,
    cast,
    commuting,
    disguised,
    moderate,
    pairs_of,
)
from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.matching.heads.factors import HeadFactors, rotary_pairs
from weightloom.symmetry.matching.heads.matcher import match_heads
from weightloom.symmetry.matching.heads.signatures import signatures

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# heads, groups, d, E, coordinates that RoPE rotates, interleaved, biases
SHAPES = [
    (1, 1, 16, 16, 0, False, True),
    (4, 4, 2, 16, 0, False, False),
    (3, 3, 6, 24, 0, False, True),
    (6, 2, 4, 24, 0, False, True),
    (4, 1, 8, 32, 0, False, False),
    (4, 4, 6, 24, 6, False, True),
    (8, 2, 4, 32, 4, True, True),
    (6, 3, 8, 48, 4, False, True),
    (2, 2, 8, 40, 6, True, False),
]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def random_block(shape, seed):
    heads, groups, d, width, rotated, interleaved, bias = shape
    rotary = pairs_of(d, rotated, interleaved) if rotated else None
    return block(heads, groups, d, width, generator=seeded(seed), bias=bias, rotary=rotary)


def rounding(dtype):
    """The default tolerance."""
    eps = torch.finfo(dtype).eps
    return (4 if eps > 1e-4 else 32) * eps


def own_scale(tensor, flat):
    """The size of one weight, or of a typical one of its tensor if that is larger."""
    return max(float(tensor.flatten()[flat].abs()), float(tensor.double().square().mean().sqrt()))


def compared_names(a):
    """The tensors that the function depends on, all of whose entries count."""
    names = ["query", "key", "value", "output"]
    if a.query_bias is not None:
        names += ["query_bias", "value_bias", "output_bias"]
        if a.rotary is not None and a.rotary.numel() == a.query.shape[1]:
            names.append("key_bias")
    return names


def with_change(a, name, flat, amount):
    tensor = getattr(a, name)
    changed = tensor.double().flatten().clone()
    changed[flat] += amount
    return replace(a, **{name: changed.reshape(tensor.shape).to(tensor.dtype)})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_disguises_compute_the_same(shape):
    """The disguises of these tests are what they claim to be."""
    a, x = random_block(shape, 0), torch.randn(2, 5, shape[3], generator=seeded(1)).double()
    b, _, _ = disguised(a, seeded(2))
    torch.testing.assert_close(attention(b, x), attention(a, x), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(a.query, b.query)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_disguised_blocks_are_recognised(shape, dtype):
    for seed in range(6):
        a = random_block(shape, seed)
        b, heads, groups = disguised(a, seeded(100 + seed), dtype)
        match = match_heads(b, cast(a, dtype))
        assert match.same, (seed, match)
        assert match.undecided is None
        assert torch.equal(match.heads, heads)
        assert torch.equal(match.groups, groups)
        assert 0 < match.deviation <= match.tolerance == rounding(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_maps_take_one_block_to_the_other(shape):
    """Independently: the maps and orders applied by hand give the other block's weights."""
    a = random_block(shape, 3)
    b, _, _ = disguised(a, seeded(4))
    match = match_heads(b, a)
    shared = a.heads // a.groups
    for head in range(a.heads):
        A, B = match.query_map[head // shared], match.value_map[head // shared]
        source, own = int(match.heads[head]), int(match.groups[head // shared])
        torch.testing.assert_close(A @ a.query[source], b.query[head], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            a.output[source] @ torch.linalg.inv(B), b.output[head], rtol=1e-9, atol=1e-11
        )
        torch.testing.assert_close(
            torch.linalg.inv(A).T @ a.key[own], b.key[head // shared], rtol=1e-9, atol=1e-11
        )
        torch.testing.assert_close(B @ a.value[own], b.value[head // shared], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_changed_weight_is_not_accepted(shape, dtype):
    """Changes of 5 to 10^4 tolerances of the weight's own scale, in every tensor that counts."""
    for seed, times in itertools.product(range(2), (5, 15, 50, 1e4)):
        a = random_block(shape, seed)
        b, _, _ = disguised(a, seeded(100 + seed), dtype)
        generator = seeded(round(7 * seed + times))
        names = compared_names(a)
        name = names[int(torch.randint(len(names), (), generator=generator))]
        flat = int(torch.randint(getattr(b, name).numel(), (), generator=generator))
        amount = times * rounding(dtype) * own_scale(getattr(b, name), flat)
        match = match_heads(with_change(b, name, flat, amount), cast(a, dtype))
        assert not match.same, (seed, times, name, match.deviation / match.tolerance)
        if times > 1000 and dtype in DTYPES[:2]:
            assert match.undecided is None


@pytest.mark.parametrize(("heads", "groups"), [(12, 12), (12, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_changes_do_not_drown_in_wide_blocks(heads, groups, dtype):
    """E = 768: noise of a thousandth, and one weight moved by a share of a deviation."""
    rotary = pairs_of(64, 64, False) if groups < heads else None
    a = block(heads, groups, 64, 768, generator=seeded(0), rotary=rotary)
    b, order, _ = disguised(a, seeded(1), dtype)
    a = cast(a, dtype)
    match = match_heads(b, a)
    assert match.same
    assert torch.equal(match.heads, order)
    share = 0.05 if dtype == torch.float32 else 0.25  # 12 tolerances are 0.4 in bfloat16
    for name, flat in (("query", 12345), ("key", 77), ("value", 4321), ("output", 99)):
        amount = share * float(getattr(b, name).double().square().mean().sqrt())
        place = own_scale(getattr(b, name), flat) / amount
        changed = with_change(b, name, flat, amount * max(1.0, share * place))
        assert not match_heads(changed, a).same, name
    if dtype == torch.float32:
        for name in ("query", "key", "value"):
            tensor = getattr(b, name)
            noise = 1 + 1e-3 * torch.randn(tensor.shape, generator=seeded(2))
            assert not match_heads(replace(b, **{name: tensor * noise}), a).same


class TestWhatHasNoEffect:
    """Not compared, because the function does not depend on it; everything else still is."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[3], SHAPES[5], SHAPES[7]], ids=str)
    def test_keys_of_heads_without_queries(self, shape, dtype):
        a = random_block(shape, 0)
        a.query[: a.heads // a.groups], a.query_bias[: a.heads // a.groups] = 0.0, 0.0
        key, bias = a.key.clone(), a.key_bias.clone()
        key[0], bias[0] = torch.randn(key[0].shape, generator=seeded(1)).double(), 3.0
        other = replace(a, key=key, key_bias=bias)
        x = torch.randn(1, 4, shape[3], generator=seeded(2)).double()
        torch.testing.assert_close(attention(other, x), attention(a, x))
        b, _, _ = disguised(other, seeded(3), dtype)
        assert match_heads(cast(a, dtype), b).same
        key[1, 0, 0] *= 1.001
        b, _, _ = disguised(replace(a, key=key), seeded(3), dtype)
        assert not match_heads(cast(a, dtype), b).same
        (zero,) = torch.where(b.query.abs().amax((1, 2)) == 0)
        b.query[int(zero[0]), 0, 0] = 1e-3
        assert not match_heads(cast(a, dtype), b).same

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[3], SHAPES[7]], ids=str)
    def test_values_of_heads_without_outputs(self, shape, dtype):
        a = random_block(shape, 0)
        a.output[: a.heads // a.groups] = 0.0
        value, bias = a.value.clone(), a.value_bias.clone()
        value[0], bias[0] = torch.randn(value[0].shape, generator=seeded(1)).double(), 3.0
        b, _, _ = disguised(replace(a, value=value, value_bias=bias), seeded(3), dtype)
        assert match_heads(cast(a, dtype), b).same
        a.output[0, 0, 0] = 1e-3
        assert not match_heads(cast(a, dtype), b).same

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_keys_in_directions_that_queries_lack(self, dtype):
        a = block(3, 3, 6, 24, generator=seeded(0))
        a.query[:, 1], a.query_bias[:, 1] = a.query[:, 0], a.query_bias[:, 0]
        key = a.key.clone()
        extra = torch.randn(3, 24, generator=seeded(1)).double()
        key[:, 0] += extra
        key[:, 1] -= extra
        b, _, _ = disguised(replace(a, key=key), seeded(2), dtype)
        assert match_heads(cast(a, dtype), b).same
        for row, amount in ((3, 1e-3), (0, 1e-3)):
            other = key.clone()
            other[0, row, 2] += amount
            b, _, _ = disguised(replace(a, key=other), seeded(2), dtype)
            assert not match_heads(cast(a, dtype), b).same, row

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_the_key_bias(self, dtype):
        x = torch.randn(1, 4, 24, generator=seeded(2)).double()
        for rotated, free in ((0, range(6)), (4, (4, 5)), (6, ())):
            rotary = pairs_of(6, rotated, False) if rotated else None
            a = block(3, 3, 6, 24, generator=seeded(0), rotary=rotary)
            for place in range(6):
                b = replace(a, key_bias=a.key_bias.clone())
                b.key_bias[1, place] += 0.5
                same = torch.allclose(attention(a, x), attention(b, x), rtol=0, atol=1e-12)
                assert same == (place in free)
                b, _, _ = disguised(b, seeded(3), dtype)
                assert match_heads(cast(a, dtype), b).same == same, (rotated, place)
            counted = replace(a, key_bias_cancels=False)
            b = replace(counted, key_bias=a.key_bias + 1)
            assert not match_heads(counted, b).same

    @pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
    def test_a_value_bias_that_moved_into_the_output_bias(self, dtype):
        a = block(4, 2, 6, 24, generator=seeded(0))
        moved = a.output_bias.clone()
        for head in range(4):
            moved += a.output[head] @ a.value_bias[head // 2]
        other = replace(a, value_bias=0 * a.value_bias, output_bias=moved)
        x = torch.randn(1, 4, 24, generator=seeded(2)).double()
        torch.testing.assert_close(attention(a, x), attention(other, x))
        b, _, _ = disguised(other, seeded(1), dtype)
        assert match_heads(cast(a, dtype), b).same
        b, _, _ = disguised(replace(other, output_bias=a.output_bias), seeded(1), dtype)
        match = match_heads(cast(a, dtype), b)
        assert not match.same
        assert "value bias" in match.where


class TestClones:
    """Heads that projections hardly tell apart."""

    @pytest.mark.parametrize("groups", [6, 2])
    def test_equal_heads(self, groups):
        a = block(6, groups, 4, 24, generator=seeded(0), bias=False)
        same = {n: getattr(a, n)[:1].expand_as(getattr(a, n)).clone() for n in ("query", "key")}
        same |= {n: getattr(a, n)[:1].expand_as(getattr(a, n)).clone() for n in ("value", "output")}
        a = replace(a, **same)
        b, _, _ = disguised(a, seeded(1), torch.float32)
        assert match_heads(cast(a, torch.float32), b).same

    @pytest.mark.parametrize("groups", [6, 2])
    def test_nearly_equal_heads(self, groups):
        """They differ in one weight of the output by 20 tolerances and multiples of it."""
        a = block(6, groups, 4, 24, generator=seeded(0), bias=False)
        same = {n: getattr(a, n)[:1].expand_as(getattr(a, n)).clone() for n in ("query", "key")}
        same |= {n: getattr(a, n)[:1].expand_as(getattr(a, n)).clone() for n in ("value", "output")}
        a = replace(a, **same)
        step = 20 * rounding(torch.float32) * own_scale(a.output[0], 3 * 4 + 2)
        a.output[:, 3, 2] += step * torch.tensor([3.0, 0, 4, 1, 5, 2]).double()
        for seed in range(4):
            b, order, _ = disguised(a, seeded(seed), torch.float32)
            match = match_heads(b, cast(a, torch.float32))
            assert match.same
            assert torch.equal(match.heads, order)
            b.output[3, 3, 2] += 7 * step
            assert not match_heads(b, cast(a, torch.float32)).same


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
def test_ill_conditioned_maps_are_never_mistaken(condition):
    """Float32 rounds q -> A q relative to the largest direction; the others lose digits."""
    decided = 0
    for seed in range(6):
        a = block(2, 2, 6, 32, generator=seeded(seed), bias=False)
        u, v = moderate(6, seeded(seed + 50)), moderate(6, seeded(seed + 90))
        A = u @ torch.diag(torch.logspace(0, -1, 6, base=condition).double()) @ v
        query, key = a.query.clone(), a.key.clone()
        query[0], key[0] = A @ query[0], torch.linalg.inv(A).T @ key[0]
        b = cast(replace(a, query=query, key=key), torch.float32)
        match = match_heads(cast(a, torch.float32), b)
        assert match.same or match.undecided
        decided += match.same
        b.query[0, 2, 3] *= 1.2
        assert not match_heads(cast(a, torch.float32), b).same
    assert decided == 6 or condition > 1e3


@pytest.mark.parametrize("interleaved", [False, True])
def test_maps_that_do_not_commute_with_the_rotations(interleaved):
    rotary = pairs_of(4, 4, interleaved)
    a = block(2, 2, 4, 24, generator=seeded(0), rotary=rotary, bias=False)
    free, _, _ = disguised(replace(a, rotary=None), seeded(1))
    x = torch.randn(1, 4, 24, generator=seeded(2)).double()
    assert not torch.allclose(attention(replace(free, rotary=a.rotary), x), attention(a, x))
    assert not match_heads(a, replace(free, rotary=a.rotary)).same
    assert match_heads(replace(a, rotary=None), free).same
    other = torch.tensor(pairs_of(4, 4, not interleaved))
    b, _, _ = disguised(a, seeded(1))
    assert match_heads(a, b).same
    assert not match_heads(replace(a, rotary=other), replace(b, rotary=other)).same


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_signatures_do_not_see_maps(shape):
    a = random_block(shape, 0)
    b, order, _ = disguised(a, seeded(1))
    for (own, _), (other, _) in zip(signatures(b), signatures(a), strict=True):
        torch.testing.assert_close(own, other[order], rtol=1e-9, atol=1e-11)
        if len(own) > 1:
            assert float(torch.pdist(own).min()) > 1e-3


def test_heads_of_other_groups_are_not_partners():
    """Two heads with their groups' keys permuted: each product differs."""
    a = block(4, 2, 4, 24, generator=seeded(0), bias=False)
    b = replace(a, query=a.query[[2, 1, 0, 3]], output=a.output[[2, 1, 0, 3]])
    assert not match_heads(a, b).same


def test_products_grow_with_the_square_of_the_width():
    """Counted, not timed: heads of one size; twice the width has twice the heads."""
    counts = []
    for width in (128, 256, 512):
        a = block(width // 16, width // 16, 16, width, generator=seeded(0))
        b, _, _ = disguised(a, seeded(1), torch.float32)
        with FlopCounterMode(display=False) as counter:
            assert match_heads(cast(a, torch.float32), b).same
        counts.append(counter.get_total_flops())
    # d E^2 for each of a dozen products; W_Q^T W_K alone would be E^3 for all heads.
    assert counts[1] / counts[0] < 4.4
    assert counts[2] / counts[1] < 4.4
    assert counts[2] < 40 * 16 * 512**2 * 2


def test_not_finite_weights():
    a = block(3, 3, 4, 16, generator=seeded(0))
    for name, bad in itertools.product(("query", "key", "value", "output"), ("nan", "inf")):
        b = replace(a, **{name: getattr(a, name).clone()})
        getattr(b, name)[1, 0, 0] = float(bad)
        assert not match_heads(a, b).same
        assert match_heads(a, b).deviation == float("inf")


def test_messages():
    a = block(4, 4, 4, 16, generator=seeded(0))
    with pytest.raises(ShapeError, match=r"query has shapes \[4, 4, 16\] and \[2, 4, 16\]"):
        match_heads(a, block(2, 2, 4, 16, generator=seeded(0)))
    with pytest.raises(ShapeError, match=r"rotate queries differently: \[\[0, 2\], \[1, 3\]\] and"):
        match_heads(replace(a, rotary=rotary_pairs(4)), a)
    with pytest.raises(ConfigError, match=r"tolerance is 3; a number in \[0, 1\)"):
        match_heads(a, a, tolerance=3)
    with pytest.raises(ShapeError, match="4 heads cannot share 3 groups"):
        HeadFactors(a.query, a.key[:3], a.value, a.output)
    with pytest.raises(ShapeError, match=r"value has shape \[3, 4, 16\]; \[4, 4, 16\] is wanted"):
        HeadFactors(a.query, a.key, a.value[:3], a.output)
    with pytest.raises(ShapeError, match=r"query has shape \[4, 4\]; \[heads, rows, columns\]"):
        HeadFactors(a.query[..., 0], a.key, a.value, a.output)
    with pytest.raises(ShapeError, match=r"rotary pairs \[\[0, 1\], \[1, 2\]\]"):
        replace(a, rotary=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ShapeError, match="5 of 8 coordinates are rotated; an even number"):
        rotary_pairs(8, rotated=5)


def test_the_place_of_a_change_is_named():
    a = block(4, 2, 4, 16, generator=seeded(0))
    for name, place, text in (
        ("query", (2, 1, 5), r"the query of head 2, entry [1, 5],"),
        ("key", (1, 3, 7), r"the key of group 1, entry [3, 7],"),
        ("value", (0, 2, 9), r"the value of group 0, entry [2, 9],"),
        ("output", (3, 11, 1), r"the output of head 3, entry [11, 1],"),
        ("query_bias", (1, 2), r"the query bias of head 1, entry [2],"),
        ("value_bias", (1, 2), r"the value bias of group 1"),
        ("output_bias", (6,), r"the output bias, entry [6],"),
    ):
        b = replace(a, **{name: getattr(a, name).clone()})
        getattr(b, name)[place] += 0.3
        assert match_heads(b, a).where == text


def test_commuting_maps_commute():
    """The maps by hand that the disguises use for RoPE."""
    rotary = pairs_of(6, 4, False)
    A, turn = commuting(6, rotary, seeded(0)), torch.eye(6).double()
    for angle, (one, two) in zip((0.3, 1.1), rotary, strict=True):
        c, s = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
        turn[one, one] = turn[two, two] = c
        turn[two, one], turn[one, two] = s, -s
    torch.testing.assert_close(A @ turn, turn @ A)
    assert not torch.allclose(A, torch.diag(A.diagonal()))
