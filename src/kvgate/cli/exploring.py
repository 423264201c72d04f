"""What is found out before planning: geometry, prompts and capabilities; and the plan made of it."""

import asyncio
import secrets
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvgate.cli.rules import rules_of
from kvgate.cli.wiring import Connection, Link
from kvgate.config.families import load_family
from kvgate.config.schema import Config, GeometryConfig, PressureConfig
from kvgate.domain.counters import Counter, difference
from kvgate.domain.deployment import Capabilities, Role
from kvgate.domain.geometry import Geometry, infer_granule
from kvgate.domain.history import DropOutcome
from kvgate.domain.parts import NO_PRESSURE, PlanError, PlanRequest, Pressure
from kvgate.domain.plan import Plan
from kvgate.domain.planning import PromptSource, make_plan
from kvgate.domain.policy import PolicyName
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Lexicon, TooShortError, compose
from kvgate.domain.sequel import sequel_notes
from kvgate.engines.chat import ChatPrompts
from kvgate.engines.discovery import ServerFacts
from kvgate.errors import ConfigError

TOKENIZE_AT_ONCE = 8
DRAFTING = frozenset({"eagle", "eagle3", "mtp", "deepseek_mtp", "dflash", "dspark"})
DRAWN_BITS = 48
# Readings, a tenth of a second apart, until counters have taken in one short request.
COUNTED_TRIES = 20


@dataclass(frozen=True, slots=True)
class Explored:
    """What was found out before planning; ``two_leg`` is whether the way past a gateway was answered."""

    facts: ServerFacts
    geometry: Geometry
    capabilities: tuple[Capabilities, ...]
    prompts: PromptSource
    notes: tuple[str, ...]
    two_leg: bool = True


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
    if config.requests.endpoint == "chat":
        notes.append(
            "prompts are sent as chats: arms mixed, branch and continuation, which send parts of one, are left out"
        )
    if not active:
        return Explored(facts, geometry, _assumed(connection), prompts, tuple(notes))
    capabilities = await _capabilities(connection, prompts)
    geometry = await _with_prefill_drops(connection, geometry, prompts)
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
    """What the prompts of the configuration's families are made from."""
    wanted: list[tuple[str, str]] = [(each.family, each.language) for each in connection.config.gate.families]
    return await tokenised(connection, tuple(dict.fromkeys(wanted)), seed)


async def tokenised(connection: Connection, keys: tuple[tuple[str, str], ...], seed: int) -> PromptSource:
    """Tokenise every piece of the families' texts once, on the deployment's own tokenizer."""
    families = {key: load_family(*key) for key in keys}
    link, model = connection.entries()[0].tells, connection.deployment.model
    pieces = tuple(dict.fromkeys(piece for family in families.values() for piece in family.pieces()))
    at_once = asyncio.Semaphore(TOKENIZE_AT_ONCE)

    async def tokenize(piece: str) -> tuple[int, ...]:
        async with at_once:
            return await link.discovery.tokenize(model, piece, special=False)

    prefix, suffix = await _prompt_prefix(link, model), tuple[int, ...]()
    if connection.config.requests.endpoint == "chat":
        frame = await link.discovery.chat_frame(model)
        prefix, suffix = frame.prefix, frame.suffix
        chats = ChatPrompts(frame, partial(link.discovery.detokenize, model))
        for each in connection.links:
            each.engine.speak_chat(chats)
    ids = dict(zip(pieces, await asyncio.gather(*map(tokenize, pieces)), strict=True))
    lexicons = {key: Lexicon({piece: ids[piece] for piece in families[key].pieces()}, prefix, suffix) for key in keys}
    return PromptSource(families, lexicons, seed, granule=1)


async def _prompt_prefix(link: Link, model: str) -> tuple[int, ...]:
    """The tokens a prompt starts with (beginning-of-sequence), as the tokenizer adds them."""
    plain = await link.discovery.tokenize(model, "a", special=False)
    special = await link.discovery.tokenize(model, "a", special=True)
    return special[: len(special) - len(plain)] if special[-len(plain) :] == plain else ()


async def _geometry(
    connection: Connection, facts: ServerFacts, prompts: PromptSource, active: bool
) -> tuple[Geometry, list[str]]:
    longest = _longest(connection.config.deployment.geometry, facts)
    granule, probed = _granule(connection.config.deployment.geometry, facts), False
    if granule is None and active:
        granule = await _probe_granule(connection, prompts, longest)
        probed = True
    if granule is None:
        raise ConfigError(
            "deployment.geometry.granule: the server does not say in which steps it reuses KV; set it (the engine's "
            "start-up log names the block size), or let `kvgate doctor` find it by probing"
        )
    return _sized(connection.config.deployment.geometry, facts, (longest, granule, probed))


