"""What the fuzzer starts from, replies and pages of the shapes servers really send, and how it spoils them."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SENT = list(range(5, 21))
PAGE = (ROOT / "tests" / "fixtures" / "vllm-0.32-metrics.txt").read_bytes()
# What a swapped value becomes: other types, limits of numbers, what no file can hold, what no stack can follow.
ODD_VALUES = (
    "null", "true", "false", "0", "-1", "1.5", "1e400", "-0.0", "NaN", "Infinity", "1" * 40, "1" * 5000, '""', '"x"',
    '"token_id:7"', '"token_id:x"', '"\\ud83d"', '"\\u0000"', '"[DONE]"', '"stop"', '"recomputed"', "[]", "{}",
    "[null]", "[[1]]", "[1,2,3]", '["a"]', '{"a":1}', '{"message":"no"}', '{"":null}', '"' + "y" * 3000 + '"',
    "[" * 300 + "]" * 300, "[" * 3000, '{"a":' * 400 + "1" + "}" * 400,
)  # fmt: skip
ODD_BYTES = (
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"data: ",
    b":",
    b"[DONE]",
    b"\xff",
    b"\xc3",
    b"\x00",
    b"\xef\xbb\xbf",
    b'"',
    b"{",
)


def _row(token: int, count: int = 2) -> dict[str, float]:
    return {f"token_id:{token + step}": -0.25 - step for step in range(count)}


def _scores(tokens: list[int]) -> dict[str, Any]:
    return {
        "tokens": [f"token_id:{token}" for token in tokens],
        "token_logprobs": [-0.25 for _ in tokens],
        "top_logprobs": [_row(token) for token in tokens],
        "text_offset": [0 for _ in tokens],
    }


def _completion(tokens: list[int], finish: str | None, grow: bool = False, first: bool = False) -> dict[str, Any]:
    shown = tokens if grow else tokens[-1:]
    choice = {
        "index": 0, "text": f" {tokens[-1]} é令", "token_ids": shown, "logprobs": _scores(shown),
        "finish_reason": finish, "stop_reason": None, "prompt_token_ids": SENT if first else None,
    }  # fmt: skip
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": None}


def _chat(token: int, finish: str | None) -> dict[str, Any]:
    tops = [{"token": f"token_id:{token + step}", "bytes": [7], "logprob": -0.25 - step} for step in range(2)]
    content = [{"token": f"token_id:{token}", "bytes": [7], "logprob": -0.25, "top_logprobs": tops}]
    choice = {
        "index": 0, "delta": {"role": "assistant", "content": f" {token}", "reasoning_content": None},
        "token_ids": [token], "logprobs": {"content": content}, "finish_reason": finish,
    }  # fmt: skip
    return {"id": "chat-1", "object": "chat.completion.chunk", "choices": [choice], "prompt_token_ids": SENT}


def _usage(count: int) -> dict[str, Any]:
    details = {"cached_tokens": 16, "local_cached_tokens": 0, "external_cached_tokens": 16}
    counts = {"prompt_tokens": len(SENT), "completion_tokens": count, "prompt_tokens_details": details}
    return {"id": "cmpl-1", "choices": [], "usage": counts}


def _finish(place: int, count: int) -> str | None:
    return "length" if place == count - 1 else None


def replies() -> list[list[dict[str, Any]]]:
    """Good replies as lists of events: added and growing completions, chat, IDs beside the choices, an error."""
    tokens = [11, 7, 7, 900]
    count = len(tokens)
    added = [_completion(tokens[: at + 1], _finish(at, count), first=at == 0) for at in range(count)]
    grown = [_completion(tokens[: at + 1], _finish(at, count), grow=True) for at in range(count)]
    chat = [_chat(token, _finish(at, count)) for at, token in enumerate(tokens)]
    bare = [{"id": "c", "choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}]
    beside = {"id": "c", "choices": [], "sglext": {"output_ids": [tokens], "input_ids": SENT}}
    failed = [*added[:3], {"error": {"message": "the pool is gone", "code": 500}}]
    transfer = {**added[0], "kv_transfer_params": {"remote_block_ids": [1, 2], "remote_host": "h"}}
    return [
        [*added, _usage(count)], [*grown, _usage(count)], [*chat, _usage(count)], [*bare, beside, _usage(count)],
        failed, [transfer, *added[1:], _usage(count)], [{**each, **_usage(1)} for each in bare],
    ]  # fmt: skip


def pages() -> list[bytes]:
    """A whole page of vLLM, the lines of it that matter, and the old names beside the new."""
    lines = [line for line in PAGE.splitlines() if b"prompt_tokens" in line or b"prefix_cache" in line]
    old = [line.replace(b"prefix_cache", b"gpu_prefix_cache") for line in lines]
    started = b"process_start_time_seconds 1.7e+09"
    return [PAGE, b"\n".join([*lines, started]), b"\n".join([*old, *lines, started])]


class Spoiler:
    """Makes inputs from a seed; the same seed makes the same inputs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - inputs, no secrets
        self._replies = replies()
        self._pages = pages()
        self.kind = "stream"

    def content(self) -> bytes:
        """The next input; ``kind`` says whether it is a stream, a whole reply or a page."""
        draw = self._random.random()
        if draw < 0.25:
            self.kind = "page"
            # The whole page is long; its lines that matter are where the reader can go wrong.
            page = self._pages[0] if self._random.random() < 0.02 else self._random.choice(self._pages[1:])
            return self._bytes(page, self._random.choice(self._pages[1:]))
        events = self._random.choice(self._replies)
        if draw < 0.35:
            self.kind = "whole"
            texts = [self._swapped(self._random.choice(events))]
        else:
            self.kind = "stream"
            texts = [json.dumps(event, ensure_ascii=False) for event in events]
            for _ in range(self._random.choice((0, 1, 1, 1, 2, 3))):
                place = self._random.randrange(len(texts))
                texts[place] = self._swapped(events[place])
            self._rearrange(texts)
        content = texts[0].encode("utf-8", "surrogatepass")
        if self.kind == "stream":
            end = "" if self._random.random() < 0.1 else "data: [DONE]\n\n"
            content = ("".join(f"data: {text}\n\n" for text in texts) + end).encode("utf-8", "surrogatepass")
        return self._bytes(content, content) if self._random.random() < 0.5 else content

    def pieces(self, content: bytes) -> list[bytes]:
        """The content, cut at random places."""
        cuts = sorted(self._random.randrange(len(content) + 1) for _ in range(self._random.choice((0, 0, 1, 3))))
        edges = [0, *cuts, len(content)]
        return [content[start:end] for start, end in pairwise(edges) if end > start]

    def _rearrange(self, texts: list[str]) -> None:
        draw = self._random.random()
        place = self._random.randrange(len(texts))
        if draw < 0.1:
            del texts[place]
        elif draw < 0.2:
            texts.insert(place, self._random.choice(texts))
        elif draw < 0.3:
            self._random.shuffle(texts)
        if not texts:
            texts.append("{}")

    def _swapped(self, event: dict[str, Any]) -> str:
        """The event with one value swapped for an odd one, left out, or put under another name."""
        mark = "\x01swap\x01"
        copy = json.loads(json.dumps(event))
        places: list[tuple[Any, Any]] = []
        waiting: list[Any] = [copy]
        while waiting:
            node = waiting.pop()
            keys = list(node) if isinstance(node, dict) else range(len(node))
            places += [(node, key) for key in keys]
            waiting += [node[key] for key in keys if isinstance(node[key], (dict, list))]
        node, key = self._random.choice(places)
        draw = self._random.random()
        if draw < 0.1:
            del node[key]
        elif draw < 0.2 and isinstance(node, dict):
            node[self._random.choice(("text", "usage", "logprobs", "error", "x"))] = node.pop(key)
        else:
            node[key] = mark
        return json.dumps(copy, ensure_ascii=False).replace(json.dumps(mark), self._random.choice(ODD_VALUES))

    def _bytes(self, content: bytes, other: bytes) -> bytes:
        """The content with bytes flipped, cut out, doubled, put in, or spliced with another's."""
        spoiled = bytearray(content)
        for _ in range(self._random.choice((1, 1, 2, 4))):
            place = self._random.randrange(len(spoiled) + 1)
            end = min(len(spoiled), place + self._random.choice((1, 2, 8, 64)))
            draw = self._random.randrange(6)
            if draw == 0 and place < len(spoiled):
                spoiled[place] ^= 1 << self._random.randrange(8)
            elif draw == 1:
                del spoiled[place:end]
            elif draw == 2:
                spoiled[place:place] = spoiled[place:end]
            elif draw == 3:
                spoiled[place:place] = self._random.choice(ODD_BYTES)
            elif draw == 4:
                spoiled[place:] = other[self._random.randrange(len(other) + 1) :]
            else:
                del spoiled[end:]
        return bytes(spoiled)
