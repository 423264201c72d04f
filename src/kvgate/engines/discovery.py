"""Asking one endpoint, before the run, what it is and what it can show."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from kvgate.domain.counters import Counter, Counters
from kvgate.domain.deployment import Capabilities, Endpoint
from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Ids
from kvgate.engines.chat import ChatFrame, frame_between
from kvgate.engines.dialects import Dialect
from kvgate.engines.engine import HttpEngine
from kvgate.engines.metrics import UnreadablePageError, parse_counters, parse_info
from kvgate.engines.wire import ANY_HTTPX, encode_prompt, meaning, persistently
from kvgate.engines.words import clip, error_text, parse_json
from kvgate.errors import RemoteError

ASK_S = 30.0
# What servers answer to a field they do not take.
REFUSALS = (400, 422)
# Marks of an answer that say something of the way it took.
PROXY_MARKS = ("no-done-marker", "prompt-repeated", "recomputed")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself, as far as it says anything; sizes in tokens.

    ``sources`` are (field, where it was read) pairs.
    """

    models: tuple[str, ...] = ()
    version: str | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    granule: int | None = None
    chunk: int | None = None
    prefix_caching: bool | None = None
    retention_interval: int | None = None
    speculative_method: str | None = None
    capacity: int | None = None
    sources: tuple[tuple[str, str], ...] = ()


