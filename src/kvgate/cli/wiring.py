"""From a configuration to connected engines, geometry, prompts and a plan."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np

from kvgate.cli.rules import rules_of
from kvgate.config.families import load_family
from kvgate.config.schema import Config, GeometryConfig
from kvgate.domain.deployment import Capabilities, Deployment, Endpoint, Role
from kvgate.domain.geometry import Geometry, infer_granule
from kvgate.domain.history import DropOutcome
from kvgate.domain.parts import PlanError, PlanRequest, route_of
from kvgate.domain.plan import Plan, Route
from kvgate.domain.planning import PromptSource, make_plan
from kvgate.domain.policy import PolicyName
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Lexicon, TooShortError, compose
from kvgate.engines.dialects import DIALECTS, Dialect
from kvgate.engines.discovery import EndpointDiscovery, ServerFacts
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.engines.gateway import GatewayEngine
from kvgate.engines.logs import LogFile
from kvgate.engines.wire import Timeouts
from kvgate.errors import ConfigError, KvgateError
from kvgate.ports import Engine

TOKENIZE_AT_ONCE = 8
DRAFTING = frozenset({"eagle", "eagle3", "mtp", "deepseek_mtp", "dflash", "dspark"})
DRAWN_BITS = 48
# Roles of endpoints that are asked as they are, beside the entries.
_ALONE = (Role.PREFILL, Role.REFERENCE)


@dataclass(frozen=True, slots=True)
class Link:
    """One endpoint with everything that talks to it."""

    endpoint: Endpoint
    client: httpx.AsyncClient
    engine: HttpEngine
    discovery: EndpointDiscovery


@dataclass(frozen=True, slots=True)
class Entry:
    """Where probes are sent: the engine the session drives, what answers, and what tells of itself.

    For a combined engine all three are one endpoint. Behind a gateway the prefill engine tells.
    """

    engine: Engine
    answers: Link
    tells: Link

    @property
    def name(self) -> str:
        """The name of the endpoint that probes are sent to."""
        return self.answers.endpoint.name


@dataclass(frozen=True, slots=True)
class Connection:
    """All endpoints of a deployment, connected."""

    config: Config
    deployment: Deployment
    dialect: Dialect
    links: tuple[Link, ...]

    def entries(self) -> tuple[Entry, ...]:
        """The endpoints that play every part of a group. Raises ConfigError if there is none."""
        combined, gateways = self._with(Role.COMBINED), self._with(Role.GATEWAY)
        if combined and route_of(self.deployment) is Route.GATEWAY:
            return (Entry(GatewayEngine(gateways[0].engine, (combined[0].engine,), ()), gateways[0], combined[0]),)
        if combined:
            return tuple(Entry(link.engine, link, link) for link in combined)
        prefill, decode = self._with(Role.PREFILL), self._with(Role.DECODE)
        if not (prefill and decode):
            raise ConfigError(
                "deployment.endpoints: none has the role combined; give the engine's own address that role, or, for "
                "a prefill/decode deployment, every prefill and decode engine with its role, and the gateway in front "
                "of them"
            )
        behind = tuple(link.engine for link in prefill), tuple(link.engine for link in decode)
        if not gateways:
            return (Entry(GatewayEngine(None, *behind), decode[0], prefill[0]),)
        return (Entry(GatewayEngine(gateways[0].engine, *behind), gateways[0], prefill[0]),)

    def engines(self) -> dict[str, Engine]:
        """Engines that are sent probes, by endpoint name."""
        alone = {link.endpoint.name: link.engine for role in _ALONE for link in self._with(role)}
        past = {engine.name: engine for engine in (self.past_gateway(),) if engine is not None}
        return {**alone, **past, **{entry.name: entry.engine for entry in self.entries()}}

    def past_gateway(self) -> Engine | None:
        """The way past the gateway: kvgate itself sends both legs, or asks the one engine there is.

        None where there is no gateway to pass.
        """
        combined, prefill, decode = (self._with(role) for role in (Role.COMBINED, Role.PREFILL, Role.DECODE))
        if route_of(self.deployment) is not Route.GATEWAY:
            return None
        if combined or not (prefill and decode):
            return combined[0].engine if combined else None
        return GatewayEngine(None, tuple(link.engine for link in prefill), tuple(link.engine for link in decode))

    def _with(self, role: Role) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.endpoint.role is role)


@dataclass(frozen=True, slots=True)
class Explored:
    """What was found out before planning; ``two_leg`` is whether the way past a gateway was answered."""

    facts: ServerFacts
    geometry: Geometry
    capabilities: tuple[Capabilities, ...]
    prompts: PromptSource
    notes: tuple[str, ...]
    two_leg: bool = True


def deployment_of(config: Config) -> Deployment:
    """The deployment a configuration describes."""
    section = config.deployment
    endpoints = tuple(Endpoint(each.name, each.role, each.url.rstrip("/")) for each in section.endpoints)
    return Deployment(section.name, section.engine, section.model, endpoints, section.alike)


@asynccontextmanager
async def connect(config: Config, run_id: str) -> AsyncIterator[Connection]:
    """Clients for every endpoint, closed at the end. Raises ConfigError if the named secret is not set."""
    bearer = _bearer(config)
    deployment = deployment_of(config)
    dialect = DIALECTS[deployment.engine]
    timing = config.requests
    settings = RequestSettings(
        model=deployment.model,
        logprobs=timing.logprobs,
        stream=timing.stream,
        ignore_eos=timing.ignore_eos,
        run_id=run_id,
        timeouts=Timeouts(timing.connect_s, timing.first_token_s, timing.first_token_s_per_1k, timing.inactivity_s),
        secret=bearer,
    )
    links: list[Link] = []
    try:
        for endpoint in deployment.endpoints:
            client = make_client(endpoint.url, bearer, timing.connect_s)
            log = next(each.log for each in config.deployment.endpoints if each.name == endpoint.name)
            engine = HttpEngine(endpoint.name, client, dialect, settings, _log_file(endpoint.name, log))
            links.append(Link(endpoint, client, engine, EndpointDiscovery(endpoint, client, engine, dialect)))
        yield Connection(config, deployment, dialect, tuple(links))
    except KvgateError as error:
        raise type(error)(settings.hide(str(error))) from None
    finally:
        for link in links:
            await link.client.aclose()


def _log_file(endpoint: str, given: str | None) -> LogFile | None:
    """The engine's log. Raises ConfigError if it cannot be read."""
    if given is None:
        return None
    log = LogFile(Path(given))
    log.skip()
    reading = log.read()
    if reading.lines is None:
        raise ConfigError(
            f"deployment.endpoints: the log of {endpoint} cannot be read ({reading.detail}); give a file on this "
            "machine that the engine's log is written to"
        )
    return log


