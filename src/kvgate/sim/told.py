"""An engine's answer taken apart and put together again, as a proxy does that looks into what it passes on."""

import json
from dataclasses import dataclass
from typing import Any

from kvgate.sim.http import HttpAnswer
from kvgate.sim.words import split

Body = dict[str, Any]
STREAM = "text/event-stream"
_DONE = b"data: [DONE]\n\n"
_FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content")


@dataclass(slots=True)
class Told:
    """A completion: its JSON objects, one unless it is streamed. ``done`` is whether the stream says that it ended.

    ``broken`` answers end in the middle of what was still to come.
    """

    stream: bool
    chunks: list[Body]
    done: bool = True
    broken: bool = False

    def packed(self) -> HttpAnswer:
        """The answer on the wire."""
        if not self.stream:
            content = b"".join(json.dumps(chunk).encode() for chunk in self.chunks)
            return HttpAnswer(200, "application/json", content[: len(content) // 2] if self.broken else content)
        pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in self.chunks]
        return HttpAnswer(200, STREAM, pieces=pieces + ([_DONE] if self.done else []))

    def choices(self) -> list[Body]:
        """The choice of every object that has one."""
        return [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]

    def tokens(self) -> int:
        """How many output tokens it holds."""
        return sum(map(_tokens, self.choices()))

    def keep(self, places: list[int], recount: bool = True) -> None:
        """Leave only the output tokens at these places, as often as they are named; usage follows if it is told."""
        at = 0
        for choice in self.choices():
            end = at + _tokens(choice)
            _keep(choice, [place - at for place in places if at <= place < end])
            at = end
        for chunk in self.chunks:
            if recount and chunk.get("usage"):
                usage = chunk["usage"]
                usage["total_tokens"] += len(places) - usage["completion_tokens"]
                usage["completion_tokens"] = len(places)


def unpacked(answer: HttpAnswer) -> Told:
    """An answer taken apart. ValueError where it is no completion."""
    if STREAM not in answer.content_type:
        return Told(False, [json.loads(answer.body)])
    events = [part.removeprefix(b"data: ") for part in answer.body.split(b"\n\n") if part]
    return Told(True, [json.loads(event) for event in events if event != b"[DONE]"], b"[DONE]" in events)


def text_of(choice: Body) -> str:
    """The text of a choice of whatever kind."""
    part = choice.get("delta") or choice.get("message") or {}
    return str(part.get("content") or choice.get("text") or "")


def retell(choice: Body, text: str) -> None:
    """Give a choice another text."""
    for name in ("delta", "message"):
        if isinstance(choice.get(name), dict):
            choice[name]["content"] = text
    if "text" in choice:
        choice["text"] = text


def _tokens(choice: Body) -> int:
    ids = choice.get("token_ids")
    return len(ids) if isinstance(ids, list) else len(split(text_of(choice)))


def _keep(choice: Body, places: list[int]) -> None:
    count = _tokens(choice)
    if places == list(range(count)):
        return
    pieces = split(text_of(choice))
    if len(pieces) == count:
        retell(choice, "".join(pieces[place] for place in places))
    if isinstance(choice.get("token_ids"), list):
        choice["token_ids"] = [choice["token_ids"][place] for place in places]
    for name in _FIELDS:
        values = (choice.get("logprobs") or {}).get(name)
        if isinstance(values, list) and len(values) == count:
            choice["logprobs"][name] = [values[place] for place in places]