class EndpointDiscovery:
    """Asks one endpoint. Every failure is a RemoteError that names the endpoint, the request and what came back."""

    def __init__(self, endpoint: Endpoint, client: httpx.AsyncClient, engine: HttpEngine, dialect: Dialect) -> None:
        self._endpoint = endpoint
        self._client = client
        self._engine = engine
        self._dialect = dialect

    async def facts(self) -> ServerFacts:
        """GET requests only: models, version, configuration metrics, and server_info where it exists."""
        listing = await self._json("GET", self._dialect.models_path)
        data = listing.get("data")
        if not isinstance(data, list):
            raise RemoteError(f"{self._where(self._dialect.models_path)}: the reply has no list of models in 'data'")
        served = [each for each in data if isinstance(each, Mapping)]
        found: dict[str, tuple[Any, str]] = {}
        for model in served:
            if model.get("id") == self._engine.model and model.get("max_model_len") is not None:
                found["max_model_len"] = (self._whole(model["max_model_len"]), self._dialect.models_path)
        found |= _from_metrics(await self._page(self._dialect.metrics_path), self._dialect)
        found |= _from_server_info(await self._page(self._dialect.server_info_path))
        version = await self._page(self._dialect.version_path)
        return ServerFacts(
            models=tuple(str(model.get("id")) for model in served),
            version=_version(version),
            sources=tuple((name, where) for name, (_, where) in sorted(found.items())),
            **{name: value for name, (value, _) in found.items()},
        )

    async def version(self) -> str | None:
        """The engine's version by one GET request, None if it does not tell."""
        return _version(await self._page(self._dialect.version_path))

    async def capabilities(self, ids: tuple[int, ...]) -> Capabilities:
        """One short request with token IDs ``ids``, then the counters. The engine caches that prompt like any other."""
        # A salt of its own, so that no earlier probe's KV answers.
        observation, without = await self._first_answer(ids, f"capabilities-{secrets.token_hex(8)}")
        salt, about_salts = True, ""
        if observation is None:
            observation, without = await self._first_answer(ids, None)
            salt, about_salts = False, "requests with a cache_salt are refused"
        if observation is None:
            raise RemoteError(self._no_answer(without))
        if salt and not await self._knows_salts(ids):
            salt, about_salts = False, "an empty cache_salt is not refused: salts are dropped or unknown"
        usage = observation.usage
        told = (
            without,
            observation.id_problem(),
            observation.logprob_problem(),
            *_dropped(observation, self._engine.streams),
            about_salts,
        )
        seen = Capabilities(
            endpoint=self._endpoint.name,
            token_ids=observation.token_ids is not None,
            logprobs=observation.logprob_problem() is None,
            echoes_prompt_ids=observation.prompt_echoed,
            salt=salt,
            cached_tokens=usage is not None and usage.cached_tokens is not None,
            details=tuple(each for each in told if each),
        )
        return await self.counting(seen)

    async def counting(self, seen: Capabilities) -> Capabilities:
        """The same capabilities, with what this endpoint's counters and version add."""
        counters, detail = _counters(await self._page(self._dialect.metrics_path), self._dialect)
        counted = {reading.counter for reading in counters.readings} if counters is not None else set()
        return replace(
            seen,
            counters=counters is not None,
            tokens_by_source={Counter.COMPUTED, Counter.LOCAL, Counter.EXTERNAL} <= counted,
            version=_version(await self._page(self._dialect.version_path)),
            details=(*seen.details, detail) if detail else seen.details,
        )

    async def _first_answer(self, ids: tuple[int, ...], salt: str | None) -> tuple[Observation | None, str]:
        """A short answer, asked for token IDs by every field the server takes; and which fields it did not take.

        Some servers answer unknown fields with 400; then the weaker ways are tried, and the report says so. None, and
        the last complaint, where every way is refused like that.
        """
        probe = Probe("capabilities", "", Arm.WARMUP, 0, self._endpoint.name, salt, len(ids), 8, "")
        ways = self._dialect.id_fields
        told = ""
        for skipped in range(len(ways) + 1):
            self._engine.ask_ids_by(ways[skipped:])
            observation = await self._engine.complete(probe, encode_prompt(_array(ids)))
            if observation.ok:
                return observation, f"refused: {', '.join(ways[:skipped])}" if skipped else ""
            told = observation.detail
            if observation.status not in REFUSALS:
                raise RemoteError(self._no_answer(told))
        return None, told

    def _no_answer(self, told: str) -> str:
        how = (
            "with a token-ID prompt" if self._engine.path == self._dialect.completions_path else "with one user message"
        )
        return (
            f"{self._endpoint.name} ({self._endpoint.url}): a short completion failed: {told}; "
            f"make it answer {self._engine.path} {how} before gating it"
        )

    async def tokenize(self, model: str, text: str, special: bool) -> tuple[int, ...]:
        """Token IDs of ``text`` as the server's tokenizer sees it."""
        tokens = await self._tokens({"model": model, "prompt": text, "add_special_tokens": special})
        if text and not tokens:
            raise RemoteError(f"{self._where(self._dialect.tokenize_path)}: {text[:20]!r} is tokenised to nothing")
        return tokens

    async def _tokens(self, body: dict[str, object]) -> tuple[int, ...]:
        reply = await self._json("POST", self._dialect.tokenize_path, body)
        tokens = reply.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise RemoteError(f"{self._where(self._dialect.tokenize_path)}: the reply has no list of tokens")
        return tuple(tokens)

    async def chat_frame(self, model: str) -> ChatFrame:
        """What the chat template puts around one user message."""
        one, other = [
            await self._tokens({"model": model, "messages": [{"role": "user", "content": text}]})
            for text in ("1 apple 2", "seven pears and a plum")
        ]
        try:
            return frame_between(one, other)
        except ValueError as error:
            raise RemoteError(f"{self._where(self._dialect.tokenize_path)}: {error}") from None

    async def detokenize(self, model: str, tokens: list[int]) -> str:
        """The text of token IDs as the server's tokenizer has it."""
        reply = await self._json("POST", self._dialect.detokenize_path, {"model": model, "tokens": tokens})
        text = reply.get("prompt")
        if not isinstance(text, str):
            raise RemoteError(f"{self._where(self._dialect.detokenize_path)}: the reply has no text in 'prompt'")
        return text

    async def _knows_salts(self, ids: tuple[int, ...]) -> bool:
        """Whether salts get through to the engine. Called where a request with a salt was answered.

        Unknown fields are ignored with HTTP 200, and so is a field that a proxy drops. So an invalid salt is the
        question: a 400 means that it was read.
        """
        fields = {"model": self._engine.model, "max_tokens": 1, "cache_salt": ""}
        body = await self._engine.request(fields, encode_prompt(_array(ids)))
        try:
            response = await self._send(
                "POST", self._engine.path, content=body, headers={"Content-Type": "application/json"}
            )
        except ANY_HTTPX:
            return False
        return response.status_code in REFUSALS

    async def _page(self, path: str) -> str | None:
        """The text at ``path``, or None if the server has no such page."""
        try:
            response = await self._send("GET", path)
        except ANY_HTTPX:
            return None
        return response.text if response.is_success else None

    async def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        where = self._where(path)
        try:
            response = await self._send(method, path, json=body)
        except ANY_HTTPX as error:
            raise RemoteError(f"{where}: {meaning(error)}; check the url and that the server runs") from None
        if response.status_code in (401, 403):
            raise RemoteError(
                f"{where}: HTTP {response.status_code}, the server wants credentials; name the environment variable "
                "that holds the key in deployment.auth.bearer_env and set it"
            )
        if not response.is_success:
            raise RemoteError(f"{where}: HTTP {response.status_code}: {_told(response)}; check the url and its role")
        try:
            value = parse_json(response.text)
        except ValueError:
            kind = response.headers.get("content-type", "no content type")
            raise RemoteError(
                f"{where}: the answer is not JSON but {kind}: {clip(response.text)[:60]!r}; is this the engine's "
                "port, or a page in front of it?"
            ) from None
        if not isinstance(value, dict):
            raise RemoteError(f"{where}: the answer is JSON but no object: {clip(response.text)[:60]!r}")
        return value

    async def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        return await persistently(lambda: self._client.request(method, path, timeout=ASK_S, **content))

    def _whole(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RemoteError(f"{self._where(self._dialect.models_path)}: max_model_len is {value!r}, no length")
        return value

    def _where(self, path: str) -> str:
        return f"{self._endpoint.name} ({self._endpoint.url}{path})"


def _dropped(seen: Observation, streamed: bool) -> tuple[str, ...]:
    """What was asked for and did not come back, although the answer is HTTP 200: something between drops it."""
    found: list[str] = []
    if seen.usage is None:
        found.append("the reply carries no usage, so token IDs cannot be counted against it")
    if seen.prompt_echoed is None:
        found.append("the reply does not echo the prompt's token IDs, so a changed prompt would go unseen")
    elif not seen.prompt_echoed:
        found.append("the server says it saw other prompt tokens than were sent")
    if streamed and seen.timing is not None and seen.timing.first_token_s is None:
        found.append("the answer came in one piece, not as a stream")
    found += [f"the reply is marked {mark}" for mark in seen.marks if mark in PROXY_MARKS]
    return tuple(found)


def _told(response: httpx.Response) -> str:
    try:
        return error_text(parse_json(response.text)) or clip(response.text)
    except ValueError:
        return clip(response.text) or "empty body"


def _array(ids: tuple[int, ...]) -> Ids:
    return np.array(ids, dtype=np.int32)


def _counters(page: str | None, dialect: Dialect) -> tuple[Counters | None, str]:
    if page is None:
        return None, f"GET {dialect.metrics_path} does not answer"
    try:
        return parse_counters(page, dialect), ""
    except UnreadablePageError as error:
        return None, str(error)


def _version(page: str | None) -> str | None:
    try:
        value = parse_json(page) if page is not None else None
    except ValueError:
        return None
    version = value.get("version") if isinstance(value, dict) else None
    return str(version) if version is not None else None


def _from_metrics(page: str | None, dialect: Dialect) -> dict[str, tuple[Any, str]]:
    """vLLM's cache_config_info carries the resolved block size and, on hybrids, the alignment of hits."""
    try:
        labels = parse_info(page or "", dialect.config_sample)
    except UnreadablePageError:
        return {}
    found: dict[str, tuple[Any, str]] = {}
    names = {
        "block_size": ("block_size",),
        "granule": ("cache_hit_alignment_tokens", "effective_attention_block_size"),
        "retention_interval": ("prefix_cache_retention_interval",),
    }
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if blocks.isdigit() and size.isdigit():
        found["capacity"] = (int(blocks) * int(size), dialect.config_sample)
    for name, keys in names.items():
        value = next((int(labels[key]) for key in keys if labels.get(key, "").isdigit()), None)
        if value is not None and (value > 0 or name == "retention_interval"):
            found[name] = (value, dialect.config_sample)
    if labels.get("enable_prefix_caching") in ("True", "False"):
        found["prefix_caching"] = (labels["enable_prefix_caching"] == "True", dialect.config_sample)
    return found


def _from_server_info(page: str | None) -> dict[str, tuple[Any, str]]:
    """Only named fields are taken: the full configuration may hold secrets."""
    try:
        value = parse_json(page) if page else None
    except ValueError:
        return {}
    config = value.get("vllm_config") if isinstance(value, dict) else None
    if not isinstance(config, dict):
        return {}
    scheduler = config.get("scheduler_config")
    if not isinstance(scheduler, dict):
        scheduler = {}
    sizes = [scheduler.get("max_num_batched_tokens"), scheduler.get("long_prefill_token_threshold")]
    real = [size for size in sizes if isinstance(size, int) and size > 0]
    found: dict[str, tuple[Any, str]] = {}
    if real and scheduler.get("enable_chunked_prefill", True):
        found["chunk"] = (min(real), "/server_info")
    speculative = config.get("speculative_config")
    if isinstance(speculative, dict) and speculative.get("method"):
        found["speculative_method"] = (str(speculative["method"]), "/server_info")
    return found
