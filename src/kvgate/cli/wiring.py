"""From a configuration to connected engines."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from kvgate.config.schema import Config
from kvgate.domain.deployment import Deployment, Endpoint, Role
from kvgate.domain.parts import route_of
from kvgate.domain.plan import Route
from kvgate.engines.dialects import DIALECTS, Dialect
from kvgate.engines.discovery import EndpointDiscovery
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.engines.gateway import GatewayEngine
from kvgate.engines.logs import LogFile
from kvgate.engines.wire import Timeouts
from kvgate.errors import ConfigError, KvgateError
from kvgate.ports import Engine

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
    run_id: str = ""

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
            return (Entry(GatewayEngine(None, *behind, settle_s=self.config.limits.settle_s), decode[0], prefill[0]),)
        return (Entry(GatewayEngine(gateways[0].engine, *behind), gateways[0], prefill[0]),)

    def front(self) -> tuple[Engine, ...]:
        """What users call: the gateways; where there are none the combined engines, or prefill and decode in two legs.

        Raises ConfigError if there is none.
        """
        links = self._with(Role.GATEWAY) or self._with(Role.COMBINED)
        return tuple(link.engine for link in links) or tuple(entry.engine for entry in self.entries())

    def front_in_two_legs(self) -> bool:
        """Whether kvgate plays the gateway itself."""
        return not (self._with(Role.GATEWAY) or self._with(Role.COMBINED))

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
        behind = tuple(link.engine for link in prefill), tuple(link.engine for link in decode)
        return GatewayEngine(None, *behind, settle_s=self.config.limits.settle_s)

    def _with(self, role: Role) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.endpoint.role is role)


def deployment_of(config: Config) -> Deployment:
    """The deployment a configuration describes."""
    section = config.deployment
    endpoints = tuple(Endpoint(each.name, each.role, each.url.rstrip("/"), each.rank) for each in section.endpoints)
    return Deployment(section.name, section.engine, section.model, endpoints, section.alike)


@asynccontextmanager
async def connect(config: Config, run_id: str, bare: bool = False) -> AsyncIterator[Connection]:
    """Clients for every endpoint, closed at the end. Raises ConfigError if the named secret is not set.

    ``bare`` requests are such as users send: they ask for neither logprobs nor token IDs, which take time, and it is
    kept when each piece of an answer came.
    """
    bearer = _bearer(config)
    deployment = deployment_of(config)
    dialect = DIALECTS[deployment.engine]
    timing = config.requests
    settings = RequestSettings(
        model=deployment.model,
        logprobs=None if bare else timing.logprobs,
        stream=timing.stream,
        ignore_eos=timing.ignore_eos,
        run_id=run_id,
        timeouts=Timeouts(timing.connect_s, timing.first_token_s, timing.first_token_s_per_1k, timing.inactivity_s),
        keeps_pieces=bare,
        secret=bearer,
    )
    links: list[Link] = []
    try:
        for endpoint in deployment.endpoints:
            client = make_client(endpoint.url, bearer, timing.connect_s)
            log = next(each.log for each in config.deployment.endpoints if each.name == endpoint.name)
            engine = HttpEngine(
                endpoint.name, client, dialect, replace(settings, rank=endpoint.rank), _log_file(endpoint.name, log)
            )
            if bare:
                engine.ask_ids_by(())
            links.append(Link(endpoint, client, engine, EndpointDiscovery(endpoint, client, engine, dialect)))
        yield Connection(config, deployment, dialect, tuple(links), run_id)
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
