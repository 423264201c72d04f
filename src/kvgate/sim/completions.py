"""Completions and chat completions as vLLM writes them, whole and streamed."""

import json
import math
from collections.abc import Callable
from typing import Any

from kvgate.sim.answers import Reply

MODEL = "sim"
Body = dict[str, Any]
Say = Callable[[list[int]], str]
# Where the top logprobs of a chat reply are asked for, and how many vLLM allows.
MOST_LOGPROBS = 20


class BadRequestError(Exception):
    """The request cannot be answered as it stands."""


def chat_text(messages: object) -> str:
    """The prompt of a chat: each message after its role, then the assistant's turn. Raises BadRequestError."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadRequestError("messages: a list of objects with role and content is needed")
    parts = [f"<|{each.get('role', 'user')}|>{_content(each.get('content'))}" for each in messages]
    return "".join(parts) + "<|assistant|>"


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def wanted_logprobs(body: Body, chat: bool) -> int:
    """How many logprobs a position is asked for; 0 for none. Raises BadRequestError."""
    asked = (body.get("top_logprobs") or 1 if body.get("logprobs") else 0) if chat else body.get("logprobs") or 0
    if not isinstance(asked, int) or not 0 <= int(asked) <= MOST_LOGPROBS:
        raise BadRequestError(f"logprobs: at most {MOST_LOGPROBS} can be asked for, not {asked}")
    return int(asked)


def usage_of(prompt: list[int], reply: Reply) -> Body:
    """Token counts. The details are there as with --enable-prompt-tokens-details."""
    count = reply.claimed if reply.claimed is not None else len(reply.ids)
    details = {"cached_tokens": reply.cached}
    if reply.split is not None:
        details |= {"local_cached_tokens": reply.split[0], "external_cached_tokens": reply.split[1]}
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": count,
        "total_tokens": len(prompt) + count,
        "prompt_tokens_details": details,
    }


def whole(body: Body, chat: bool, prompt: list[int], reply: Reply, say: Say, name: str = "sim") -> Body:
    """A reply in one piece. ``name`` is the request's ID."""
    choice = _choice(body, chat, reply, 0, len(reply.ids), say, "message")
    if body.get("return_token_ids") and not chat:
        choice["prompt_token_ids"] = prompt
    answer = {
        **_head(chat, "chat.completion" if chat else "text_completion", name),
        "choices": [choice],
        "usage": usage_of(prompt, reply),
    }
    if chat and body.get("return_token_ids"):
        answer["prompt_token_ids"] = prompt
    if reply.transfer is not None:
        answer["kv_transfer_params"] = reply.transfer
    return answer


def pieces(body: Body, chat: bool, prompt: list[int], reply: Reply, say: Say, name: str = "sim") -> list[str]:
    """The events of a streamed reply, each ready to be sent."""
    head = _head(chat, "chat.completion.chunk" if chat else "text_completion", name)
    events: list[Body] = []
    if chat:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        events.append({**head, "choices": [first]})
    at = 0
    for count in reply.steps or (0,):
        choice = _choice(body, chat, reply, at, at + count, say, "delta")
        if at == 0 and body.get("return_token_ids"):
            (events[0] if chat else choice)["prompt_token_ids"] = prompt
        events.append({**head, "choices": [choice]})
        at += count
    if reply.broken_after is not None:
        error = {"error": {"message": "KV load failure", "type": "InternalServerError", "code": 500}}
        events = [*events[: reply.broken_after], error]
    elif (body.get("stream_options") or {}).get("include_usage", False):
        events.append({**head, "choices": [], "usage": usage_of(prompt, reply)})
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]


def _head(chat: bool, kind: str, name: str) -> Body:
    return {"id": ("chatcmpl-" if chat else "cmpl-") + name, "object": kind, "created": 0, "model": MODEL}


def _choice(body: Body, chat: bool, reply: Reply, start: int, end: int, say: Say, part: str) -> Body:
    ids, last = reply.ids[start:end], end >= len(reply.ids)
    text = say(ids) if reply.text_is_its_own else reply.text if start == 0 else ""
    choice: Body = {"index": 0, "finish_reason": reply.finish_reason if last else None, "stop_reason": None}
    if last and reply.stop_reason is not None:
        choice["stop_reason"] = reply.stop_reason
    if chat:
        choice[part] = {"role": "assistant", "content": text} if part == "message" else {"content": text}
    else:
        choice["text"] = text
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
    choice["logprobs"] = None
    if wanted_logprobs(body, chat):
        choice["logprobs"] = (_chat_logprobs if chat else _logprobs)(body, reply, start, end, say)
    return choice


def _logprobs(body: Body, reply: Reply, start: int, end: int, say: Say) -> Body:
    def spell(token: int) -> str:
        return f"token_id:{token}" if body.get("return_tokens_as_token_ids") else say([token])

    rows = reply.rows[start:end]
    # Tokens that read alike keep their first, likeliest entry, as in vLLM's dictionaries.
    tops = [{spell(token): _number(value) for token, value in reversed(row)} for row in rows]
    return {
        "tokens": [spell(row[0][0]) for row in rows],
        "token_logprobs": [_number(row[0][1]) for row in rows],
        "top_logprobs": tops,
        "text_offset": list(range(start, end)),
    }


def _chat_logprobs(body: Body, reply: Reply, start: int, end: int, say: Say) -> Body:
    def entry(token: int, value: float) -> Body:
        text = f"token_id:{token}" if body.get("return_tokens_as_token_ids") else say([token])
        return {"token": text, "logprob": _number(value), "bytes": list(text.encode())}

    rows = reply.rows[start:end]
    return {"content": [{**entry(*row[0]), "top_logprobs": [entry(*each) for each in row]} for row in rows]}


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
