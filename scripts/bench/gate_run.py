"""A gate run in parts, as ``kvgate run`` puts them together, so that a benchmark can time the parts alone."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.cli.clock import RealClock
from kvgate.cli.exploring import explore, plan_for
from kvgate.cli.wiring import Connection, connect
from kvgate.config.schema import Config
from kvgate.domain.plan import Plan
from kvgate.domain.planning import PromptSource
from kvgate.engines.hooks import ProcessHooks
from kvgate.gate.line import Outside
from kvgate.gate.session import Session, Settings
from kvgate.ports import Engine, Watcher
from kvgate.store.run_directory import Manifest, RunDirectory

RUN_ID = "bench"
SEED = 7


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, what makes its prompts, and the address of the server it was made for."""

    url: str
    config: Config
    plan: Plan
    prompts: PromptSource


class QuietWatcher:
    """Progress is not part of what is measured; ``on_group`` is called with the number of the group that begins."""

    def __init__(self, on_group: Callable[[int], None] | None = None) -> None:
        self._on_group = on_group

    def group_started(self, index: int, count: int, group_id: str, length: int) -> None:  # noqa: ARG002 - the port's
        """A group begins."""
        if self._on_group is not None:
            self._on_group(index)

    def arm_started(self, group_id: str, arm: str, attempt: int) -> None:
        """Pass over."""

    def said(self, text: str) -> None:
        """Pass over."""


def config_for(url: str, tiers: tuple[int, ...], groups: int, max_tokens: int = 32) -> Config:
    """The default configuration, except that nothing waits and tiers are exact token counts."""
    endpoint = {"name": "a", "role": "combined", "url": url}
    document: dict[str, Any] = {
        "version": 1,
        "deployment": {"name": "bench", "engine": "vllm", "model": "m", "endpoints": [endpoint]},
        "gate": {
            "tiers": list(tiers),
            "lengths": "exact",
            "groups_per_tier": groups,
            "boundaries": False,
            "short_control": False,
            "seed": SEED,
        },
        "requests": {"max_tokens": max_tokens},
        "limits": {"settle_s": 0.0},
        "budget": {"computed_tokens": 10**9, "minutes": 1000.0},
    }
    return Config.model_validate(document)


async def prepare(url: str, tiers: tuple[int, ...], groups: int, max_tokens: int = 32) -> Work:
    """Explore the server and plan, as ``kvgate run`` does before its first probe."""
    config = config_for(url, tiers, groups, max_tokens)
    async with connect(config, RUN_ID) as connection:
        explored = await explore(connection, SEED, active=True)
        plan = plan_for(connection, explored, None)
    return Work(url, config, plan, explored.prompts)


@asynccontextmanager
async def open_session(
    work: Work, watcher: Watcher | None = None, wrap: Callable[[Engine], Engine] | None = None
) -> AsyncIterator[tuple[Session, Connection, Path]]:
    """A session with real engines, clock and a run directory on disk, not yet run; the directory goes afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvgate-bench-"))
    manifest = Manifest(RUN_ID, "0", "", "", "", work.plan, (), {})
    try:
        async with connect(work.config, RUN_ID) as connection:
            directory = RunDirectory.create(folder, manifest)
            engines: Mapping[str, Engine] = connection.engines()
            if wrap is not None:
                engines = {name: wrap(engine) for name, engine in engines.items()}
            outside = Outside(engines, ProcessHooks(), directory, RealClock(), watcher or QuietWatcher())
            settings = Settings({}, {}, hook_s=1.0, evidence_s=work.config.limits.evidence_s)
            try:
                yield Session(work.plan, RUN_ID, work.prompts, outside, settings), connection, directory.path
            finally:
                directory.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
