"""Prompts: exact lengths, nonce first, the same again from the same seed, every granule with its own record."""

import itertools

import numpy as np
import pytest

from kvgate.config.families import load_family
from kvgate.domain.prompt import Family, Lexicon, TooShortError, compose, other_tail

FAMILIES = ("codebook", "prose", "chat", "agent", "code", "shared_prefix", "random")
KEYS = list(itertools.product(FAMILIES, ("en", "zh")))
PREFIX = (1,)


def by_bytes(family: Family) -> Lexicon:
    """One token per byte: the longest texts a tokenizer can make of a family."""
    return Lexicon({piece: tuple(3 + byte for byte in piece.encode()) for piece in family.pieces()}, PREFIX)


def by_pieces(family: Family) -> Lexicon:
    """One token per piece: the shortest."""
    return Lexicon({piece: (1000 + number,) for number, piece in enumerate(family.pieces())}, PREFIX)


def text_of(ids: list[int]) -> str:
    return bytes(token - 3 for token in ids if token > 2).decode()


@pytest.mark.parametrize(("name", "language"), KEYS)
@pytest.mark.parametrize("length", [700, 701, 1023, 4096, 4099])
def test_lengths_are_exact_and_text_ends_on_clean_characters(name: str, language: str, length: int) -> None:
    family = load_family(name, language)
    prompt = compose(family, by_bytes(family), 7, "g1", length, 32)
    assert length == len(prompt.ids)
    assert prompt.ids.tolist()[0] == PREFIX[0]
    assert prompt.nonce in text_of(prompt.ids.tolist())


@pytest.mark.parametrize(("name", "language"), KEYS)
def test_the_nonce_comes_first_and_differs_by_group_and_seed(name: str, language: str) -> None:
    family = load_family(name, language)
    lexicon = by_bytes(family)
    prompts = [compose(family, lexicon, seed, group, 900, 32) for seed in (1, 2) for group in ("g1", "g2")]
    assert 4 == len({prompt.nonce for prompt in prompts})
    for prompt in prompts:
        assert prompt.nonce == text_of(prompt.ids.tolist()[1:13])
        assert 12 == len(prompt.nonce)


def test_the_same_seed_makes_the_same_prompt() -> None:
    family = load_family("codebook", "en")
    one, two = (compose(family, by_bytes(family), 7, "g1", 2000, 32) for _ in range(2))
    assert one.sha256 == two.sha256
    assert one.sha256 != compose(family, by_bytes(family), 8, "g1", 2000, 32).sha256


@pytest.mark.parametrize("granule", [16, 32, 128, 640, 4096])
def test_every_granule_of_a_codebook_holds_part_of_a_record(granule: int) -> None:
    family = load_family("codebook", "en")
    prompt = compose(family, by_bytes(family), 7, "g1", 8192, granule)
    text = text_of(prompt.ids.tolist())
    step = max(granule, 128)
    pieces = [text[at : at + step] for at in range(0, len(text) - step, step)]
    assert all(":" in piece or "Shelf" in piece for piece in pieces[:-3])
    assert text.count("Shelf") == len(set(text.split("Shelf")[1:]))


def test_the_asked_codewords_stand_in_the_record_asked_for() -> None:
    family = load_family("codebook", "en")
    prompt = compose(family, by_bytes(family), 7, "g1", 2000, 32)
    text = text_of(prompt.ids.tolist())
    shelf = text.rsplit("Shelf ", 1)[1].rstrip(":")
    (asked,) = prompt.asked
    assert f"Shelf {shelf}: {asked}." in text


@pytest.mark.parametrize(("name", "language"), KEYS)
def test_short_lengths_are_refused_not_cut(name: str, language: str) -> None:
    family = load_family(name, language)
    # Token soup is little more than its number.
    short = 14 if name == "random" else 16
    with pytest.raises(TooShortError, match=f"does not fit into {short} tokens"):
        compose(family, by_bytes(family), 7, "g1", short, 32)


def test_tokenizers_with_long_pieces_still_give_exact_lengths() -> None:
    family = load_family("codebook", "zh")
    lexicon = by_pieces(family)
    assert [64, 65, 777] == [len(compose(family, lexicon, 7, "g1", length, 32).ids) for length in (64, 65, 777)]
    no_single = Lexicon(dict.fromkeys(family.pieces(), (5, 6, 7)), ())
    assert 1000 == len(compose(family, no_single, 7, "g1", 1000, 32).ids)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_prompts_of_a_shared_family_differ_in_their_number_alone(language: str) -> None:
    family = load_family("shared_prefix", language)
    lexicon = by_bytes(family)
    one, other = (compose(family, lexicon, 7, name, 900, 16) for name in ("g1", "g2"))
    assert one.nonce != other.nonce
    assert (one.nonce,) == one.asked
    differing = np.flatnonzero(one.ids != other.ids)
    assert 0 < len(differing) <= len(one.nonce)
    assert differing.max() < len(one.nonce) + len(lexicon.prefix)


def test_another_tail_keeps_the_beginning_and_asks_for_something_in_it() -> None:
    family = load_family("codebook", "en")
    lexicon = by_bytes(family)
    whole = compose(family, lexicon, 7, "g", 900, 16)
    branch = other_tail(family, lexicon, "7/g", whole.ids[:400], 48)
    assert 448 == len(branch)
    assert (branch[:400] == whole.ids[:400]).all()
    assert (branch[400:] != whole.ids[400:448]).any()