def _bearer(config: Config) -> str | None:
    auth = config.deployment.auth
    if auth is None:
        return None
    value = os.environ.get(auth.bearer_env)
    if not value:
        raise ConfigError(
            f"deployment.auth.bearer_env: the environment variable {auth.bearer_env} is not set; export it, or take "
            "auth out of the configuration"
        )
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ConfigError(
            f"deployment.auth.bearer_env: the value of {auth.bearer_env} holds a space, a line break or another "
            "character that no API key has; export it without (its value is not shown)"
        )
    return value


async def explore(connection: Connection, seed: int, active: bool) -> Explored:
    """Ask the deployment what it is. With ``active`` short completions and a cache reset are sent, too.

    Raises RemoteError or ConfigError.
    """
    config = connection.config
    entries = connection.entries()
    first = entries[0].tells
    facts = await first.discovery.facts()
    for entry in entries[1:]:
        other = await entry.tells.discovery.facts()
        _check_alike(first, facts, entry.tells, other)
    if config.deployment.model not in facts.models:
        raise ConfigError(
            f"deployment.model: {first.endpoint.name} does not serve {config.deployment.model!r}; it serves "
            f"{', '.join(facts.models) or 'nothing'}; use one of these names"
        )
    prompts = await _prompts(connection, seed)
    geometry, notes = await _geometry(connection, facts, prompts, active)
    prompts = replace(prompts, granule=geometry.granule)
    if not active:
        return Explored(facts, geometry, _assumed(connection), prompts, tuple(notes))
    capabilities = await _capabilities(connection, prompts)
    two_leg, told = await _passes_the_gateway(connection, prompts)
    return Explored(facts, geometry, capabilities, prompts, (*notes, *told), two_leg)


