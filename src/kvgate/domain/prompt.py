"""Prompts as token IDs of an exact length, composed from a seeded family.

A family is made of pieces of text. Each piece is tokenised once by the deployment (the lexicon); composing is
then pure, so a prompt can be made again from the seed, and its pieces end on clean character boundaries.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

NONCE_DIGITS = 12
SHELF_DIGITS = 4
SHORTEST_SPAN, LONGEST_SPAN = 24, 128


@dataclass(frozen=True, slots=True)
class Family:
    """Texts of one prompt family in one language.

    ``header``, ``record`` and ``question`` are templates as pieces; ``{nonce}``, ``{shelf}`` and ``{word}`` are
    slots. A family without records (prose) is sentences only. ``padding`` are words used to reach the length. Prompts
    of a ``shared`` family are alike but for their nonce, which is what they ask for.
    """

    name: str
    language: str
    header: tuple[str, ...]
    record: tuple[str, ...]
    question: tuple[str, ...]
    words: tuple[str, ...]
    sentences: tuple[str, ...]
    padding: tuple[str, ...]
    shared: bool = False

    def pieces(self) -> tuple[str, ...]:
        """Every piece of text the family can use, each once, in a fixed order."""
        templates = (*self.header, *self.record, *self.question)
        literal = [piece for piece in templates if not piece.startswith("{")]
        return tuple(dict.fromkeys((*literal, *"0123456789", *self.words, *self.sentences, *self.padding)))


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Token IDs of every piece of text, and those that stand before and after every prompt, if any."""

    ids: Mapping[str, tuple[int, ...]]
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Token IDs of one prompt, its nonce as text, and the codewords its answer should hold."""

    ids: Ids
    nonce: str
    asked: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """What the prompt is called in plans and records: see ``digest``."""
        return digest(self.ids)


def digest(ids: Ids) -> str:
    """SHA-256 of token IDs as little-endian 32-bit integers, in hexadecimal."""
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()


def begun_alike(ids: Ids, other: Ids) -> Ids:
    """Token IDs that begin as ``ids`` do and go on, from the middle, as ``other`` does."""
    return np.concatenate((ids[: len(ids) // 2], other[len(ids) // 2 :]))


class TooShortError(ValueError):
    """The length asked for does not hold the family's header, one record and question."""


def compose(family: Family, lexicon: Lexicon, seed: int, group: str, length: int, granule: int) -> Prompt:
    """A prompt of exactly ``length`` token IDs; the same arguments give the same prompt.

    Raises TooShortError if the fixed parts alone are longer than ``length``.
    """
    choose = _chooser(seed, group, (family.name, family.language))
    nonce = _drawn_nonce(choose)
    if family.shared:
        choose = _Chooser(f"{seed}/{family.name}/{family.language}")
    head = [*lexicon.prefix, *_render(family.header, lexicon, {"{nonce}": tuple(nonce)})]
    # The question names a shelf, so its length depends on the choice; room is made for the longest.
    widest = max("0123456789", key=lambda digit: len(lexicon.ids[digit]))
    digits = max(SHELF_DIGITS, len(str(length)))
    room = (
        length
        - len(head)
        - len(lexicon.suffix)
        - len(_render(family.question, lexicon, {"{shelf}": tuple(widest * digits)}))
    )
    if room < _longest_record(family, lexicon, widest):
        raise TooShortError(f"a {family.name} prompt does not fit into {length} tokens with this tokenizer")
    units = _records(family, lexicon, choose, room, granule)
    body = [token for unit in units for token in unit.ids]
    asked = next(choose) % len(units) if units else 0
    tail = [*_render(family.question, lexicon, {"{shelf}": _shelf(asked)}), *lexicon.suffix]
    padding = _padding(family, lexicon, choose, length - len(head) - len(body) - len(tail))
    ids = np.array([*head, *body, *padding, *tail], dtype=np.int32)
    if family.shared:
        return Prompt(ids, nonce, (nonce,))
    return Prompt(ids, nonce, ("".join(units[asked].words).strip(),) if units else ())


