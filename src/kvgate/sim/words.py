"""The embedded engine's tokenizer: a token for every word, digit or mark, so that codewords are whole tokens."""

import hashlib
import re
from collections.abc import Iterable

from kvgate.sim.network import FIRST_USABLE_TOKEN, VOCABULARY

_PIECES = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]|\s|_")
_SHOWN = re.compile(r"<\d+>|" + _PIECES.pattern)


def split(text: str) -> list[str]:
    """A text as its tokens were shown one by one."""
    return _SHOWN.findall(text)


class Dictionary:
    """Words and their IDs. An ID follows from the word; words whose IDs collide take the next free one."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words: dict[int, str] = {}

    def tokenize(self, text: str) -> list[int]:
        """Token IDs of a text."""
        return [self._id(piece) for piece in _PIECES.findall(text)]

    def text(self, ids: Iterable[int]) -> str:
        """The text of token IDs; one that stands for no word yet is shown by number."""
        return "".join(self._words.get(token, f"<{token}>") for token in ids)

    def _id(self, word: str) -> int:
        if word in self._ids:
            return self._ids[word]
        usable = VOCABULARY - FIRST_USABLE_TOKEN
        start = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % usable
        for step in range(usable):
            token = FIRST_USABLE_TOKEN + (start + step) % usable
            if token not in self._words:
                self._ids[word], self._words[token] = token, word
                return token
        # Every ID stands for a word: the text is larger than the vocabulary, so words share IDs.
        return FIRST_USABLE_TOKEN + start
