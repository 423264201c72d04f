"""Driving the embedded deployment: prompts whose answers are known, the four paths, servers in a thread."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import numpy as np
from anyio.from_thread import start_blocking_portal

from kvgate.sim.answers import Reply
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.http import LOOPBACK, Handler, listening
from kvgate.sim.memory import Memory
from kvgate.sim.network import FIRST_USABLE_TOKEN, VOCABULARY
from kvgate.sim.node import Node, Request
from kvgate.sim.presets import PRESETS, Preset, scaled

SCALE = 16
# Tokens a prompt ends with that stood in it before; enough for the network to find where.
QUESTION = 8


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@cache
def memory() -> Memory:
    """One set of weights and words for all; a deployment made of it has everything else of its own."""
    return Memory()


def small(preset: str, speculation: int = 0) -> Preset:
    """A preset with its lengths divided."""
    return scaled(PRESETS[preset], SCALE, speculation)


def deployed(preset: str | Preset = "dense", **more: Any) -> Deployment:
    """A deployment of a scaled preset (by name) or of one as it stands."""
    geometry = small(preset) if isinstance(preset, str) else preset
    return make_deployment(geometry, memory=memory(), **more)


def engine(preset: str | Preset = "dense", **more: Any) -> Node:
    """The engine of a combined deployment."""
    return deployed(preset, **more).nodes["engine"]


def prompt(length: int, seed: int = 1, source: int | None = None) -> list[int]:
    """Random tokens that end as they went on at ``source``: what followed there is the answer (``answer_at``).

    As in a code book, where many records end alike, the last two tokens stand in many places, so that every block
    weighs a little in the first token of the answer.
    """
    ids = np.random.default_rng(seed).integers(FIRST_USABLE_TOKEN, VOCABULARY, length)
    if length > 4 * QUESTION:
        source = length // 3 if source is None else source
        question = ids[source : source + QUESTION].copy()
        for place in range(2, length - QUESTION - 2, max(8, length // 512)):
            if not source - 2 <= place <= source + 6 * QUESTION:
                ids[place : place + 2] = question[-2:]
        ids[-QUESTION:] = question
    return [int(token) for token in ids]


def answer_at(ids: list[int], source: int | None = None, tokens: int = 8) -> list[int]:
    """The right answer to a prompt made with this source."""
    start = (len(ids) // 3 if source is None else source) + QUESTION
    return ids[start : start + tokens]


def ask(node: Node, ids: list[int], salt: str = "", tokens: int = 8, top: int = 5, **more: Any) -> Reply:
    """One completion."""
    return node.complete(Request(ids, salt=salt, max_tokens=tokens, top=top, **more))


@dataclass(frozen=True, slots=True)
class Answers:
    """What one prompt was answered on each path."""

    cold: Reply
    local: Reply
    external: Reply


def by_each_path(node: Node, ids: list[int], salt: str = "", tokens: int = 8, top: int = 5) -> Answers:
    """Computed, from the engine's own cache, and from the pool."""
    cold, local = (ask(node, ids, salt, tokens, top) for _ in range(2))
    node.drop_local()
    return Answers(cold, local, ask(node, ids, salt, tokens, top))


def drift(one: Reply, other: Reply) -> float:
    """The largest difference between two answers' chosen logprobs; infinite where one is not a number."""
    pairs = [(a[0][1], b[0][1]) for a, b in zip(one.rows, other.rows, strict=True)]
    return max(abs(a - b) if math.isfinite(a - b) else math.inf for a, b in pairs)


def predicted(preset: Preset, length: int) -> int:
    """The longest hit there can be: whole steps short of the last token, one fewer under speculation."""
    return max(0, (length - 1) // preset.step * preset.step - (preset.step if preset.speculation else 0))


@contextmanager
def served(deployment: Deployment) -> Iterator[dict[str, str]]:
    """A deployment on loopback, in a thread of its own; yields its addresses by name."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(deployment)) as urls:
        yield urls


@contextmanager
def listening_to(handler: Handler) -> Iterator[str]:
    """One server's handler on loopback, in a thread of its own; yields its address."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(listening(handler)) as port:
        yield f"http://{LOOPBACK}:{port}"


@contextmanager
def asking(url: str, **more: Any) -> Iterator[httpx.Client]:
    """A client of one server."""
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False, **more) as client:
        yield client


def completion(ids: list[int], tokens: int = 8, **more: Any) -> dict[str, Any]:
    """The body of a completion that tells token IDs and logprobs."""
    return {
        "model": "sim",
        "prompt": ids,
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 5,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **more,
    }


def answer(client: httpx.Client, ids: list[int], tokens: int = 8, **more: Any) -> dict[str, Any]:
    """The whole reply to one completion."""
    response = client.post("/v1/completions", json=completion(ids, tokens, **more))
    assert 200 == response.status_code, response.text
    reply: dict[str, Any] = response.json()
    return reply


def said(reply: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Token IDs and logprobs of a whole reply."""
    choice = reply["choices"][0]
    return choice["token_ids"], choice["logprobs"]
