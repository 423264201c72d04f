"""Putting an answer together from the JSON objects an engine sends, streamed or whole."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any

from kvgate.domain.observation import Observation, Outcome, Timing, Usage

TOKEN_ID_KEY = "token_id:"
TOKEN_ID_KEY_LENGTH = len(TOKEN_ID_KEY)
LONGEST_DETAIL = 300
LARGEST_ID = 1 << 31
# An object with nothing but these keys is no error.
USUAL_KEYS = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"})


class AnswerError(ValueError):
    """The reply has a shape kvgate cannot read."""


class ServerError(Exception):
    """The reply is an error object, also when it comes inside a stream with HTTP 200."""


def error_text(body: object) -> str | None:
    """The message of an error object: nested, flat, a list of complaints, or a bare string; None if it is none."""
    if isinstance(body, str):
        return clip(body)
    if not isinstance(body, Mapping):
        return None
    error = body.get("error", body.get("detail"))
    if error is None and "choices" not in body and "usage" not in body:
        error = body.get("message")
    if error is None:
        return None
    if isinstance(error, Mapping):
        error = error.get("message") or dict(error)
    if isinstance(error, list):
        error = "; ".join(str(each.get("msg", each)) if isinstance(each, Mapping) else str(each) for each in error)
    return clip(str(error))


def clean(text: str) -> str:
    """Text that can be written and shown: half characters become replacement marks.

    Gateways that cut strings by UTF-16 units send lone surrogates, which no file can hold.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clip(text: str) -> str:
    """One line of bounded length, without control characters (a server's words must not steer a terminal)."""
    line = " ".join("".join(char if char.isprintable() else " " for char in clean(text)).split())
    return line if len(line) <= LONGEST_DETAIL else line[: LONGEST_DETAIL - 3] + "..."


@dataclass(slots=True)
class AnswerBuilder:
    """Collects one answer. ``sent`` are the prompt IDs sent, to check an echo against."""

    sent: list[int]
    ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    top_ids: list[tuple[int, ...]] | None = None
    top_logprobs: list[tuple[float | None, ...]] | None = None
    keyed_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    echoed: bool | None = None
    transfer: str | None = None
    marks: list[str] = field(default_factory=list)

    def take(self, chunk: Mapping[str, Any]) -> bool:
        """Take one object in; True if it carried output. Raises ServerError or AnswerError."""
        try:
            return self._take(chunk)
        except (AnswerError, ServerError):
            raise
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise AnswerError(f"a field has a shape kvgate does not know ({type(error).__name__}: {error})") from None

    def _take(self, chunk: Mapping[str, Any]) -> bool:
        message = None if chunk.keys() <= USUAL_KEYS else error_text(chunk)
        if message is not None:
            raise ServerError(message)
        if isinstance(chunk.get("kv_transfer_params"), dict):
            self.transfer = json.dumps(chunk["kv_transfer_params"], separators=(",", ":"))
        if isinstance(chunk.get("usage"), dict):
            self.usage = _usage(chunk["usage"])
        choices = chunk.get("choices")
        if choices is None and self.usage is None:
            raise AnswerError(f"neither choices nor usage among {sorted(map(str, chunk))[:8]}")
        if not choices:
            return False
        return self._take_choice(choices[0])

    def _take_choice(self, choice: Mapping[str, Any]) -> bool:
        before = len(self.ids or ()), len(self.text)
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            # null, [] and absent differ: only a list says that the server gives IDs.
            if self.ids is None:
                self.ids = []
            self.ids.extend(map(int, ids))
        prompt_ids = choice.get("prompt_token_ids")
        if isinstance(prompt_ids, list):
            self.echoed = prompt_ids == self.sent
        text = choice.get("text")
        if text:
            self.text.append(str(text))
        if isinstance(choice.get("logprobs"), dict):
            self._take_logprobs(choice["logprobs"])
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        if "recomputed" in (choice.get("stop_reason"), choice.get("finish_reason")):
            self.marks.append("recomputed")
        return (len(self.ids or ()), len(self.text)) != before

    def _take_logprobs(self, logprobs: Mapping[str, Any]) -> None:
        values = logprobs.get("token_logprobs") or []
        tops = logprobs.get("top_logprobs") or [None] * len(values)
        if self.logprobs is None or self.top_ids is None or self.top_logprobs is None:
            self.logprobs, self.top_ids, self.top_logprobs = [], [], []
        self.logprobs.extend(_numbers(values))
        for row in tops:
            keyed = row or {}
            if not all(map(_is_keyed, keyed)):
                keyed = {key: value for key, value in keyed.items() if _is_keyed(key)}
            self.top_ids.append(tuple([int(key[TOKEN_ID_KEY_LENGTH:]) for key in keyed]))
            self.top_logprobs.append(_numbers(keyed.values()))
        if self.ids is None:
            self.keyed_ids += [int(key[TOKEN_ID_KEY_LENGTH:]) for key in logprobs.get("tokens") or [] if _is_keyed(key)]

    def finish(self, status: int, timing: Timing) -> Observation:
        """The answer as an observation: LOST if it is not complete."""
        ids = self.ids if self.ids is not None else (self.keyed_ids or None)
        complete = self.finish_reason is not None
        every = [*(ids or ()), *chain.from_iterable(self.top_ids or ())]
        if every and not (min(every) >= 0 and max(every) < LARGEST_ID):
            return Observation(
                Outcome.REFUSED, detail="the answer holds token IDs that are none", status=status, timing=timing
            )
        return Observation(
            outcome=Outcome.OK if complete else Outcome.LOST,
            detail="" if complete else "the answer ended without a finish reason",
            status=status,
            token_ids=tuple(ids) if ids is not None else None,
            logprobs=tuple(self.logprobs) if self.logprobs is not None else None,
            top_ids=tuple(self.top_ids) if self.top_ids is not None else None,
            top_logprobs=tuple(self.top_logprobs) if self.top_logprobs is not None else None,
            text=clean("".join(self.text)),
            finish_reason=self.finish_reason,
            usage=self.usage,
            prompt_echoed=self.echoed,
            timing=timing,
            marks=tuple(self.marks),
            transfer=self.transfer,
        )


def _is_keyed(key: str) -> bool:
    return key.startswith(TOKEN_ID_KEY)


def _numbers(values: Iterable[object]) -> tuple[float | None, ...]:
    """Logprobs as floats; null, NaN and infinities become None, for they mean the same: no number."""
    given = tuple(values)
    try:
        numbers = tuple(map(float, given))  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(_number, given))
    # One look at the sum tells the usual case, all finite, from the rest.
    return numbers if isfinite(sum(numbers)) else tuple(map(_number, given))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return float(value)


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(cached) if cached is not None else None,
    )