def passive_geometry(connection: Connection, facts: ServerFacts) -> Geometry | None:
    """The geometry as far as the server tells it without being sent a prompt, None if that is not enough.

    Raises ConfigError.
    """
    overrides = connection.config.deployment.geometry
    granule = _granule(overrides, facts)
    if granule is None:
        return None
    geometry, _ = _sized(overrides, facts, (_longest(overrides, facts), granule, False))
    return replace(geometry, prefill_drops=overrides.prefill_drops or 0)


def _longest(overrides: GeometryConfig, facts: ServerFacts) -> int:
    longest = overrides.max_model_len or facts.max_model_len
    if longest is None:
        raise ConfigError("deployment.geometry.max_model_len: the server does not say how long a prompt may be; set it")
    return longest


def _granule(overrides: GeometryConfig, facts: ServerFacts) -> int | None:
    return overrides.granule or facts.granule or overrides.block_size or facts.block_size


def _sized(overrides: GeometryConfig, facts: ServerFacts, found: tuple[int, int, bool]) -> tuple[Geometry, list[str]]:
    """The geometry, and notes; ``found`` are the longest prompt, the granule, and whether that was found by probing."""
    longest, granule, probed = found
    notes: list[str] = []
    sources = dict(facts.sources) | dict.fromkeys(overrides.model_fields_set, "configuration")
    if probed or "granule" not in sources:
        sources["granule"] = "probing" if probed else "the block size"
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


async def _with_prefill_drops(connection: Connection, geometry: Geometry, prompts: PromptSource) -> Geometry:
    """The same geometry with how many tokens the prefill side leaves to decode, as its counters show."""
    override = connection.config.deployment.geometry.prefill_drops
    if override is not None:
        return replace(geometry, prefill_drops=override)
    entry = connection.entries()[0]
    if not connection.deployment.with_role(Role.DECODE) or entry.tells is entry.answers:
        return geometry
    ids = _short_prompt(prompts)
    probe = Probe("prefill-drops", "", Arm.WARMUP, 0, entry.name, None, len(ids), 8, "")
    before = (await entry.engine.read_counters()).counters
    seen = await entry.engine.complete(probe, entry.engine.encode(np.array(ids, dtype=np.int32)))
    left = None
    for _ in range(COUNTED_TRIES if seen.ok and before is not None else 0):
        after = (await entry.engine.read_counters()).counters
        delta = difference(before, after) if before is not None and after is not None else None
        prefilled, decoded = (
            (delta.total(Counter.PROMPT_TOKENS), delta.total(Counter.DECODE_PROMPT))
            if delta is not None
            else (None, None)
        )
        # Settled once decode has counted the whole prompt: prefill was done before.
        left = len(ids) - prefilled if prefilled and decoded == len(ids) else None
        if left is not None:
            break
        await asyncio.sleep(0.1)
    if left != 1:
        return geometry
    return replace(geometry, prefill_drops=1, sources=tuple(sorted({*geometry.sources, ("prefill_drops", "probing")})))


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
    said = (token for piece in prompts.families[key].sentences[:2] for token in lexicon.ids[piece])
    return (*lexicon.prefix, *said, *lexicon.suffix)


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
        sentinel=gate.sentinel,
        outage=config.hooks.pool_down is not None,
        more_groups=gate.more_groups,
        two_leg=explored.two_leg,
        pressure=_pressure(config.gate.pressure),
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
    return replace(plan, notes=(*explored.notes, *plan.notes, *sequel_notes(plan)))


def _pressure(asked: PressureConfig | None) -> Pressure:
    if asked is None:
        return NO_PRESSURE
    levels = asked.concurrency if isinstance(asked.concurrency, list) else [asked.concurrency]
    if not any((asked.between, *levels)):
        raise ConfigError("gate.pressure: concurrency is 0 and between, too, so nothing is sent; raise one of them")
    return Pressure(tuple(levels), asked.tokens, asked.cancel_share, asked.pause_s, asked.between)


def _arms(config: Config) -> frozenset[Arm]:
    """The arms that can be sent.

    A store that ignores salts has no second key space, so the cold run cannot be repeated. Of a chat no part can be
    sent: what the template adds stands at its end.
    """
    arms = frozenset(config.gate.arms)
    if config.requests.endpoint == "chat":
        arms -= {Arm.MIXED, Arm.BRANCH, Arm.CONTINUATION}
    return arms if config.deployment.salts == "honoured" else arms - {Arm.COLD_REPEAT}


def draw_seed(config: Config) -> int:
    """The seed asked for, or a new one: nonces must be new in every run."""
    return config.gate.seed if config.gate.seed is not None else secrets.randbits(DRAWN_BITS)
