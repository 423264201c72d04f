"""Lengths: predicted hits, the floor, alignment, boundaries, and finding the granule from what hits show."""

import pytest

from kvgate.domain.geometry import Geometry, infer_granule

LAB = Geometry(block_size=32, granule=32, chunk=320, max_model_len=2048)
# DeepSeek-V4 on AscendStore at block 128: C128 blocks are 128 x 128 raw tokens, retention 16384.
V4 = Geometry(block_size=128, granule=16384, chunk=8192, max_model_len=1 << 20, retention_interval=16384)


@pytest.mark.parametrize(
    ("length", "hit"), [(1, 0), (32, 0), (33, 32), (64, 32), (65, 64), (181, 160), (659, 640), (1300, 1280)]
)
def test_the_last_token_is_always_computed(length: int, hit: int) -> None:
    assert hit == LAB.local_hit(length)


def test_retention_and_speculation_raise_the_floor() -> None:
    assert 32768 == V4.hit_floor
    assert (0, 32768) == (V4.external_hit(32767), V4.external_hit(32769))
    plain = Geometry(128, 16384, 8192, 1 << 20)
    assert 16385 == plain.hit_floor
    drafting = Geometry(128, 16384, 8192, 1 << 20, speculation_granules=1)
    assert 32769 == drafting.hit_floor
    assert (0, 16384) == (drafting.external_hit(32768), drafting.external_hit(32769))


@pytest.mark.parametrize(("length", "aligned"), [(659, True), (339, True), (840, False), (801, False), (19, False)])
def test_alignment_is_as_measured_in_the_lab(length: int, aligned: bool) -> None:
    """659 = 2·320 + 19 was bit-exact cold against hit on a real engine; 840 and 801 were not."""
    assert aligned is LAB.is_aligned(length)


@pytest.mark.parametrize("tier", [300, 340, 500, 660, 1000, 1500])
def test_aligned_lengths_have_the_same_last_chunk_cold_and_on_a_hit(tier: int) -> None:
    length = LAB.aligned_length(tier, 2000)
    assert length is not None
    last_cold_chunk = (length - 1) % LAB.chunk + 1
    assert last_cold_chunk == length - LAB.external_hit(length)
    assert abs(length - tier) <= tier / 2


def test_no_aligned_length_where_one_chunk_holds_the_prompt() -> None:
    assert Geometry(32, 32, 2048, 2048).aligned_length(512, 2000) is None
    assert 499 == Geometry(32, 32, 2048, 2048).reusable_length(512)


def test_a_tier_at_the_granule_moves_up_by_a_suffix() -> None:
    assert 16384 + 19 == Geometry(128, 16384, 8192, 1 << 20).aligned_length(16384, 1 << 20)


def test_a_suffix_of_one_token_can_be_asked_for() -> None:
    assert 481 == Geometry(32, 32, 2048, 2048).reusable_length(512, 1)
    assert 641 == LAB.aligned_length(660, 2000, 1)


def test_boundaries_stand_around_every_size_and_leave_a_tail_of_one_token() -> None:
    edges = LAB.boundary_lengths(339, 2000)
    assert {351, 352, 353, 639, 640, 641} == set(edges)
    assert 1 == 641 - LAB.external_hit(641)


@pytest.mark.parametrize("granule", [1, 16, 32, 96, 528, 640, 4096])
def test_the_granule_is_found_from_hits(granule: int) -> None:
    lengths = (20000, 20000 - 20000 // 7, 20000 - 20000 // 3, 10000)
    seen = tuple((length, (length - 1) // granule * granule) for length in lengths)
    assert granule == infer_granule(seen)


def test_hits_that_fit_no_granule_find_none() -> None:
    assert infer_granule(((100, 0), (200, 0))) is None
    assert infer_granule(((100, 96), (90, 50))) is None


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="granule must be at least 1, not 0"):
        Geometry(16, 0, 64, 1024)
