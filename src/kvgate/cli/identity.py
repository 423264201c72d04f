"""Which deployment a configuration is about: by what it says, and by what its engines tell."""

from kvgate.cli.exploring import passive_geometry
from kvgate.cli.wiring import Connection, deployment_of
from kvgate.config.schema import Config
from kvgate.domain.deployment import Role
from kvgate.domain.fingerprint import STATED, Fingerprint, fingerprint, sizes_of, standing, traits_of
from kvgate.engines.discovery import ServerFacts
from kvgate.errors import ConfigError

_ENGINES = (Role.COMBINED, Role.PREFILL, Role.DECODE)
_SERVER_INFO = "/server_info"


def stated_in(config: Config) -> dict[str, str]:
    """Traits of the deployment that only the configuration says."""
    facts = config.deployment.facts
    found = {name: getattr(facts, name) for name in STATED}
    found |= {f"version.{name}": value for name, value in facts.versions.items()}
    found |= {f"feature.{name}": value for name, value in facts.features.items()}
    found |= {"deployment.ranks": str(config.deployment.ranks), "requests.endpoint": config.requests.endpoint}
    return {name: value for name, value in found.items() if value is not None}


def asked_in(config: Config) -> tuple[str, ...]:
    """What a configuration asks to be sent beside its tiers."""
    gate = config.gate
    asked = [f"arm {arm.value}" for arm in gate.arms]
    asked += [f"family {each.family} {each.language}" for each in gate.families]
    asked += ["boundaries"] if gate.boundaries else []
    asked += ["sentinel"] if gate.sentinel else []
    asked += [f"canaries {gate.canaries}"] if gate.canaries else []
    asked += ["pool_down"] if config.hooks.pool_down is not None else []
    if gate.pressure is not None:
        said = gate.pressure.model_dump(exclude_defaults=True)
        asked.append("pressure " + " ".join(f"{name}={value}" for name, value in sorted(said.items())))
    return tuple(dict.fromkeys(asked))


async def told_by(connection: Connection, facts: ServerFacts) -> dict[str, str]:
    """Traits that engines tell of themselves and that no plan holds; ``facts`` are those of the first one."""
    links = [link for link in connection.links if link.endpoint.role in _ENGINES]
    versions = sorted({(link.endpoint.role.value, await link.discovery.version() or "unknown") for link in links})
    each = {version for _, version in versions}
    found: dict[str, str] = {}
    if each - {"unknown"}:
        # One word where all are alike; otherwise which of them is which.
        found["server.version"] = each.pop() if len(each) == 1 else " + ".join(map(" ".join, versions))
    if facts.prefix_caching is not None:
        found["server.prefix_caching"] = str(facts.prefix_caching).lower()
    if facts.speculative_method is not None:
        found["server.speculation"] = facts.speculative_method
    elif _SERVER_INFO in dict(facts.sources).values():
        found["server.speculation"] = "none"
    return found


def deployment_said(config: Config) -> Fingerprint:
    """The deployment by its configuration alone; what engines tell is unknown, unless it is overridden there."""
    said = config.deployment
    values = standing() | traits_of(deployment_of(config), said.salts == "honoured") | stated_in(config)
    overrides = said.geometry.model_dump(exclude_none=True)
    # A retention interval of 0 stands for what the server says.
    return fingerprint(
        values | {f"geometry.{name}": str(size) for name, size in overrides.items() if name in _SIZES and size}
    )


_SIZES = tuple(name.removeprefix("geometry.") for name in standing() if name.startswith("geometry."))


async def deployment_asked(connection: Connection) -> Fingerprint:
    """The deployment by its configuration and by what its engines tell now, by GET requests only.

    Raises RemoteError, or ConfigError if the model is not served.
    """
    config = connection.config
    first = connection.entries()[0].tells
    facts = await first.discovery.facts()
    if config.deployment.model not in facts.models:
        raise ConfigError(
            f"deployment.model: {first.endpoint.name} does not serve {config.deployment.model!r}; it serves "
            f"{', '.join(facts.models) or 'nothing'}; use one of these names"
        )
    said = {each.name: each.value for each in deployment_said(config).traits}
    told = await told_by(connection, facts)
    geometry = passive_geometry(connection, facts)
    if geometry is not None:
        sizes = sizes_of(geometry)
        transfers = bool(connection.deployment.with_role(Role.DECODE))
        if transfers and config.deployment.geometry.prefill_drops is None:
            # Only a request shows it.
            sizes["geometry.prefill_drops"] = None
        told |= {name: size for name, size in sizes.items() if size is not None}
    return fingerprint(said | told)
