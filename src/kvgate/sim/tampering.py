"""What each fault of proxies does to a request, to its decode leg, and to the answer."""

from collections.abc import Callable

from kvgate.sim.network import FIRST_USABLE_TOKEN
from kvgate.sim.told import Body, Told

# A body is never changed in place: the proxy may need it as it came.
OnBody = Callable[[Body], Body]
# Answers of so few tokens are through before anything can break off.
SHORT = 8


def _without(*names: str) -> OnBody:
    return lambda body: {name: value for name, value in body.items() if name not in names}


def _on_prompt(change: Callable[[list[int]], list[int]]) -> OnBody:
    """Another prompt, where it comes as token IDs."""

    def tamper(body: Body) -> Body:
        prompt = body.get("prompt")
        return {**body, "prompt": change(prompt)} if isinstance(prompt, list) else body

    return tamper


def _another_token(ids: list[int]) -> list[int]:
    """Re-tokenised text is seldom the same IDs: here the one in the middle is another."""
    middle = len(ids) // 2
    other = FIRST_USABLE_TOKEN if ids[middle] != FIRST_USABLE_TOKEN else FIRST_USABLE_TOKEN + 1
    return [*ids[:middle], other, *ids[middle + 1 :]]


def _fewer_tokens(body: Body) -> Body:
    return {**body, "max_tokens": max(1, int(body.get("max_tokens", 16)) // 2)}


ON_REQUEST: dict[str, OnBody] = {
    "proxy_drops_salt": _without("cache_salt"),
    "proxy_drops_ids": _without("return_token_ids", "return_tokens_as_token_ids"),
    "proxy_drops_logprobs": _without("logprobs", "top_logprobs"),
    "proxy_cuts_prompt": _on_prompt(lambda ids: ids[len(ids) // 8 :]),
    "proxy_adds_token": _on_prompt(lambda ids: [FIRST_USABLE_TOKEN, *ids]),
    "proxy_retokenises": _on_prompt(_another_token),
}

ON_DECODE: dict[str, OnBody] = {
    "transfer_dropped": _without("kv_transfer_params"),
    "foreign_on_decode": _without("kv_transfer_params"),
    "proxy_temperature": lambda body: {**body, "temperature": 1.0},
    "proxy_max_tokens": _fewer_tokens,
}


def _first_lost(told: Told) -> None:
    told.keep(list(range(1, told.tokens())))


def _first_doubled(told: Told) -> None:
    told.keep([0, *range(told.tokens())] if told.tokens() else [])


def _first_replaced(told: Told) -> None:
    # The first token is taken from the prefill leg, which was sampled for itself.
    for choice in told.choices():
        if choice.get("token_ids"):
            first = choice["token_ids"][0]
            choice["token_ids"] = [first - 1 if first > FIRST_USABLE_TOKEN else first + 1, *choice["token_ids"][1:]]
            return


def _chunk_lost(told: Told) -> None:
    """Two events came in one piece, of which only the first was read; usage tells of both."""
    told.keep([place for place in range(told.tokens()) if place != 1], recount=False)


def _cut(told: Told) -> None:
    told.keep(list(range(told.tokens() // 2)))
    for choice in told.choices():
        if choice.get("finish_reason"):
            choice["finish_reason"] = "stop"


def _broken_off(told: Told) -> None:
    if told.tokens() <= SHORT:
        return
    if told.stream:
        told.chunks = told.chunks[: len(told.chunks) // 2]
    told.done, told.broken = False, True


def _all_cached(told: Told) -> None:
    for chunk in told.chunks:
        if chunk.get("usage"):
            chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": chunk["usage"]["prompt_tokens"] - 1}


ON_TOLD: dict[str, Callable[[Told], None]] = {
    "proxy_first_token_lost": _first_lost,
    "proxy_first_token_doubled": _first_doubled,
    "proxy_first_token_replaced": _first_replaced,
    "proxy_loses_chunk": _chunk_lost,
    "proxy_cuts_answer": _cut,
    "proxy_breaks_off": _broken_off,
    "proxy_tells_all_cached": _all_cached,
}


def same(body: Body) -> Body:
    """What no fault changes."""
    return body
