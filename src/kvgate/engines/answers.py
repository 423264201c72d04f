"""Putting an answer together from the JSON objects an engine sends, streamed or whole, completion or chat."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import isfinite
from typing import Any

import numpy as np

from kvgate.domain.observation import Observation, Outcome, Timing, Usage
from kvgate.domain.prompt import digest
from kvgate.engines.gathering import Gathered
from kvgate.engines.words import AnswerError, ServerError, clean, clip, error_text

TOKEN_ID_KEY = "token_id:"
TOKEN_ID_KEY_LENGTH = len(TOKEN_ID_KEY)
LARGEST_ID = 1 << 31
# An object with nothing but these keys is no error, and holds nothing outside its choices and usage.
USUAL_KEYS = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"})
# Where IDs are found that come beside the choices, once for the whole answer (SGLang's ``sglext``).
EXTENSIONS = ("sglext", "meta_info")
OUTPUT_NAMES = ("output_ids", "completion_token_ids", "token_ids")
PROMPT_NAMES = ("input_ids", "prompt_token_ids")
# Finish reasons of answers that did not finish.
BROKEN_OFF = frozenset({"abort", "error"})
# What a value of the wrong kind raises, wherever it is used.
WRONG_SHAPE = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)

# Logprob, likeliest tokens with theirs, token: as they came.
_Row = tuple[Any, Any, Any]


@dataclass(slots=True)
class AnswerBuilder:
    """Collects one answer.

    ``sent`` are the prompt IDs sent, to check an echo against; ``most`` is how many tokens were asked for.
    """

    sent: list[int]
    most: int | None = None
    ids: Gathered[int] = field(default_factory=Gathered)
    gives_ids: bool = False
    beside: Gathered[int] | None = None
    rows: Gathered[_Row] = field(default_factory=Gathered)
    gives_logprobs: bool = False
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    echoed: bool | None = None
    other_prompt: str | None = None
    transfer: str | None = None
    marks: list[str] = field(default_factory=list)
    reply_id: object = None
    seams: list[int] = field(default_factory=list)
    echoes: list[int] = field(default_factory=list)

    def take(self, chunk: Mapping[str, Any]) -> bool:
        """Take one object in; True if it carried output. Raises ServerError or AnswerError."""
        try:
            return self._take(chunk)
        except (AnswerError, ServerError):
            raise
        except WRONG_SHAPE as error:
            raise _unknown_shape(error) from None

    def size(self) -> int:
        """How many tokens have come, as far as one can tell; chunks with text where there are no IDs to count."""
        ids = self.ids
        return len(ids.items) if ids.added else max(len(ids.items), len(self.text))

    def _take(self, chunk: Mapping[str, Any]) -> bool:
        beside = False if chunk.keys() <= USUAL_KEYS else self._take_beside(chunk)
        if chunk.get("usage") is not None:
            self._take_usage(chunk["usage"])
        reply_id = chunk.get("id")
        if reply_id != self.reply_id and reply_id is not None:
            if self.ids.items and self.reply_id is not None:
                self.seams.append(len(self.ids.items))
            self.reply_id = reply_id
        choices = chunk.get("choices")
        if choices is None and self.usage is None and not beside:
            raise AnswerError(f"neither choices nor usage among {sorted(map(str, chunk))[:8]}")
        if not choices:
            return beside
        return self._take_choice(choices[0]) or beside

    def _take_beside(self, chunk: Mapping[str, Any]) -> bool:
        """What stands beside the choices: errors, transfer parameters, the prompt (chat), IDs in an extension."""
        message = error_text(chunk)
        if message is not None:
            raise ServerError(message)
        if isinstance(chunk.get("kv_transfer_params"), dict):
            self.transfer = json.dumps(chunk["kv_transfer_params"], separators=(",", ":"))
        if isinstance(chunk.get("prompt_token_ids"), list):
            self._take_echo(chunk["prompt_token_ids"])
        new = False
        for name in EXTENSIONS:
            extension = chunk.get(name)
            if not isinstance(extension, Mapping):
                continue
            for ids in (extension[name] for name in OUTPUT_NAMES if isinstance(extension.get(name), list)):
                # A list for every choice, or the list of the only one.
                self.beside = self.beside or Gathered()
                new = self.beside.add(_ids(ids[0] if ids and isinstance(ids[0], list) else ids)) or new
            for ids in (extension[name] for name in PROMPT_NAMES if isinstance(extension.get(name), list)):
                self._take_echo(ids)
        return new

    def _take_echo(self, prompt_ids: list[Any]) -> None:
        # Once the server has said that it saw another prompt, nothing takes that back.
        same = prompt_ids == self.sent
        self.echoed = self.echoed is not False and same
        if not same and self.other_prompt is None:
            self.other_prompt = _digest(prompt_ids)
        self.echoes.append(len(self.ids.items))

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        before, self.usage = self.usage, _usage(usage, self.usage)
        if before is not None and 0 < before.prompt_tokens < self.usage.prompt_tokens:
            # The prompt grew while it was answered: a proxy sent it again with what had been generated.
            self.marks.append("recomputed")

    def _take_choice(self, choice: Mapping[str, Any]) -> bool:
        new = False
        prompt_ids = choice.get("prompt_token_ids")
        if isinstance(prompt_ids, list):
            self._take_echo(prompt_ids)
        ids = choice.get("token_ids")
        if ids is not None:
            # null, [] and absent differ: only a list says that the server gives IDs.
            self.gives_ids = True
            one = type(ids) is list and len(ids) == 1 and type(ids[0]) is int
            new = self.ids.add(ids if one else _ids(ids))
        text = choice["text"] if "text" in choice else _message_text(choice)
        if text:
            if not isinstance(text, str):
                raise AnswerError(f"the text is no string but {type(text).__name__}")
            self.text.append(text)
            new = True
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            self.gives_logprobs = True
            self.rows.add(_rows(logprobs))
        finish_reason = choice.get("finish_reason")
        if finish_reason:
            named = finish_reason.get("type") if isinstance(finish_reason, Mapping) else finish_reason
            plain = isinstance(named, str) and named.isidentifier()
            self.finish_reason = named if plain else clip(str(named)) or None
        if "recomputed" in (choice.get("stop_reason"), finish_reason):
            self.marks.append("recomputed")
        return new

    def finish(self, status: int, timing: Timing) -> Observation:
        """The answer as an observation: LOST if it is not complete. Raises AnswerError."""
        try:
            return self._finish(status, timing)
        except AnswerError:
            raise
        except WRONG_SHAPE as error:
            raise _unknown_shape(error) from None

    def _finish(self, status: int, timing: Timing) -> Observation:
        ids, rows = self._without_prompt(*self._settled())
        top_ids = [_top_ids(top) for _, top, _ in rows]
        every = [*(ids or ()), *chain.from_iterable(ids for ids, _ in top_ids)]
        if every and not (min(every) >= 0 and max(every) < LARGEST_ID):
            raise AnswerError("it holds token IDs that are none")
        usage = self.usage
        if usage is not None and usage.prompt_tokens and usage.prompt_tokens != len(self.sent):
            self.echoed = False
        outcome, detail = Outcome.OK, ""
        if self.finish_reason is None:
            outcome, detail = Outcome.LOST, "the answer ended without a finish reason"
        elif self.finish_reason in BROKEN_OFF:
            outcome, detail = Outcome.REFUSED, f"the server ended the answer with finish reason {self.finish_reason!r}"
        given = self.gives_logprobs
        return Observation(
            outcome=outcome,
            detail=detail,
            status=status,
            token_ids=tuple(ids) if ids is not None else None,
            logprobs=_numbers(value for value, _, _ in rows) if given else None,
            top_ids=tuple(ids for ids, _ in top_ids) if given else None,
            top_logprobs=tuple(_numbers(values) for _, values in top_ids) if given else None,
            text=clean("".join(self.text)),
            finish_reason=self.finish_reason,
            usage=usage,
            prompt_echoed=self.echoed,
            echo_sha256=self.other_prompt,
            timing=timing,
            marks=tuple(dict.fromkeys(self.marks)),
            transfer=self.transfer,
        )

    def _settled(self) -> tuple[list[int] | None, list[_Row]]:
        """The IDs and the logprob rows, read as the counts have it that the server gives elsewhere."""
        counts = [self.usage.completion_tokens] if self.usage is not None else []
        if self.finish_reason == "length" and self.most is not None:
            counts.append(self.most)
        source = self.ids if self.gives_ids else self.beside
        if source is None:
            rows = self.rows.settled(counts)
            keyed = [token for _, _, token in (self.rows.items if rows is None else rows) if _is_keyed(token)]
            if rows is None and keyed:
                self.marks.append("ids-ambiguous")
            return _keyed_ids(keyed) or None, self.rows.items if rows is None else rows
        others = (each for each in (self.beside, self.rows) if each is not None and each is not source)
        counts += [len(each.items) for each in others if each.items and not each.ambiguous]
        ids = source.settled(counts)
        if ids is None:
            self.marks.append("ids-ambiguous")
            ids = source.items
        rows = self.rows.settled((len(ids),))
        rows = self.rows.items if rows is None else rows
        self._mark_contradictions(ids, rows)
        return ids, rows

    def _mark_contradictions(self, ids: list[int], rows: list[_Row]) -> None:
        if self.beside is not None and self.gives_ids and self.beside.settled((len(ids),)) != ids:
            self.marks.append("ids-contradict")
        tokens = [token for _, _, token in rows]
        as_named = tokens == [f"{TOKEN_ID_KEY}{each}" for each in ids]
        if not as_named and len(tokens) == len(ids) and all(map(_is_keyed, tokens)) and _keyed_ids(tokens) != ids:
            self.marks.append("logprobs-misplaced")
        # A proxy that asks again after tokens have been passed on begins anew, under another name or echoing again.
        again = self.echoes[1:] if len(self.echoes) == 2 else []
        if any(seam > 1 and ids[seam : 2 * seam] == ids[:seam] for seam in (*self.seams, *again)):
            self.marks.append("restarted")

    def _without_prompt(self, ids: list[int] | None, rows: list[_Row]) -> tuple[list[int] | None, list[_Row]]:
        """Cut off a prompt that is repeated before the answer, whole or without its first token.

        Only where that is what usage leaves over: an answer may well quote its prompt.
        """
        if not ids or self.usage is None or len(ids) <= self.usage.completion_tokens:
            return ids, rows
        extra = len(ids) - self.usage.completion_tokens
        if ids[:extra] not in (self.sent, self.sent[1:]):
            return ids, rows
        self.marks.append("prompt-repeated")
        return ids[extra:], rows[extra:] if len(rows) == len(ids) else rows


def _unknown_shape(error: Exception) -> AnswerError:
    return AnswerError(f"a field has a shape kvgate does not know ({type(error).__name__}: {clip(str(error))})")


def _ids(ids: list[Any]) -> list[int]:
    if not isinstance(ids, list):
        raise AnswerError(f"the token IDs are no list but {type(ids).__name__}")
    for each in ids:
        if type(each) is not int:
            raise AnswerError(f"a token ID is no whole number but {type(each).__name__}")
    return ids


def _message_text(choice: Mapping[str, Any]) -> object:
    """The text of a chat message or of what a chunk adds to it: what was reasoned, then what was said."""
    message = choice.get("delta") or choice.get("message")
    if not message:
        return ""
    parts = (message.get("reasoning_content") or message.get("reasoning"), message.get("content"))
    return "".join(part if isinstance(part, str) else _parts_text(part) for part in parts if part)


def _parts_text(parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(str(part.get("text") or "") for part in parts)


def _rows(logprobs: Mapping[str, Any]) -> list[_Row]:
    """The rows of a completion's logprobs, or of a chat's."""
    values = logprobs.get("token_logprobs")
    if values is None:
        return [_chat_row(entry) for entry in logprobs.get("content") or ()]
    tops, tokens = logprobs.get("top_logprobs") or [], logprobs.get("tokens") or []
    if not (isinstance(values, list) and isinstance(tops, list) and isinstance(tokens, list)):
        raise AnswerError("the logprobs are no lists")
    return list(zip_longest(values, tops, tokens))


def _chat_row(entry: Mapping[str, Any]) -> _Row:
    tops = {top["token"]: top.get("logprob") for top in entry.get("top_logprobs") or ()}
    return entry.get("logprob"), tops, entry["token"]


def _top_ids(top: Mapping[str, Any] | None) -> tuple[tuple[int, ...], Iterable[Any]]:
    """The likeliest tokens of a row that are named by ID, and their logprobs."""
    keyed = top or {}
    ids = tuple([int(key[TOKEN_ID_KEY_LENGTH:]) for key in keyed if key.startswith(TOKEN_ID_KEY)])
    if len(ids) == len(keyed):
        return ids, keyed.values()
    return ids, [value for key, value in keyed.items() if key.startswith(TOKEN_ID_KEY)]


def _is_keyed(key: object) -> bool:
    return isinstance(key, str) and key.startswith(TOKEN_ID_KEY)


def _keyed_ids(tokens: list[str]) -> list[int]:
    return [int(token[TOKEN_ID_KEY_LENGTH:]) for token in tokens]


def _numbers(values: Iterable[object]) -> tuple[float | None, ...]:
    """Logprobs as floats; null, NaN and infinities become None, for they mean the same: no number."""
    given = tuple(values)
    try:
        numbers = tuple(map(float, given))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return tuple(map(_number, given))
    # One look at the sum tells the usual case, all finite, from the rest.
    return numbers if isfinite(sum(numbers)) else tuple(map(_number, given))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return float(value)


def _usage(usage: Mapping[str, Any], before: Usage | None) -> Usage:
    """The counts, the latest that was said of each: null and absent say nothing."""
    before = before or Usage(0, 0)
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")) or before.prompt_tokens,
        completion_tokens=_latest(usage.get("completion_tokens"), before.completion_tokens) or 0,
        cached_tokens=_latest(details.get("cached_tokens"), before.cached_tokens),
        local_cached_tokens=_latest(details.get("local_cached_tokens"), before.local_cached_tokens),
        external_cached_tokens=_latest(details.get("external_cached_tokens"), before.external_cached_tokens),
    )


def _latest(value: object, before: int | None) -> int | None:
    return before if value is None else _count(value)


def _count(value: object) -> int | None:
    if value is None:
        return None
    # Gateways written in other languages send 3.0 or "3".
    count = int(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1
    if not 0 <= count < LARGEST_ID or (isinstance(value, float) and value != count):
        raise AnswerError("a count in its usage is none")
    return count


def _digest(prompt_ids: list[Any]) -> str | None:
    """The name of a prompt that was echoed, None if it is none."""
    try:
        return digest(np.array(prompt_ids, dtype=np.int32))
    except (TypeError, ValueError, OverflowError):
        return None