def _check_alike(first: Link, facts: ServerFacts, other: Link, other_facts: ServerFacts) -> None:
    for name in ("block_size", "granule", "chunk", "max_model_len"):
        one, two = getattr(facts, name), getattr(other_facts, name)
        if one is not None and two is not None and one != two:
            raise ConfigError(
                f"deployment.endpoints: {first.endpoint.name} and {other.endpoint.name} differ in {name} ({one} and "
                f"{two}), so their hits cannot be compared; start them alike"
            )


async def _prompts(connection: Connection, seed: int) -> PromptSource:
    """Tokenise every piece of text once, on the deployment's own tokenizer."""
    wanted: list[tuple[str, str]] = [(each.family, each.language) for each in connection.config.gate.families]
    keys = tuple(dict.fromkeys(wanted))
    families = {key: load_family(*key) for key in keys}
    link, model = connection.entries()[0].tells, connection.deployment.model
    pieces = tuple(dict.fromkeys(piece for family in families.values() for piece in family.pieces()))
    at_once = asyncio.Semaphore(TOKENIZE_AT_ONCE)

    async def tokenize(piece: str) -> tuple[int, ...]:
        async with at_once:
            return await link.discovery.tokenize(model, piece, special=False)

    prefix = await _prompt_prefix(link, model)
    ids = dict(zip(pieces, await asyncio.gather(*map(tokenize, pieces)), strict=True))
    lexicons = {key: Lexicon({piece: ids[piece] for piece in families[key].pieces()}, prefix) for key in keys}
    return PromptSource(families, lexicons, seed, granule=1)


async def _prompt_prefix(link: Link, model: str) -> tuple[int, ...]:
    """The tokens a prompt starts with (beginning-of-sequence), as the tokenizer adds them."""
    plain = await link.discovery.tokenize(model, "a", special=False)
    special = await link.discovery.tokenize(model, "a", special=True)
    return special[: len(special) - len(plain)] if special[-len(plain) :] == plain else ()


async def _geometry(
    connection: Connection, facts: ServerFacts, prompts: PromptSource, active: bool
) -> tuple[Geometry, list[str]]:
    overrides: GeometryConfig = connection.config.deployment.geometry
    notes: list[str] = []
    sources = dict(facts.sources) | dict.fromkeys(overrides.model_fields_set, "configuration")
    longest = overrides.max_model_len or facts.max_model_len
    if longest is None:
        raise ConfigError("deployment.geometry.max_model_len: the server does not say how long a prompt may be; set it")
    granule = overrides.granule or facts.granule or overrides.block_size or facts.block_size
    if granule is not None and "granule" not in sources:
        sources["granule"] = "the block size"
    if granule is None and active:
        granule = await _probe_granule(connection, prompts, longest)
        sources["granule"] = "probing"
    if granule is None:
        raise ConfigError(
            "deployment.geometry.granule: the server does not say in which steps it reuses KV; set it (the engine's "
            "start-up log names the block size), or let `kvgate doctor` find it by probing"
        )
    chunk = overrides.chunk or facts.chunk
    if chunk is None:
        chunk = longest
        sources["chunk"] = "unknown"
        notes.append(
            "the prefill chunk is unknown, so no length can be aligned; set deployment.geometry.chunk to the engine's "
            "max_num_batched_tokens"
        )
    speculation = overrides.speculation_granules
    if speculation is None:
        speculation = 1 if facts.speculative_method in DRAFTING else 0
    geometry = Geometry(
        block_size=overrides.block_size or facts.block_size or granule,
        granule=granule,
        chunk=chunk,
        max_model_len=longest,
        retention_interval=overrides.retention_interval or facts.retention_interval or 0,
        speculation_granules=speculation,
        sources=tuple(sorted(sources.items())),
    )
    return geometry, notes


