"""JSON as launch files have it: spliced together by a shell, with pieces that nobody knows."""

import json

import yaml

from kvgate.domain.preflight.setting import Setting, Spot, Unknown
from kvgate.launch.words import Marked, Word


class BadJsonError(ValueError):
    """The text is no JSON; the message says why, ``line`` is where."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


def read_json(word: Word, file: str) -> Setting:
    """The value that a word of JSON holds. Raises BadJsonError."""
    marked = word.marked()
    text, lines, dropped = _whole(marked)
    value = _parsed(text, lines, word.line)
    reader = _Reader(marked, lines, file, dropped)
    try:
        # JSON is YAML, whose parser tells where each value stands. What the values are, JSON's own says.
        node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        node = None
    return reader.read(value, node, Spot(file, word.line))


def check_json(word: Word) -> None:
    """Raises BadJsonError if a word is no JSON."""
    text, lines, _ = _whole(word.marked())
    _parsed(text, lines, word.line)


def _parsed(text: str, lines: list[int], first: int) -> object:
    try:
        return json.loads(text, strict=False, object_pairs_hook=_Pairs)
    except (json.JSONDecodeError, RecursionError) as error:
        place = getattr(error, "pos", 0)
        line = lines[min(place, len(lines) - 1)] if lines else first
        raise BadJsonError(getattr(error, "msg", "is nested too deeply"), line) from None


class _Pairs(list[tuple[str, object]]):
    """The entries of an object, in order, and all of them where a key comes twice."""


def _whole(marked: Marked) -> tuple[str, list[int], bool]:
    """The text as JSON: a mark that stands where a value does becomes a string, one between entries is left out."""
    text, lines, quoted, dropped = "", list[int](), False, False
    before, inside = "", list[str]()
    for place, character in enumerate(marked.text):
        line = marked.lines[place]
        if quoted or marked.mark(character) is None:
            text += character
            lines.append(line)
            if character == '"' and not _escaped(marked.text, place):
                quoted = not quoted
            if not quoted and character in "[{":
                inside.append(character)
            elif not quoted and character in "]}" and inside:
                inside.pop()
            before = before if character.isspace() and not quoted else character
            continue
        if before == ":" or (inside and inside[-1] == "["):
            text += f'"{character}"'
            lines += [line] * 3
            before = '"'
        else:
            dropped = True
    return text, lines, dropped


def _escaped(text: str, place: int) -> bool:
    count = 0
    while place > count and text[place - count - 1] == "\\":
        count += 1
    return count % 2 == 1


class _Reader:
    """Turns values and the nodes that tell their places into settings with lines."""

    def __init__(self, marked: Marked, lines: list[int], file: str, dropped: bool) -> None:
        self.marked, self.lines, self.file, self.dropped = marked, lines, file, dropped

    def read(self, value: object, node: yaml.Node | None, outer: Spot) -> Setting:
        """One value, and all inside it; without a node it stands where what holds it does."""
        spot = outer
        if node is not None and self.lines:
            spot = Spot(self.file, self.lines[min(node.start_mark.index, len(self.lines) - 1)])
        if isinstance(value, _Pairs):
            nodes = node.value if isinstance(node, yaml.MappingNode) and len(node.value) == len(value) else None
            entries: dict[str, Setting] = {}
            for place, (key, inner) in enumerate(value):
                name = self.marked.value(key)
                if isinstance(name, str):
                    entries[name] = self.read(inner, nodes[place][1] if nodes is not None else None, spot)
            return Setting(entries, spot, self.dropped)
        if isinstance(value, list):
            items = node.value if isinstance(node, yaml.SequenceNode) and len(node.value) == len(value) else None
            return Setting(
                tuple(
                    self.read(each, items[place] if items is not None else None, spot)
                    for place, each in enumerate(value)
                ),
                spot,
                self.dropped,
            )
        if isinstance(value, str):
            return Setting(self.marked.value(value), spot)
        return Setting(value if isinstance(value, (bool, int, float)) else None, spot)


__all__ = ["BadJsonError", "Unknown", "read_json"]