def other_tail(family: Family, lexicon: Lexicon, name: str, head: Ids, count: int) -> Ids:
    """``head`` with a tail of ``count`` tokens that asks for something in it; ``name`` seeds what is asked for."""
    choose = _Chooser(f"{name}/tail")
    shelf = next(choose) % max(1, len(head) // LONGEST_SPAN) if family.record else 0
    asked = _render(family.question, lexicon, {"{shelf}": _shelf(shelf)})[-count:]
    filling = _padding(family, lexicon, choose, count - len(asked))
    return np.array([*head.tolist(), *filling, *asked], dtype=np.int32)


def continued(family: Family, lexicon: Lexicon, name: str, turn: tuple[Ids, tuple[int, ...]], length: int) -> Ids:
    """A prompt of ``length`` tokens that goes on after a prompt and its answer (``turn``) with one more question."""
    whole, answered = turn
    so_far = np.concatenate([whole, np.array(answered, dtype=np.int32)])
    return other_tail(family, lexicon, f"{name}/on", so_far, length - len(so_far))


def passage(family: Family, lexicon: Lexicon, name: str, length: int) -> list[int]:
    """Exactly ``length`` tokens of the family's sentences; ``name`` seeds them, and a number drawn from it comes first.

    So no two passages begin alike, in so far as the number fits.
    """
    choose = _Chooser(name)
    number = [token for digit in _drawn_nonce(choose) for token in lexicon.ids[digit]][:length]
    return [*number, *_padding(family, lexicon, choose, length - len(number))]


def drawn(name: str) -> Iterator[int]:
    """Whole numbers of 32 bits, without end; the same for the same name, on every platform."""
    return _Chooser(name)


def nonce_of(seed: int, group: str, key: tuple[str, str]) -> str:
    """The nonce with which the prompt of that name, of the family and language ``key``, begins."""
    return _drawn_nonce(_chooser(seed, group, key))


def _chooser(seed: int, group: str, key: tuple[str, str]) -> "_Chooser":
    return _Chooser(f"{seed}/{group}/{key[0]}/{key[1]}")


def _drawn_nonce(choose: "_Chooser") -> str:
    return "".join(str(next(choose) % 10) for _ in range(NONCE_DIGITS))


def _longest_record(family: Family, lexicon: Lexicon, widest: str) -> int:
    """Tokens of the longest first record there can be: whether a prompt fits must not depend on the seed."""
    if not family.record:
        return 0
    word = max(family.words, key=lambda each: len(lexicon.ids[each]))
    template = tuple(word if piece == "{word}" else piece for piece in family.record)
    return len(_render(template, lexicon, {"{shelf}": tuple(widest * SHELF_DIGITS)}))


class _Chooser(Iterator[int]):
    """A seeded stream of integers: SHA-256 in counter mode, so that it is the same on every platform."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()
        self._count = 0
        self._pool: list[int] = []

    def __next__(self) -> int:
        if not self._pool:
            digest = hashlib.sha256(self._seed + self._count.to_bytes(8, "big")).digest()
            self._count += 1
            self._pool = [int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4)]
        return self._pool.pop()


@dataclass(frozen=True, slots=True)
class _Unit:
    ids: tuple[int, ...]
    words: tuple[str, ...]


def _shelf(index: int) -> tuple[str, ...]:
    return tuple(f"{index + 1:0{SHELF_DIGITS}d}")


def _render(template: tuple[str, ...], lexicon: Lexicon, slots: Mapping[str, tuple[str, ...]]) -> list[int]:
    ids: list[int] = []
    for piece in template:
        for text in slots.get(piece, (piece,)):
            ids.extend(lexicon.ids[text])
    return ids


def _records(family: Family, lexicon: Lexicon, choose: _Chooser, room: int, granule: int) -> list[_Unit]:
    """Records with filler, each at most one span long, so that every granule holds part of a unique record."""
    units: list[_Unit] = []
    if not family.record:
        return units
    span = min(max(granule, SHORTEST_SPAN), LONGEST_SPAN)
    used = 0
    while True:
        words = tuple(family.words[next(choose) % len(family.words)] for _ in range(family.record.count("{word}")))
        remaining = iter(words)
        template = tuple(next(remaining) if piece == "{word}" else piece for piece in family.record)
        ids = _render(template, lexicon, {"{shelf}": _shelf(len(units))})
        if used + len(ids) > room:
            return units
        while True:
            sentence = lexicon.ids[family.sentences[next(choose) % len(family.sentences)]]
            if len(ids) + len(sentence) > min(span, room - used):
                break
            ids.extend(sentence)
        units.append(_Unit(tuple(ids), words))
        used += len(ids)


def _padding(family: Family, lexicon: Lexicon, choose: _Chooser, count: int) -> list[int]:
    """Exactly ``count`` tokens of sentences, then words, then the smallest piece there is."""
    ids: list[int] = []
    while True:
        sentence = lexicon.ids[family.sentences[next(choose) % len(family.sentences)]]
        if len(ids) + len(sentence) > count:
            break
        ids.extend(sentence)
    misses = 0
    while len(ids) < count and misses < 4 * len(family.padding):
        word = lexicon.ids[family.padding[next(choose) % len(family.padding)]]
        if len(ids) + len(word) <= count:
            ids.extend(word)
        else:
            misses += 1
    smallest = min((lexicon.ids[word] for word in family.padding), key=len)
    while len(ids) < count:
        # The full stop is one token nearly everywhere; where it is not, cutting it keeps the length exact.
        ids.extend(smallest[: count - len(ids)])
    return ids
