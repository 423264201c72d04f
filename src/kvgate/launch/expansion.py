"""What the shell makes of quotes, variables and arithmetic, as far as a script tells it."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import tree_sitter

from kvgate.domain.preflight.setting import Unknown
from kvgate.launch.words import Piece, Word, word_of

Node = tree_sitter.Node
Value = Word | tuple[Word, ...]
_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_OUTSIDE = re.compile(r"\\(\n|.)", re.DOTALL)
_SUM: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(slots=True)
class Variables:
    """What is set at a point of the script; an array is a tuple of words. ``read_in`` are scripts that were read into
    it (``source``) and may have set anything."""

    values: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    everything: bool = False
    read_in: tuple[Unknown, ...] = ()

    def copied(self) -> "Variables":
        """The same, to be kept."""
        return Variables(dict(self.values), set(self.exported), self.everything, self.read_in)

    def become(self, other: "Variables") -> None:
        """Take over what another state holds."""
        self.values, self.exported = dict(other.values), set(other.exported)
        self.everything, self.read_in = other.everything, other.read_in

    def forget_differences(self, ends: "list[Variables]") -> None:
        """Keep as told what all these states hold alike; the rest is unknown from here on."""
        names = {name for end in ends for name in end.values}
        for name in sorted(names):
            held = [end.values.get(name) for end in ends]
            told = {value.known if isinstance(value, Word) else None for value in held}
            alike = all(value == held[0] for value in held) or (len(told) == 1 and None not in told)
            if not alike:
                first = next(value for value in held if value is not None)
                line = first.line if isinstance(first, Word) else 1
                self.values[name] = Word((Piece(Unknown(name), line),), line)
        self.exported |= {name for end in ends for name in end.exported}
        self.read_in = tuple(dict.fromkeys(each for end in ends for each in end.read_in))


class Expander:
    """Turns nodes of the syntax tree into words."""

    def __init__(self, source: bytes, variables: Variables) -> None:
        self.source = source
        self.variables = variables

    def words(self, node: Node) -> list[Word]:
        """The words that a node becomes: several for an array, or for unquoted text with spaces."""
        array = self._array(node)
        if array is not None:
            return array
        word = Word(tuple(self.pieces(node)), node.start_point[0] + 1)
        if node.type in ("simple_expansion", "expansion") and word.known is not None:
            return [word_of(part, word.line) for part in word.known.split()]
        return [word]

    def filled(self, node: Node) -> Word:
        """Text with what is filled in, as between double quotes."""
        return Word(tuple(self._quoted(node, node.start_byte, node.end_byte)), node.start_point[0] + 1)

    def unknown(self, name: str, node: Node) -> Word:
        """A word of which only the name is known."""
        line = node.start_point[0] + 1
        return Word((Piece(Unknown(name), line),), line)

    def assigned(self, node: Node) -> tuple[str, Value | None]:
        """The name and the value of an assignment; None for an element of an array, which is not followed."""
        name_node = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        name = self._text(name_node) if name_node is not None else ""
        if name_node is None or name_node.type == "subscript":
            return name.partition("[")[0], None
        if value is None:
            return name, word_of("", node.start_point[0] + 1)
        if value.type == "array":
            return name, tuple(word for child in value.named_children for word in self.words(child))
        return name, Word(tuple(self.pieces(value)), value.start_point[0] + 1)

    def assign(self, node: Node) -> str:
        """Carry out an assignment; the variable's name."""
        name, value = self.assigned(node)
        added = any(self._text(child) == "+=" for child in node.children)
        if value is None:
            self.variables.values[name] = self.unknown(name, node)
        elif added:
            self.variables.values[name] = self._more(name, value, node)
        else:
            self.variables.values[name] = value
        if self.variables.everything:
            self.variables.exported.add(name)
        return name

    def _more(self, name: str, value: Value, node: Node) -> Value:
        before = self.variables.values.get(name)
        if isinstance(value, tuple):
            first = before if isinstance(before, tuple) else (before,) if before is not None else ()
            return (*first, *value)
        if before is None:
            return Word((Piece(Unknown(name), node.start_point[0] + 1), *value.pieces), value.line)
        return before if isinstance(before, tuple) else Word((*before.pieces, *value.pieces), before.line)

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _array(self, node: Node) -> list[Word] | None:
        """The words of ``"${NAME[@]}"`` or ``$NAME`` that holds an array; None if it is none."""
        text = self._text(node).strip('"')
        found = re.fullmatch(r"\$\{(\w+)\[[@*]\](?::-[^}]*)?\}", text)
        if found is None:
            return None
        held = self.variables.values.get(found[1])
        if isinstance(held, tuple):
            return list(held)
        return [held] if held is not None else [self.unknown(found[1], node)]

    # -- pieces ------------------------------------------------------------------------------------------------------
    def pieces(self, node: Node) -> list[Piece]:
        """What a node becomes, in pieces."""
        line, text = node.start_point[0] + 1, self._text(node)
        if node.type == "raw_string":
            return [Piece(text[1:-1], line, literal=True)]
        if node.type == "string":
            return self._quoted(node, node.start_byte + 1, node.end_byte - 1)
        if node.type == "ansi_c_string":
            return [Piece(_ansi(text[2:-1]), line, literal=True)]
        if node.type in ("concatenation", "command_name", "string_expansion") and node.named_children:
            return self._between(node)
        if node.type in ("simple_expansion", "expansion", "arithmetic_expansion", "command_substitution"):
            return self._expansion(node)
        if node.type == "process_substitution":
            return [Piece(Unknown(text), line)]
        return [Piece(_OUTSIDE.sub(lambda found: "" if found[1] == "\n" else found[1], text), line)]

    def _between(self, node: Node) -> list[Piece]:
        """Children, and the text between them that is no child of its own."""
        found: list[Piece] = []
        place = node.start_byte
        for child in node.named_children:
            found += self._plain(place, child.start_byte)
            found += self.pieces(child)
            place = child.end_byte
        return found + self._plain(place, node.end_byte)

    def _plain(self, start: int, end: int) -> list[Piece]:
        text = self.source[start:end].decode("utf-8", "replace")
        return [Piece(text, self.source.count(b"\n", 0, start) + 1)] if text else []

    def _quoted(self, node: Node, start: int, end: int) -> list[Piece]:
        """Text between double quotes. Blanks between two expansions belong to no node, so text is cut by place."""
        found: list[Piece] = []
        place = start
        expansions = [child for child in node.named_children if child.type != "string_content"]
        for child in [*expansions, None]:
            until = child.start_byte if child is not None else end
            text = self.source[place:until].decode("utf-8", "replace")
            if text:
                line = self.source.count(b"\n", 0, place) + 1
                found.append(Piece(_IN_QUOTES.sub(lambda hit: "" if hit[1] == "\n" else hit[1], text), line))
            if child is not None:
                found += self.pieces(child)
                place = child.end_byte
        return found

    def _expansion(self, node: Node) -> list[Piece]:
        line, text = node.start_point[0] + 1, self._text(node)
        if text[:1].isspace():
            # Between quotes the grammar counts blanks before an expansion to it.
            blanks = text[: len(text) - len(text.lstrip())]
            return [Piece(blanks, line), *self._expanded(node, line + blanks.count("\n"), text.lstrip())]
        return self._expanded(node, line, text)

    def _expanded(self, node: Node, line: int, text: str) -> list[Piece]:
        if node.type == "command_substitution":
            return [Piece(Unknown(text[:40]), line)]
        if node.type == "arithmetic_expansion":
            return [Piece(self._sum(text), line)]
        plain = re.fullmatch(r"\$(\w+)|\$\{(\w+)\}", text)
        if plain is not None:
            return self._held(plain[1] or plain[2], line)
        given = re.fullmatch(r"\$\{(\w+)(:?[-=+?])(.*)\}", text, re.DOTALL)
        if given is None:
            return [Piece(Unknown(text.strip("${}") or text), line)]
        name, how = given[1], given[2].lstrip(":")
        value = self.variables.values.get(name)
        empty = value is None or (given[2].startswith(":") and isinstance(value, Word) and value.known == "")
        if how == "+":
            # Whether a variable that the script does not set is set by its caller, nobody here can tell.
            return [Piece(Unknown(name), line)] if value is None else [] if empty else self._default(node, given[3])
        if not empty:
            return self._held(name, line)
        return [Piece(Unknown(name), line)] if how == "?" else self._default(node, given[3])

    def _default(self, node: Node, text: str) -> list[Piece]:
        """The word after ``:-``: its nodes if the syntax tree has some, else its text."""
        start = node.end_byte - 1 - len(text.encode())
        inner = [child for child in node.named_children if child.start_byte >= start]
        if len(inner) == 1 and inner[0].end_byte == node.end_byte - 1 and inner[0].start_byte == start:
            return self.pieces(inner[0])
        found: list[Piece] = []
        place = start
        for child in inner:
            found += self._plain(place, child.start_byte)
            found += self.pieces(child)
            place = child.end_byte
        return found + self._plain(place, node.end_byte - 1)

    def _held(self, name: str, line: int) -> list[Piece]:
        value = self.variables.values.get(name)
        if isinstance(value, tuple):
            value = value[0] if value else word_of("", line)
        if value is None:
            return [Piece(Unknown(name), line)]
        # Told where it is used, not where it was set: that is the line which the user looks at.
        return [Piece(piece.text, line, piece.literal) for piece in value.pieces]

    def _sum(self, text: str) -> str | Unknown:
        missing: list[str] = []

        def told(found: re.Match[str]) -> str:
            value = self.variables.values.get(found[1])
            known = value.known if isinstance(value, Word) else None
            if known is None or not re.fullmatch(r"-?\d+", known):
                missing.append(found[1])
                return "0"
            return known

        inner = re.sub(r"^\$\(\(|\)\)$", "", text)
        expression = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", told, inner).replace("/", "//")
        if missing:
            return Unknown(missing[0])
        try:
            return str(_evaluated(ast.parse(expression.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
            return Unknown(text)


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _SUM:
        return _SUM[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    raise ValueError("no arithmetic of whole numbers")


def _ansi(text: str) -> str:
    plain = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
    return re.sub(r"\\(.)", lambda found: plain.get(found[1], found[0]), text, flags=re.DOTALL)
