"""Shell scripts, read without running them: which commands they would start, with which words and environment.

Values that a script does not tell (variables of the caller, output of commands) stay unknown, with their name. Both
ways of an ``if`` are read; what they set differently is unknown after it. Loops over words that are told run for each.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import tree_sitter
import tree_sitter_bash

from kvgate.domain.preflight.setting import Unknown
from kvgate.launch.expansion import Expander, Variables
from kvgate.launch.words import Word, joined, word_of

_PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
Node = tree_sitter.Node
# A loop over more words than this is read once, with its variable unknown.
MOST_ROUNDS = 64
_BRANCHES = ("if_statement", "elif_clause", "else_clause", "case_statement", "case_item")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that the script would run: its words, the environment that the script gave it, and its line.

    ``read_in`` are scripts read before it, which may have set more of its environment.
    """

    words: tuple[Word, ...]
    environment: dict[str, Word]
    line: int
    read_in: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A file that the script writes by a here-document, and its text."""

    name: str
    text: Word


@dataclass(slots=True)
class Script:
    """What was read of a script. ``unread`` are (line, text) of what is no shell syntax."""

    commands: list[ShellCommand] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)


def read_shell(content: str, environment: Mapping[str, Word] | None = None) -> Script:
    """Read a script that gets this environment. Nothing of it is executed."""
    source = content.replace("\r\n", "\n").encode()
    reader = _Reader(source)
    reader.script.variables.values |= environment or {}
    reader.script.variables.exported |= set(environment or {})
    reader.walk(_PARSER.parse(source).root_node)
    return reader.script


class _Reader:
    """Walks the syntax tree in the order in which the shell would run it."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.script = Script()
        self.expander = Expander(source, self.script.variables)

    def walk(self, node: Node) -> None:
        """Read a statement, and those inside it."""
        if node.type == "ERROR":
            self.script.unread.append((node.start_point[0] + 1, self._text(node)[:80]))
        if node.type == "comment":
            return
        visit = {
            "variable_assignment": self._assignment,
            "declaration_command": self._declaration,
            "unset_command": self._unset,
            "command": self._command,
            "redirected_statement": self._redirected,
            "for_statement": self._loop,
            "c_style_for_statement": self._counting,
            "while_statement": self._counting,
            "subshell": self._aside,
            "if_statement": self._choice,
            "case_statement": self._choice,
            "function_definition": self._aside,
        }.get(node.type, self._inside)
        visit(node)

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _inside(self, node: Node) -> None:
        for child in node.named_children:
            self.walk(child)

    def _assignment(self, node: Node) -> None:
        self.expander.assign(node)

    def _declaration(self, node: Node) -> None:
        exported = self._text(node.children[0]) == "export"
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self.expander.assign(child)
                if exported and name:
                    self.script.variables.exported.add(name)
            elif child.type == "variable_name" and exported:
                self.script.variables.exported.add(self._text(child))

    def _unset(self, node: Node) -> None:
        for child in node.named_children:
            self.script.variables.values.pop(self._text(child), None)
            self.script.variables.exported.discard(self._text(child))

    def _command(self, node: Node) -> None:
        given: dict[str, Word] = {}
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                if self._ends_its_line(child, node):
                    self.expander.assign(child)
                    continue
                name, value = self.expander.assigned(child)
                if isinstance(value, Word):
                    given[name] = value
            elif child.type == "command_name":
                words += self.expander.words(child.named_children[0] if child.named_children else child)
            elif not child.type.endswith("redirect"):
                words += self.expander.words(child)
        if not words:
            for name, value in given.items():
                self.script.variables.values[name] = value
            return
        variables = self.script.variables
        environment = {
            name: value
            for name in sorted(variables.exported)
            if (value := variables.values.get(name)) is not None and isinstance(value, Word)
        }
        # ``-a`` exports what is set from here on; most scripts that use it set everything first.
        if words[0].known == "set" and any("a" in (word.known or "") for word in words[1:2]):
            variables.everything = True
        if words[0].known in ("source", ".") and len(words) > 1:
            file = words[1].known or str(words[1].unknown)
            variables.read_in = (*variables.read_in, Unknown(f"what {file} sets"))
        line = node.start_point[0] + 1
        self.script.commands.append(ShellCommand(tuple(words), {**environment, **given}, line, variables.read_in))

    def _ends_its_line(self, assignment: Node, command: Node) -> bool:
        """Whether a line ends between an assignment and the command: the grammar takes `A=1 B=2` and what stands on the
        next line for one command."""
        name = next((child for child in command.named_children if child.type == "command_name"), None)
        if name is None:
            return False
        between = self.source[assignment.end_byte : name.start_byte]
        return b"\n" in between.replace(b"\\\n", b"")

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        before = len(self.script.commands)
        if body is not None:
            self.walk(body)
        target: str | None = None
        content: Word | None = None
        for child in node.named_children:
            if child.type == "file_redirect" and self._text(child).lstrip("0123456789").startswith((">", "&>")):
                destination = child.child_by_field_name("destination")
                words = self.expander.words(destination) if destination is not None else []
                target = words[0].known if words else None
            elif child.type == "heredoc_redirect":
                content = self._heredoc(child)
                inner = [each for each in child.named_children if each.type == "file_redirect"]
                destination = inner[0].child_by_field_name("destination") if inner else None
                if destination is not None:
                    words = self.expander.words(destination)
                    target = words[0].known if words else None
        if content is not None:
            commands = self.script.commands[before:]
            tee = next((each for each in commands if each.words[0].known == "tee" and len(each.words) > 1), None)
            name = target or (tee.words[-1].known if tee is not None else None)
            if name is not None:
                self.script.written.append(Written(name, content))

    def _heredoc(self, node: Node) -> Word | None:
        start = next((each for each in node.named_children if each.type == "heredoc_start"), None)
        body = next((each for each in node.named_children if each.type == "heredoc_body"), None)
        if start is None or body is None:
            return None
        quoted = any(mark in self._text(start) for mark in "'\"\\")
        return word_of(self._text(body), body.start_point[0] + 1) if quoted else self.expander.filled(body)

    # -- where the shell would go more ways than one --------------------------------------------------------------
    def _aside(self, node: Node) -> None:
        """A subshell, or a function: what it sets is not seen outside, as far as this reader goes."""
        kept = self.script.variables.copied()
        self._inside(node)
        self.script.variables.become(kept)

    def _choice(self, node: Node) -> None:
        """Each way from the same start; afterwards only what all set alike is told."""
        variables = self.script.variables
        start = variables.copied()
        ends: list[Variables] = []
        own = [child for child in node.named_children if child.type not in _BRANCHES]
        others = [child for child in node.named_children if child.type in _BRANCHES]
        for way in ([own] if node.type != "case_statement" else []) + [[each] for each in others]:
            variables.become(start)
            for child in way:
                if child.type in _BRANCHES and child.type not in ("if_statement", "case_statement"):
                    self._inside(child)
                else:
                    self.walk(child)
            ends.append(variables.copied())
        if not any(child.type == "else_clause" for child in others):
            ends.append(start)
        variables.become(ends[0])
        variables.forget_differences(ends)

    def _loop(self, node: Node) -> None:
        name = self._text(node.named_children[0])
        body = node.child_by_field_name("body")
        values = [
            word
            for child in node.named_children[1:]
            if body is None or child.id != body.id
            for word in self.expander.words(child)
        ]
        if body is None:
            return
        rounds = list(itertools.chain.from_iterable(_counted(word) for word in values))
        if not rounds or len(rounds) > MOST_ROUNDS or any(word.known is None for word in rounds):
            rounds = [self.expander.unknown(name, node)]
        if self.script.variables.everything:
            self.script.variables.exported.add(name)
        for word in rounds:
            self.script.variables.values[name] = word
            self.walk(body)

    def _counting(self, node: Node) -> None:
        for name in re.findall(r"\(\(\s*(\w+)\s*=", self._text(node)[:200]):
            self.script.variables.values[name] = self.expander.unknown(name, node)
        body = node.child_by_field_name("body")
        if body is not None:
            self.walk(body)


def _counted(word: Word) -> Iterator[Word]:
    """The words of ``{0..3}``; any other word as it is."""
    found = re.fullmatch(r"\{(\d{1,6})\.\.(\d{1,6})\}", word.known or "")
    if found is None:
        yield word
        return
    for value in itertools.islice(range(int(found[1]), int(found[2]) + 1), MOST_ROUNDS + 1):
        yield word_of(str(value), word.line)


__all__ = ["Script", "ShellCommand", "Unknown", "Written", "joined", "read_shell"]