async def _probe_granule(connection: Connection, prompts: PromptSource, longest: int) -> int | None:
    """Send prompts twice and read how much of each was reused: the steps show the granule."""
    link = connection.entries()[0].tells
    key = next(iter(prompts.families))
    top = min([*connection.config.gate.tiers, longest - 16])
    seen: list[tuple[int, int]] = []
    for length in (top, top - top // 7, top - top // 3, top // 2):
        try:
            prompt = compose(prompts.families[key], prompts.lexicons[key], prompts.seed, f"granule{length}", length, 64)
        except TooShortError:
            continue
        body = link.engine.encode(prompt.ids)
        reused = 0
        for number in range(2):
            probe = Probe(f"granule{length}.{number}", "", Arm.WARMUP, number, link.endpoint.name, None, length, 8, "")
            observation = await link.engine.complete(probe, body)
            usage = observation.usage
            reused = (usage.cached_tokens or 0) if usage is not None else 0
        seen.append((length, reused))
    return infer_granule(tuple(seen))


async def _capabilities(connection: Connection, prompts: PromptSource) -> tuple[Capabilities, ...]:
    """Ask each endpoint that is sent probes, and whether local caches can be dropped where the plan needs that."""
    ids = _short_prompt(prompts)
    found: list[Capabilities] = []
    for entry in connection.entries():
        seen = await entry.answers.discovery.capabilities(ids)
        if entry.tells is not entry.answers:
            seen = await entry.tells.discovery.counting(seen)
        reply = await entry.engine.drop_local()
        for _ in range(5):
            if reply.outcome is not DropOutcome.REFUSED:
                break
            await asyncio.sleep(0.5)
            reply = await entry.engine.drop_local()
        usable = reply.outcome in (DropOutcome.DROPPED, DropOutcome.UNKNOWN)
        details = (*seen.details, f"reset: {reply.detail}") if reply.detail else seen.details
        found.append(replace(seen, reset_local=usable, details=details))
    return tuple(found)


def _short_prompt(prompts: PromptSource) -> tuple[int, ...]:
    key = next(iter(prompts.families))
    lexicon = prompts.lexicons[key]
    return (*lexicon.prefix, *(token for piece in prompts.families[key].sentences[:2] for token in lexicon.ids[piece]))


async def _passes_the_gateway(connection: Connection, prompts: PromptSource) -> tuple[bool, tuple[str, ...]]:
    """Whether kvgate's own two legs are answered, and if not, what was said."""
    engine = connection.past_gateway()
    if engine is None:
        return True, ()
    ids = _short_prompt(prompts)
    probe = Probe("two-legs", "", Arm.WARMUP, 0, engine.name, None, len(ids), 8, "")
    seen = await engine.complete(probe, engine.encode(np.array(ids, dtype=np.int32)))
    return (True, ()) if seen.ok else (False, (f"two legs past the gateway: {seen.detail}",))


def _assumed(connection: Connection) -> tuple[Capabilities, ...]:
    """For a dry run: nothing was asked, so everything is assumed to work."""
    return tuple(
        Capabilities(entry.name, reset_local=True, details=("assumed, not asked",)) for entry in connection.entries()
    )


def plan_for(connection: Connection, explored: Explored, policy: PolicyName | None) -> Plan:
    """The plan for what was found. Raises ConfigError where the configuration cannot be planned."""
    config = connection.config
    gate = config.gate
    request = PlanRequest(
        tiers=tuple(gate.tiers),
        aligned=gate.lengths == "aligned",
        groups_per_tier=gate.groups_per_tier,
        boundaries=gate.boundaries,
        short_control=gate.short_control,
        arms=_arms(config),
        families=tuple((each.family, each.language) for each in gate.families),
        forcing=None if gate.forcing == "auto" else gate.forcing,
        salts_honoured=config.deployment.salts == "honoured",
        max_tokens=config.requests.max_tokens,
        seed=explored.prompts.seed,
        ranks=config.deployment.ranks,
        prefix_caching=explored.facts.prefix_caching,
        capacity=config.deployment.geometry.capacity or explored.facts.capacity,
        restarts=config.hooks.restart is not None,
        canaries=gate.canaries,
        two_leg=explored.two_leg,
    )
    try:
        plan = make_plan(
            request,
            connection.deployment,
            explored.geometry,
            explored.capabilities,
            explored.prompts,
            connection.dialect.by_source_grade,
            rules_of(config, policy),
        )
    except PlanError as error:
        raise ConfigError(str(error)) from None
    return replace(plan, notes=(*explored.notes, *plan.notes))


def _arms(config: Config) -> frozenset[Arm]:
    """A store that ignores salts has no second key space, so the cold run cannot be repeated."""
    arms = frozenset(config.gate.arms)
    return arms if config.deployment.salts == "honoured" else arms - {Arm.COLD_REPEAT}


def draw_seed(config: Config) -> int:
    """The seed asked for, or a new one: nonces must be new in every run."""
    return config.gate.seed if config.gate.seed is not None else secrets.randbits(DRAWN_BITS)
