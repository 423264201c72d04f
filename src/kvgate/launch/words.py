"""Words of a shell script, partly unknown."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvgate.domain.preflight.setting import Setting, Spot, Unknown

# Stands for an unknown piece within text that is parsed further; from Unicode's private use area.
_FIRST_MARK = 0xE000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word. ``literal`` tells that it stood between single quotes, where nothing is filled in."""

    text: str | Unknown
    line: int
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, in pieces; ``line`` is where it begins."""

    pieces: tuple[Piece, ...]
    line: int

    @property
    def known(self) -> str | None:
        """Its text, if all of it is told."""
        if any(isinstance(piece.text, Unknown) for piece in self.pieces):
            return None
        return "".join(str(piece.text) for piece in self.pieces)

    @property
    def unknown(self) -> Unknown:
        """What it hangs on; the first if there are several."""
        return next(piece.text for piece in self.pieces if isinstance(piece.text, Unknown))

    @property
    def begins(self) -> str:
        """The text it begins with, as far as it is told."""
        text = ""
        for piece in self.pieces:
            if isinstance(piece.text, Unknown):
                return text
            text += piece.text
        return text

    def after(self, count: int) -> "Word":
        """The word without its first characters, which must be told."""
        pieces = list(self.pieces)
        while pieces and count:
            first = pieces.pop(0)
            if isinstance(first.text, Unknown):
                break
            taken, count = first.text[:count], max(0, count - len(first.text))
            if len(taken) < len(first.text):
                line = first.line + taken.count("\n")
                pieces.insert(0, Piece(first.text[len(taken) :], line, first.literal))
        return Word(tuple(pieces), pieces[0].line if pieces else self.line)

    def setting(self, file: str) -> Setting:
        """It as a value."""
        text = self.known
        return Setting(self.unknown if text is None else text, Spot(file, self.line))

    def marked(self) -> "Marked":
        """Its text with a mark for each unknown piece."""
        text, marks, lines, literal = "", list[Unknown](), list[int](), list[bool]()
        for piece in self.pieces:
            if isinstance(piece.text, Unknown):
                text += chr(_FIRST_MARK + len(marks))
                marks.append(piece.text)
                lines.append(piece.line)
                literal.append(False)
                continue
            line = piece.line
            for character in piece.text:
                lines.append(line)
                literal.append(piece.literal)
                line += character == "\n"
            text += piece.text
        return Marked(text, tuple(marks), tuple(lines), tuple(literal))


@dataclass(frozen=True, slots=True)
class Marked:
    """Text with marks for what is unknown; ``lines`` and ``literal`` tell of each character where it stood."""

    text: str
    marks: tuple[Unknown, ...]
    lines: tuple[int, ...]
    literal: tuple[bool, ...]

    def mark(self, character: str) -> Unknown | None:
        """What a character stands for, if it is a mark."""
        place = ord(character) - _FIRST_MARK
        return self.marks[place] if 0 <= place < len(self.marks) else None

    def value(self, text: str) -> str | Unknown:
        """Text cut out of this one: unknown if a mark is in it."""
        return next((found for character in text if (found := self.mark(character)) is not None), text)


def word_of(text: str, line: int) -> Word:
    """A word of plain text."""
    return Word((Piece(text, line),), line)


def joined(words: Iterable[Word], line: int) -> Word:
    """Words as one, with a space between."""
    return Word(tuple(_spaced(words)), line)


def _spaced(words: Iterable[Word]) -> Iterator[Piece]:
    for number, word in enumerate(words):
        if number:
            yield Piece(" ", word.line)
        yield from word.pieces
